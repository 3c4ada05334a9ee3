//! Queries about old blocks, on a chain of forty.

use retrie_bench::{
    BenchError, RaceSetting,
    cache::StateCache,
    chain::{
        BlockFill, ChainFork, ChainRecipe, ContractSet, GenesisPreload, KeyChoice, TransactionMix,
    },
    clients::{
        BlockDelivery, ClientEntrant, ClientRace, ClientWorkload, ProvenanceOutcome, QueryConfig,
        SenderRecovery,
    },
    cmi::Cmi,
    race::{MemoryTerms, RaceTerms},
};
use retrie_db::SyncMode;
use retrie_state::AnyBackend;
use retrie_storage_mpt::{Mpt, MptArchive, TrieHash};
use retrie_storage_raw::Raw;
use std::{
    path::Path,
    sync::{Arc, atomic::AtomicBool},
};

const TERMS: RaceTerms = RaceTerms {
    sync: SyncMode::NoSync,
    cache_bytes: 64 << 20,
    retention: 8,
    read_threads: 16,
    memory: MemoryTerms::FREE,
};

fn workload() -> ClientWorkload {
    ClientWorkload {
        name: "provenance",
        recipe: ChainRecipe {
            fork: ChainFork::Prague,
            seed: 3,
            fill: BlockFill::Transactions(5),
            mix: TransactionMix { kvstore: 1, ..TransactionMix::NOTHING },
            accounts: 10,
            keys: KeyChoice { reads: 0, inserts: 0, zipf: None },
            preload: Some(GenesisPreload {
                senders: 1,
                contracts: ContractSet::own().into(),
                empty_ledgers: false,
            }),
        },
        blocks: 40,
        warmup: 0,
        slices: 1,
        commit_every: None,
        via: BlockDelivery::Import,
    }
}

fn ask(
    backends: Vec<Arc<dyn AnyBackend>>,
    ranges: &[u64],
    home: &Path,
    stop: bool,
) -> Result<Vec<ProvenanceOutcome>, BenchError> {
    let entrant = |(n, backend): (usize, Arc<dyn AnyBackend>)| {
        let name = format!("{}-{n}", backend.identity().name);
        ClientEntrant { name, backend }
    };
    let entrants: Vec<_> = backends.into_iter().enumerate().map(entrant).collect();
    ClientRace {
        workload: &workload(),
        senders: SenderRecovery::Unrecovered,
        terms: &TERMS,
        root_maker: Arc::new(Mpt::default()),
        cache: &StateCache::at(home.to_owned()),
        memory_limit: None,
        stop: &AtomicBool::new(stop),
    }
    .provenance(&entrants, &QueryConfig { ranges: ranges.to_vec(), count: 25 }, &mut |_| {})
}

fn archive(hash: TrieHash) -> Arc<dyn AnyBackend> {
    Arc::new(MptArchive::new(hash))
}

/// Two tries with different hash functions prove the same values for every block, with one proof
/// per block.
#[test]
fn archives_prove_block_by_block() {
    let home = tempfile::tempdir().unwrap();
    let backends = || vec![archive(TrieHash::Keccak256), archive(TrieHash::Blake2b256)];
    let answers = ask(backends(), &[1, 4, 40], home.path(), false).unwrap();
    let order: Vec<_> = answers.iter().map(|one| (one.range, one.backend.as_str())).collect();
    let both = |range| [(range, "mpt-archive-0"), (range, "mpt-archive-1")];
    assert_eq!(order, [both(1), both(4), both(40)].concat());
    for one in &answers {
        assert_eq!((one.both.count(), one.proofs.count()), (25, 25));
        assert!(one.disk_bytes > 0 && one.proofs.made.count() == 25);
        let result = one.result(&workload(), &TERMS);
        assert_eq!((result.ops, result.workload.as_str()), (25, "provenance"));
        let params = &result.params;
        assert_eq!((&params["states"], &params["range"]), (&10.into(), &one.range.into()));
        assert!(!params.contains_key("slices") && result.p999_us.is_some());
        assert_eq!(result.proofs[0].count, 25);
        // Also for blocks that are no longer retained: an archive keeps their states.
        assert!(one.range <= 40 && result.disk_bytes == one.disk_bytes);
    }
    let bytes = |n: usize| answers[n].proofs.bytes(0.5) as f64;
    for backend in [0, 1] {
        let growth = bytes(backend + 4) / bytes(backend);
        assert!((30.0..50.0).contains(&growth), "{growth}");
    }
}

/// The race compares the values that all clients show, block by block.
#[test]
fn cmi_proves_the_values_of_an_archive_with_one_proof_for_all_blocks() {
    let home = tempfile::tempdir().unwrap();
    let backends = vec![archive(TrieHash::Keccak256), Arc::new(Cmi) as Arc<dyn AnyBackend>];
    let answers = ask(backends, &[1, 40], home.path(), false).unwrap();
    let bytes: Vec<_> = answers.iter().map(|one| one.proofs.bytes(0.5) as u64).collect();
    let [archive_1, cmi_1, archive_40, cmi_40] = bytes[..] else { panic!("{bytes:?}") };
    assert!(archive_40 > 30 * archive_1 && cmi_40 < 5 * cmi_1, "{bytes:?}");
}

#[test]
fn what_cannot_be_asked_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let refused = |backends, ranges: &[u64]| match ask(backends, ranges, home.path(), false) {
        Err(BenchError::Setting { setting, what }) => (setting, what),
        other => panic!("{other:?}"),
    };
    let mpt: Arc<dyn AnyBackend> = Arc::new(Mpt::default());
    for backend in [Arc::new(Raw) as Arc<dyn AnyBackend>, mpt] {
        let name = backend.identity().name;
        let (setting, what) = refused(vec![backend], &[2]);
        assert!(setting == RaceSetting::Backends && what.contains(name), "{what}");
    }
    for range in [0, 41] {
        let (setting, what) = refused(vec![archive(TrieHash::Keccak256)], &[2, range]);
        assert!(setting == RaceSetting::Range(range) && what.contains("40"), "{what}");
    }
    let stopped = ask(vec![archive(TrieHash::Keccak256)], &[2], home.path(), true);
    assert!(matches!(stopped, Err(BenchError::Stopped)), "{stopped:?}");
}
