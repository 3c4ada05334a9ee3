//! A store under test and its comparison with the model.

use super::{
    TestKit,
    model::{BlockPtr, TestBlock, ValueFlavour, in_form, slots_of},
};
use alloy_primitives::{Address, B256};
use parking_lot::Mutex;
use retrie_state::{
    DeltaBatchBuilder, DeltaBuilder, KeyForm, StateChange, StateDelta, StateError, StateKey,
    StateReader,
};
use retrie_state_store::{
    KvStore, Proposal, StateId, StateProvider, StateSession, StateStore, StoreOptions,
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

/// Known roots by block hash, shared by the nodes of a check.
#[derive(Debug, Default)]
pub(super) struct KnownRoots(Mutex<HashMap<B256, B256>>);

impl KnownRoots {
    /// Records the root of a block, or compares it with the recorded one.
    pub(super) fn note(&self, block: &TestBlock, root: B256) {
        let known = *self.0.lock().entry(block.hash).or_insert(root);
        assert_eq!(
            known, root,
            "block {} was given another root than before: the root depends on more than the blocks",
            block.number
        );
    }

    pub(super) fn of(&self, block: &TestBlock) -> Option<B256> {
        self.0.lock().get(&block.hash).copied()
    }
}

/// Options with which folds never run, or run all the time.
pub(super) fn options(retention: u64, fold_often: bool) -> StoreOptions {
    let (fold_bytes, fold_commits) = if fold_often { (1, 1) } else { (1 << 30, usize::MAX) };
    StoreOptions { retention, fold_bytes, fold_commits, read_threads: 3, ..StoreOptions::default() }
}

/// A temporary directory, shared with nodes that reopen it.
pub(super) fn temp_dir() -> Arc<tempfile::TempDir> {
    // The store fsyncs its files, which is faster in memory.
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    Arc::new(dir.or_else(|_| tempfile::tempdir()).expect("temporary directory"))
}

/// A store under test.
pub(super) struct TestNode<'k> {
    kit: &'k TestKit<'k>,
    pub(super) kv: Arc<dyn KvStore>,
    dir: Arc<tempfile::TempDir>,
    options: StoreOptions,
    store: Option<StateStore>,
    pub(super) roots: Arc<KnownRoots>,
}

impl<'k> TestNode<'k> {
    /// An empty node.
    pub(super) fn new(
        kit: &'k TestKit<'k>,
        roots: &Arc<KnownRoots>,
        options: StoreOptions,
    ) -> Self {
        Self::on(kit, roots, options, kit.key_value_store(), temp_dir())
    }

    /// A node on the content of `kv` and `dir`.
    pub(super) fn on(
        kit: &'k TestKit<'k>,
        roots: &Arc<KnownRoots>,
        options: StoreOptions,
        kv: Arc<dyn KvStore>,
        dir: Arc<tempfile::TempDir>,
    ) -> Self {
        let options = StoreOptions { dir: Some(dir.path().into()), keys: kit.keys, ..options };
        let mut node = Self { kit, kv, dir, options, store: None, roots: roots.clone() };
        node.reopen();
        node
    }

    pub(super) fn store(&self) -> &StateStore {
        self.store.as_ref().expect("the node is open")
    }

    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Closes the store and opens it again.
    pub(super) fn reopen(&mut self) {
        self.store = None;
        let past = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        for path in self.files() {
            let file = fs::File::options().write(true).open(path).expect("state file");
            file.set_modified(past).expect("modification time");
        }
        let backend = self.kit.backend();
        let store = StateStore::open(backend, self.kv.clone(), self.options.clone())
            .expect("what was committed opens");
        store.prefetch_as_from_disk();
        self.store = Some(store);
        let mut needed = self.needed_files();
        needed.extend(self.pending_files());
        for path in self.files() {
            // Jobs that the backend has restarted may have written new files.
            let is_old = fs::metadata(&path).is_ok_and(|meta| meta.modified().ok() == Some(past));
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            assert!(!is_old || needed.contains(&name), "no block names {name}, yet open left it");
        }
    }

    pub(super) fn reopen_with(&mut self, options: StoreOptions) {
        let dir = self.options.dir.clone();
        self.options = StoreOptions { dir, keys: self.kit.keys, ..options };
        self.reopen();
    }

    /// The oldest block that can be read.
    pub(super) fn first_retained(&self) -> u64 {
        self.store().stats().expect("stats").first_retained.expect("there are blocks")
    }

    /// Paths of the files in the state directory.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.dir()).expect("state directory");
        entries.map(|entry| entry.expect("state directory").path()).collect()
    }

    /// Names of the files that the tip or a retained block needs; all of them must exist.
    pub(super) fn needed_files(&self) -> BTreeSet<String> {
        let store = self.store();
        let needed = store.named_files().expect("names of files");
        for name in &needed {
            assert!(self.dir().join(name).is_file(), "{name} is gone, yet needed");
        }
        needed
    }

    /// Names of the files that unfinished merges of the durable tip may have written.
    pub(super) fn pending_files(&self) -> Vec<String> {
        self.store().pending_files().expect("names of files")
    }

    /// Proposes `block` on `at` and seals it.
    pub(super) fn propose(&self, at: StateId<'_>, block: &TestBlock) -> Proposal {
        self.try_propose(at, block).expect("proposing is possible")
    }

    pub(super) fn try_propose(
        &self,
        at: StateId<'_>,
        block: &TestBlock,
    ) -> Result<Proposal, StateError> {
        let session = self.store().begin(at)?;
        let keys: Vec<_> = block.delta.changes().iter().map(|change| change.key).collect();
        if let Some(task) = session.root_task() {
            task.prefetch(&keys[..keys.len().min(5)]);
        }
        let _ahead = session.prefetch(keys);
        let reader = session.reader();
        for change in block.delta.changes() {
            assert_eq!(reader.get(&change.key)?, change.previous, "{} before", change.key);
        }
        prepare_root(&session, block);
        let proposal = session.finish_as(block.number, &self.known(&block.delta))?;
        self.roots.note(block, proposal.root());
        assert_eq!(proposal.number(), block.number);
        self.store().seal(&proposal, block.hash);
        Ok(proposal)
    }

    /// The form of the backend's keys.
    pub(super) const fn keys(&self) -> KeyForm {
        self.kit.keys
    }

    /// What the client can say of `delta`: with hashed keys it cannot name the slots that a wipe
    /// removes.
    pub(super) fn known(&self, delta: &StateDelta) -> StateDelta {
        if self.keys() == KeyForm::Plain {
            return delta.clone();
        }
        let mut known = DeltaBuilder::new();
        delta.wiped().iter().for_each(|address| known.wipe(*address));
        known.add_codes(delta.codes());
        for StateChange { key, previous, next } in delta.changes() {
            let is_slot = matches!(key, StateKey::Slot(..));
            let is_wiped = is_slot && delta.is_wiped(key.address());
            if !is_wiped {
                known.change(*key, previous.clone(), next.clone());
            } else if next.is_some() {
                known.change(*key, None, next.clone());
            }
        }
        known.build()
    }

    /// Proposes a chain on `at`.
    pub(super) fn propose_chain(&self, at: StateId<'_>, blocks: &[BlockPtr]) -> Vec<Proposal> {
        self.try_propose_chain(at, blocks).expect("proposing is possible")
    }

    pub(super) fn try_propose_chain(
        &self,
        at: StateId<'_>,
        blocks: &[BlockPtr],
    ) -> Result<Vec<Proposal>, StateError> {
        let mut proposals: Vec<Proposal> = Vec::with_capacity(blocks.len());
        for block in blocks {
            let at = proposals.last().map_or(at, StateId::Proposal);
            proposals.push(self.try_propose(at, block)?);
        }
        Ok(proposals)
    }

    /// Proposes consecutive blocks as one batch.
    pub(super) fn try_propose_batch(
        &self,
        at: StateId<'_>,
        blocks: &[BlockPtr],
    ) -> Result<Proposal, StateError> {
        let (first, above) = blocks.split_first().expect("it has blocks");
        let mut run = DeltaBatchBuilder::new(Arc::new(self.known(&first.delta)));
        above.iter().for_each(|block| run.push(Arc::new(self.known(&block.delta))));
        let proposal = self.store().begin(at)?.finish_batch(&run.build())?;
        let last = above.last().unwrap_or(first);
        self.roots.note(last, proposal.root());
        assert_eq!(proposal.number(), last.number);
        self.store().seal(&proposal, last.hash);
        Ok(proposal)
    }

    pub(super) fn commit(&self, proposals: &[Proposal]) {
        self.try_commit(proposals).expect("committing is possible");
    }

    pub(super) fn try_commit(&self, proposals: &[Proposal]) -> Result<(), StateError> {
        let mut txn = self.kv.begin_write()?;
        let after = self.store().commit(proposals, &mut *txn)?;
        txn.commit()?;
        after.run()
    }

    /// Proposes and commits `blocks` on the tip, in one commit.
    pub(super) fn extend(&self, blocks: &[BlockPtr]) {
        self.commit(&self.propose_chain(StateId::Tip, blocks));
    }

    /// As [`extend`](Self::extend), with one commit for each block.
    pub(super) fn extend_each(&self, blocks: &[BlockPtr]) {
        for block in blocks {
            self.extend(std::slice::from_ref(block));
        }
    }

    pub(super) fn revert(&self, to: u64) {
        self.try_revert(to).expect("reverting is possible");
    }

    pub(super) fn try_revert(&self, to: u64) -> Result<(), StateError> {
        let mut txn = self.kv.begin_write()?;
        let after = self.store().revert(to, &mut *txn)?;
        txn.commit()?;
        after.run()
    }

    /// Compares the whole durable tip with `block`, and the files with the needed ones.
    pub(super) fn check_tip(&self, block: &TestBlock) {
        let tip = self.store().tip().expect("there are blocks");
        assert_eq!((tip.block.number, tip.block.hash), (block.number, block.hash), "the tip");
        self.check(StateId::Tip, block);
        self.needed_files();
        let live = self.store().stats().expect("stats").backend.live_keys;
        assert_eq!(live, block.entries.len() as u64, "stats count other keys than there are");
    }

    /// Compares the whole state `at` with `block`.
    pub(super) fn check(&self, at: StateId<'_>, block: &TestBlock) {
        let store = self.store();
        let root = store.root(at).expect("root");
        assert_eq!(Some(root), self.roots.of(block), "root of block {}", block.number);
        let entries =
            store.at(at).and_then(|state| state.entries(None, usize::MAX)).expect("entries");
        assert!(
            entries
                .iter()
                .map(|(key, value)| (key, value))
                .eq(&in_form(self.keys(), &block.entries)),
            "entries of block {} differ: {} instead of {}",
            block.number,
            entries.len(),
            block.entries.len()
        );
        check_reader(&store.at(at).expect("reader"), block, ValueFlavour::Opaque);
    }

    /// Compares pages of entries `at` with `block`; `starts` may or may not exist.
    pub(super) fn check_pages(&self, at: StateId<'_>, block: &TestBlock, starts: &[StateKey]) {
        let entries = in_form(self.keys(), &block.entries);
        for (n, start) in self.keys().keys(starts).iter().enumerate() {
            let limit = [0, 1, 7, 40][n % 4];
            let page = self
                .store()
                .at(at)
                .and_then(|state| state.entries(Some(start), limit))
                .expect("entries");
            let expected = entries.range(start..).take(limit);
            assert!(page.iter().map(|(k, v)| (k, v)).eq(expected), "page of {limit} from {start}");
        }
    }
}

/// Compares a reader with `block`: every key, some that are absent, and the slots of every address.
pub(super) fn check_reader(reader: &StateProvider, block: &TestBlock, flavour: ValueFlavour) {
    let mut addresses = BTreeSet::new();
    for (key, value) in &*block.entries {
        assert_eq!(reader.get(key).expect("get").as_ref(), Some(value), "{key}");
        addresses.insert(*key.address());
        // Keys close to present ones, to find confused prefixes and neighbours.
        for absent in neighbours(key) {
            let expected = block.entries.get(&absent);
            assert_eq!(reader.get(&absent).expect("get").as_ref(), expected, "{absent}");
        }
    }
    for change in block.delta.changes() {
        assert_eq!(reader.get(&change.key).expect("get"), change.next, "{}", change.key);
        addresses.insert(*change.key.address());
    }
    addresses.insert(Address::repeat_byte(0xee));
    for address in addresses {
        let (keys, named) = (reader.keys(), reader.slots_of(&address));
        let slots = reader.account_slots(&keys.account(&address), usize::MAX).expect("slots");
        match keys {
            KeyForm::Plain => assert_eq!(named.expect("slots"), slots),
            KeyForm::Hashed => assert!(matches!(named, Err(StateError::HashedKeys { .. }))),
        }
        let expected = slots_of(&block.entries, &address);
        let expected: BTreeMap<_, _> = expected.map(|(slot, of)| (keys.slot(&slot), of)).collect();
        assert!(
            slots
                .iter()
                .map(|(slot, value)| (slot, value))
                .eq(expected.iter().map(|(s, v)| (s, *v))),
            "slots of {address}"
        );
        for few in [1, 2] {
            let some = reader.account_slots(&keys.account(&address), few).expect("some slots");
            assert_eq!(some.len(), few.min(slots.len()), "{few} slots of {address}");
            assert!(some.iter().all(|slot| slots.contains(slot)), "{few} slots of {address}");
        }
        if flavour == ValueFlavour::Ethereum {
            let account = reader.account(&address).expect("canonical account");
            let key = StateKey::Account(address);
            assert_eq!(account.map(|a| a.encode()).as_ref(), block.entries.get(&key));
            for (slot, value) in slots_of(&block.entries, &address) {
                let number = reader.slot(&address, &slot).expect("canonical slot");
                assert_eq!(retrie_state::encode_slot(number), Some(value.clone()));
            }
        }
    }
}

/// Keys that differ from `key` in one place.
fn neighbours(key: &StateKey) -> [StateKey; 2] {
    match key {
        StateKey::Account(address) => {
            let mut other = *address;
            other.0[19] ^= 1;
            [StateKey::Account(other), StateKey::Slot(*address, B256::ZERO)]
        }
        StateKey::Slot(address, slot) => {
            let mut other = *slot;
            other.0[31] ^= 1;
            let mut elsewhere = *address;
            elsewhere.0[0] ^= 0x80;
            [StateKey::Slot(*address, other), StateKey::Slot(elsewhere, *slot)]
        }
    }
}

/// Calls [`RootTask::prepare_root`](retrie_state_store::RootTask::prepare_root) with the writes of `block`: not at all in two of four blocks,
/// in pieces in one, and in one incompletely and with wrong values.
fn prepare_root(session: &StateSession<'_>, block: &TestBlock) {
    let Some(task) = session.root_task() else { return };
    let changes = block.delta.changes();
    let tell = |some: &[StateChange]| {
        let mut told = DeltaBuilder::new();
        for StateChange { key, previous, next } in some {
            told.change(*key, previous.clone(), next.clone());
        }
        task.prepare_root(&told.build());
    };
    match block.number % 4 {
        1 => changes.chunks(3).for_each(tell),
        3 => {
            let mut others = changes.to_vec();
            others.iter_mut().step_by(2).for_each(|change| change.next = change.previous.clone());
            tell(&others);
            changes.iter().skip(1).step_by(5).for_each(|change| tell(std::slice::from_ref(change)));
        }
        _ => {}
    }
}
