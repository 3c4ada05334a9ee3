//! A race on a trace file, from its first block to its last.

use crate::common::root_by_a_plain_loop;
use retrie_bench::{
    cache::StateCache,
    race::{MemoryTerms, RaceTerms},
    state::{
        AccessSource, BackendFactory, InitialKeys, RecordedTrace, StoreFactory, StoreRace,
        StoreWorkload, SyntheticRecipe, make_trace,
    },
};
use retrie_db::SyncMode;
use retrie_pipeline::replay::StatePadding;
use retrie_storage_mpt::Mpt;
use retrie_storage_raw::Raw;
use std::sync::{Arc, atomic::AtomicBool};

#[test]
fn stores_replay_a_trace_to_its_end_and_no_further() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace");
    let stop = AtomicBool::new(false);
    let recipe = SyntheticRecipe::lvmt(0.001, 1).unwrap();
    let made = make_trace(&AccessSource::Synthetic(recipe), &file, &stop, &mut |_| {}).unwrap();
    let trace = RecordedTrace::read(&file, StatePadding { accounts: 100, slots: 0 }).unwrap();
    let workload = StoreWorkload {
        keys: InitialKeys::Trace(Arc::new(trace)),
        // More than there is.
        pairs: 1_000_000,
        warmup: 420,
        slices: 4,
        ..StoreWorkload::default()
    };
    // 89 or 90 reads a block.
    assert_eq!((workload.commits(), made.figures.blocks), (42, 47));
    let terms = RaceTerms {
        sync: SyncMode::NoSync,
        cache_bytes: 64 << 10,
        retention: 4,
        read_threads: 0,
        memory: MemoryTerms::FREE,
    };
    let race = StoreRace {
        workload: &workload,
        terms: &terms,
        cache: &StateCache::none(),
        proofs: 3,
        proof_depths: &[],
        memory_limit: None,
        stop: &stop,
    };
    let raw = Box::new(BackendFactory::new(Arc::new(Raw)));
    let mpt = Box::new(BackendFactory::new(Arc::new(Mpt::new())));
    let entrants: [Box<dyn StoreFactory>; 2] = [raw, mpt];
    let raced = race.run(&entrants, &mut |_| ()).unwrap();
    raced.ended.unwrap();
    let [raw, mpt] = &raced.outcomes[..] else { panic!("two outcomes") };
    assert_eq!(mpt.figures.ethereum_root, Some(root_by_a_plain_loop(&workload)));
    for outcome in [raw, mpt] {
        let (reads, writes) = outcome.keys();
        assert!(reads < 4200 - 420 + 1 && reads > 4200 - 420 - 90 && writes < 2400, "{reads}");
        let result = outcome.result(&workload, &terms);
        assert_eq!(result.params["keys"], "trace");
        assert_eq!(result.params["blocks"], 47);
    }
    let after = StoreWorkload { warmup: 4200, slices: 1, ..workload };
    assert!(after.check().unwrap_err().to_string().contains("no block is left"));
}
