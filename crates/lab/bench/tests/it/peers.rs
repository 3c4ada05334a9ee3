//! Races against stores of other projects. The race itself checks that all contenders read the same
//! values, and that all Ethereum roots are equal.

#![cfg(feature = "peers")]

use crate::common;

use retrie_bench::{
    BenchError,
    cache::StateCache,
    peers,
    race::{MemoryTerms, RaceResult, RaceTerms},
    state::{
        BackendFactory, InitialKeys, KeyDistribution, KeyLayout, StoreFactory, StoreOutcome,
        StoreRace, StoreWorkload,
    },
};
use retrie_db::SyncMode;
use retrie_storage_mpt::Mpt;
use std::sync::{Arc, atomic::AtomicBool};

/// `mpt` first, then all peers.
fn entrants() -> Vec<Box<dyn StoreFactory>> {
    let mpt: Box<dyn StoreFactory> = Box::new(BackendFactory::new(Arc::new(Mpt::new())));
    std::iter::once(mpt)
        .chain(peers::NAMES.map(|name| peers::factory(name).expect("it is built")))
        .collect()
}

fn run(
    workload: &StoreWorkload,
    retention: u64,
    cache: &StateCache,
) -> Result<Vec<StoreOutcome>, BenchError> {
    run_with(workload, SyncMode::Durable, retention, cache)
}

fn run_with(
    workload: &StoreWorkload,
    sync: SyncMode,
    retention: u64,
    cache: &StateCache,
) -> Result<Vec<StoreOutcome>, BenchError> {
    let terms = RaceTerms {
        sync,
        cache_bytes: 4 << 20,
        retention,
        read_threads: 16,
        memory: MemoryTerms::FREE,
    };
    let stop = AtomicBool::new(false);
    let race = StoreRace {
        workload,
        terms: &terms,
        cache,
        proofs: 3,
        proof_depths: &[],
        memory_limit: None,
        stop: &stop,
    };
    let RaceResult { outcomes, ended, .. } = race.run(&entrants(), &mut |_| ())?;
    ended.map(|()| outcomes)
}

#[test]
fn peers_read_what_our_stores_read() {
    for keys in [InitialKeys::Preloaded(3000), InitialKeys::Fresh] {
        for layout in [KeyLayout::OneContract, KeyLayout::Accounts] {
            // Fewer revisions are kept than there are commits, or none.
            for retention in [0, 4] {
                let workload = StoreWorkload {
                    keys: keys.clone(),
                    pairs: 900,
                    commit_every: 50,
                    warmup: 100,
                    slices: 3,
                    layout,
                    seed: 5,
                    ..Default::default()
                };
                let outcomes = run(&workload, retention, &StateCache::none()).unwrap();
                let names: Vec<_> = outcomes.iter().map(|lane| &lane.backend[..]).collect();
                assert_eq!(names, ["mpt", "redb", "eth-trie", "firewood-ethhash", "nomt", "qmdb"]);
                for outcome in &outcomes {
                    assert_eq!((outcome.ops(), outcome.latency().count()), (1800, 18));
                    assert!(outcome.disk_bytes > 0, "{outcome:?}");
                    assert_eq!(outcome.counts().is_some(), outcome.backend == "mpt");
                    assert_eq!(outcome.breakdown().is_some(), outcome.backend == "mpt");
                    let has_root = !["redb", "nomt", "qmdb"].contains(&&*outcome.backend);
                    assert_eq!(outcome.figures.ethereum_root.is_some(), has_root);
                }
            }
        }
    }
}

#[test]
fn peers_agree_on_reads_alone_and_hot_keys() {
    for (reads, sync) in [(1.0, SyncMode::Durable), (0.5, SyncMode::NoSync)] {
        let workload = StoreWorkload {
            keys: InitialKeys::Preloaded(2000),
            pairs: 600,
            commit_every: 50,
            warmup: 50,
            slices: 2,
            reads,
            choice: KeyDistribution::Zipf,
            ..Default::default()
        };
        let outcomes = run_with(&workload, sync, 4, &StateCache::none()).unwrap();
        assert!(outcomes.iter().all(|lane| lane.keys().0 == 600));
    }
}

/// Removals of slots and accounts, and accounts next to slots, which the random workload does not
/// have.
#[test]
fn peers_follow_real_blocks() {
    let Some(trace) = common::real_trace() else { return };
    let all = trace.figures().reads;
    let workload = StoreWorkload {
        keys: InitialKeys::Real(Arc::new(trace)),
        pairs: all + all / 2,
        warmup: 1000,
        slices: 3,
        ..Default::default()
    };
    run_with(&workload, SyncMode::NoSync, 4, &StateCache::none()).unwrap();
}

#[test]
fn prepared_states_of_peers_are_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let cache = StateCache::at(folder.path().to_owned());
    let workload = StoreWorkload {
        keys: InitialKeys::Preloaded(2000),
        pairs: 200,
        commit_every: 50,
        warmup: 0,
        slices: 1,
        seed: 6,
        ..Default::default()
    };
    let first = run(&workload, 2, &cache).unwrap();
    let states = std::fs::read_dir(folder.path().join("states")).unwrap().count();
    assert_eq!(states, first.len());
    let again = run(&workload, 2, &cache).unwrap();
    for (first, again) in first.iter().zip(&again) {
        assert_eq!(first.figures.ethereum_root, again.figures.ethereum_root);
    }
}
