//! Small attacks on the real backends, next to their baselines.

use crate::common::root_by_a_plain_loop;
use retrie_bench::{
    BenchError,
    cache::StateCache,
    race::{MemoryTerms, RaceResult, RaceTerms},
    state::{
        AttackConfig, AttackKind, AttackPair, BackendFactory, InitialKeys, KeyOp, StoreFactory,
        StoreFigures, StoreOutcome, StoreRace, StoreWorkload,
    },
};
use retrie_db::SyncMode;
use retrie_report::BenchResult;
use retrie_state::{AnyBackend, StateKey};
use retrie_storage_mpt::{Mpt, MptArchive, TrieHash};
use retrie_storage_raw::Raw;
use std::{
    collections::BTreeSet,
    path::Path,
    sync::{Arc, atomic::AtomicBool},
};

// Little memory, so that generations fill and fold within the race.
const TERMS: RaceTerms = RaceTerms {
    sync: SyncMode::NoSync,
    cache_bytes: 64 << 10,
    retention: 4,
    read_threads: 16,
    memory: MemoryTerms::FREE,
};

fn siege() -> AttackConfig {
    AttackConfig {
        keys: 2000,
        pairs: 1200,
        warmup: 150,
        commit_every: 100,
        tiny: 7,
        slices: Some(4),
        slots: 3000,
        grind: 20_000,
        seed: 3,
    }
}

fn prepare(siege: &AttackConfig, attack: AttackKind, cache: &StateCache) -> AttackPair {
    siege.prepare(attack, cache, &AtomicBool::new(false), &mut |_| ()).unwrap()
}

fn entrants() -> Vec<Box<dyn StoreFactory>> {
    let backends: [Arc<dyn AnyBackend>; 3] =
        [Arc::new(Raw), Arc::new(Mpt::new()), Arc::new(MptArchive::new(TrieHash::Keccak256))];
    backends.map(|backend| Box::new(BackendFactory::new(backend)) as Box<dyn StoreFactory>).into()
}

fn race(
    attacked: &AttackPair,
    cache: &StateCache,
) -> (Vec<StoreOutcome>, RaceResult<StoreFigures>) {
    let stop = AtomicBool::new(false);
    let workload = &attacked.workload;
    let race = StoreRace {
        workload,
        terms: &TERMS,
        cache,
        proofs: 40,
        proof_depths: &[],
        memory_limit: None,
        stop: &stop,
    };
    race.run_beside(&attacked.baseline, &entrants(), &entrants(), &mut |_| ()).unwrap()
}

fn ops(workload: &StoreWorkload) -> Vec<Vec<KeyOp>> {
    workload.stream().map(|block| block.ops).collect()
}

#[test]
fn attacks_and_baselines_leave_the_states_of_plain_loops_after_equally_many_operations() {
    let home = tempfile::tempdir().unwrap();
    let cache = StateCache::at(home.path().to_owned());
    for attack in AttackKind::ALL {
        let attacked = prepare(&siege(), attack, &cache);
        let (baseline, raced) = race(&attacked, &cache);
        assert!(raced.ended.is_ok(), "{attack}: {:?}", raced.ended);
        for (workload, outcomes) in
            [(&attacked.workload, &raced.outcomes), (&attacked.baseline, &baseline)]
        {
            let root = root_by_a_plain_loop(workload);
            let [raw, mpt, archive] = &outcomes[..] else { panic!("three outcomes") };
            assert_eq!(
                (mpt.figures.ethereum_root, archive.figures.ethereum_root),
                (Some(root), Some(root)),
                "{attack}"
            );
            for outcome in [raw, mpt, archive] {
                assert_eq!(outcome.keys(), (1200, 1200), "{attack}");
                assert_eq!(outcome.slices_done(), 4);
                assert_eq!(outcome.latency().count(), workload.commits(), "{attack}");
                assert!(outcome.figures.free_bytes.is_some() && outcome.flush.is_some());
            }
        }
        let results = attacked.results(&baseline, &raced, &TERMS);
        let attack_of = |result: &BenchResult| result.params["attack"].as_str().unwrap().to_owned();
        for (n, result) in results.iter().enumerate() {
            assert_eq!((result.workload.as_str(), result.ops), ("adversary", 2400));
            assert_eq!(result.of_baseline.is_some(), n >= 3);
            let name = if n < 3 { format!("{attack}: baseline") } else { attack.to_string() };
            assert_eq!(attack_of(result), name);
            if let Some(of) = result.of_baseline {
                let sustained = result.sustained_ops_per_s.unwrap();
                let before = results[n - 3].sustained_ops_per_s.unwrap();
                assert!((of.sustained - sustained / before).abs() < 1e-9, "{attack}");
                assert!(of.median > 0.0 && of.spread >= 0.0);
            }
        }
    }
    // One plain state for all baselines, and three states with keys of an attack, for each backend.
    let states = std::fs::read_dir(home.path().join("states")).unwrap();
    let names: Vec<_> =
        states.map(|state| state.unwrap().file_name().into_string().unwrap()).collect();
    let of = |part: &str| names.iter().filter(|name| name.contains(part)).count();
    assert_eq!(
        (of("adversary-2000"), of("ground-accounts"), of("ground-slots")),
        (12, 1, 1),
        "{names:?}"
    );
}

#[test]
fn ground_keys_have_longer_paths_and_longer_proofs() {
    let cache = StateCache::none();
    let attacked = prepare(&siege(), AttackKind::GroundKeys, &cache);
    let depth = |workload: &StoreWorkload| workload.scene().unwrap().depth().unwrap();
    let (deep, plain) = (depth(&attacked.workload), depth(&attacked.baseline));
    // A thousand accounts, and as many slots: three levels are full, and a fifth of the fourth.
    assert!((2.9..3.5).contains(&plain.mean), "{plain:?}");
    assert!(deep.mean > plain.mean + 1.2 && deep.mean_nibbles > plain.mean_nibbles, "{deep:?}");
    let note = attacked.note.as_ref().unwrap();
    assert!(
        note.contains("20000 addresses") && note.contains(&format!("{:.2} branches", deep.mean)),
        "{note}"
    );
    let (baseline, raced) = race(&attacked, &cache);
    for (attacked, plain) in raced.outcomes.iter().zip(&baseline).skip(1) {
        let bytes = |outcome: &StoreOutcome| outcome.figures.proofs[0].bytes(0.5);
        assert!(
            bytes(attacked) > bytes(plain) + 100,
            "{}: {} {}",
            attacked.backend,
            bytes(attacked),
            bytes(plain)
        );
        // Branches are rows, or in rows.
        assert!(attacked.counts().unwrap().writes > plain.counts().unwrap().writes);
    }
}

#[test]
fn each_attack_does_what_its_name_says() {
    let cache = StateCache::none();
    let of = |attack| {
        let attacked = prepare(&siege(), attack, &cache);
        (ops(&attacked.workload), ops(&attacked.baseline))
    };
    let keys = |blocks: &[Vec<KeyOp>]| -> BTreeSet<StateKey> {
        blocks.iter().flatten().map(|op| *op.key()).collect()
    };
    let lengths =
        |blocks: &[Vec<KeyOp>]| -> BTreeSet<usize> { blocks.iter().map(Vec::len).collect() };

    let (attack, baseline) = of(AttackKind::BigContract);
    let contracts: BTreeSet<_> = keys(&attack).iter().map(|key| *key.address()).collect();
    assert_eq!(contracts.len(), 1);
    let accounts = keys(&baseline).iter().filter(|key| matches!(key, StateKey::Account(_))).count();
    assert!(accounts > 300, "{accounts}");

    let (attack, baseline) = of(AttackKind::TinyBlocks);
    assert!(attack.len() > 10 * baseline.len() && lengths(&attack).into_iter().max() == Some(7));

    let (attack, baseline) = of(AttackKind::EmptyBlocks);
    let full: Vec<_> = attack.iter().filter(|block| !block.is_empty()).cloned().collect();
    assert_eq!((attack.len(), &full), (baseline.len() * 11, &baseline));

    let (attack, baseline) = of(AttackKind::OneSlot);
    assert_eq!((keys(&attack).len(), attack.len()), (1, baseline.len()));
    assert!(
        matches!(attack[0][0], KeyOp::Write(StateKey::Slot(..), _)) && keys(&baseline).len() > 500
    );

    let (attack, _) = of(AttackKind::Churn);
    let removed = attack.iter().flatten().filter(|op| matches!(op, KeyOp::Delete(_))).count();
    assert!((500..850).contains(&removed), "{removed}");
    assert!(lengths(&attack).len() > 8);
}

#[test]
fn what_cannot_be_run_is_refused() {
    let good = siege();
    assert!(good.check(&AttackKind::ALL).is_ok());
    for (siege, attack) in [
        (AttackConfig { keys: 1, ..good.clone() }, AttackKind::TinyBlocks),
        (AttackConfig { keys: u64::MAX, ..good.clone() }, AttackKind::TinyBlocks),
        (AttackConfig { slots: 0, ..good.clone() }, AttackKind::BigContract),
        (AttackConfig { slots: u64::MAX, ..good.clone() }, AttackKind::BigContract),
        (AttackConfig { grind: 100, ..good.clone() }, AttackKind::GroundKeys),
        (AttackConfig { grind: 1 << 33, ..good.clone() }, AttackKind::GroundKeys),
        (AttackConfig { tiny: 0, ..good.clone() }, AttackKind::OneSlot),
        (AttackConfig { commit_every: 0, ..good.clone() }, AttackKind::Churn),
        (AttackConfig { commit_every: u64::MAX, slices: None, ..good.clone() }, AttackKind::Churn),
        (AttackConfig { pairs: 0, ..good.clone() }, AttackKind::Churn),
        (AttackConfig { slices: Some(13), ..good }, AttackKind::TinyBlocks),
    ] {
        let refused = siege.check(&[attack]);
        assert!(
            matches!(refused, Err(BenchError::Setting { .. })),
            "{siege:?} {attack}: {refused:?}"
        );
    }
    // Both sides of a race need the same number of slices.
    let attacked = prepare(&siege(), AttackKind::TinyBlocks, &StateCache::none());
    let workload = StoreWorkload { slices: 3, ..attacked.workload.clone() };
    let stop = AtomicBool::new(false);
    let (terms, cache) = (&TERMS, &StateCache::at(Path::new("/nonexistent").to_owned()));
    let race = StoreRace {
        workload: &workload,
        terms,
        cache,
        proofs: 0,
        proof_depths: &[],
        memory_limit: None,
        stop: &stop,
    };
    let refused = race.run_beside(&attacked.baseline, &entrants(), &entrants(), &mut |_| ());
    assert!(matches!(refused, Err(BenchError::Setting { .. })));
    assert!(matches!(workload.keys, InitialKeys::Adversary(_)));
}
