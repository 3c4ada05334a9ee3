//! Flat history beside the archive: both give the same states of old blocks.

use crate::common::{batches, import_into, test_chain};
use alloy_primitives::{Address, B256};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use retrie_chainspec::{ChainSpec, parse_chain};
use retrie_db::{ChainRead, HistoryKept, KeptBlocks, OpenOptions, StateRootMode, SyncMode};
use retrie_pipeline::{
    ChainOptions, ChainStore, ImportOptions,
    testkit::{TestRules, write_blocks},
    verify::{VerifyOptions, verify},
};
use retrie_sources::BlockSource;
use retrie_state::{AnyBackend, Backend, BackendKey, BlockRef, StateError, StateKey, StateReader};
use retrie_state_store::{FlatHistory, StateId, StoreOptions};
use retrie_storage_mpt::{Mpt, MptArchive, TrieHash};
use retrie_storage_raw::Raw;
use std::{
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
};

/// Far less than the histories here.
const RETENTION: u64 = 20;

fn options(spec: &Arc<ChainSpec>, datadir: &Path, backend: impl Backend) -> ChainOptions {
    let root_mode =
        if backend.profile().ethereum_root { StateRootMode::Header } else { StateRootMode::Shadow };
    ChainOptions {
        spec: spec.clone(),
        backend: Arc::new(backend),
        referee: None,
        root_mode,
        datadir: datadir.to_owned(),
        db: OpenOptions {
            map_limit: 4 << 30,
            growth_step: 1 << 24,
            sync: SyncMode::NoSync,
            ..OpenOptions::default()
        },
        store: StoreOptions { retention: RETENTION, ..StoreOptions::default() },
    }
}

fn with_changes(options: ChainOptions, changes: FlatHistory) -> ChainOptions {
    ChainOptions { store: StoreOptions { flat_history: changes, ..options.store }, ..options }
}

fn archive() -> MptArchive {
    MptArchive::new(TrieHash::Keccak256)
}

fn import(chain: &ChainStore, file: &Path, to: u64, options: ImportOptions) {
    let source = vec![BlockSource::open(file).unwrap()];
    import_into(chain, source, 0..=to, options, &AtomicBool::new(false), &mut |_| {}).unwrap();
}

/// Compares what both return for the state of block `number`: some keys, present and absent, and
/// the slots of their accounts.
fn compare(chain: &ChainStore, archive: &ChainStore, number: u64, random: &mut StdRng) {
    let past = chain.state().flat_history(StateId::Tip, number).unwrap();
    let expected = archive.state().history(BlockRef::new(number, B256::ZERO)).unwrap();
    let mut keys: Vec<StateKey> = Vec::new();
    for of in [number, archive.tip().unwrap().number] {
        let entries = archive
            .state()
            .history(BlockRef::new(of, B256::ZERO))
            .unwrap()
            .entries(None, usize::MAX)
            .unwrap();
        keys.extend(entries.choose_multiple(random, 40).filter_map(|(key, _)| key.plain()));
    }
    if let Ok(changed) = chain.state().changed_keys(StateId::Tip, number) {
        keys.extend(changed.iter().filter_map(BackendKey::plain));
    }
    keys.push(StateKey::Account(Address::from(random.random::<[u8; 20]>())));
    keys.push(StateKey::Slot(*keys[0].address(), B256::from(random.random::<[u8; 32]>())));
    for key in &keys {
        let value = past.get(key).unwrap();
        assert_eq!(value, expected.get(key).unwrap(), "block {number}: {key}");
        if let StateKey::Slot(address, _) = key {
            let slots = past.slots_of(address).unwrap();
            assert_eq!(slots, expected.slots_of(address).unwrap(), "block {number}: {address}");
        }
    }
}

/// Asserts that a datadir has no findings. Returns the number of changes in its history.
fn assert_verified(chain: &ChainStore) -> u64 {
    let backend = |name: &str| -> Option<Arc<dyn AnyBackend>> {
        Some(if name == "raw" { Arc::new(Raw) } else { Arc::new(Mpt::new()) })
    };
    let scratch = tempfile::tempdir().unwrap();
    let options = VerifyOptions {
        spec: chain.spec().clone(),
        backend: &backend,
        max_findings: 10,
        scratch: scratch.path(),
    };
    let report = verify(chain.db(), &options, &mut |_, _| {}).unwrap();
    assert_eq!(report.findings, [] as [String; 0]);
    report.states[0].changes
}

#[test]
fn history_of_storage_follows_reorgs_unwinding_and_pruning() {
    let mut made = test_chain(TestRules::Byzantium);
    let genesis = made.genesis();
    let trunk = *made.branch(genesis, 40, 12, 0).last().unwrap();
    // The second branch is shorter and heavier; the first one comes back.
    let first = *made.branch(trunk, 12, 1000, 1).last().unwrap();
    let second = *made.branch(trunk, 10, 5, 2).last().unwrap();
    let back = *made.branch(first, 8, 12, 1).last().unwrap();
    let paths = [(genesis, trunk), (trunk, first), (trunk, second), (first, back)];
    let parts = paths.map(|(from, to)| made.path(from, to));
    let random = &mut StdRng::seed_from_u64(1);

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("blocks.rlp");
    let archive =
        ChainStore::open(options(&made.spec, &dir.path().join("archive"), archive())).unwrap();
    let folder = |name: &str| dir.path().join(name);
    let all = || with_changes(options(&made.spec, &folder("mpt"), Mpt::new()), FlatHistory::All);
    let last = || {
        let raw = with_changes(options(&made.spec, &folder("raw"), Raw), FlatHistory::Last(25));
        let receipts = KeptBlocks { from: u64::MAX, last: 25 };
        let kept = HistoryKept { receipts, ..HistoryKept::default() };
        ChainOptions { db: OpenOptions { kept, ..raw.db }, ..raw }
    };
    let mut states = [all(), last()].map(|options| ChainStore::open(options).unwrap());
    for (n, part) in parts.iter().enumerate() {
        write_blocks(&file, part);
        import(&archive, &file, u64::MAX, batches([1, 1000, 5, 1][n]));
        for chain in &states {
            import(chain, &file, u64::MAX, batches([1, 1000, 5, 1][n]));
            let tip = archive.tip().unwrap();
            assert_eq!(chain.tip().unwrap(), tip);
            let kept = chain.state().flat_history_kept(StateId::Tip).unwrap().unwrap();
            assert_eq!(*kept.end(), tip.number);
            for number in kept {
                compare(chain, &archive, number, random);
            }
            assert!(assert_verified(chain) > 0);
        }
        drop(states);
        states = [all(), last()].map(|options| ChainStore::open(options).unwrap());
    }
    let kept = |chain: &ChainStore| chain.state().flat_history_kept(StateId::Tip).unwrap();
    assert_eq!(archive.tip().unwrap().number, 60);
    assert_eq!(states.each_ref().map(kept), [Some(0..=60), Some(35..=60)]);
    // Receipts go with the states they belong to.
    let has_receipts = |chain: &ChainStore, number| {
        let read = chain.db().begin_read().unwrap();
        let hash = read.canonical_hash(number).unwrap().unwrap();
        read.receipts(&hash).unwrap().is_some_and(|receipts| !receipts.is_empty())
    };
    let of = |chain: &ChainStore| [1, 34, 35, 60].map(|number| has_receipts(chain, number));
    assert_eq!(states.each_ref().map(of), [[true; 4], [false, false, true, true]]);

    // The rows of removed blocks are removed, too.
    for chain in [&states[0], &states[1], &archive] {
        chain.unwind(45, &mut |_| {}).unwrap();
    }
    assert_eq!(states.each_ref().map(kept), [Some(0..=45), Some(35..=45)]);
    for chain in &states {
        for number in 35..=45 {
            compare(chain, &archive, number, random);
        }
        let above = chain.state().flat_history(StateId::Tip, 46).map(drop);
        assert!(matches!(above, Err(StateError::NotInHistory { number: 46, .. })), "{above:?}");
        assert_verified(chain);
    }
}

/// A referee keeps no history: its state is not read.
#[test]
fn a_referee_keeps_no_history() {
    let mut made = test_chain(TestRules::Cancun);
    let genesis = made.genesis();
    let tip = *made.branch(genesis, 10, 12, 0).last().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("blocks.rlp");
    write_blocks(&file, &made.path(genesis, tip));
    let refereed =
        with_changes(options(&made.spec, &dir.path().join("data"), Raw), FlatHistory::All);
    let refereed = ChainOptions { referee: Some(Arc::new(Mpt::new())), ..refereed };
    let chain = ChainStore::open(refereed).unwrap();
    import(&chain, &file, u64::MAX, ImportOptions::default());
    chain.flush().unwrap();
    let rows = |name: &str| {
        let tables = chain.db().stats().unwrap().tables;
        tables.iter().find(|table| table.name == name).map_or(0, |table| table.rows)
    };
    assert!(rows("StateChanges") > 10 && rows("StateChangedKeys") == 10);
    assert_eq!(rows("StateRefereeChanges") + rows("StateRefereeChangedKeys"), 0);
}

/// File of mainnet's first 8,192 blocks; `None`, after a message, if it is missing.
fn mainnet() -> Option<PathBuf> {
    retrie_state_testkit::data::find("mainnet/chain/mainnet-00000-5ec1ffb8.era1")
}

#[test]
fn old_states_of_mainnet_are_those_of_the_archive() {
    let Some(file) = mainnet() else { return };
    let spec = parse_chain("mainnet").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let archive = ChainStore::open(options(&spec, &dir.path().join("archive"), archive())).unwrap();
    import(&archive, &file, 2000, ImportOptions::default());
    let mpt = options(&spec, &dir.path().join("mpt"), Mpt::new());
    let mpt = ChainStore::open(with_changes(mpt, FlatHistory::All)).unwrap();
    import(&mpt, &file, 2000, ImportOptions::default());
    assert_eq!(mpt.state().flat_history_kept(StateId::Tip).unwrap(), Some(0..=2000));
    let random = &mut StdRng::seed_from_u64(2000);
    for round in 0..2 {
        for number in [0, 1, 1000, 1999, 2000].into_iter().chain((0..20).map(|n| n * 97 + round)) {
            compare(&mpt, &archive, number, random);
        }
        mpt.flush().unwrap();
    }
}
