//! A chain moved from every backend to every other one. With history the new datadir equals an
//! import of the same blocks; without, it equals a chain that begins with the latest state.

use crate::common::{batches, failing::FailingBackend, import_into, names_block, test_chain};
use alloy_primitives::{Address, B256};
use retrie_backends::all;
use retrie_chainspec::{ChainSpec, primitives::Block};
use retrie_db::{
    ChainRead, DatabaseEnv, DbError, HistoryKept, KeptBlocks, OpenError, OpenOptions,
    StateRootMode, SyncMode,
};
use retrie_pipeline::{
    AnchorError, ChainMigration, ChainOptions, ChainSetupError, ChainStore, ImportEnd,
    MigrateError, MigrationOutcome, MigrationStep, MissingPreimages, PipelineError, PreimageError,
    UnfinishedMigration, export_preimages, import_preimages, missing_preimages,
    testkit::{TestChain, TestRules, write_blocks},
    verify::{VerifyOptions, verify},
};
use retrie_sources::BlockSource;
use retrie_state::{AnyBackend, BackendKey, BlockRef, KeyForm, StateValue};
use retrie_state_store::{FlatHistory, StateId, StoreOptions};
use retrie_state_testkit::{WrappedBackend, sample};
use retrie_storage_mpt::Mpt;
use retrie_storage_raw::Raw;
use retrie_telemetry::Metrics;
use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};
use tempfile::TempDir;

/// Blocks of the moved chain, and blocks that are imported after the move.
const MOVED: usize = 14;
const BLOCKS: usize = 20;

fn mpt() -> Arc<dyn AnyBackend> {
    Arc::new(Mpt::default())
}

fn made(rules: TestRules) -> (TestChain, Vec<Block>) {
    let mut chain = test_chain(rules);
    let genesis = chain.genesis();
    let tip = *chain.branch(genesis, BLOCKS as u64, 12, 0).last().unwrap();
    let blocks = chain.path(genesis, tip);
    (chain, blocks)
}

/// A datadir on one backend.
#[derive(Clone)]
struct BackendDatadir {
    datadir: PathBuf,
    spec: Arc<ChainSpec>,
    backend: Arc<dyn AnyBackend>,
    referee: Option<Arc<dyn AnyBackend>>,
    kept: HistoryKept,
    retention: u64,
    keys: KeyForm,
    preimages: Option<bool>,
}

impl BackendDatadir {
    fn new(
        folder: &TempDir,
        name: &str,
        spec: &Arc<ChainSpec>,
        backend: &Arc<dyn AnyBackend>,
    ) -> Self {
        let (datadir, spec, backend) = (folder.path().join(name), spec.clone(), backend.clone());
        Self {
            datadir,
            spec,
            backend,
            referee: None,
            kept: HistoryKept::default(),
            retention: 128,
            keys: KeyForm::Plain,
            preimages: None,
        }
    }

    fn hashed(self) -> Self {
        Self { keys: KeyForm::Hashed, ..self }
    }

    /// With hashed keys, and their preimages.
    fn with_preimages(self) -> Self {
        Self { preimages: Some(true), ..self.hashed() }
    }

    fn refereed(self) -> Self {
        Self { referee: Some(mpt()), ..self }
    }

    fn options(&self) -> ChainOptions {
        ChainOptions {
            spec: self.spec.clone(),
            backend: self.backend.clone(),
            referee: self.referee.clone(),
            root_mode: match self.backend.profile().ethereum_root {
                true => StateRootMode::Header,
                false => StateRootMode::Shadow,
            },
            datadir: self.datadir.clone(),
            db: OpenOptions {
                map_limit: 1 << 30,
                growth_step: 1 << 20,
                sync: SyncMode::NoSync,
                kept: self.kept,
                preimages: self.preimages,
                ..OpenOptions::default()
            },
            store: StoreOptions {
                retention: self.retention,
                keys: self.keys,
                flat_history: FlatHistory::All,
                ..StoreOptions::default()
            },
        }
    }

    fn open(&self) -> ChainStore {
        ChainStore::open(self.options()).unwrap()
    }

    fn import(&self, blocks: &[Block]) {
        let file = self.datadir.with_extension("rlp");
        write_blocks(&file, blocks);
        let sources = vec![BlockSource::open(&file).unwrap()];
        let stop = AtomicBool::new(false);
        import_into(&self.open(), sources, 0..=u64::MAX, batches(3), &stop, &mut |_| {}).unwrap();
    }

    /// Moves the chain of `from` here. `progress` gets the step and the stop flag.
    fn migrate_with(
        &self,
        from: &Self,
        history: bool,
        progress: &mut dyn FnMut(MigrationStep<'_>, &AtomicBool),
    ) -> Result<MigrationOutcome, PipelineError> {
        self.migrate_under(from, history, &AtomicBool::new(false), progress)
    }

    fn migrate_under(
        &self,
        from: &Self,
        history: bool,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(MigrationStep<'_>, &AtomicBool),
    ) -> Result<MigrationOutcome, PipelineError> {
        let db = DatabaseEnv::open(&from.datadir, &OpenOptions::read_only()).unwrap();
        let read = Arc::new(db.begin_read().unwrap());
        let (backend, to) = (from.backend.clone(), self.options());
        let mut step = |step: MigrationStep<'_>| progress(step, stop);
        ChainMigration { from: &read, backend, to, history, until: None }.run(
            &Metrics::new().unwrap(),
            stop,
            &mut step,
        )
    }

    fn migrate(&self, from: &Self, history: bool) -> Result<MigrationOutcome, PipelineError> {
        self.migrate_with(from, history, &mut |_, _| {})
    }

    /// Moves the chain of `from` here with its history, and stops after `number` executed blocks.
    fn migrate_up_to(&self, from: &Self, number: u64) {
        let migrated = self.migrate_with(from, true, &mut |step, stop| {
            if let MigrationStep::Blocks { report, .. } = step {
                stop.store(report.tip.number >= number, Ordering::Relaxed);
            }
        });
        let migrated = migrated.unwrap();
        assert_eq!((migrated.end, migrated.tip.number), (ImportEnd::Stopped, number));
    }

    /// What an unfinished migration of the chain of `from` has left here.
    fn begun(&self, from: &Self) -> Option<UnfinishedMigration> {
        let db = DatabaseEnv::open(&from.datadir, &OpenOptions::read_only()).unwrap();
        UnfinishedMigration::read(&self.datadir, &db.begin_read().unwrap()).unwrap()
    }

    fn check(&self, what: &str) {
        let backend = |name: &str| match name {
            name if name == self.backend.identity().name => Some(self.backend.clone()),
            "mpt" => Some(mpt()),
            _ => None,
        };
        let db = DatabaseEnv::open(&self.datadir, &OpenOptions::read_only()).unwrap();
        let scratch = self.datadir.parent().unwrap();
        let spec = self.spec.clone();
        let options = VerifyOptions { spec, backend: &backend, max_findings: 100, scratch };
        let report = verify(&db, &options, &mut |_, _| {}).unwrap();
        assert_eq!(report.findings, [] as [String; 0], "{what}");
    }
}

fn entries(chain: &ChainStore) -> Vec<(BackendKey, StateValue)> {
    chain.state().at(StateId::Tip).unwrap().entries(None, 100_000).unwrap()
}

/// Compares the stored content of every block, except roots and receipts, which not all datadirs
/// have.
fn assert_same_blocks(chain: &ChainStore, expected: &ChainStore, what: &str) {
    let [read, whole] = [chain, expected].map(|chain| chain.db().begin_read().unwrap());
    assert_eq!(read.tip().unwrap(), whole.tip().unwrap(), "{what}");
    for number in 0..=whole.tip().unwrap().unwrap().number {
        let hash = whole.canonical_hash(number).unwrap().unwrap();
        assert_eq!(read.canonical_hash(number).unwrap(), Some(hash), "{what}");
        assert_eq!(read.block(&hash).unwrap(), whole.block(&hash).unwrap(), "{what}");
        assert_eq!(read.senders(&hash).unwrap(), whole.senders(&hash).unwrap(), "{what}");
        assert_eq!(read.receipts(&hash).unwrap(), whole.receipts(&hash).unwrap(), "{what}");
        let difficulty = whole.total_difficulty(&hash).unwrap();
        assert_eq!(read.total_difficulty(&hash).unwrap(), difficulty, "{what}");
        for tx in whole.transactions(&hash).unwrap().unwrap() {
            let [here, there] =
                [&read, &whole].map(|read| read.transaction_position(tx.tx_hash()).unwrap());
            assert_eq!(here, there, "{what}");
        }
    }
    for (key, value) in entries(expected) {
        if let (BackendKey::Account(_), Some(account)) =
            (key, retrie_state::Account::decode(&value))
        {
            let code = whole.code(&account.code_hash).unwrap();
            assert_eq!(read.code(&account.code_hash).unwrap(), code, "{what}");
        }
    }
}

/// Roots of block `number` in both stores.
fn roots(chain: &ChainStore, number: u64) -> Vec<(String, B256)> {
    let read = chain.db().begin_read().unwrap();
    read.roots(&read.canonical_hash(number).unwrap().unwrap()).unwrap()
}

/// Moves `blocks` from `old` to `new`, compares the result with `imported` (the same blocks
/// imported on the same backend), and imports more blocks on top of both.
fn moved(
    old: &BackendDatadir,
    new: &BackendDatadir,
    imported: &BackendDatadir,
    blocks: &[Block],
    history: bool,
    what: &str,
) {
    let migrated = new.migrate(old, history).unwrap();
    assert_eq!(migrated.end, ImportEnd::Complete, "{what}");
    assert_eq!(migrated.tip.number, MOVED as u64, "{what}");
    let first = if history { 0 } else { MOVED as u64 };
    assert_eq!(migrated.first_state.number, first, "{what}");
    assert_eq!(migrated.executed.blocks, MOVED as u64 - first, "{what}");
    new.check(what);
    // Some backends' roots depend on history.
    let has_same_roots = history || new.backend.profile().state_determined_root;
    let compare = |tip: u64| {
        let (chain, expected) = (new.open(), imported.open());
        assert_same_blocks(&chain, &expected, what);
        assert_eq!(entries(&chain), entries(&expected), "{what}");
        if has_same_roots {
            let from = if history { 0 } else { MOVED as u64 };
            for number in from..=tip {
                assert_eq!(roots(&chain, number), roots(&expected, number), "{what}, {number}");
            }
            assert_eq!(chain.states().tip_roots(), expected.states().tip_roots(), "{what}");
        }
        if history && new.backend.extensions().history.is_some() {
            assert_eq!(
                chain.state().history_kept().unwrap(),
                expected.state().history_kept().unwrap()
            );
            for number in 0..tip {
                let read = chain.db().begin_read().unwrap();
                let block = BlockRef::new(number, read.canonical_hash(number).unwrap().unwrap());
                let state = |chain: &ChainStore| {
                    let state = chain.state().history(block).unwrap();
                    state.entries(None, 100_000).unwrap()
                };
                assert_eq!(state(&chain), state(&expected), "{what}, block {number}");
            }
        }
    };
    imported.import(&blocks[..MOVED]);
    compare(MOVED as u64);
    for place in [new, imported] {
        place.import(&blocks[MOVED..]);
    }
    compare(BLOCKS as u64);
    new.check(what);
    std::fs::remove_dir_all(&imported.datadir).unwrap();
}

#[test]
fn every_backend_takes_over_from_every_other() {
    for (n, from) in all().enumerate() {
        let rules =
            [TestRules::Byzantium, TestRules::Amsterdam, TestRules::Merge(20_000_000)][n % 3];
        let (made, blocks) = made(rules);
        let folder = TempDir::new().unwrap();
        let old = BackendDatadir::new(&folder, "old", &made.spec, &(from.small)());
        old.import(&blocks[..MOVED]);
        for (m, to) in all().enumerate() {
            for history in [false, true] {
                // Each backend is left and taken up, with and without history.
                if !sample::takes(n + m + usize::from(history), 3) {
                    continue;
                }
                let what = format!("{} to {}, history {history}", from.name, to.name);
                let backend = (to.small)();
                let place = |name: &str| BackendDatadir::new(&folder, name, &made.spec, &backend);
                let name = format!("{}-{history}", to.name);
                moved(&old, &place(&name), &place("imported"), &blocks, history, &what);
            }
        }
        old.check(from.name);
    }
}

/// From plain to hashed keys with every backend, by the latest state and with history; the chain
/// goes on, with contracts that destroy themselves, and has the states of an import.
#[test]
fn keys_are_hashed_on_the_way_and_become_plain_by_their_preimages() {
    let (chain, blocks) = made(TestRules::Byzantium);
    let folder = tempfile::tempdir().unwrap();
    for descriptor in all() {
        let (name, backend) = (descriptor.name, &(descriptor.small)());
        let at = |place: &str| {
            BackendDatadir::new(&folder, &format!("{name}-{place}"), &chain.spec, backend)
                .refereed()
        };
        let (plain, imported) = (at("plain"), at("imported").hashed());
        plain.import(&blocks[..MOVED]);
        imported.import(&blocks);
        imported.check(name);
        let expected = imported.open();
        let before = entries(&plain.open());
        for history in [false, true] {
            let what = format!("{name}, history {history}");
            let moved = at(&format!("moved-{history}")).hashed();
            moved.migrate(&plain, history).unwrap();
            let mut hashed: Vec<_> = before
                .iter()
                .map(|(key, value)| (KeyForm::Hashed.key(&key.plain().unwrap()), value.clone()))
                .collect();
            hashed.sort_unstable();
            assert_eq!(entries(&moved.open()), hashed, "{what}");
            moved.check(&what);
            moved.import(&blocks);
            moved.check(&what);
            let ended = moved.open();
            assert_eq!(ended.tip().unwrap(), expected.tip().unwrap(), "{what}");
            assert_eq!(entries(&ended), entries(&expected), "{what}");
            drop(ended);

            // Without preimages only the execution of all blocks leads back.
            let entries_at_tip = entries(&expected);
            let is_account =
                |(key, _): &&(BackendKey, StateValue)| matches!(key, BackendKey::Account(_));
            let accounts = entries_at_tip.iter().filter(is_account).count() as u64;
            let all = MissingPreimages { accounts, slots: entries_at_tip.len() as u64 - accounts };
            let back = at(&format!("back-{history}"));
            let error = back.migrate(&moved, false).unwrap_err();
            let refused = PipelineError::Migrate(MigrateError::NoPreimages {
                block: expected.tip().unwrap(),
                missing: all,
            });
            assert_eq!(error.to_string(), refused.to_string(), "{what}");
            assert!(!back.datadir.exists(), "{what}");
            let mut other = moved.clone();
            other.keys = KeyForm::Plain;
            let error = ChainStore::open(other.options()).unwrap_err().to_string();
            assert!(error.contains("form of keys hashed, not plain"), "{what}: {error}");
        }
        drop(expected);
        to_hashed_keys_and_back(name, &plain, &blocks, &at);
    }
}

/// Moves `plain`, which has the first blocks, to hashed keys with preimages, imports the others,
/// moves it on to another hashed datadir, and back; compares with an import.
fn to_hashed_keys_and_back(
    name: &str,
    plain: &BackendDatadir,
    blocks: &[Block],
    at: &dyn Fn(&str) -> BackendDatadir,
) {
    let (hashed, copy) = (at("kept").with_preimages(), at("copied").with_preimages());
    hashed.migrate(plain, false).unwrap();
    hashed.import(blocks);
    hashed.check(name);
    copy.migrate(&hashed, false).unwrap();
    copy.check(name);
    plain.import(blocks);
    for (from, history) in [(&copy, false), (&hashed, false), (&hashed, true)] {
        let what = format!("{name}, history {history}, from {}", from.datadir.display());
        let back = at("again");
        back.migrate(from, history).unwrap();
        back.check(&what);
        assert_eq!(entries(&back.open()), entries(&plain.open()), "{what}");
        if back.backend.profile().state_determined_root {
            let tip_roots = |at: &BackendDatadir| at.open().states().tip_roots();
            assert_eq!(tip_roots(&back), tip_roots(plain), "{what}");
        }
        if back.backend.profile().ethereum_root {
            let root = |at: &BackendDatadir| at.open().states().tip_roots().unwrap().own;
            assert_eq!(root(&back), root(&hashed), "{what}");
        }
        std::fs::remove_dir_all(&back.datadir).unwrap();
    }
}

/// An import into a hashed datadir that keeps preimages has those of every key, from genesis on;
/// a file of them (EIP-8347) is the same from either form of keys, and fills a datadir without.
#[test]
fn preimages_are_kept_exported_and_imported() {
    let (chain, blocks) = made(TestRules::Prague);
    let folder = tempfile::tempdir().unwrap();
    let stop = &AtomicBool::new(false);
    let at = |place: &str| BackendDatadir::new(&folder, place, &chain.spec, &mpt());
    let (plain, keeping, bare) = (at("plain"), at("keeping").with_preimages(), at("bare").hashed());
    [&plain, &keeping, &bare].iter().for_each(|one| one.import(&blocks));
    let file = |of: &str| folder.path().join(of);
    let export = |from: &BackendDatadir, to: &Path| {
        let db = DatabaseEnv::open(&from.datadir, &OpenOptions::read_only()).unwrap();
        let read = Arc::new(db.begin_read().unwrap());
        let tip = read.tip().unwrap().unwrap();
        export_preimages(&read, mpt(), tip, to, folder.path(), stop)
    };
    let missing = |of: &BackendDatadir| {
        let db = DatabaseEnv::open(&of.datadir, &OpenOptions::read_only()).unwrap();
        let read = Arc::new(db.begin_read().unwrap());
        missing_preimages(&read, mpt(), stop, &mut |_| {}).unwrap()
    };
    let exported = export(&plain, &file("plain.pre")).unwrap();
    assert_eq!(export(&keeping, &file("hashed.pre")).unwrap(), exported);
    let bytes = std::fs::read(file("plain.pre")).unwrap();
    assert_eq!(std::fs::read(file("hashed.pre")).unwrap(), bytes);
    assert_eq!(bytes.len() as u64, exported.bytes);
    assert_eq!(exported.bytes, 24 * exported.accounts + 32 * exported.slots);
    assert_eq!(alloy_primitives::keccak256(&bytes), exported.digest);
    assert_eq!(export(&keeping, &file("zipped.gz")).unwrap(), exported);

    // Nothing is known to the other one, and nothing is written of it.
    let all = MissingPreimages { accounts: exported.accounts, slots: exported.slots };
    assert_eq!((missing(&bare), missing(&keeping)), (all, MissingPreimages::default()));
    let refused = export(&bare, &file("bare.pre")).unwrap_err();
    assert!(
        matches!(&refused, PipelineError::Preimages(PreimageError::Missing { missing, .. }) if *missing == all),
        "{refused}"
    );
    assert!(!file("bare.pre").exists());

    let import = |into: &BackendDatadir, from: &Path, stop: &AtomicBool| {
        let db = DatabaseEnv::open(&into.datadir, &into.options().db).unwrap();
        import_preimages(&db, from, stop, &mut |_| {})
    };
    // A file that ends early, or has a key too many, says where, and how much it has given.
    let cut = bytes.len() - 3;
    std::fs::write(file("cut.pre"), &bytes[..cut]).unwrap();
    let error = import(&bare, &file("cut.pre"), stop).unwrap_err();
    let PipelineError::Preimages(PreimageError::File { source, before }) = &error else {
        panic!("{error}");
    };
    assert!(source.to_string().contains("cut.pre, account"), "{source}");
    assert!(before.accounts + before.slots + 1 >= exported.accounts + exported.slots, "{error}");
    let left = missing(&bare);
    assert!(left.accounts + left.slots <= 1, "{left}");
    std::fs::write(file("long.pre"), [&bytes[..], &bytes[..24]].concat()).unwrap();
    let error = import(&bare, &file("long.pre"), stop).unwrap_err().to_string();
    assert!(error.contains("order of their hashes"), "{error}");
    assert!(missing(&bare).is_none());

    // Again: nothing is new. The datadir is now as good as one that kept them, and goes back.
    let again = import(&bare, &file("zipped.gz"), stop).unwrap();
    assert_eq!((again.accounts, again.slots, again.new), (exported.accounts, exported.slots, 0));
    bare.check("filled");
    let back = at("back");
    back.migrate(&bare, false).unwrap();
    assert_eq!(entries(&back.open()), entries(&plain.open()));

    // What cannot be: stopped, plain.
    let stopped = import(&bare, &file("plain.pre"), &AtomicBool::new(true)).unwrap_err();
    assert!(matches!(stopped, PipelineError::Preimages(PreimageError::Stopped)), "{stopped}");
    let error = import(&plain, &file("plain.pre"), stop).unwrap_err();
    assert!(matches!(error, PipelineError::Preimages(PreimageError::PlainKeys { .. })), "{error}");
    let plain = BackendDatadir { preimages: Some(true), ..plain };
    let error = ChainStore::open(plain.options()).unwrap_err();
    assert!(matches!(error, PipelineError::Setup(ChainSetupError::PlainPreimages { .. })));

    // The setting stays, until it is changed.
    let keeps = |of: &BackendDatadir| of.open().states().keeps_preimages();
    assert!(keeps(&BackendDatadir { preimages: None, ..keeping.clone() }));
    assert!(!keeps(&BackendDatadir { preimages: Some(false), ..keeping.clone() }));
    assert!(!keeps(&BackendDatadir { preimages: None, ..keeping }));
}

/// Regression: only a whole chain could be moved, so no datadir could end far below the tip.
#[test]
fn a_chain_is_moved_up_to_a_block_of_it() {
    let (made, blocks) = made(TestRules::Prague);
    let folder = TempDir::new().unwrap();
    let place = |name: &str| BackendDatadir::new(&folder, name, &made.spec, &mpt());
    let (old, new, short) = (place("old"), place("new"), place("short"));
    old.import(&blocks);
    short.import(&blocks[..5]);
    let migrate = |history: bool, until: u64| {
        let db = DatabaseEnv::open(&old.datadir, &OpenOptions::read_only()).unwrap();
        let read = Arc::new(db.begin_read().unwrap());
        let (backend, to, until) = (mpt(), new.options(), Some(until));
        let migration = ChainMigration { from: &read, backend, to, history, until };
        migration.run(&Metrics::new().unwrap(), &AtomicBool::new(false), &mut |_| {})
    };
    let beyond = migrate(true, BLOCKS as u64 + 1).unwrap_err();
    let is_typed =
        matches!(beyond, PipelineError::Migrate(MigrateError::NoLast { number: 21, .. }));
    assert!(is_typed, "{beyond}");
    for history in [true, false] {
        let migrated = migrate(history, 5).unwrap();
        assert_eq!((migrated.end, migrated.tip.number), (ImportEnd::Complete, 5));
        assert_same_blocks(&new.open(), &short.open(), "up to block 5");
        assert_eq!(entries(&new.open()), entries(&short.open()));
        new.check("up to block 5");
        new.import(&blocks[5..]);
        new.check("with what follows");
        std::fs::remove_dir_all(&new.datadir).unwrap();
    }
    // A migration that was stopped above that block cannot end below.
    new.migrate_up_to(&old, 9);
    let above = migrate(true, 5).unwrap_err();
    assert!(matches!(above, PipelineError::Migrate(MigrateError::PastLast { .. })), "{above}");
    assert_eq!(migrate(true, 12).unwrap().tip.number, 12);
}

#[test]
fn referee_moves_along_and_keeps_its_roots_of_old_blocks() {
    let (made, blocks) = made(TestRules::Prague);
    for to in all().filter(|to| !to.profile().ethereum_root) {
        for history in [false, true] {
            let folder = TempDir::new().unwrap();
            let place = |name: &str| BackendDatadir::new(&folder, name, &made.spec, &(to.small)());
            let raw = (retrie_backends::find("raw").unwrap().small)();
            let old = BackendDatadir::new(&folder, "old", &made.spec, &raw).refereed();
            old.import(&blocks[..MOVED]);
            let (new, imported) = (place("new").refereed(), place("imported").refereed());
            let what = format!("raw+mpt to {}+mpt, history {history}", to.name);
            moved(&old, &new, &imported, &blocks, history, &what);
            for block in &blocks {
                let of_referee = ("mpt".to_owned(), block.header.state_root);
                assert!(roots(&new.open(), block.header.number).contains(&of_referee), "{what}");
            }
        }
    }
}

/// Stopped at every step: other commands are refused, and the same migration continues.
#[test]
fn stopped_anywhere_it_goes_on_and_is_never_taken_for_whole() {
    let (made, blocks) = made(TestRules::Byzantium);
    let folder = TempDir::new().unwrap();
    let cole = (retrie_backends::find("cole").unwrap().small)();
    let old = BackendDatadir::new(&folder, "old", &made.spec, &mpt());
    old.import(&blocks[..MOVED]);
    for history in [false, true] {
        for every in [1, 4] {
            let new = BackendDatadir::new(&folder, "new", &made.spec, &cole).refereed();
            let mut runs = 0;
            loop {
                let mut steps = 0;
                let migrated = new
                    .migrate_with(&old, history, &mut |_, stop| {
                        steps += 1;
                        stop.store(steps >= every, Ordering::Relaxed);
                    })
                    .unwrap();
                runs += 1;
                if migrated.end == ImportEnd::Complete {
                    break;
                }
                assert!(runs < 100, "it never ends");
                for refused in [
                    ChainStore::open(new.options()).map(drop).unwrap_err(),
                    DatabaseEnv::open(&new.datadir, &OpenOptions::read_only())
                        .map(drop)
                        .unwrap_err()
                        .into(),
                ] {
                    assert!(
                        matches!(
                            refused,
                            PipelineError::Db(DbError::Open(OpenError::Unfinished { .. }))
                        ),
                        "{refused:?}"
                    );
                    let text = refused.to_string();
                    assert!(text.contains("is not whole") && text.contains("moving the"), "{text}");
                }
                let other = new.migrate(&old, !history).unwrap_err();
                assert!(
                    matches!(other, PipelineError::Migrate(MigrateError::OtherMigration { .. })),
                    "{other:?}"
                );
            }
            assert!(runs > 2, "{runs} runs, history {history}");
            let again = new.migrate(&old, history).unwrap_err();
            assert!(
                matches!(again, PipelineError::Anchor(AnchorError::NotEmpty { .. })),
                "{again:?}"
            );
            new.check("stopped");
            let expected = BackendDatadir::new(&folder, "expected", &made.spec, &cole).refereed();
            expected.migrate(&old, history).unwrap();
            assert_same_blocks(&new.open(), &expected.open(), "stopped");
            assert_eq!(entries(&new.open()), entries(&expected.open()));
            assert_eq!(new.open().states().tip_roots(), expected.open().states().tip_roots());
            for place in [&new, &expected] {
                std::fs::remove_dir_all(&place.datadir).unwrap();
            }
        }
    }
}

#[test]
fn branch_that_the_old_chain_has_left_meanwhile_is_left_too() {
    let mut made = test_chain(TestRules::Cancun);
    let genesis = made.genesis();
    let trunk = *made.branch(genesis, 4, 12, 0).last().unwrap();
    let left = *made.branch(trunk, 6, 12, 1).last().unwrap();
    let right = *made.branch(trunk, 9, 12, 2).last().unwrap();
    for history in [false, true] {
        let folder = TempDir::new().unwrap();
        let old = BackendDatadir::new(&folder, "old", &made.spec, &mpt());
        old.import(&made.path(genesis, left));
        let new = BackendDatadir::new(&folder, "new", &made.spec, &mpt());
        let stop_at = |at: u32| {
            let mut steps = 0;
            move |_: MigrationStep<'_>, stop: &AtomicBool| {
                steps += 1;
                stop.store(steps >= at, Ordering::Relaxed);
            }
        };
        let stopped = new.migrate_with(&old, history, &mut stop_at(8)).unwrap();
        assert_eq!(stopped.end, ImportEnd::Stopped);
        old.import(&made.path(trunk, right));
        let migrated = new.migrate(&old, history).unwrap();
        assert_eq!(migrated.tip.hash, right, "history {history}");
        new.check("after a reorganisation");
        let (chain, expected) = (new.open(), old.open());
        assert_same_blocks(&chain, &expected, "after a reorganisation");
        assert_eq!(chain.states().tip_roots(), expected.states().tip_roots());
    }
}

#[test]
fn chain_that_began_with_a_state_is_executed_from_there() {
    let (made, blocks) = made(TestRules::Prague);
    let folder = TempDir::new().unwrap();
    let old = BackendDatadir::new(&folder, "old", &made.spec, &mpt());
    old.import(&blocks[..6]);
    // Without history: it begins with the state after block 6.
    let began = BackendDatadir {
        retention: 4,
        ..BackendDatadir::new(&folder, "began", &made.spec, &mpt())
    };
    began.migrate(&old, false).unwrap();
    began.import(&blocks[6..9]);
    let again = BackendDatadir::new(&folder, "again", &made.spec, &mpt());
    let migrated = again.migrate(&began, true).unwrap();
    assert_eq!((migrated.first_state.number, migrated.executed.blocks), (6, 3));
    again.check("from an anchor");
    assert_same_blocks(&again.open(), &began.open(), "from an anchor");
    assert_eq!(again.open().unwind(5, &mut |_| {}).unwrap_err().to_string(), {
        let below = AnchorError::Below { number: 5, anchor: 6 };
        below.to_string()
    });
    // This state is pruned with time; a migration of the latest state stays possible.
    began.import(&blocks[9..MOVED]);
    let late = BackendDatadir::new(&folder, "late", &made.spec, &mpt());
    let error = late.migrate(&began, true).unwrap_err();
    let is_gone =
        matches!(error, PipelineError::Migrate(MigrateError::NoFirstState { number: 6, .. }));
    assert!(is_gone, "{error:?}");
    names_block(&error, 6);
    assert!(!late.datadir.exists());
    late.migrate(&began, false).unwrap();
    late.check("from the latest state");
    late.import(&blocks[MOVED..]);
    assert_eq!(late.open().tip().unwrap().number, BLOCKS as u64);
}

#[test]
fn what_has_been_moved_may_go_from_the_old_chain() {
    let (made, blocks) = made(TestRules::Prague);
    let folder = TempDir::new().unwrap();
    let place = |name: &str| BackendDatadir::new(&folder, name, &made.spec, &mpt());
    let old = place("old");
    old.import(&blocks[..6]);
    let began = BackendDatadir { retention: 4, ..place("began") };
    began.migrate(&old, false).unwrap();
    began.import(&blocks[6..9]);
    let (new, late) = (place("new"), place("late"));
    for new in [&new, &late] {
        assert_eq!(new.begun(&began), None);
        new.migrate_up_to(&began, 7);
        assert_eq!(new.begun(&began).unwrap().tip.number, 7);
    }
    // The state after block 6 goes, and all bodies up to block 7.
    let last_6 = KeptBlocks { from: u64::MAX, last: 6 };
    let began =
        BackendDatadir { kept: HistoryKept { bodies: last_6, ..HistoryKept::default() }, ..began };
    began.import(&blocks[9..MOVED]);
    let migrated = new.migrate(&began, true).unwrap();
    assert_eq!((migrated.end, migrated.first_state.number), (ImportEnd::Complete, 6));
    assert_eq!(migrated.executed.blocks, 7);
    new.check("the rest");
    assert_eq!(entries(&new.open()), entries(&began.open()));
    // The body of a block that has not been moved yet.
    began.import(&blocks[MOVED..=MOVED]);
    let error = late.migrate(&began, true).unwrap_err();
    let is_gone =
        matches!(error, PipelineError::Migrate(MigrateError::NoBodies { first: 8, last: 8 }));
    assert!(is_gone, "{error:?}");
}

#[test]
fn states_that_were_moved_keep_their_referee() {
    let (made, blocks) = made(TestRules::Prague);
    let folder = TempDir::new().unwrap();
    let raw = (retrie_backends::find("raw").unwrap().small)();
    let old = BackendDatadir::new(&folder, "old", &made.spec, &raw).refereed();
    old.import(&blocks[..MOVED]);
    for has_referee in [true, false] {
        let name = if has_referee { "refereed" } else { "alone" };
        let alone = BackendDatadir::new(&folder, name, &made.spec, &raw);
        let refereed = alone.clone().refereed();
        let (new, other) = if has_referee { (refereed, alone) } else { (alone, refereed) };
        new.migrate_up_to(&old, 3);
        let error = other.migrate(&old, true).unwrap_err();
        let PipelineError::Migrate(MigrateError::OtherReferee { found, given, .. }) = error else {
            panic!("{error:?}");
        };
        let expected = if has_referee { ("mpt", "none") } else { ("none", "mpt") };
        assert_eq!((&*found, &*given), expected);
        let referee = has_referee.then(|| "mpt".to_owned());
        assert_eq!(new.begun(&old).unwrap().referee, referee);
        assert_eq!(new.migrate(&old, true).unwrap().end, ImportEnd::Complete);
        new.check(name);
        assert_eq!(new.open().states().tip_roots().unwrap().referee.is_some(), has_referee);
    }
}

#[test]
fn stopped_while_its_referee_is_loaded_it_says_so_and_goes_on() {
    const ACCOUNTS: u64 = 3000;
    let mut genesis: serde_json::Value =
        serde_json::from_str(&TestRules::Cancun.genesis_json()).unwrap();
    for n in 1..=ACCOUNTS {
        let address = Address::left_padding_from(&(n << 20).to_be_bytes());
        genesis["alloc"][address.to_string()] = serde_json::json!({ "balance": "0x1" });
    }
    let spec = Arc::new(ChainSpec::from_genesis_json(&genesis.to_string()).unwrap());
    let folder = TempDir::new().unwrap();
    let old = BackendDatadir::new(&folder, "old", &spec, &(Arc::new(Raw) as Arc<dyn AnyBackend>));
    let of_one = entries(&old.open()).len() as u64;
    let new = BackendDatadir::new(&folder, "new", &spec, &old.backend).refereed();
    let mut stopped_at = 0;
    let stopped = new.migrate_with(&old, false, &mut |step, stop| {
        let MigrationStep::Entries { entries } = step else { return };
        stopped_at = entries;
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(stopped.unwrap().end, ImportEnd::Stopped);
    assert!((of_one + 1..2 * of_one).contains(&stopped_at), "{stopped_at}, twice {of_one}");
    let migrated = new.migrate(&old, false).unwrap();
    assert_eq!((migrated.end, migrated.entries), (ImportEnd::Complete, 2 * of_one));
    new.check("loaded at last");
}

fn is_gone(error: &PipelineError) -> bool {
    matches!(error, PipelineError::State(_)) && error.to_string().contains("the disk is gone")
}

#[test]
fn load_that_fails_is_an_error_though_it_was_stopped_as_well() {
    let (made, blocks) = made(TestRules::Cancun);
    let folder = TempDir::new().unwrap();
    let old = BackendDatadir::new(&folder, "old", &made.spec, &mpt());
    old.import(&blocks[..3]);
    let stop = Arc::new(AtomicBool::new(false));
    let openings = Arc::new(AtomicU32::new(u32::MAX));
    let failing: Arc<dyn AnyBackend> =
        Arc::new(WrappedBackend(FailingBackend { loading: stop.clone(), openings }));
    let new = BackendDatadir::new(&folder, "new", &made.spec, &failing);
    let error = new.migrate_under(&old, false, &stop, &mut |_, _| {}).unwrap_err();
    assert!(stop.load(Ordering::Relaxed) && is_gone(&error), "{error:?}");
}

#[test]
fn branch_that_cannot_be_left_for_now_is_not_one_to_be_deleted() {
    let mut made = test_chain(TestRules::Cancun);
    let genesis = made.genesis();
    let trunk = *made.branch(genesis, 4, 12, 0).last().unwrap();
    let left = *made.branch(trunk, 6, 12, 1).last().unwrap();
    let right = *made.branch(trunk, 9, 12, 2).last().unwrap();
    let folder = TempDir::new().unwrap();
    let old = BackendDatadir::new(&folder, "old", &made.spec, &mpt());
    old.import(&made.path(genesis, left));
    let openings = Arc::new(AtomicU32::new(u32::MAX));
    let failing = FailingBackend { openings: openings.clone(), ..FailingBackend::default() };
    let new = BackendDatadir::new(
        &folder,
        "new",
        &made.spec,
        &(Arc::new(WrappedBackend(failing)) as Arc<dyn AnyBackend>),
    );
    new.migrate_up_to(&old, 8);
    old.import(&made.path(trunk, right));
    // The tip can be opened, not the state to go back to.
    openings.store(1, Ordering::Relaxed);
    let error = new.migrate(&old, true).unwrap_err();
    assert!(is_gone(&error), "{error:?}");
    openings.store(u32::MAX, Ordering::Relaxed);
    assert_eq!(new.migrate(&old, true).unwrap().tip.hash, right);
}

#[test]
fn pruned_bodies_are_missing_to_history_alone() {
    let (made, blocks) = made(TestRules::Prague);
    let folder = TempDir::new().unwrap();
    let last_8 = KeptBlocks { from: u64::MAX, last: 8 };
    let old = BackendDatadir {
        kept: HistoryKept { bodies: last_8, ..HistoryKept::default() },
        retention: 4,
        ..BackendDatadir::new(&folder, "old", &made.spec, &mpt())
    };
    old.import(&blocks[..MOVED]);
    let new = BackendDatadir::new(&folder, "new", &made.spec, &mpt());
    let error = new.migrate(&old, true).unwrap_err();
    assert!(matches!(error, PipelineError::Migrate(MigrateError::NoBodies { .. })), "{error:?}");
    assert!(!new.datadir.exists());
    new.migrate(&old, false).unwrap();
    new.check("pruned");
    {
        let [read, whole] = [&new, &old].map(|of| {
            let db = DatabaseEnv::open(&of.datadir, &OpenOptions::read_only()).unwrap();
            db.begin_read().unwrap()
        });
        assert_eq!(read.bodies_pruned_below().unwrap(), whole.bodies_pruned_below().unwrap());
        assert_eq!(read.receipts_pruned_below().unwrap(), whole.receipts_pruned_below().unwrap());
        assert_eq!(read.anchor().unwrap(), MOVED as u64);
    }
    new.import(&blocks[MOVED..]);
    new.check("pruned, grown");
}

#[test]
fn native_chain_stays_with_its_roots() {
    let backend = mpt();
    let made = TestChain::native(TestRules::Cancun, backend.clone());
    let folder = TempDir::new().unwrap();
    let spec = Arc::new(ChainSpec::from_genesis_json(&made.genesis_json).unwrap());
    let lvmt = retrie_backends::find("lvmt").unwrap();
    let native = |name: &str, backend: &Arc<dyn AnyBackend>| {
        let place = BackendDatadir::new(&folder, name, &spec, backend);
        ChainOptions { root_mode: StateRootMode::Native, ..place.options() }
    };
    let old = native("old", &(lvmt.small)());
    let datadir = old.datadir.clone();
    drop(ChainStore::open(old).unwrap());
    let db = DatabaseEnv::open(&datadir, &OpenOptions::read_only()).unwrap();
    let read = Arc::new(db.begin_read().unwrap());
    let run = |to: ChainOptions, history| {
        let migration =
            ChainMigration { from: &read, backend: (lvmt.small)(), to, history, until: None };
        let stop = AtomicBool::new(false);
        migration.run(&Metrics::new().unwrap(), &stop, &mut |_| {})
    };
    for to in
        [native("mpt", &backend), BackendDatadir::new(&folder, "mpt", &spec, &backend).options()]
    {
        let error = run(to, true).unwrap_err();
        assert!(
            matches!(error, PipelineError::Migrate(MigrateError::OtherGenesis { .. })),
            "{error:?}"
        );
        assert!(!Path::new(&folder.path().join("mpt")).exists());
    }
    let same = run(native("lvmt", &(lvmt.small)()), true).unwrap();
    assert_eq!((same.end, same.tip.number), (ImportEnd::Complete, 0));
}
