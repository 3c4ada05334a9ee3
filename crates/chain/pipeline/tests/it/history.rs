//! Backends that keep every state, beside `mpt`, which keeps the latest one: every old state and
//! its proofs, checked against headers.

use crate::common::{batches, cole_of, import_into, test_chain};
use alloy_primitives::{Address, B256};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use retrie_chainspec::{ChainSpec, parse_chain, primitives::Block};
use retrie_db::{ChainRead, OpenOptions, StateRootMode, SyncMode};
use retrie_pipeline::{
    ChainOptions, ChainStore, ImportOptions,
    testkit::{TestRules, write_blocks},
};
use retrie_sources::BlockSource;
use retrie_state::{
    AnyBackend, BlockRef, StateError, StateKey, StateReader, StateValue, ValueVersion,
};
use retrie_state_store::{StateId, StateProvider, StateStore, StoreOptions};
use retrie_state_testkit::sample;
use retrie_storage_cole::ColeParams;
use retrie_storage_mpt::{Mpt, MptArchive, TrieHash};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
};

/// Far less than the histories here.
const RETENTION: u64 = 20;

fn mpt() -> Arc<dyn AnyBackend> {
    Arc::new(Mpt::new())
}

fn archive() -> Arc<dyn AnyBackend> {
    Arc::new(MptArchive::new(TrieHash::Keccak256))
}

fn open(spec: &Arc<ChainSpec>, datadir: &Path, backend: Arc<dyn AnyBackend>) -> ChainStore {
    let root_mode = match backend.profile().ethereum_root {
        true => StateRootMode::Header,
        false => StateRootMode::Shadow,
    };
    ChainStore::open(ChainOptions {
        spec: spec.clone(),
        backend,
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
    })
    .unwrap()
}

fn import(chain: &ChainStore, sources: Vec<BlockSource>, to: u64, options: ImportOptions) {
    import_into(chain, sources, 0..=to, options, &AtomicBool::new(false), &mut |_| {}).unwrap();
}

/// States of `mpt` by block number, for the blocks at which its chain was the tip.
type StatesByNumber = BTreeMap<u64, Vec<(StateKey, StateValue)>>;

/// All entries of a state with plain keys.
fn entries(state: &StateProvider) -> Vec<(StateKey, StateValue)> {
    let entries = state.entries(None, usize::MAX).unwrap().into_iter();
    entries.map(|(key, value)| (key.plain().unwrap(), value)).collect()
}

/// Compares what the archive says of old blocks with `states` and with the headers of its chain.
fn check(archive: &ChainStore, states: &StatesByNumber) {
    let (read, store) = (archive.db().begin_read().unwrap(), archive.state());
    let tip = archive.tip().unwrap().number;
    assert_eq!(store.history_kept().unwrap(), Some(0..=tip));
    let random = &mut StdRng::seed_from_u64(tip);
    for (number, expected) in states {
        let hash = read.canonical_hash(*number).unwrap().unwrap();
        let header = read.header(&hash).unwrap().unwrap();
        let old = store.history(BlockRef::new(*number, hash)).unwrap();
        assert!(entries(&old) == *expected, "state of block {number}");

        let mut asked: Vec<StateKey> =
            expected.choose_multiple(random, 12).map(|(key, _)| *key).collect();
        for address in [Address::from(random.random::<[u8; 20]>()), *asked[0].address()] {
            asked.push(StateKey::Account(address));
            asked.push(StateKey::Slot(address, B256::from(random.random::<[u8; 32]>())));
        }
        let values = proven(store, &old, header.state_root, &asked);
        let expected: BTreeMap<_, _> = expected.iter().cloned().collect();
        for (key, value) in asked.iter().zip(values) {
            assert_eq!(value.as_ref(), expected.get(key), "block {number}: proof of {key}");
            assert_eq!(old.get(key).unwrap(), value, "block {number}: {key}");
        }
        for (key, _) in expected.iter().filter(|(key, _)| matches!(key, StateKey::Slot(..))).take(1)
        {
            let slots = old.slots_of(key.address()).unwrap();
            let of = expected.iter().filter_map(|(slot, value)| match slot {
                StateKey::Slot(address, slot) if address == key.address() => Some((*slot, value)),
                _ => None,
            });
            assert!(slots.iter().map(|(slot, value)| (*slot, value)).eq(of), "block {number}");
        }
    }
    let beyond = store.history(BlockRef::new(tip + 1, B256::ZERO)).map(drop);
    assert!(matches!(beyond, Err(StateError::NotInHistory { .. })), "{beyond:?}");
}

/// Values as proofs show them: under the header's root, or, if the backend proves so, under the
/// store's root at its tip.
fn proven(
    store: &StateStore,
    old: &StateProvider,
    header: B256,
    asked: &[StateKey],
) -> Vec<Option<StateValue>> {
    let (backend, number) = (store.backend(), old.number().unwrap());
    let proof = old.prove(asked).unwrap();
    if !backend.extensions().history.unwrap().proven_by_view() {
        assert_eq!((old.root(), proof.root), (header, header), "block {number}");
        return backend
            .verify(header, &retrie_state::KeyForm::Plain.keys(asked), &proof.bytes)
            .unwrap();
    }
    let tip = store.tip().unwrap();
    let is_below = number < tip.block.number;
    assert_eq!((proof.block, proof.as_of), (tip.block, is_below.then_some(number)));
    assert_eq!((old.root(), proof.root), (tip.root, tip.root), "block {number}");
    let provenance = backend.extensions().provenance.unwrap();
    let versions = provenance.verify_versions(
        tip.root,
        &retrie_state::KeyForm::Plain.keys(asked),
        number..=number,
        &proof.bytes,
    );
    let value = |versions: Vec<ValueVersion>| versions.into_iter().next()?.value;
    versions.unwrap().into_iter().map(value).collect()
}

#[test]
fn backends_with_history_keep_storage_of_every_block_through_reorgs_and_reopening() {
    let mut kept = Vec::new();
    for backend in retrie_backends::all() {
        if (backend.small)().extensions().history.is_some() {
            println!("{}", backend.name);
            storage_of_every_block_is_kept(&backend.small);
            kept.push(backend.name);
        }
    }
    assert!(
        ["mpt-archive", "cole", "cole-sync"].iter().all(|name| kept.contains(name)),
        "{kept:?}"
    );
}

fn storage_of_every_block_is_kept(backend: &dyn Fn() -> Arc<dyn AnyBackend>) {
    let mut chain = test_chain(TestRules::Byzantium);
    let genesis = chain.genesis();
    let trunk = *chain.branch(genesis, 40, 12, 0).last().unwrap();
    // The second branch is shorter and heavier; the first one comes back.
    let first = *chain.branch(trunk, 12, 1000, 1).last().unwrap();
    let second = *chain.branch(trunk, 10, 5, 2).last().unwrap();
    let back = *chain.branch(first, 8, 12, 1).last().unwrap();
    let paths = [(genesis, trunk), (trunk, first), (trunk, second), (first, back)];
    let parts = paths.map(|(from, to)| chain.path(from, to));

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("blocks.rlp");
    let datadir = dir.path().join("archive");
    let mut canonical: Vec<&Block> = Vec::new();
    for (n, part) in parts.iter().enumerate() {
        write_blocks(&file, part);
        let source = || vec![BlockSource::open(&file).unwrap()];
        let archive = open(&chain.spec, &datadir, backend());
        import(&archive, source(), u64::MAX, batches([1, 1000, 5, 1][n]));
        canonical.truncate(if n == 1 { usize::MAX } else { 40 });
        if n == 3 {
            canonical.extend(&parts[1]);
        }
        canonical.extend(part);
        assert_eq!(archive.tip().unwrap().number, canonical.len() as u64, "the heaviest branch");

        // The same chain on the trie that has only the latest state, block by block.
        let mpt_dir = dir.path().join(format!("mpt{n}"));
        let mpt = open(&chain.spec, &mpt_dir, mpt());
        let mut states = StatesByNumber::new();
        write_blocks(&file, canonical.iter().copied());
        for number in 1..=canonical.len() as u64 {
            import(&mpt, source(), number, ImportOptions::default());
            states.insert(number, entries(&mpt.state().at(StateId::Tip).unwrap()));
        }
        assert!(states.values().last().unwrap().len() > 20, "contracts with storage");
        check(&archive, &states);
        drop(archive);
        check(&open(&chain.spec, &datadir, backend()), &states);
    }
}

/// Files of mainnet's first 21,000 blocks; `None`, after a message, if they are missing.
fn mainnet() -> Option<Vec<PathBuf>> {
    let folder = retrie_state_testkit::data::find("mainnet/chain")?;
    let names = [
        "mainnet-00000-5ec1ffb8.era1",
        "mainnet-00001-a5364e9a.era1",
        "mainnet-16384-20999.rlp.gz",
    ];
    Some(names.map(|name| folder.join(name)).into())
}

#[test]
fn every_thousandth_state_of_mainnet_is_that_of_mpt_at_its_time() {
    let Some(files) = mainnet() else { return };
    let spec = parse_chain("mainnet").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let sources = || files.iter().map(|file| BlockSource::open(file).unwrap()).collect();
    let last = sample::or_all(5_999, 20_999);
    let cole = cole_of(ColeParams { memory_pairs: 2000, ..ColeParams::default() });
    let archives = [("archive", archive()), ("cole", cole)].map(|(name, backend)| {
        let archive = open(&spec, &dir.path().join(name), backend);
        import(&archive, sources(), last, ImportOptions::default());
        archive
    });
    let mpt = open(&spec, &dir.path().join("mpt"), mpt());
    let mut states = StatesByNumber::new();
    for number in (0..=last).step_by(1000).chain([last]) {
        if number > 0 {
            import(&mpt, sources(), number, ImportOptions::default());
        }
        states.insert(number, entries(&mpt.state().at(StateId::Tip).unwrap()));
    }
    assert_eq!(states.len() as u64, last / 1000 + 2);
    assert!(states[&last].len() > states[&0].len());
    archives.iter().for_each(|archive| check(archive, &states));
}
