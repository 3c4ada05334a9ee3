//! Checks of a whole durable state, for `retrie db verify`: what the values say is what roots, undo
//! and the backend's own rows say.

use super::{At, StateAt, StateStore, StoreOptions};
use crate::{
    Account, AnyBackend, BlockRef, KeyRange, KvStore, NodeRead, StateError, StateKey, StateReader,
    StoreError, Value, decode_slot,
    durable::{
        flat_history::{self, CHANGED_KEYS, CHANGES},
        overlay::RowView,
        state::{named_files, unnamed_files},
    },
};
use alloy_primitives::B256;
use std::sync::Arc;

/// Entries read at a time.
const PAGE: usize = 4096;
/// Blocks below the tip are rebuilt as long as it takes no more entries than these, but two of them
/// in any case: the lowest one, and one half-way.
const ENTRIES: u64 = 100_000;

/// What [`StateStore::check`] has looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateCheck {
    /// Entries of the tip.
    pub entries: u64,
    /// Blocks whose state was read whole, the tip included.
    pub blocks: u64,
    /// Of these, blocks whose root was computed again from all values.
    pub roots: u64,
    /// Changes of [flat history](crate::FlatHistory).
    pub changes: u64,
    /// Immutable files that the tip or a retained block names.
    pub files: u64,
    /// Their bytes.
    pub file_bytes: u64,
    /// Files of the state directory that nobody names: what was being written, or could not be
    /// deleted. They do no harm, and go at the next opening.
    pub leftover_files: u64,
    /// Their bytes.
    pub leftover_bytes: u64,
}

/// Why a check went no further.
enum Stop {
    /// Something in the state.
    Fault(StateError),
    /// Something in the scratch store.
    Scratch(StateError),
}

impl From<StateError> for Stop {
    fn from(fault: StateError) -> Self {
        Self::Fault(fault)
    }
}

/// Where a check of the state reports.
pub trait StateCheckSink {
    /// Something that cannot be right.
    fn fault(&mut self, fault: StateError);
    /// An entry of the tip.
    fn entry(&mut self, key: &StateKey, value: &Value);
    /// So many entries of the state of `block` have been read.
    fn progress(&mut self, block: u64, entries: u64);
}

impl StateStore {
    /// Checks the state of the durable tip and of some retained blocks below it, read through undo:
    /// every entry decodes and comes in order; if the root follows from the values, a state loaded
    /// from nothing but these values has the recorded root, and the backend compares the rows
    /// ([`Backend::check`](crate::Backend::check)); the files that the tip and retained blocks name are there. The two tables of flat history
    /// agree, and it leads to the same state of the lowest retained block as undo does.
    ///
    /// `scratch` holds one such state at a time, if any are [loaded](Self::rebuilds); what it holds
    /// before is lost.
    ///
    /// # Errors
    /// If `scratch` fails. What is found goes to `sink`, and so does what cannot be read.
    pub fn check(
        &self,
        scratch: &Arc<dyn KvStore>,
        sink: &mut dyn StateCheckSink,
    ) -> Result<StateCheck, StateError> {
        let mut done = StateCheck::default();
        match self.check_all(scratch, sink, &mut done) {
            Ok(()) => {}
            Err(Stop::Fault(fault)) => sink.fault(fault),
            Err(Stop::Scratch(error)) => return Err(error),
        }
        Ok(done)
    }

    /// Whether a check loads states anew to compare them.
    pub fn rebuilds(&self) -> bool {
        let capabilities = self.durable.backend.capabilities();
        // Without a root there is nothing to compare a rebuilt state with.
        capabilities.state_determined_root && capabilities.proofs
    }

    fn check_all(
        &self,
        scratch: &Arc<dyn KvStore>,
        sink: &mut dyn StateCheckSink,
        done: &mut StateCheck,
    ) -> Result<(), Stop> {
        self.check_folder(sink, done)?;
        let (Some(tip), Some(retained)) = (self.tip(), self.retained()) else { return Ok(()) };
        done.entries = self.check_block(tip.block, tip.root, true, scratch, sink, done)?;
        match self.check_changes(tip.block, *retained.start(), sink) {
            Ok(changes) => done.changes = changes,
            Err(fault) => sink.fault(fault),
        }

        let below = retained.end() - retained.start();
        let count = (ENTRIES / done.entries.max(1)).clamp(2, below.max(2)).min(below);
        for n in 1..=count {
            // Evenly, down to the lowest one.
            let number = retained.end() - below * n / count;
            let block = self.durable.memory.lock().blocks.get(&number).copied();
            let Some((hash, root)) = block else { continue };
            let block = BlockRef::new(number, hash);
            self.check_block(block, root, false, scratch, sink, done)?;
        }
        Ok(())
    }

    /// Checks the state of one durable block; returns the number of its entries.
    fn check_block(
        &self,
        block: BlockRef,
        root: B256,
        is_tip: bool,
        scratch: &Arc<dyn KvStore>,
        sink: &mut dyn StateCheckSink,
        done: &mut StateCheck,
    ) -> Result<u64, Stop> {
        done.blocks += 1;
        let backend = &self.durable.backend;
        let state = match self.at(At::Block(block.hash)) {
            Ok(state) => state,
            Err(error) => {
                sink.fault(error);
                return Ok(0);
            }
        };
        let rows = |rebuilt: Option<&dyn NodeRead>, sink: &mut dyn StateCheckSink| {
            let mut report = |fault| sink.fault(fault);
            backend.check(&state.view, &state.cache, root, is_tip, rebuilt, &mut report)
        };
        let mut walk = Walk::new(&state, block, is_tip, sink);
        if !self.rebuilds() {
            while walk.next_entry()?.is_some() {}
            let entries = walk.read;
            rows(None, sink)?;
            return Ok(entries);
        }
        let rebuilt = Rebuilt::new(backend, scratch).map_err(Stop::Scratch)?;
        let loaded = rebuilt.load(block, &mut walk)?;
        let entries = walk.read;
        let Some(loaded) = loaded else { return Ok(entries) };
        done.roots += 1;
        if loaded != root {
            sink.fault(StateError::corrupt(
                "Meta",
                format!("the values of block {block} have the root {loaded}, recorded is {root}"),
            ));
        }
        let view = rebuilt.store.at(At::Tip).map_err(Stop::Scratch)?.view;
        rows(Some(&view), sink)?;
        Ok(entries)
    }

    /// Holds the tables of flat history against each other, and against undo; returns the number of
    /// changes. Damage that hides what follows is an error.
    fn check_changes(
        &self,
        tip: BlockRef,
        lowest: u64,
        sink: &mut dyn StateCheckSink,
    ) -> Result<u64, StateError> {
        let view = self.at(At::Tip)?.view;
        let (mut listed, mut there) = (0, 0);
        let mut below: Option<(u64, u64)> = None;
        for block in flat_history::blocks(&view, 0, u64::MAX) {
            let block = block?;
            let number = block.number;
            let is_next = |(last, run)| (last + 1, run) == (number, block.first);
            if number > tip.number || !(block.first == number || below.is_none_or(is_next)) {
                let what = format!("block {number} is above the tip, or does not continue its run");
                sink.fault(StateError::corrupt(CHANGED_KEYS.name, what));
            }
            below = Some((number, block.first));
            for key in &block.keys {
                listed += 1;
                let row = flat_history::change_key(key, number);
                let Some(value) = view.lookup(CHANGES, &row)? else {
                    let what = format!("{key}: its change in block {number} is missing");
                    sink.fault(StateError::corrupt(CHANGES.name, what));
                    continue;
                };
                there += 1;
                if let Err(fault) = flat_history::decode_change(&row, &value) {
                    sink.fault(fault);
                }
            }
            sink.progress(number, listed);
        }
        check_no_others(&view, there, sink)?;
        self.check_changes_by_undo(tip, lowest, sink)?;
        Ok(listed)
    }

    /// Compares what history and undo say of the block `lowest`.
    fn check_changes_by_undo(
        &self,
        tip: BlockRef,
        lowest: u64,
        sink: &mut dyn StateCheckSink,
    ) -> Result<(), StateError> {
        let kept = self.flat_history_kept(At::Tip)?;
        let Some(from) = kept.map(|kept| lowest.max(*kept.start())) else { return Ok(()) };
        let block = self.durable.memory.lock().blocks.get(&from).copied();
        let Some((hash, _)) = block.filter(|_| from < tip.number) else { return Ok(()) };
        let by_undo = self.at(At::Block(hash))?;
        let by_history = self.flat_history(At::Tip, from)?;
        for number in from + 1..=tip.number {
            for key in self.changed_keys(At::Tip, number)? {
                if by_history.get(&key)? != by_undo.get(&key)? {
                    let what = format!("{key}: history and undo differ on its value at {from}");
                    sink.fault(StateError::corrupt(CHANGES.name, what));
                }
            }
        }
        Ok(())
    }

    /// The files of the state directory, as far as their names go.
    fn check_folder(
        &self,
        sink: &mut dyn StateCheckSink,
        done: &mut StateCheck,
    ) -> Result<(), StateError> {
        let view = self.durable.durable_view(&self.durable.memory.lock())?;
        let mut named = named_files(&view)?;
        named.extend(self.durable.memory.lock().retired_files());
        for name in &named {
            let path = self.options.dir.as_deref().map(|dir| dir.join(name));
            match path.and_then(|path| std::fs::metadata(path).ok()).filter(|of| of.is_file()) {
                Some(about) => {
                    done.files += 1;
                    done.file_bytes += about.len();
                }
                None => {
                    let what = format!("the state names the file {name}, which is not there");
                    sink.fault(StateError::corrupt("Files", what));
                }
            }
        }
        let Some(dir) = self.options.dir.as_deref().filter(|dir| dir.is_dir()) else {
            return Ok(());
        };
        let fail = |error| StoreError::new(format!("reading folder {}", dir.display()), error);
        for (_, bytes) in unnamed_files(dir, &named).map_err(fail)? {
            done.leftover_files += 1;
            done.leftover_bytes += bytes;
        }
        Ok(())
    }
}

/// Reports the changes that no block lists, `listed` being those that one does.
fn check_no_others(
    view: &RowView,
    listed: u64,
    sink: &mut dyn StateCheckSink,
) -> Result<(), StateError> {
    let rows = || view.rows(CHANGES, KeyRange::ALL, PAGE);
    let mut others =
        rows().try_fold(0u64, |rows, row| row.map(|_| rows + 1))?.saturating_sub(listed);
    for row in rows() {
        if others == 0 {
            break;
        }
        let fault = match flat_history::decode_change_key(&row?.0) {
            Err(fault) => fault,
            Ok((key, number)) => {
                let block = flat_history::blocks(view, number, number.saturating_add(1)).next();
                if block.transpose()?.is_some_and(|of| of.keys.binary_search(&key).is_ok()) {
                    continue;
                }
                let what = format!("{key}: block {number} does not list this change");
                StateError::corrupt(CHANGES.name, what)
            }
        };
        sink.fault(fault);
        others -= 1;
    }
    Ok(())
}

/// All entries of one block, a page at a time.
struct Walk<'a> {
    state: &'a StateAt,
    block: BlockRef,
    is_tip: bool,
    sink: &'a mut dyn StateCheckSink,
    next: Option<StateKey>,
    last: Option<StateKey>,
    /// In reverse order.
    page: Vec<(StateKey, Value)>,
    read: u64,
    end: bool,
}

impl<'a> Walk<'a> {
    fn new(
        state: &'a StateAt,
        block: BlockRef,
        is_tip: bool,
        sink: &'a mut dyn StateCheckSink,
    ) -> Self {
        let (next, last, page, read, end) = (None, None, Vec::new(), 0, false);
        Self { state, block, is_tip, sink, next, last, page, read, end }
    }

    fn next_entry(&mut self) -> Result<Option<(StateKey, Value)>, StateError> {
        if self.page.is_empty() && !self.end {
            let mut page = self.state.entries(self.next.as_ref(), PAGE + 1)?;
            self.end = page.len() <= PAGE;
            self.next = if self.end { None } else { page.pop().map(|(key, _)| key) };
            page.reverse();
            self.page = page;
            self.sink.progress(self.block.number, self.read);
        }
        let Some((key, value)) = self.page.pop() else { return Ok(None) };
        if self.last.replace(key).is_some_and(|last| last >= key) {
            let what = format!("{key} does not come in order in the state of block {}", self.block);
            return Err(StateError::corrupt("Flat", what));
        }
        self.read += 1;
        let decodes = match key {
            StateKey::Account(_) => Account::decode(&value).is_some(),
            StateKey::Slot(..) => decode_slot(&value).is_some(),
        };
        if !decodes {
            let what = format!("the value of {key} at block {} does not decode", self.block);
            self.sink.fault(StateError::corrupt("Flat", what));
        }
        if self.is_tip {
            self.sink.entry(&key, &value);
        }
        Ok(Some((key, value)))
    }
}

/// A state made of nothing but values.
struct Rebuilt {
    store: StateStore,
    kv: Arc<dyn KvStore>,
}

impl Rebuilt {
    fn new(backend: &Arc<dyn AnyBackend>, scratch: &Arc<dyn KvStore>) -> Result<Self, StateError> {
        let mut txn = scratch.begin_write()?;
        for table in StateStore::tables(&**backend) {
            txn.clear(table)?;
        }
        txn.commit()?;
        let options = StoreOptions { retention: 0, ..StoreOptions::default() };
        let store = StateStore::open(backend.clone(), scratch.clone(), options)?;
        Ok(Self { store, kv: scratch.clone() })
    }

    /// Loads the entries of a walk; `None` if they cannot make up a state, which is reported.
    fn load(&self, block: BlockRef, walk: &mut Walk<'_>) -> Result<Option<B256>, Stop> {
        let scratch = |error: StoreError| Stop::Scratch(error.into());
        let mut txn = self.kv.begin_write().map_err(scratch)?;
        let mut unreadable = false;
        let mut entries = std::iter::from_fn(|| {
            let entry = walk.next_entry().transpose();
            unreadable |= matches!(entry, Some(Err(_)));
            entry
        });
        match self.store.bulk_load(block, &mut entries, &mut *txn) {
            Ok((root, after)) => {
                txn.commit().map_err(scratch)?;
                after.run().map_err(Stop::Scratch)?;
                Ok(Some(root))
            }
            // The entries are read well, and in order: it is the scratch store that does not take them.
            Err(error @ StateError::Store(_)) if !unreadable => Err(Stop::Scratch(error)),
            Err(fault) => {
                walk.sink.fault(fault);
                Ok(None)
            }
        }
    }
}
