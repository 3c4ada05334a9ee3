//! Memory budgets as an axis of a race, and the hit rates that follow from them.

use retrie_backends::{BackendLane, ConstructorInput, FlagValues, StorePurpose, lane};
use retrie_bench::{
    cache::StateCache,
    race::{MemoryBudget, MemoryTerms, RaceTerms},
    state::{BackendFactory, InitialKeys, KeyDistribution, StoreFactory, StoreRace, StoreWorkload},
};
use retrie_db::SyncMode;
use retrie_report::{BenchResult, HitRates};
use std::sync::atomic::AtomicBool;

/// Stores whose caches have a size that flags set.
const LIMITED: [&str; 6] = ["mpt", "mpt-archive", "mpt-archive:prune", "prefix", "duptree", "pbt"];

fn entrant(name: &str, budget: MemoryBudget) -> Box<dyn StoreFactory> {
    let BackendLane { backend, mut flags } = lane(name, &FlagValues::default()).unwrap();
    flags.limit_caches(budget.cache_bytes());
    let making = ConstructorInput { flags: &flags, purpose: StorePurpose::Temporary, cache: None };
    Box::new(BackendFactory::new((backend.make)(&making).unwrap()).named(name))
}

/// The results of a race on hot keys with this budget. Nothing is prefetched, so that each lookup
/// counts once.
fn raced(bytes: u64, cold: bool, names: &[&str], cache: &StateCache) -> Vec<BenchResult> {
    let budget = MemoryBudget { bytes, has_pages: false };
    let terms = RaceTerms {
        sync: SyncMode::NoSync,
        cache_bytes: budget.store_bytes() as usize,
        retention: 4,
        read_threads: 0,
        memory: MemoryTerms { budget: Some(budget), cold },
    };
    let workload = StoreWorkload {
        keys: InitialKeys::Preloaded(2000),
        pairs: 600,
        commit_every: 100,
        warmup: 300,
        slices: 2,
        choice: KeyDistribution::Zipf,
        ..StoreWorkload::default()
    };
    let entrants: Vec<_> = names.iter().map(|name| entrant(name, budget)).collect();
    for entrant in entrants.iter().filter(|entrant| LIMITED.contains(&entrant.name())) {
        assert!(entrant.fixed_bytes() <= budget.cache_bytes(), "{}", entrant.name());
    }
    let race = StoreRace {
        workload: &workload,
        terms: &terms,
        cache,
        proofs: 0,
        proof_depths: &[],
        memory_limit: None,
        stop: &AtomicBool::new(false),
    };
    let raced = race.run(&entrants, &mut |_| ()).unwrap();
    raced.ended.unwrap();
    raced.outcomes.iter().map(|outcome| outcome.result(&workload, &terms)).collect()
}

#[test]
fn hit_rates_rise_with_the_budget_and_results_name_it() {
    let home = tempfile::tempdir().unwrap();
    let cache = StateCache::at(home.path().to_owned());
    let [small, large] = [64 << 10, 64 << 20].map(|bytes| raced(bytes, false, &LIMITED, &cache));
    for (small, large) in small.iter().zip(&large) {
        let [few, many] = [small, large].map(|result| result.hit_rates.unwrap());
        for HitRates { all, caches, rows } in [few, many] {
            let rates = [all, caches.unwrap(), rows.unwrap()];
            assert!(rates.iter().all(|rate| (0.0..=1.0).contains(rate)), "{rates:?}");
        }
        let name = &large.backend;
        // The few upper subtrees of so small a tree fit into any cache.
        assert!(few.caches < many.caches || name == "duptree", "{name}: {few:?}, {many:?}");
        assert!(few.caches <= many.caches, "{name}: {few:?}, {many:?}");
        assert_eq!(small.params["memory_budget"], 0);
        assert_eq!(
            (&large.params["memory_budget"], &large.params["cache_mb"]),
            (&64.into(), &64.into())
        );
        assert!(!large.params.contains_key("raced") && !large.params.contains_key("pages"));
    }
}

#[test]
fn store_whose_pages_were_dropped_reads_the_same_values() {
    // The race compares every value.
    let cache = StateCache::none();
    for result in raced(1 << 20, true, &["raw", "mpt", "cole"], &cache) {
        assert_eq!(result.params["pages"], "cold", "{}", result.backend);
        let rates = result.hit_rates;
        assert_eq!(rates.and_then(|rates| rates.caches).is_some(), result.backend == "mpt");
    }
}
