//! The check of all rows.
//!
//! Every row of a trie must be reached from the state of a block that is kept, by the version that is
//! named there; what its branch hashes to, its parent must name; and every row must either belong to
//! the tip or be on exactly one list of superseded rows, that of the first block that does without it.
//! Below the tip all but the block's own trie is the tip's, and has been checked there.

use super::{
    Prefix,
    row::{
        ACCOUNT_NODES, BLOCKS, FORGOTTEN, Forgotten, GONE, STORAGE_NODES, SUPERSEDED, Superseded,
        block_number, decode_block, decode_list, gone_at, place,
    },
    state::{Source, State},
};
use alloy_primitives::{Address, B256, keccak256, map::HashMap};
use alloy_trie::Nibbles;
use retrie_state::{Direction, History, KeyRange, NodeRead, StateError, StateKey, Table, flat};
use retrie_storage_mpt::{
    Trie, TrieHash, leaf,
    trie::{Leaf, Link, NodeSource},
};

/// Checks all rows of `view`, whose state has this root; below the tip those of its state.
pub(super) fn check(
    backend: &Prefix,
    view: &dyn NodeRead,
    state: &State,
    root: B256,
    is_tip: bool,
    report: &mut dyn FnMut(StateError),
) -> Result<(), StateError> {
    let first = backend.kept(view)?.map_or(0, |kept| *kept.start());
    let (with_storage, reached) = (with_storage(view)?, HashMap::default());
    let mut check = Check { backend, view, report, first, with_storage, reached };
    check.blocks(state, root, is_tip)?;
    if !is_tip {
        return Ok(());
    }
    check.lists()?;
    check.rows(state.block)?;
    check.gone(state.block)
}

/// What is known of a row that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reached {
    /// The newest block whose state has it.
    last: u64,
    is_listed: bool,
    is_followed: bool,
}

struct Check<'a> {
    backend: &'a Prefix,
    view: &'a dyn NodeRead,
    report: &'a mut dyn FnMut(StateError),
    /// The first block whose state is kept.
    first: u64,
    with_storage: HashMap<B256, Address>,
    /// By half of the hash of table and key, as stored.
    reached: HashMap<u128, Reached>,
}

fn mark(table: Table, key: &[u8]) -> u128 {
    let hash = keccak256([&[table.id], key].concat());
    hash.first_chunk().map_or(0, |half| u128::from_be_bytes(*half))
}

impl Check<'_> {
    fn fault(&mut self, table: Table, what: String) {
        (self.report)(StateError::corrupt(table.name, what));
    }

    /// The states of all blocks, the newest first, so that each row is met first where it is used last;
    /// or of the newest alone.
    fn blocks(&mut self, state: &State, root: B256, all: bool) -> Result<(), StateError> {
        let mut above = None;
        let forgotten = u64::from_be_bytes(Forgotten::read(self.view)?.blocks);
        for stored in self.view.scan(BLOCKS, KeyRange::ALL, Direction::Backward)? {
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
                let what = format!("block {number} comes before {forgotten}, where blocks begin");
                self.fault(FORGOTTEN, what);
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

    /// Notes that the state of `block` has a row.
    fn has(&mut self, block: u64, entry: &Superseded) -> &mut Reached {
        let mark = self.mark(entry);
        let new = Reached { last: block, is_listed: false, is_followed: false };
        self.reached.entry(mark).or_insert(new)
    }

    /// The same; whether what it leads to is still to be followed.
    fn reach(&mut self, block: u64, entry: &Superseded) -> bool {
        !std::mem::replace(&mut self.has(block, entry).is_followed, true)
    }

    fn mark(&self, entry: &Superseded) -> u128 {
        let (table, key) = entry.row_key();
        mark(table, &self.backend.layout.key(&key))
    }

    fn trie(&mut self, block: u64, of: Option<Address>, trie: &Trie<u64>) {
        if let Some(link) = trie.root() {
            let source = Source::new(self.view, self.backend.layout, of);
            self.link(block, of, source, Nibbles::new(), link);
        }
    }

    fn link(
        &mut self,
        block: u64,
        of: Option<Address>,
        source: Source<'_>,
        slot: Nibbles,
        link: &Link<u64>,
    ) {
        match link {
            Link::Unresolved(_) => {}
            Link::Leaf(leaf) if of.is_none() => self.storage(block, leaf),
            Link::Leaf(leaf) => self.leads_nowhere(leaf),
            Link::Branch(link) => {
                let path = link.path(&slot);
                if !self.reach(block, &Superseded::Branch(of, path, link.stamp())) {
                    return;
                }
                let branch = match source.load(&path, link) {
                    Ok(branch) => branch,
                    Err(error) => return (self.report)(error),
                };
                if let Some(change) = branch.change() {
                    self.has(block, &Superseded::Branch(of, path, change.base));
                }
                if branch.rehashed(&path) != *branch.reference() {
                    let version = link.stamp();
                    let of = of.map_or_else(String::new, |of| format!(" of the storage of {of}"));
                    let what =
                        format!("the branch at {path:?}{of} in version {version} has another hash");
                    self.fault(place(None).table(), what);
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

    /// A leaf whose value names no rows.
    fn leads_nowhere(&mut self, leaf: &Leaf<u64>) {
        if leaf.stamp() != 0 {
            let what =
                format!("the leaf at {} leads to rows that its value does not name", leaf.key());
            self.fault(ACCOUNT_NODES, what);
        }
    }

    /// The storage of the account in this leaf.
    fn storage(&mut self, block: u64, found: &Leaf<u64>) {
        let key = found.key();
        let Some((_, root)) = leaf::decode_account(found.value()) else {
            return self.fault(ACCOUNT_NODES, format!("the leaf at {key} is no account"));
        };
        if root == TrieHash::Keccak256.empty_root() {
            return self.leads_nowhere(found);
        }
        let Some(address) = self.with_storage.get(key).copied() else {
            let what = format!("the account at {key} in block {block} has storage without slots");
            return self.fault(ACCOUNT_NODES, what);
        };
        if !self.reach(block, &Superseded::Root(address, found.stamp())) {
            return;
        }
        let source = Source::new(self.view, self.backend.layout, Some(address));
        match source.storage(root, found.stamp()) {
            Ok(trie) => self.trie(block, Some(address), &trie),
            Err(error) => (self.report)(error),
        }
    }

    /// The lists of superseded rows.
    fn lists(&mut self) -> Result<(), StateError> {
        let forgotten = Forgotten::read(self.view)?.lists;
        for stored in self.view.scan(SUPERSEDED, KeyRange::ALL, Direction::Forward)? {
            let (key, list) = stored?;
            let block = block_number(SUPERSEDED, &key)?;
            if key[..] < forgotten[..] {
                let what = format!("the list {key} of block {block} comes before all lists");
                self.fault(FORGOTTEN, what);
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

    /// An entry of the list of `block`.
    fn listed(&mut self, block: u64, entry: &Superseded) -> Result<(), StateError> {
        if let Superseded::Key(key) = entry {
            let gone = gone_at(self.view, key)?;
            if block > self.first && gone.is_none_or(|last| last < block) {
                self.fault(GONE, format!("no row says that block {block} deleted {key}"));
            }
            return Ok(());
        }
        let mark = self.mark(entry);
        if block <= self.first {
            // It goes when there is room in a commit.
            let going = Reached { last: 0, is_listed: true, is_followed: true };
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

    /// All rows of tries.
    fn rows(&mut self, tip: u64) -> Result<(), StateError> {
        for table in [ACCOUNT_NODES, STORAGE_NODES] {
            for stored in self.view.scan(table, KeyRange::ALL, Direction::Forward)? {
                let (key, _) = stored?;
                match self.reached.get(&mark(table, &key)) {
                    None => self.fault(table, format!("no state has the row {key}")),
                    Some(row) if row.last < tip && !row.is_listed => {
                        let what = format!("block {} superseded the row {key}", row.last + 1);
                        self.fault(table, format!("{what}, and does not list it"));
                    }
                    Some(_) => {}
                }
            }
        }
        Ok(())
    }

    /// The rows of keys that are gone.
    fn gone(&mut self, tip: u64) -> Result<(), StateError> {
        for stored in self.view.scan(GONE, KeyRange::ALL, Direction::Forward)? {
            let (key, _) = stored?;
            let Some(key) = StateKey::decode(&key) else {
                self.fault(GONE, format!("row {key} is not a state key"));
                continue;
            };
            match gone_at(self.view, &key) {
                Ok(block) if block > Some(tip) => {
                    self.fault(GONE, format!("{key} was deleted after block {tip}, the last one"));
                }
                Ok(_) => {}
                Err(error) => (self.report)(error),
            }
        }
        Ok(())
    }
}

/// Addresses that have slots, now or in an old state, by their hashes.
fn with_storage(view: &dyn NodeRead) -> Result<HashMap<B256, Address>, StateError> {
    let mut all = HashMap::default();
    let mut last = None;
    for table in [flat::TABLE, GONE] {
        // Slots come behind all accounts.
        for stored in view.scan(table, KeyRange::from(&[1]), Direction::Forward)? {
            // What is no key is reported by those who check these tables.
            let Some(key) = StateKey::decode(&stored?.0) else { continue };
            if last != Some(*key.address()) {
                last = Some(*key.address());
                all.insert(TrieHash::Keccak256.hash(key.address()), *key.address());
            }
        }
    }
    Ok(all)
}
