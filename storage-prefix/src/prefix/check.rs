//! The check of `db verify`, over all rows.
//!
//! Every row of a trie must be reachable, with its version, from the state of a kept block. The
//! hash of its branch must be the one that its parent names. Every row must either belong to the
//! tip or be on exactly one list of superseded rows, the list of the first block that does not need
//! it. The check of a state below the tip covers only the trie of its block; all other rows were
//! checked with the tip.

use super::{
    Prefix, pack,
    record::{
        ACCOUNT_NODES, BLOCKS, DELETED_KEYS, GARBAGE_PROGRESS, GarbageProgress, STORAGE_NODES,
        SUPERSEDED, SupersededRow, block_number, decode_block, decode_list, deleted_at, table,
    },
    source::PrefixSource,
    state::PrefixState,
};
use alloy_primitives::{B256, hex, keccak256, map::HashMap};
use alloy_trie::Nibbles;
use retrie_state::{
    AccountKey, BackendKey, KeyRange, NodeRead, RowTable, ScanDirection, StateError, StateHistory,
    flat,
};
use retrie_storage_mpt::{
    Trie, TrieHash, leaf,
    trie::{Leaf, NodeLink, NodeSource},
};

/// Checks all rows of `view`, whose state has this root; below the tip only the rows of its state.
pub(super) fn check(
    backend: &Prefix,
    view: &dyn NodeRead,
    state: &PrefixState,
    root: B256,
    is_tip: bool,
    report: &mut dyn FnMut(StateError),
) -> Result<(), StateError> {
    let first = backend.kept(view)?.map_or(0, |kept| *kept.start());
    let (with_storage, reached) = (with_storage(view)?, HashMap::default());
    let mut check = PrefixCheck { backend, view, report, first, with_storage, reached };
    check.blocks(state, root, is_tip)?;
    if !is_tip {
        return Ok(());
    }
    check.lists()?;
    check.rows(state.block)?;
    check.gone(state.block)
}

/// A row that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ReachedRow {
    /// The newest block whose state contains it.
    last: u64,
    is_listed: bool,
    is_followed: bool,
}

struct PrefixCheck<'a> {
    backend: &'a Prefix,
    view: &'a dyn NodeRead,
    report: &'a mut dyn FnMut(StateError),
    /// The first block whose state is kept.
    first: u64,
    with_storage: HashMap<B256, AccountKey>,
    /// By half of the hash of the row's place, its table and its key as it is stored.
    reached: HashMap<u128, ReachedRow>,
}

fn mark(table: RowTable, key: &[u8], tag: u8) -> u128 {
    let hash = keccak256([&[tag, table.id], key].concat());
    hash.first_chunk().map_or(0, |half| u128::from_be_bytes(*half))
}

impl PrefixCheck<'_> {
    fn fault(&mut self, table: RowTable, what: String) {
        (self.report)(StateError::corrupt(table.name, what));
    }

    /// Checks the states of all blocks, newest first, so that each row is first met in the last
    /// block that uses it; or the newest state alone.
    fn blocks(&mut self, state: &PrefixState, root: B256, all: bool) -> Result<(), StateError> {
        let mut above = None;
        let forgotten = u64::from_be_bytes(GarbageProgress::read(self.view)?.blocks);
        for stored in self.view.scan(BLOCKS, KeyRange::ALL, ScanDirection::Backward)? {
            let (key, stored) = stored?;
            let number = block_number(BLOCKS, &key)?;
            match above {
                None if number != state.block => {
                    self.fault(BLOCKS, format!("the last block is {number}, not {}", state.block));
                }
                Some(above) if number + 1 != above => {
                    self.fault(BLOCKS, format!("block {above} comes after block {number}"));
                }
                _ => {}
            }
            match decode_block(number, &stored) {
                Err(error) => (self.report)(error),
                Ok((found, accounts)) => {
                    if above.is_none() && found != root {
                        self.fault(
                            BLOCKS,
                            format!("block {number} has the root {found}, not {root}"),
                        );
                    }
                    self.trie(number, None, &accounts);
                }
            }
            if number < forgotten {
                let what = format!("block {number} is before {forgotten}, the start of blocks");
                self.fault(GARBAGE_PROGRESS, what);
            }
            above = Some(number);
            if !all {
                break;
            }
        }
        if above.is_none() && root != TrieHash::Keccak256.empty_root() {
            self.fault(BLOCKS, format!("no block has a row, not even that of the root {root}"));
        }
        Ok(())
    }

    /// Notes that the state of `block` contains a row.
    fn has(&mut self, block: u64, entry: &SupersededRow) -> &mut ReachedRow {
        let mark = self.mark(entry);
        let new = ReachedRow { last: block, is_listed: false, is_followed: false };
        self.reached.entry(mark).or_insert(new)
    }

    /// As [`has`](Self::has); returns whether the rows below it are still to be checked.
    fn reach(&mut self, block: u64, entry: &SupersededRow) -> bool {
        !std::mem::replace(&mut self.has(block, entry).is_followed, true)
    }

    fn mark(&self, entry: &SupersededRow) -> u128 {
        let (table, key, tag) = entry.row_key();
        // Deleted keys are in no pack, and are not looked for.
        mark(table, &self.backend.layout.key(&key), tag.unwrap_or_default())
    }

    fn trie(&mut self, block: u64, of: Option<AccountKey>, trie: &Trie<u64>) {
        if let Some(link) = trie.root() {
            let source = PrefixSource::new(self.view, self.backend.layout, of);
            self.link(block, of, source, Nibbles::new(), link);
        }
    }

    fn link(
        &mut self,
        block: u64,
        of: Option<AccountKey>,
        source: PrefixSource<'_>,
        slot: Nibbles,
        link: &NodeLink<u64>,
    ) {
        match link {
            NodeLink::Unresolved(_) => {}
            NodeLink::Leaf(leaf) if of.is_none() => self.storage(block, leaf),
            NodeLink::Leaf(leaf) => self.leads_nowhere(leaf),
            NodeLink::Branch(link) => {
                let path = link.path(&slot);
                if !self.reach(block, &SupersededRow::Branch(of, path, link.stamp())) {
                    return;
                }
                let branch = match source.load(&path, link) {
                    Ok(branch) => branch,
                    Err(error) => return (self.report)(error),
                };
                for base in branch.bases() {
                    self.has(block, &SupersededRow::Branch(of, path, *base));
                }
                if branch.rehashed(&path) != *branch.reference() {
                    let version = link.stamp();
                    let trie = of.map_or_else(String::new, |of| format!(" of the storage of {of}"));
                    let what = format!(
                        "the branch at {path:?}{trie} in version {version} has another hash"
                    );
                    self.fault(table(of), what);
                }
                for (nibble, child) in (0u8..).zip(branch.children()) {
                    if let Some(child) = child {
                        let mut slot = path;
                        slot.push(nibble);
                        self.link(block, of, source, slot, child);
                    }
                }
            }
        }
    }

    /// Checks a leaf whose value names no rows.
    fn leads_nowhere(&mut self, leaf: &Leaf<u64>) {
        if leaf.stamp() != 0 {
            let what =
                format!("the leaf at {} has a stamp, but its value names no rows", leaf.key());
            self.fault(ACCOUNT_NODES, what);
        }
    }

    /// Checks the storage of the account in this leaf.
    fn storage(&mut self, block: u64, found: &Leaf<u64>) {
        let key = found.key();
        let Some((_, root)) = leaf::decode_account(found.value()) else {
            return self.fault(ACCOUNT_NODES, format!("the leaf at {key} is no account"));
        };
        if root == TrieHash::Keccak256.empty_root() {
            return self.leads_nowhere(found);
        }
        let Some(owner) = self.with_storage.get(key).copied() else {
            let what = format!("the account at {key} in block {block} has storage without slots");
            return self.fault(ACCOUNT_NODES, what);
        };
        if !self.reach(block, &SupersededRow::Root(owner, found.stamp())) {
            return;
        }
        let source = PrefixSource::new(self.view, self.backend.layout, Some(owner));
        match source.storage(root, found.stamp()) {
            Ok(trie) => self.trie(block, Some(owner), &trie),
            Err(error) => (self.report)(error),
        }
    }

    /// Checks the lists of superseded rows.
    fn lists(&mut self) -> Result<(), StateError> {
        let forgotten = GarbageProgress::read(self.view)?.lists;
        for stored in self.view.scan(SUPERSEDED, KeyRange::ALL, ScanDirection::Forward)? {
            let (key, list) = stored?;
            let block = block_number(SUPERSEDED, &key)?;
            if key[..] < forgotten[..] {
                let what = format!("the list {key} of block {block} is before the start of lists");
                self.fault(GARBAGE_PROGRESS, what);
            }
            let entries = match decode_list(block, &list) {
                Ok(entries) => entries,
                Err(error) => {
                    (self.report)(error);
                    continue;
                }
            };
            for entry in &entries {
                self.listed(block, entry)?;
            }
        }
        Ok(())
    }

    /// Checks an entry of the list of `block`.
    fn listed(&mut self, block: u64, entry: &SupersededRow) -> Result<(), StateError> {
        if let SupersededRow::Key(key) = entry {
            let gone = deleted_at(self.view, key)?;
            if block > self.first && gone.is_none_or(|last| last < block) {
                self.fault(DELETED_KEYS, format!("no row says that block {block} deleted {key}"));
            }
            return Ok(());
        }
        let mark = self.mark(entry);
        if block <= self.first {
            // It is deleted when a commit has room for it.
            let going = ReachedRow { last: 0, is_listed: true, is_followed: true };
            if self.reached.insert(mark, going).is_some() {
                let why = "and the state of a block that is kept has it, or another list";
                self.fault(SUPERSEDED, format!("block {block} lists {entry:?}, {why}"));
            }
            return Ok(());
        }
        let fault = match self.reached.get_mut(&mark) {
            None => Some("no state has it"),
            Some(row) if row.is_listed => Some("another list has it, too"),
            Some(row) if row.last + 1 != block => Some("another block superseded it"),
            Some(row) => {
                row.is_listed = true;
                None
            }
        };
        if let Some(why) = fault {
            self.fault(SUPERSEDED, format!("block {block} lists {entry:?}, but {why}"));
        }
        Ok(())
    }

    /// Checks that each trie row is reached, and listed if it is superseded.
    fn rows(&mut self, tip: u64) -> Result<(), StateError> {
        for table in [ACCOUNT_NODES, STORAGE_NODES] {
            for stored in self.view.scan(table, KeyRange::ALL, ScanDirection::Forward)? {
                let (key, pack) = stored?;
                let Some(pack) = self.backend.layout.unpadded(pack) else {
                    self.fault(table, format!("the row {key} is not padded"));
                    continue;
                };
                for entry in pack::entries(&pack) {
                    match entry {
                        None => self.fault(table, format!("the row {key} is malformed")),
                        Some((tag, _)) => self.stored(table, &key, tag, tip),
                    }
                }
            }
        }
        Ok(())
    }

    /// Checks that a row in a pack is reached, and listed if it is superseded.
    fn stored(&mut self, table: RowTable, key: &[u8], tag: u8, tip: u64) {
        let row = || format!("the row {tag} of {}", hex::encode_prefixed(key));
        match self.reached.get(&mark(table, key, tag)) {
            None => self.fault(table, format!("no state has {}", row())),
            Some(reached) if reached.last < tip && !reached.is_listed => {
                let what = format!("block {} superseded {}", reached.last + 1, row());
                self.fault(table, format!("{what}, and does not list it"));
            }
            Some(_) => {}
        }
    }

    /// Checks the rows of deleted keys.
    fn gone(&mut self, tip: u64) -> Result<(), StateError> {
        for stored in self.view.scan(DELETED_KEYS, KeyRange::ALL, ScanDirection::Forward)? {
            let (key, _) = stored?;
            let Some(key) = BackendKey::decode(&key) else {
                self.fault(DELETED_KEYS, format!("row {key} is not a state key"));
                continue;
            };
            match deleted_at(self.view, &key) {
                Ok(block) if block > Some(tip) => {
                    self.fault(
                        DELETED_KEYS,
                        format!("{key} was deleted after block {tip}, the last one"),
                    );
                }
                Ok(_) => {}
                Err(error) => (self.report)(error),
            }
        }
        Ok(())
    }
}

/// Accounts with slots, now or in an old state, by their hashes.
fn with_storage(view: &dyn NodeRead) -> Result<HashMap<B256, AccountKey>, StateError> {
    let mut all = HashMap::default();
    let mut last = None;
    for table in [flat::TABLE, DELETED_KEYS] {
        // Plain slots come behind all plain accounts.
        for stored in view.scan(table, KeyRange::from(&[1]), ScanDirection::Forward)? {
            // Malformed keys are reported by the checks of these tables.
            let Some(BackendKey::Slot(owner, _)) = BackendKey::decode(&stored?.0) else {
                continue;
            };
            if last != Some(owner) {
                last = Some(owner);
                all.insert(TrieHash::Keccak256.account_path(&owner), owner);
            }
        }
    }
    Ok(all)
}
