//! Races against the peers. Every contender must read what the others read, and those that have
//! Ethereum's root must agree on it: the race itself sees to both.

#![cfg(feature = "peers")]

use retrie_bench::{
    BenchError,
    cache::StateCache,
    peers,
    state::{BackendEntrant, Entrant, Keys, Layout, Outcome, Race, Terms, Workload},
};
use retrie_db::SyncMode;
use retrie_storage_mpt::Mpt;
use std::sync::{Arc, atomic::AtomicBool};

/// `mpt` first, then all peers.
fn entrants() -> Vec<Box<dyn Entrant>> {
    let mpt: Box<dyn Entrant> = Box::new(BackendEntrant::new(Arc::new(Mpt::new())));
    std::iter::once(mpt)
        .chain(peers::NAMES.map(|name| peers::entrant(name).expect("it is built")))
        .collect()
}

fn run(
    workload: &Workload,
    retention: u64,
    cache: &StateCache,
) -> Result<Vec<Outcome>, BenchError> {
    let terms = Terms { sync: SyncMode::Durable, cache_bytes: 4 << 20, retention };
    let stop = AtomicBool::new(false);
    Race { workload, terms: &terms, cache, proofs: 3, stop: &stop }.run(&entrants(), &mut |_| ())
}

#[test]
fn peers_read_what_our_stores_read() {
    for keys in [Keys::Preloaded(3000), Keys::Fresh] {
        for layout in [Layout::OneContract, Layout::Accounts] {
            // Fewer revisions are kept than there are commits, or none.
            for retention in [0, 4] {
                let workload = Workload {
                    keys,
                    pairs: 900,
                    commit_every: 50,
                    warmup: 100,
                    slices: 3,
                    layout,
                    seed: 5,
                };
                let outcomes = run(&workload, retention, &StateCache::none()).unwrap();
                let names: Vec<_> = outcomes.iter().map(|lane| &lane.backend[..]).collect();
                assert_eq!(names, ["mpt", "firewood-ethhash", "nomt"]);
                for outcome in &outcomes {
                    assert_eq!((outcome.pairs, outcome.latency.count()), (900, 18));
                    assert!(outcome.disk_bytes > 0, "{outcome:?}");
                    assert_eq!(outcome.counts.is_some(), outcome.backend == "mpt");
                    assert_eq!(outcome.ethereum_root.is_some(), outcome.backend != "nomt");
                }
            }
        }
    }
}

#[test]
fn prepared_states_of_peers_are_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let cache = StateCache::at(folder.path().to_owned());
    let workload = Workload {
        keys: Keys::Preloaded(2000),
        pairs: 200,
        commit_every: 50,
        warmup: 0,
        slices: 1,
        layout: Layout::OneContract,
        seed: 6,
    };
    let first = run(&workload, 2, &cache).unwrap();
    let states = std::fs::read_dir(folder.path().join("states")).unwrap().count();
    assert_eq!(states, first.len());
    let again = run(&workload, 2, &cache).unwrap();
    for (first, again) in first.iter().zip(&again) {
        assert_eq!(first.ethereum_root, again.ethereum_root);
    }
}
