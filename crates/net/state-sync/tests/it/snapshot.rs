//! States that are exported and fetched again, from mirrors that are whole, damaged, or lie.

use alloy_consensus::Header;
use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, U256, keccak256};
use rand::{Rng, SeedableRng, rngs::StdRng};
use retrie_sources::ObjectFolder;
use retrie_state::{
    Account, AnyBackend, BackendKey, BlockRef, KeyForm, StateError, StateKey, StateValue,
    encode_slot,
};
use retrie_state_store::{KvStore, MemoryStore, StateId, StateStore, StoreOptions};
use retrie_state_sync::{
    ExportOptions, FetchedState, SnapshotError, SnapshotExport, SnapshotManifest, SnapshotMirror,
    SnapshotSource, SnapshotSubject, StateFetcher, StateFormat, StatePeer, StateSyncError,
    StateSyncOptions, SyncTarget, sync_dir,
};
use retrie_storage_bavl::{Bavl, ChunkEntries};
use retrie_storage_mpt::{Mpt, ethereum::ranges::HashedRanges};
use retrie_storage_prefix::prefix::Prefix;
use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// Small, so that there are many objects.
const OBJECT_BYTES: usize = 20 << 10;

/// A state, its store, and the headers of its block.
struct SnapshotFixture {
    backend: Arc<dyn AnyBackend>,
    entries: BTreeMap<StateKey, StateValue>,
    codes: HashMap<B256, Bytes>,
    store: StateStore,
    root: B256,
    headers: Vec<Header>,
    block: BlockRef,
}

fn open(backend: &Arc<dyn AnyBackend>, keys: KeyForm) -> (StateStore, Arc<dyn KvStore>) {
    let kv = Arc::new(MemoryStore::new()) as Arc<dyn KvStore>;
    let options = StoreOptions { keys, ..StoreOptions::default() };
    (StateStore::open(backend.clone(), kv.clone(), options).unwrap(), kv)
}

impl SnapshotFixture {
    /// Accounts, some of them contracts; one has more slots than an answer.
    fn new(backend: Arc<dyn AnyBackend>, keys: KeyForm, accounts: u64) -> Self {
        let mut random = StdRng::seed_from_u64(9);
        let (mut entries, mut codes) = (BTreeMap::new(), HashMap::new());
        for n in 0..accounts {
            let address = Address::from(random.random::<[u8; 20]>());
            let mut code_hash = KECCAK256_EMPTY;
            if n % 40 == 0 {
                // Some contracts share their code.
                let code = Bytes::from(vec![(n % 200) as u8; 50 + (n % 200) as usize]);
                code_hash = keccak256(&code);
                codes.insert(code_hash, code);
                let slots = if n == 0 { accounts } else { n % 7 };
                for slot in 0..slots {
                    let value = encode_slot(U256::from(slot + 1)).unwrap();
                    entries.insert(StateKey::Slot(address, B256::from(U256::from(slot))), value);
                }
            }
            let balance = U256::from(random.random::<u64>());
            let account = Account { nonce: n, balance, code_hash };
            entries.insert(StateKey::Account(address), account.encode());
        }
        let (store, kv) = open(&backend, keys);
        let mut all = entries.iter().map(|(key, value)| Ok((*key, value.clone())));
        let mut txn = kv.begin_write().unwrap();
        let block = BlockRef::new(300, B256::repeat_byte(7));
        let (root, after) = store.bulk_load(block, &mut all, &mut *txn).unwrap();
        txn.commit().unwrap();
        after.run().unwrap();
        let mut headers: Vec<Header> = Vec::new();
        for number in 45..=300 {
            let parent_hash = headers.last().map_or(B256::ZERO, Header::hash_slow);
            headers.push(Header { number, parent_hash, state_root: root, ..Header::default() });
        }
        let block = BlockRef::new(300, headers[255].hash_slow());
        Self { backend, entries, codes, store, root, headers, block }
    }

    fn subject(&self) -> SnapshotSubject {
        SnapshotSubject {
            chain_id: 1,
            genesis_hash: B256::repeat_byte(1),
            block_number: self.block.number,
            block_hash: self.block.hash,
            state_root: self.root,
        }
    }

    /// Exports it in this form of keys, until `most` answers are written.
    fn export_until(
        &self,
        form: KeyForm,
        to: &Path,
        options: ExportOptions,
        most: u64,
    ) -> Result<SnapshotExport, SnapshotError> {
        let state = self.store.at(StateId::Tip).unwrap();
        let codes = |hash: &B256| Ok::<_, StateError>(self.codes.get(hash).cloned());
        let source = SnapshotSource {
            state: &state,
            backend: self.backend.clone(),
            keys: form,
            codes: &codes,
            subject: self.subject(),
            headers: self.headers.iter().map(|header| alloy_rlp::encode(header).into()).collect(),
            blocks: None,
        };
        let (stop, scratch) = (AtomicBool::new(false), folder());
        let folder = ObjectFolder::new(to.into());
        source.export(&folder, scratch.path(), options, &stop, &mut |progress| {
            assert!((0.0..1.000_001).contains(&progress.share), "{progress:?}");
            stop.store(progress.answers >= most, Ordering::Relaxed);
        })
    }

    fn export(&self, form: KeyForm, to: &Path) -> SnapshotManifest {
        let options = ExportOptions { object_bytes: OBJECT_BYTES, force: false };
        match self.export_until(form, to, options, u64::MAX).unwrap() {
            SnapshotExport::Written(manifest) => manifest,
            SnapshotExport::Existing(_) => panic!("nothing was there"),
        }
    }

    /// Fetches it from these mirrors, which `checker` checks.
    fn fetch_until(
        &self,
        format: &StateFormat,
        mirrors: &[PathBuf],
        datadir: &Path,
        most: u64,
    ) -> Result<FetchedState, StateSyncError> {
        let peers: Vec<Arc<dyn StatePeer>> =
            mirrors.iter().map(|path| mirror(path, datadir) as Arc<dyn StatePeer>).collect();
        let target = SyncTarget::of_block(&peers, self.block.hash).unwrap();
        assert_eq!(target.headers, self.headers);
        let stop = AtomicBool::new(false);
        let options = StateSyncOptions { patience: Duration::from_secs(30) };
        let block = (self.block.number, self.block.hash);
        StateFetcher::open(format.clone(), datadir)?.fetch(
            block,
            self.root,
            &peers,
            options,
            &stop,
            &mut |progress| {
                stop.fetch_or(progress.answers >= most, Ordering::Relaxed);
            },
        )
    }

    fn fetch(
        &self,
        form: KeyForm,
        mirrors: &[PathBuf],
        datadir: &Path,
    ) -> Result<FetchedState, StateSyncError> {
        self.fetch_until(&self.format(form), mirrors, datadir, u64::MAX)
    }

    fn format(&self, form: KeyForm) -> StateFormat {
        match form {
            KeyForm::Plain => StateFormat::Chunks(self.backend.clone()),
            KeyForm::Hashed => StateFormat::Ranges(&HashedRanges),
        }
    }

    /// Checks that all has come, and that these backends load it.
    fn check(&self, form: KeyForm, mut fetched: FetchedState, backends: &[Arc<dyn AnyBackend>]) {
        let codes: HashMap<_, _> = fetched.codes.iter().map(Result::unwrap).collect();
        assert_eq!(codes, self.codes);
        let expected = self.entries.iter().map(|(key, value)| (form.key(key), value.clone()));
        let expected: BTreeMap<BackendKey, StateValue> = expected.collect();
        let got: Vec<_> = fetched.entries.entries().unwrap().map(Result::unwrap).collect();
        assert!(got == expected.into_iter().collect::<Vec<_>>());
        for backend in backends {
            let (store, kv) = open(backend, form);
            let mut txn = kv.begin_write().unwrap();
            let mut all = got.iter().cloned().map(Ok);
            let (root, _) = store.bulk_load_keys(self.block, &mut all, &mut *txn).unwrap();
            let is_same = root == self.root;
            assert_eq!(is_same, backend.profile().ethereum_root, "{}", backend.identity().name);
        }
    }
}

fn mirror(path: &Path, datadir: &Path) -> Arc<SnapshotMirror> {
    let folder = ObjectFolder::new(path.into());
    let manifest = SnapshotManifest::read(&folder).unwrap().unwrap();
    fs::create_dir_all(sync_dir(datadir)).unwrap();
    Arc::new(SnapshotMirror::new(folder, manifest, &sync_dir(datadir)))
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn mpt() -> Arc<dyn AnyBackend> {
    Arc::new(Mpt::new())
}

fn bavl() -> Arc<dyn AnyBackend> {
    Arc::new(Bavl::new(ChunkEntries::default()))
}

/// All files below a folder, by their paths in it.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(one) = folders.pop() {
        for entry in fs::read_dir(one).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => {
                    let content = fs::read(&path).unwrap();
                    all.insert(path.strip_prefix(folder).unwrap().to_owned(), content);
                }
            }
        }
    }
    all
}

fn write(folder: &Path, files: &BTreeMap<PathBuf, Vec<u8>>) {
    for (name, content) in files {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}

#[test]
fn a_snapshot_of_each_backend_and_form_of_keys_is_fetched_and_loaded_by_others() {
    let prefix = || Arc::new(Prefix::default()) as Arc<dyn AnyBackend>;
    let others = [mpt(), prefix(), bavl()];
    for (backend, keys, form) in [
        (mpt(), KeyForm::Plain, KeyForm::Plain),
        (mpt(), KeyForm::Plain, KeyForm::Hashed),
        (mpt(), KeyForm::Hashed, KeyForm::Hashed),
        (prefix(), KeyForm::Plain, KeyForm::Plain),
        (prefix(), KeyForm::Hashed, KeyForm::Hashed),
    ] {
        let origin = SnapshotFixture::new(backend, keys, 9_000);
        let (to, datadir) = (folder(), folder());
        let manifest = origin.export(form, to.path());
        assert_eq!(manifest.entries, origin.entries.len() as u64);
        assert_eq!((manifest.codes, manifest.headers), (origin.codes.len() as u64, 256));
        assert!(manifest.objects > 20, "{manifest:?}");
        assert_eq!(manifest.key_form(), Some(form));
        let fetched = origin.fetch(form, &[to.path().into()], datadir.path()).unwrap();
        assert_eq!(fetched.progress.answers, manifest.answers, "all answers are asked for");
        assert_eq!(fetched.progress.bytes, manifest.bytes);
        origin.check(form, fetched, &others);
    }
}

#[test]
fn a_snapshot_of_bavl_is_loaded_with_its_chunks() {
    let origin = SnapshotFixture::new(bavl(), KeyForm::Plain, 3_000);
    let (to, datadir) = (folder(), folder());
    origin.export(KeyForm::Plain, to.path());
    let mut fetched = origin.fetch(KeyForm::Plain, &[to.path().into()], datadir.path()).unwrap();
    let (store, kv) = open(&origin.backend, KeyForm::Plain);
    let mut txn = kv.begin_write().unwrap();
    let entries = &mut fetched.entries.entries().unwrap();
    let (root, _) = store.load_chunks(origin.block, &fetched.parts, entries, &mut *txn).unwrap();
    assert_eq!(root, origin.root);
}

#[test]
fn an_empty_state_is_a_snapshot_too() {
    let origin = SnapshotFixture::new(mpt(), KeyForm::Plain, 0);
    let (to, datadir) = (folder(), folder());
    let manifest = origin.export(KeyForm::Plain, to.path());
    assert_eq!((manifest.objects, manifest.index_objects, manifest.answers), (0, 0, 0));
    let fetched = origin.fetch(KeyForm::Plain, &[to.path().into()], datadir.path()).unwrap();
    origin.check(KeyForm::Plain, fetched, &[mpt()]);
}

#[test]
fn a_stopped_export_is_no_snapshot_and_a_second_one_writes_the_same_objects() {
    let origin = SnapshotFixture::new(mpt(), KeyForm::Plain, 5_000);
    let (one, two) = (folder(), folder());
    origin.export(KeyForm::Plain, one.path());
    let options = ExportOptions { object_bytes: OBJECT_BYTES, force: false };
    let stopped = origin.export_until(KeyForm::Plain, two.path(), options, 2);
    assert!(matches!(stopped, Err(SnapshotError::Stopped)), "{stopped:?}");
    assert!(files(two.path()).len() > 3);
    let target = ObjectFolder::new(two.path().into());
    assert_eq!(SnapshotManifest::read(&target).unwrap(), None);
    let again = origin.export_until(KeyForm::Plain, two.path(), options, u64::MAX).unwrap();
    assert!(matches!(again, SnapshotExport::Written(_)));
    assert!(files(one.path()) == files(two.path()));
    let again = origin.export_until(KeyForm::Plain, two.path(), options, u64::MAX).unwrap();
    assert!(matches!(again, SnapshotExport::Existing(_)));
}

#[test]
fn another_snapshot_is_only_replaced_by_force_and_then_leaves_nothing_behind() {
    let (large, small) = (
        SnapshotFixture::new(mpt(), KeyForm::Plain, 5_000),
        SnapshotFixture::new(mpt(), KeyForm::Plain, 1_000),
    );
    let (to, alone) = (folder(), folder());
    large.export(KeyForm::Plain, to.path());
    small.export(KeyForm::Plain, alone.path());
    let before = files(to.path());
    let options = ExportOptions { object_bytes: OBJECT_BYTES, force: false };
    for form in [KeyForm::Plain, KeyForm::Hashed] {
        let refused = small.export_until(form, to.path(), options, u64::MAX);
        assert!(matches!(refused, Err(SnapshotError::Occupied { .. })), "{refused:?}");
    }
    assert!(files(to.path()) == before);
    let options = ExportOptions { force: true, ..options };
    small.export_until(KeyForm::Plain, to.path(), options, u64::MAX).unwrap();
    assert!(files(to.path()) == files(alone.path()));
    // What is no manifest is not overwritten either.
    fs::write(to.path().join("snapshot.json"), "{}").unwrap();
    let options = ExportOptions { force: false, ..options };
    let refused = small.export_until(KeyForm::Plain, to.path(), options, u64::MAX);
    assert!(matches!(refused, Err(SnapshotError::Manifest { .. })), "{refused:?}");
}

/// What is wrong with a mirror.
#[derive(Clone, Copy, Debug)]
enum MirrorDamage {
    /// A byte of every tenth object is flipped.
    Flips,
    /// Every tenth object ends early.
    Cuts,
    /// Every tenth object is not there.
    Loses,
    /// Answers lie elsewhere than the index says.
    Shifts,
    /// The index names lengths of 4 GiB.
    HugeLengths,
    /// The index ends early.
    ShortIndex,
    /// The index is not sorted.
    Unsorted,
    /// There is no index.
    NoIndex,
    /// The manifest says that there is nothing.
    EmptyManifest,
    /// The manifest promises more than there is.
    LargeManifest,
}

const DAMAGES: &[MirrorDamage] = &[
    MirrorDamage::Flips,
    MirrorDamage::Cuts,
    MirrorDamage::Loses,
    MirrorDamage::Shifts,
    MirrorDamage::HugeLengths,
    MirrorDamage::ShortIndex,
    MirrorDamage::Unsorted,
    MirrorDamage::NoIndex,
    MirrorDamage::EmptyManifest,
    MirrorDamage::LargeManifest,
];

const RECORD: usize = 28;

impl MirrorDamage {
    fn apply(self, whole: &BTreeMap<PathBuf, Vec<u8>>) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = whole.clone();
        let index = Path::new("index/00000");
        let chunks = files.iter_mut().filter(|(name, _)| name.starts_with("chunks"));
        let tenth = chunks.skip(4).step_by(10);
        match self {
            Self::Flips => tenth.for_each(|(_, content)| {
                let middle = content.len() / 2;
                content[middle] ^= 1;
            }),
            Self::Cuts => tenth.for_each(|(_, content)| content.truncate(content.len() / 3)),
            Self::Loses => {
                let gone: Vec<_> = tenth.map(|(name, _)| name.clone()).collect();
                gone.iter().for_each(|name| drop(files.remove(name)));
            }
            Self::Shifts => {
                let records = files.get_mut(index).unwrap().chunks_exact_mut(RECORD);
                records.skip(30).step_by(50).for_each(|record| record[23] ^= 1);
            }
            Self::HugeLengths => {
                let records = files.get_mut(index).unwrap().chunks_exact_mut(RECORD);
                records.skip(30).step_by(50).for_each(|record| record[24..].fill(0xff));
            }
            Self::ShortIndex => {
                let content = files.get_mut(index).unwrap();
                content.truncate(content.len() * 2 / 3);
            }
            Self::Unsorted => {
                let content = files.get_mut(index).unwrap();
                let middle = content.len() / 2 / RECORD * RECORD;
                content.rotate_left(middle);
            }
            Self::NoIndex => drop(files.remove(index)),
            Self::EmptyManifest | Self::LargeManifest => {
                let name = Path::new("snapshot.json");
                let json = String::from_utf8(files[name].clone()).unwrap();
                let count = if matches!(self, Self::EmptyManifest) { 0 } else { 2048 };
                let with = format!("\"indexObjects\": {count}");
                let changed = json.replace("\"indexObjects\": 1", &with);
                assert_ne!(json, changed);
                files.insert(name.to_owned(), changed.into());
            }
        }
        files
    }

    /// Whether a reader finds all the same.
    const fn is_harmless(self) -> bool {
        matches!(self, Self::LargeManifest)
    }
}

#[test]
fn damage_and_lies_cost_what_they_concern_and_another_mirror_has_the_rest() {
    for form in [KeyForm::Plain, KeyForm::Hashed] {
        let origin = SnapshotFixture::new(mpt(), form, 9_000);
        let whole = folder();
        origin.export(form, whole.path());
        let content = files(whole.path());
        // What is below the format is the same for both.
        let damages = if form == KeyForm::Plain { DAMAGES } else { &DAMAGES[..1] };
        // A mirror that lacks something is asked five times, with pauses.
        std::thread::scope(|scope| {
            for damage in damages {
                let (origin, content, whole) = (&origin, &content, whole.path());
                scope.spawn(move || is_noticed(*damage, origin, form, content, whole));
            }
        });
    }
}

fn is_noticed(
    damage: MirrorDamage,
    origin: &SnapshotFixture,
    form: KeyForm,
    content: &BTreeMap<PathBuf, Vec<u8>>,
    whole: &Path,
) {
    let (bad, datadir) = (folder(), folder());
    write(bad.path(), &damage.apply(content));
    let alone = origin.fetch(form, &[bad.path().into()], datadir.path());
    if damage.is_harmless() {
        origin.check(form, alone.unwrap(), &[]);
        return;
    }
    let error = alone.err().unwrap_or_else(|| panic!("{damage:?}: it is not noticed"));
    let text = error.to_string();
    let names: &[&str] = match damage {
        MirrorDamage::Flips | MirrorDamage::Shifts => &["chunks/0000", "at bytes"],
        MirrorDamage::Cuts | MirrorDamage::Loses | MirrorDamage::HugeLengths => {
            &["it lacks", "chunks/0000", "at bytes"]
        }
        _ => &["it lacks", "its index does not have it"],
    };
    let names_item = text.contains("chunk 0x") || text.contains("code 0x");
    assert!(names_item, "{damage:?}: {text}");
    for name in names {
        assert!(text.contains(name), "{damage:?}: {text}");
    }
    // What was fetched is kept; a whole mirror beside it has the rest.
    let both = [bad.path().to_owned(), whole.to_owned()];
    let fetched = origin.fetch(form, &both, datadir.path()).unwrap();
    origin.check(form, fetched, &[]);
    let fresh = folder();
    let fetched = origin.fetch(form, &both, fresh.path()).unwrap();
    origin.check(form, fetched, &[]);
}

#[test]
fn what_a_damaged_mirror_gave_is_not_asked_for_again() {
    let origin = SnapshotFixture::new(mpt(), KeyForm::Plain, 9_000);
    let (whole, bad, datadir) = (folder(), folder(), folder());
    let manifest = origin.export(KeyForm::Plain, whole.path());
    let mut content = files(whole.path());
    let last = content.iter_mut().rfind(|(name, _)| name.starts_with("chunks"));
    last.unwrap().1[5] ^= 1;
    write(bad.path(), &content);
    origin.fetch(KeyForm::Plain, &[bad.path().into()], datadir.path()).unwrap_err();
    let fetched = origin.fetch(KeyForm::Plain, &[whole.path().into()], datadir.path()).unwrap();
    let resumed = fetched.progress.resumed;
    assert!(resumed * 10 > manifest.answers * 8, "{resumed} of {}", manifest.answers);
    origin.check(KeyForm::Plain, fetched, &[]);
}

#[test]
fn a_stopped_fetch_goes_on_from_another_mirror() {
    let origin = SnapshotFixture::new(mpt(), KeyForm::Hashed, 9_000);
    let (one, two, datadir) = (folder(), folder(), folder());
    origin.export(KeyForm::Hashed, one.path());
    write(two.path(), &files(one.path()));
    let format = origin.format(KeyForm::Hashed);
    let stopped = origin.fetch_until(&format, &[one.path().into()], datadir.path(), 20);
    assert!(matches!(stopped, Err(StateSyncError::Stopped) | Ok(_)), "{stopped:?}");
    drop(stopped);
    let fetched = origin.fetch(KeyForm::Hashed, &[two.path().into()], datadir.path()).unwrap();
    assert!(fetched.progress.resumed >= 20);
    origin.check(KeyForm::Hashed, fetched, &[]);
}

#[test]
fn a_mirror_of_another_block_gives_no_headers_and_names_its_own() {
    let origin = SnapshotFixture::new(mpt(), KeyForm::Plain, 100);
    let (to, datadir) = (folder(), folder());
    origin.export(KeyForm::Plain, to.path());
    let peer = mirror(to.path(), datadir.path());
    let error = peer.headers(B256::repeat_byte(5), 256).unwrap_err().to_string();
    assert!(error.contains(&format!("block 300 ({})", origin.block.hash)), "{error}");
    assert_eq!(peer.find_root(origin.root).unwrap(), Some(origin.block.hash));
    assert_eq!(peer.find_root(B256::ZERO).unwrap(), None);
    assert_eq!(peer.headers(origin.block.hash, 3).unwrap().len(), 3);
    fs::write(to.path().join("headers.rlp"), [0xf9, 0xff]).unwrap();
    peer.headers(origin.block.hash, 3).unwrap_err();
    fs::remove_file(to.path().join("headers.rlp")).unwrap();
    peer.headers(origin.block.hash, 3).unwrap_err();
}
