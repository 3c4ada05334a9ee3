//! The tables, and the encoding of the rows that are not trie rows: blocks, lists of superseded
//! rows, deleted keys.
//!
//! | table | key | row |
//! |---|---|---|
//! | [`ACCOUNT_NODES`] | version, path of a group | a [pack](super::pack) of branches of the account trie |
//! | [`STORAGE_NODES`] | version, owner, path of a group | a pack of branches of a storage trie, and its root |
//! | [`BLOCKS`] | number (8, BE) | state root, root of the account trie ([`branch_row::encode_root`]; nothing if it is empty) |
//! | [`SUPERSEDED`] | number (8, BE), part (4, BE) | a list ([`SupersededLists`]) |
//! | [`DELETED_KEYS`] | state key | the last block that deleted it (8, BE) |
//! | [`GARBAGE_PROGRESS`] | one byte, 0 | the first block whose state is kept (8, BE), the first list's key ([`list_key`]) |

use super::{branch_row, pack};
use alloy_primitives::{B256, Bytes};
use alloy_trie::Nibbles;
use retrie_state::{
    AccountKey, BackendKey, NodeRead, NodeWrite, RowTable, StateError,
    wire::{WireReader, put_varint},
};
use retrie_storage_mpt::{Trie, TrieHash, trie::record};

/// Branches of the account trie, every version.
pub const ACCOUNT_NODES: RowTable = RowTable::new(0x30, "PrefixAccountNodes");
/// Roots and branches of storage tries, every version.
pub const STORAGE_NODES: RowTable = RowTable::new(0x31, "PrefixStorageNodes");
/// The state of each kept block.
pub const BLOCKS: RowTable = RowTable::new(0x32, "PrefixBlocks");
/// Rows that no state from a block on needs, by that block.
pub const SUPERSEDED: RowTable = RowTable::new(0x33, "PrefixSuperseded");
/// Deleted keys that had a value in a kept block.
pub const DELETED_KEYS: RowTable = RowTable::new(0x34, "PrefixGone");
/// Progress of garbage collection, in one row; no row if it has not begun.
pub(super) const GARBAGE_PROGRESS: RowTable = RowTable::new(0x35, "PrefixForgotten");

/// The table of the storage trie of `trie`, or of the account trie.
pub(super) const fn table(trie: Option<AccountKey>) -> RowTable {
    match trie {
        None => ACCOUNT_NODES,
        Some(_) => STORAGE_NODES,
    }
}

/// The key of a block's row.
pub(super) const fn block_key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// The block number at the head of a key.
pub(super) fn block_number(table: RowTable, key: &[u8]) -> Result<u64, StateError> {
    let number = key.first_chunk().map(|number| u64::from_be_bytes(*number));
    number.ok_or_else(|| StateError::corrupt(table.name, "a key is not a block number"))
}

/// The row of block `number`, whose state has this account trie.
pub(super) fn encode_block(number: u64, accounts: &Trie<u64>) -> Bytes {
    let root = accounts.root().map(|root| branch_row::encode_root(root, number, true));
    [accounts.hash().as_slice(), &root.unwrap_or_default()].concat().into()
}

/// The state root and the account trie of block `number`.
pub(super) fn decode_block(number: u64, stored: &Bytes) -> Result<(B256, Trie<u64>), StateError> {
    let corrupt =
        |what: &str| StateError::corrupt(BLOCKS.name, format!("the row of block {number} {what}"));
    let malformed = || corrupt("is malformed");
    if stored.len() < 32 {
        return Err(malformed());
    }
    let (hash, root) = (B256::from_slice(&stored[..32]), stored.slice(32..));
    let trie = if root.is_empty() {
        Trie::empty(TrieHash::Keccak256)
    } else {
        let link = branch_row::decode_root(&root, hash, number, true).ok_or_else(malformed)?;
        Trie::from_root(Some(link))
    };
    if trie.hash() == hash { Ok((hash, trie)) } else { Err(corrupt("has another state root")) }
}

/// Progress of garbage collection: where blocks and lists begin. A search for the first block or
/// list starts here, and does not walk over deleted rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct GarbageProgress {
    /// No block before this one has a state.
    pub(super) blocks: [u8; 8],
    /// No list has a key before this one.
    pub(super) lists: [u8; 12],
}

const GARBAGE_PROGRESS_KEY: &[u8] = &[0];

impl GarbageProgress {
    pub(super) fn read(view: &dyn NodeRead) -> Result<Self, StateError> {
        let Some(row) = view.get(GARBAGE_PROGRESS, GARBAGE_PROGRESS_KEY)? else {
            return Ok(Self::default());
        };
        let parts = row.split_first_chunk().and_then(|(blocks, lists)| {
            Some(Self { blocks: *blocks, lists: lists.try_into().ok()? })
        });
        parts.ok_or_else(|| StateError::corrupt(GARBAGE_PROGRESS.name, "its row is malformed"))
    }

    pub(super) fn write(&self, view: &mut dyn NodeWrite) -> Result<(), StateError> {
        let row = [&self.blocks[..], &self.lists].concat();
        view.put(GARBAGE_PROGRESS, GARBAGE_PROGRESS_KEY, row.into())
    }
}

/// The last block that deleted `key`, if its old value is in a kept block.
pub(super) fn deleted_at(view: &dyn NodeRead, key: &BackendKey) -> Result<Option<u64>, StateError> {
    let Some(stored) = view.get(DELETED_KEYS, &key.encode())? else { return Ok(None) };
    let number = stored[..].try_into().map(u64::from_be_bytes);
    number
        .map(Some)
        .map_err(|_| StateError::corrupt(DELETED_KEYS.name, format!("malformed row of {key}")))
}

/// A row that a block superseded: no state from this block on needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SupersededRow {
    /// The row of a branch, by trie, path and version.
    Branch(Option<AccountKey>, Nibbles, u64),
    /// The row of the root of a storage trie.
    Root(AccountKey, u64),
    /// The row of a deleted key.
    Key(BackendKey),
}

impl SupersededRow {
    /// Table and key of its row or pack, before any layout, and its place in the pack.
    pub(super) fn row_key(&self) -> (RowTable, Vec<u8>, Option<u8>) {
        match self {
            Self::Branch(trie, path, version) => {
                let key = pack::key(*version, *trie, &pack::group(path));
                (table(*trie), key, Some(pack::tag(path)))
            }
            Self::Root(owner, version) => {
                let key = pack::key(*version, Some(*owner), &Nibbles::new());
                (STORAGE_NODES, key, Some(pack::ROOT_TAG))
            }
            Self::Key(key) => (DELETED_KEYS, key.encode().to_vec(), None),
        }
    }

    const fn trie(&self) -> Option<AccountKey> {
        match self {
            Self::Branch(trie, ..) => *trie,
            Self::Root(owner, _) => Some(*owner),
            Self::Key(_) => None,
        }
    }
}

/// A list with this many bytes is closed, so that a list is about one page on disk.
const LIST_BYTES: usize = 3_900;

const BRANCH: u8 = 0;
const ROOT: u8 = 1;
const KEY: u8 = 2;
const ADDRESS: u8 = 3;
const ADDRESS_HASH: u8 = 4;

/// The rows that a block superseded, in lists of about a page.
///
/// A list is a sequence of entries. The first byte of an entry is its kind:
///
/// | bytes | meaning |
/// |---|---|
/// | 3, address, or 4 and its hash | the following entries belong to this account's storage trie; entries before the first such entry belong to the account trie |
/// | 0, shared, further, nibbles, age | a branch; its path is given by the nibbles shared with the previous path, and further nibbles |
/// | 1, age | the root of the storage trie |
/// | 2, length, state key | a deleted key |
///
/// The age is the block's number minus the row's version. Ages are LEB128; lengths, numbers of
/// nibbles and nibbles are a byte each.
#[derive(Debug, Default)]
pub(super) struct SupersededLists {
    block: u64,
    done: Vec<Bytes>,
    open: Vec<u8>,
    trie: Option<AccountKey>,
    path: Nibbles,
}

impl SupersededLists {
    /// Empty lists of block `block`.
    pub(super) fn of(block: u64) -> Self {
        Self { block, ..Self::default() }
    }

    /// Adds an entry.
    pub(super) fn add(&mut self, entry: &SupersededRow) {
        if self.open.len() >= LIST_BYTES {
            self.close();
        }
        if let (Some(owner), true) = (entry.trie(), entry.trie() != self.trie) {
            self.open.push(if owner.is_hashed() { ADDRESS_HASH } else { ADDRESS });
            self.open.extend_from_slice(&owner);
            (self.trie, self.path) = (Some(owner), Nibbles::new());
        }
        let block = self.block;
        let age = |version: u64| block.saturating_sub(version);
        match entry {
            SupersededRow::Branch(_, path, version) => {
                self.open.push(BRANCH);
                record::put_path_after(&mut self.open, &self.path, path);
                put_varint(&mut self.open, age(*version));
                self.path = *path;
            }
            SupersededRow::Root(_, version) => {
                self.open.push(ROOT);
                put_varint(&mut self.open, age(*version));
            }
            SupersededRow::Key(key) => {
                let key = key.encode();
                self.open.extend([KEY, key.len() as u8]);
                self.open.extend_from_slice(&key);
            }
        }
    }

    fn close(&mut self) {
        if !self.open.is_empty() {
            self.done.push(std::mem::take(&mut self.open).into());
        }
        (self.trie, self.path) = (None, Nibbles::new());
    }

    /// The lists with their keys.
    pub(super) fn finish(mut self) -> impl Iterator<Item = ([u8; 12], Bytes)> {
        self.close();
        let block = self.block;
        (0u32..).zip(self.done).map(move |(part, list)| (list_key(block, part), list))
    }
}

/// The key of a list of `block`.
pub(super) fn list_key(block: u64, part: u32) -> [u8; 12] {
    let mut key = [0; 12];
    key[..8].copy_from_slice(&block.to_be_bytes());
    key[8..].copy_from_slice(&part.to_be_bytes());
    key
}

/// The entries of a list of block `block`.
pub(super) fn decode_list(block: u64, list: &[u8]) -> Result<Vec<SupersededRow>, StateError> {
    let malformed =
        || StateError::corrupt(SUPERSEDED.name, format!("a list of block {block} is malformed"));
    let (mut rest, mut entries) = (WireReader::new(list), Vec::new());
    let (mut trie, mut path) = (None, Nibbles::new());
    while !rest.is_empty() {
        entries.extend(entry(&mut rest, block, &mut trie, &mut path).ok_or_else(malformed)?);
    }
    Ok(entries)
}

/// The next entry: `Some(None)` is an owner, which is then `trie`; `None` if it is malformed.
fn entry(
    rest: &mut WireReader<'_>,
    block: u64,
    trie: &mut Option<AccountKey>,
    path: &mut Nibbles,
) -> Option<Option<SupersededRow>> {
    let version = |rest: &mut WireReader<'_>| block.checked_sub(rest.varint().ok()?);
    Some(Some(match rest.u8().ok()? {
        tag @ (ADDRESS | ADDRESS_HASH) => {
            let len = if tag == ADDRESS { 20 } else { 32 };
            *trie = Some(AccountKey::from_slice(rest.take(len).ok()?)?);
            *path = Nibbles::new();
            return Some(None);
        }
        BRANCH => {
            *path = record::take_path_after(rest, path)?;
            SupersededRow::Branch(*trie, *path, version(rest)?)
        }
        ROOT => SupersededRow::Root((*trie)?, version(rest)?),
        KEY => {
            let len = usize::from(rest.u8().ok()?);
            SupersededRow::Key(BackendKey::decode(rest.take(len).ok()?)?)
        }
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::Address;
    use retrie_storage_mpt::trie::{Leaf, NodeLink};

    fn entries() -> Vec<SupersededRow> {
        let path = |nibbles: &[u8]| Nibbles::from_nibbles(nibbles);
        let [one, two] = [1, 2].map(|n| AccountKey::from(Address::repeat_byte(n)));
        vec![
            SupersededRow::Branch(None, path(&[1, 2, 3]), 7),
            SupersededRow::Branch(None, path(&[1, 2]), 300),
            SupersededRow::Branch(None, path(&[]), 299),
            SupersededRow::Branch(Some(one), path(&[1, 2]), 0),
            SupersededRow::Root(one, 12),
            SupersededRow::Root(two, 13),
            SupersededRow::Key(BackendKey::Account(one)),
            SupersededRow::Key(BackendKey::Slot(two, B256::repeat_byte(9))),
        ]
    }

    fn read(lists: SupersededLists) -> Vec<SupersededRow> {
        let block = lists.block;
        let lists = lists.finish().flat_map(|(_, list)| decode_list(block, &list).unwrap());
        lists.collect()
    }

    #[test]
    fn lists_say_what_was_added() {
        let mut lists = SupersededLists::of(300);
        entries().iter().for_each(|entry| lists.add(entry));
        assert_eq!(read(lists), entries());
        assert_eq!(SupersededLists::of(300).finish().count(), 0);
    }

    #[test]
    fn many_entries_make_many_lists_each_readable_by_itself() {
        let of = |n: u16| {
            let nibbles: Vec<u8> = n.to_be_bytes().iter().flat_map(|b| [b >> 4, b & 15]).collect();
            SupersededRow::Branch(
                Some(Address::repeat_byte((n >> 10) as u8).into()),
                Nibbles::from_nibbles(nibbles),
                5,
            )
        };
        let all: Vec<_> = (0..5_000).map(of).collect();
        let mut lists = SupersededLists::of(9);
        all.iter().for_each(|entry| lists.add(entry));
        let parts: Vec<_> = lists.finish().collect();
        assert!(parts.len() > 5 && parts.is_sorted_by(|a, b| a.0 < b.0));
        assert!(parts.iter().all(|(_, list)| list.len() < LIST_BYTES + 100));
        let found: Vec<_> =
            parts.iter().flat_map(|(_, list)| decode_list(9, list).unwrap()).collect();
        assert!(found == all);
    }

    #[test]
    fn damaged_lists_are_refused() {
        let mut lists = SupersededLists::of(300);
        entries().iter().for_each(|entry| lists.add(entry));
        let (_, list) = lists.finish().next().unwrap();
        for len in 0..list.len() {
            // At the end of an entry a list is whole.
            if let Ok(read) = decode_list(300, &list[..len]) {
                assert_eq!(read, entries()[..read.len()]);
            }
        }
        for wrong in
            [&[4][..], &[ROOT, 0], &[BRANCH, 1, 0, 0], &[BRANCH, 0, 1, 16, 0], &[BRANCH, 0, 64]]
        {
            assert!(decode_list(300, wrong).is_err(), "{wrong:?}");
        }
        // The version would be negative.
        assert!(decode_list(5, &[BRANCH, 0, 0, 6]).is_err());
        assert!(decode_list(5, &[BRANCH, 0, 0, 0x85, 0]).is_err(), "a number has one form");
    }

    #[test]
    fn rows_of_blocks_are_checked() {
        let empty = Trie::<u64>::empty(TrieHash::Keccak256);
        let row = encode_block(3, &empty);
        assert_eq!(row.len(), 32);
        assert!(decode_block(3, &row).unwrap().1.is_empty());
        let link = NodeLink::Leaf(std::sync::Arc::new(Leaf::new(
            B256::repeat_byte(4),
            vec![1, 2].into(),
            5,
        )));
        let trie = Trie::from_root(Some(link));
        let row = encode_block(5, &trie);
        assert_eq!(decode_block(5, &row).unwrap().0, trie.hash());
        let early = decode_block(0, &row).unwrap_err().to_string();
        assert!(early.contains("the row of block 0 is malformed"), "{early}");
        for at in 0..row.len() {
            let mut damaged = row.to_vec();
            damaged[at] ^= 1;
            if let Ok((_, read)) = decode_block(5, &damaged.into()) {
                // The stamp of a leaf is not part of the hash.
                assert_eq!((read.hash(), at), (trie.hash(), 65));
            }
        }
        assert!(decode_block(5, &row.slice(..31)).is_err());
    }
}
