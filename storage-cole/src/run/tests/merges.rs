//! Merges of runs compared with merges of maps.

use super::{
    super::{MergeCutoff, merge},
    *,
};
use retrie_state::StateError;
use std::sync::Arc;

/// The pairs that a merge must keep.
fn expected(all: &PairMap, cutoff: Option<MergeCutoff>) -> PairMap {
    let mut kept = all.clone();
    if let Some(MergeCutoff { block: cutoff, is_deepest }) = cutoff {
        kept.retain(|(key, block), value| {
            let newest = all.range(..=(key.clone(), cutoff)).next_back();
            *block > cutoff
                || newest.is_some_and(|((of, newest), _)| of == key && newest == block)
                    && !(value.is_none() && is_deepest)
        });
    }
    kept
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn merges_keep_what_they_must(
        keys in any_keys(),
        params in any_params(),
        count in 1usize..3_000,
        inputs in 1usize..9,
        cutoff in prop::option::of((
            prop_oneof![Just(0), 0u64..20_000_000, Just(u64::MAX)],
            any::<bool>(),
        )),
        seed: u64,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let mut rng = StdRng::seed_from_u64(seed);
        let all = pairs(keys, count, seed);
        let mut parts = vec![PairMap::new(); inputs];
        for (pair, value) in &all {
            parts[rng.random_range(0..inputs)].insert(pair.clone(), value.clone());
        }
        parts.retain(|part| !part.is_empty());
        let runs: Vec<_> = (0..).zip(&parts).map(|(n, part)| {
            let info = write(dir.path(), &format!("run-{n}"), &params, part);
            Arc::new(Run::open(dir.path(), info).unwrap())
        }).collect();
        let cutoff = cutoff.map(|(block, is_deepest)| MergeCutoff { block, is_deepest });
        let expected = expected(&all, cutoff);
        let out = RunBuilder::new(dir.path(), "merged", &params).unwrap();
        let merged = merge(&runs, cutoff, out, &|| Ok(())).unwrap();
        let Some(merged) = merged else {
            prop_assert!(expected.is_empty());
            prop_assert_eq!(RunDescription::read(dir.path(), "merged").unwrap(), None);
            return Ok(());
        };
        // The merged run equals the run that is built from these pairs directly.
        let direct = write(dir.path(), "direct", &params, &expected);
        prop_assert_eq!(&merged.source, &direct.source);
        for (a, b) in merged.file_names().iter().zip(&direct.file_names()).skip(1) {
            let read = |name: &String| std::fs::read(dir.path().join(name)).unwrap();
            prop_assert!(read(a) == read(b), "{} and {} differ", a, b);
        }
        let run = Run::open(dir.path(), merged).unwrap();
        prop_assert_eq!(faults(&run), Vec::<String>::new());
    }
}

#[test]
fn a_merge_that_is_stopped_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let params = ColeParams::default();
    let info = write(dir.path(), "a", &params, &pairs(KeyPattern::Random, 5_000, 1));
    let run = Arc::new(Run::open(dir.path(), info).unwrap());
    for calls in [0, 1, 3, 5, 9] {
        let left = std::cell::Cell::new(calls);
        let pause = || match left.get() {
            0 => Err(StateError::Poisoned),
            n => {
                left.set(n - 1);
                Ok(())
            }
        };
        let out = RunBuilder::new(dir.path(), "out", &params).unwrap();
        let stopped = merge(std::slice::from_ref(&run), None, out, &pause);
        assert!(matches!(stopped, Err(StateError::Poisoned)), "{calls} calls");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 4);
    }
    let mut calls = 0;
    let count = std::cell::RefCell::new(&mut calls);
    let out = RunBuilder::new(dir.path(), "out", &params).unwrap();
    let pause = || {
        **count.borrow_mut() += 1;
        Ok(())
    };
    assert!(merge(&[run], None, out, &pause).unwrap().is_some());
    assert!(calls >= 10, "{calls}");
}

#[test]
fn a_pair_in_two_runs_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let params = ColeParams::default();
    let pairs = pairs(KeyPattern::Random, 50, 1);
    let open = |stem| {
        let info = write(dir.path(), stem, &params, &pairs);
        Arc::new(Run::open(dir.path(), info).unwrap())
    };
    let out = RunBuilder::new(dir.path(), "out", &params).unwrap();
    let error = merge(&[open("a"), open("b")], None, out, &|| Ok(())).unwrap_err();
    assert!(error.to_string().contains("out of order"), "{error}");
}
