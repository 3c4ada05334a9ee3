//! Checks of a whole durable state, for `retrie db verify`: roots, undo and the backend's own rows
//! must agree with the values.

use super::{StateId, StateProvider, StateStore, StoreOptions, commit::CodeLookup};
use crate::{
    KvStore,
    durable::{
        flat_history::{self, CHANGED_KEYS, CHANGES},
        overlay::RowView,
        state::{named_files, unnamed_files},
    },
};
use alloy_primitives::B256;
use retrie_state::{
    Account, AnyBackend, BackendKey, BlockRef, KeyRange, NodeRead, StateError, StateValue,
    StoreError, decode_slot,
};
use std::{cell::Cell, sync::Arc};

/// Entries read at a time.
const PAGE: usize = 4096;
/// Blocks below the tip are rebuilt as long as all of them have no more entries than this, but at
/// least two: the lowest block, and one half-way.
const ENTRIES: u64 = 100_000;

/// What [`StateStore::check`] has checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateCheck {
    /// Entries of the tip.
    pub entries: u64,
    /// Blocks whose whole state was read, including the tip.
    pub blocks: u64,
    /// Blocks among them whose root was computed again from all values.
    pub roots: u64,
    /// Changes of [flat history](crate::FlatHistory).
    pub changes: u64,
    /// Immutable files that the tip or a retained block names.
    pub files: u64,
    /// Their bytes.
    pub file_bytes: u64,
    /// Files of the state directory that no block names: unfinished files, or files that could not
    /// be deleted. They are harmless, and the next opening removes them.
    pub leftover_files: u64,
    /// Their bytes.
    pub leftover_bytes: u64,
}

/// Why a check ended early.
enum CheckStop {
    /// A fault of the state.
    Fault(StateError),
    /// A failure of the scratch store.
    Scratch(StateError),
}

impl From<StateError> for CheckStop {
    fn from(fault: StateError) -> Self {
        Self::Fault(fault)
    }
}

/// Receives the reports of a state check.
pub trait StateCheckSink {
    /// Reports a fault of the state.
    fn fault(&mut self, fault: StateError);
    /// Passes on an entry of the tip.
    fn entry(&mut self, key: &BackendKey, value: &StateValue);
    /// Reports that `entries` entries of the state of `block` have been read.
    fn progress(&mut self, block: u64, entries: u64);
}

impl StateStore {
    /// Checks the state of the durable tip and of some retained blocks below it, read through undo:
    ///
    /// * every entry decodes, and entries come in order;
    /// * if the root depends on the values alone, a state loaded from these values has the recorded
    ///   root, and the backend compares the rows ([`Backend::check`](retrie_state::Backend::check));
    /// * the files that the tip and retained blocks name exist;
    /// * the two tables of flat history agree, and flat history and undo lead to the same state of
    ///   the lowest retained block.
    ///
    /// Backends that need codes get those of this store's [database](crate::KvRead::code).
    ///
    /// `scratch` holds one rebuilt state at a time, if states are [rebuilt](Self::rebuilds); its
    /// previous content is lost.
    ///
    /// # Errors
    /// If `scratch` fails. Faults and read errors of the state go to `sink`.
    pub fn check(
        &self,
        scratch: &Arc<dyn KvStore>,
        sink: &mut dyn StateCheckSink,
    ) -> Result<StateCheck, StateError> {
        let mut done = StateCheck::default();
        match self.check_all(scratch, sink, &mut done) {
            Ok(()) => {}
            Err(CheckStop::Fault(fault)) => sink.fault(fault),
            Err(CheckStop::Scratch(error)) => return Err(error),
        }
        Ok(done)
    }

    /// Whether a check rebuilds states to compare them.
    pub fn rebuilds(&self) -> bool {
        let capabilities = self.durable.backend.profile();
        // Without a root there is nothing to compare a rebuilt state with.
        capabilities.state_determined_root && capabilities.proofs
    }

    fn check_all(
        &self,
        scratch: &Arc<dyn KvStore>,
        sink: &mut dyn StateCheckSink,
        done: &mut StateCheck,
    ) -> Result<(), CheckStop> {
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
            // At even distances, down to the lowest block.
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
    ) -> Result<u64, CheckStop> {
        done.blocks += 1;
        let backend = &self.durable.backend;
        let state = match self.at(StateId::Block(block.hash)) {
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
        let mut walk = EntryWalk::new(&state, block, is_tip, sink);
        if !self.rebuilds() {
            while walk.next_entry()?.is_some() {}
            let entries = walk.read;
            rows(None, sink)?;
            return Ok(entries);
        }
        let rebuilt = RebuiltState::new(backend, scratch).map_err(CheckStop::Scratch)?;
        let codes = self.durable.kv.snapshot().map_err(StateError::from)?;
        let loaded = rebuilt.load(block, &mut walk, &|hash| codes.code(hash))?;
        let entries = walk.read;
        let Some(loaded) = loaded else { return Ok(entries) };
        done.roots += 1;
        if loaded != root {
            sink.fault(StateError::corrupt(
                "Meta",
                format!("the values of block {block} have the root {loaded}, recorded is {root}"),
            ));
        }
        let view = rebuilt.store.at(StateId::Tip).map_err(CheckStop::Scratch)?.view;
        rows(Some(&view), sink)?;
        Ok(entries)
    }

    /// Compares the tables of flat history with each other and with undo; returns the number of
    /// changes. Damage that hides the rows after it is an error.
    fn check_changes(
        &self,
        tip: BlockRef,
        lowest: u64,
        sink: &mut dyn StateCheckSink,
    ) -> Result<u64, StateError> {
        let view = self.at(StateId::Tip)?.view;
        let (mut listed, mut there) = (0, 0);
        let mut below: Option<(u64, u64)> = None;
        for block in flat_history::blocks(&view, 0, u64::MAX) {
            let block = block?;
            let number = block.number;
            let is_next = |(last, run)| (last + 1, run) == (number, block.first);
            if number > tip.number || !(block.first == number || below.is_none_or(is_next)) {
                let what = format!("block {number} is above the tip, or does not extend its range");
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

    /// Compares the state of block `lowest` by flat history and by undo.
    fn check_changes_by_undo(
        &self,
        tip: BlockRef,
        lowest: u64,
        sink: &mut dyn StateCheckSink,
    ) -> Result<(), StateError> {
        let kept = self.flat_history_kept(StateId::Tip)?;
        let Some(from) = kept.map(|kept| lowest.max(*kept.start())) else { return Ok(()) };
        let block = self.durable.memory.lock().blocks.get(&from).copied();
        let Some((hash, _)) = block.filter(|_| from < tip.number) else { return Ok(()) };
        let by_undo = self.at(StateId::Block(hash))?;
        let by_history = self.flat_history(StateId::Tip, from)?;
        for number in from + 1..=tip.number {
            for key in self.changed_keys(StateId::Tip, number)? {
                if by_history.get_key(&key)? != by_undo.get_key(&key)? {
                    let what = format!("{key}: history and undo differ on its value at {from}");
                    sink.fault(StateError::corrupt(CHANGES.name, what));
                }
            }
        }
        Ok(())
    }

    /// Checks the names of the files in the state directory.
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

/// Reports the changes that no block lists; `listed` is the number of changes that a block lists.
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

/// Reads all entries of one block, a page at a time.
struct EntryWalk<'a> {
    state: &'a StateProvider,
    block: BlockRef,
    is_tip: bool,
    sink: &'a mut dyn StateCheckSink,
    next: Option<BackendKey>,
    last: Option<BackendKey>,
    /// In reverse order.
    page: Vec<(BackendKey, StateValue)>,
    read: u64,
    end: bool,
}

impl<'a> EntryWalk<'a> {
    fn new(
        state: &'a StateProvider,
        block: BlockRef,
        is_tip: bool,
        sink: &'a mut dyn StateCheckSink,
    ) -> Self {
        let (next, last, page, read, end) = (None, None, Vec::new(), 0, false);
        Self { state, block, is_tip, sink, next, last, page, read, end }
    }

    fn next_entry(&mut self) -> Result<Option<(BackendKey, StateValue)>, StateError> {
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
            BackendKey::Account(_) => Account::decode(&value).is_some(),
            BackendKey::Slot(..) => decode_slot(&value).is_some(),
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

/// A store whose state is rebuilt from values alone.
struct RebuiltState {
    store: StateStore,
    kv: Arc<dyn KvStore>,
}

impl RebuiltState {
    fn new(backend: &Arc<dyn AnyBackend>, scratch: &Arc<dyn KvStore>) -> Result<Self, StateError> {
        let mut txn = scratch.begin_write()?;
        for table in StateStore::tables(&**backend) {
            txn.clear(table)?;
        }
        txn.commit()?;
        // It is loaded with keys in the form that they have.
        let options = StoreOptions { retention: 0, ..StoreOptions::default() };
        let store = StateStore::open(backend.clone(), scratch.clone(), options)?;
        Ok(Self { store, kv: scratch.clone() })
    }

    /// Loads the entries of `walk`, with `codes`; reports and returns `None` if they do not form a state.
    fn load(
        &self,
        block: BlockRef,
        walk: &mut EntryWalk<'_>,
        codes: &CodeLookup<'_>,
    ) -> Result<Option<B256>, CheckStop> {
        let scratch = |error: StoreError| CheckStop::Scratch(error.into());
        let mut txn = self.kv.begin_write().map_err(scratch)?;
        let unreadable = Cell::new(false);
        let mut entries = std::iter::from_fn(|| {
            let entry = walk.next_entry().transpose();
            unreadable.set(unreadable.get() || matches!(entry, Some(Err(_))));
            entry
        });
        let codes = |hash: &B256| codes(hash).inspect_err(|_| unreadable.set(true));
        match self.store.load_with_codes(block, &mut entries, &codes, &mut *txn) {
            Ok((root, after)) => {
                txn.commit().map_err(scratch)?;
                after.run().map_err(CheckStop::Scratch)?;
                Ok(Some(root))
            }
            // Entries and codes were read without an error, so the scratch store has failed.
            Err(error @ StateError::Store(_)) if !unreadable.get() => {
                Err(CheckStop::Scratch(error))
            }
            Err(fault) => {
                walk.sink.fault(fault);
                Ok(None)
            }
        }
    }
}
