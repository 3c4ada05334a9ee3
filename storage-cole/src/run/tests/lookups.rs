//! Searches and cursors.

use super::*;
use crate::hash;
use retrie_state::wire::WireReader;
use std::sync::atomic::Ordering;

/// Keys and blocks near pairs, and some random ones.
pub(super) fn targets(pairs: &PairMap, keys: KeyPattern, rng: &mut StdRng) -> Vec<(Vec<u8>, u64)> {
    let all: Vec<_> = pairs.keys().collect();
    let mut targets = Vec::new();
    for n in 0..150 {
        let at = match n {
            0 => 0,
            1 => all.len() - 1,
            _ => rng.random_range(0..all.len()),
        };
        let (key, block) = all[at].clone();
        for block in [block, block.wrapping_sub(1), block.wrapping_add(1), 0, u64::MAX] {
            targets.push((key.clone(), block));
        }
        let mut near = key;
        let last = near.len() - 1;
        near[last] = near[last].wrapping_add(rng.random_range(0..3)).wrapping_sub(1);
        targets.push((near, rng.random()));
        let n = rng.random();
        targets.push((keys.key(n, rng), rng.random()));
    }
    for byte in [0, 255] {
        targets.push((vec![byte; 21], 0));
        targets.push((vec![byte; 53], u64::MAX));
    }
    targets
}

fn compare(pairs: &PairMap, run: &Run, keys: KeyPattern, seed: u64) {
    let positions: BTreeMap<_, _> = pairs.keys().zip(0u64..).collect();
    let mut rng = StdRng::seed_from_u64(seed);
    let reads = &run.values.reads;
    for target in targets(pairs, keys, &mut rng) {
        let (key, block) = (&*target.0, target.1);
        let expected = pairs.range(..=&target).next_back();
        reads.store(0, Ordering::Relaxed);
        let floor = run.floor(key, block).unwrap();
        assert!(reads.swap(0, Ordering::Relaxed) <= 2, "{target:?}");
        let floor = floor.map(|(position, pair)| {
            ((position, pair.key, pair.block), pair.value.map(|value| value.to_vec()))
        });
        let expected_floor = expected.map(|((key, block), value)| {
            ((positions[&(key.clone(), *block)], key.clone(), *block), value.clone())
        });
        assert_eq!(floor, expected_floor, "{target:?}");

        let get = run.get(key, block).unwrap();
        assert!(reads.swap(0, Ordering::Relaxed) <= 2, "{target:?}");
        let get = get.map(|(block, value)| (block, value.map(|value| value.to_vec())));
        let expected_get = expected.filter(|((of, _), _)| of == key);
        let expected_get = expected_get.map(|((_, block), value)| (*block, value.clone()));
        assert_eq!(get, expected_get, "{target:?}");

        let mut cursor = run.cursor(key, block).unwrap();
        for ((key, block), value) in pairs.range(&target..).take(rng.random_range(1..60)) {
            let pair = cursor.next().unwrap().unwrap();
            assert_eq!(pair.position, positions[&(key.clone(), *block)]);
            assert_eq!((pair.key, pair.block, pair.value), (&**key, *block, value.as_deref()));
        }
        if pairs.range(&target..).next().is_none() {
            assert_eq!(cursor.next().unwrap(), None);
        }
    }
}

fn all_is_well(pairs: &PairMap, keys: KeyPattern, params: &ColeParams, seed: u64) {
    let dir = tempfile::tempdir().unwrap();
    let run = build(dir.path(), params, pairs);
    let info = run.description();
    let source = &info.source;
    assert_eq!(source.pairs, pairs.len() as u64);
    assert_eq!(source.first_block, pairs.keys().map(|(_, block)| *block).min().unwrap());
    assert_eq!(source.last_block, pairs.keys().map(|(_, block)| *block).max().unwrap());

    let mut walked = PairMap::new();
    let mut cursor = run.cursor_from_start();
    while let Some(pair) = cursor.next().unwrap() {
        assert_eq!(pair.position, walked.len() as u64);
        walked.insert((pair.key.to_vec(), pair.block), pair.value.map(<[u8]>::to_vec));
    }
    assert!(walked == *pairs);
    for position in [0, source.pairs / 2, source.pairs - 1] {
        let mut cursor = run.values.cursor_at(position, source.pairs).unwrap();
        let expected = pairs.iter().nth(position as usize).unwrap();
        let pair = cursor.next().unwrap().unwrap();
        assert_eq!((pair.position, pair.key, pair.block), (position, &*expected.0.0, expected.0.1));
    }
    assert!(run.values.cursor_at(source.pairs, source.pairs).is_err());

    compare(pairs, &run, keys, seed);
    for (key, _) in pairs.keys() {
        assert!(run.may_hold(hash::filter_key(key)).unwrap());
    }
    assert_eq!(faults(&run), Vec::<String>::new());

    let mut bytes = Vec::new();
    info.encode(&mut bytes);
    let mut rest = WireReader::new(&bytes);
    assert_eq!(RunDescription::decode(&mut rest).as_ref(), Some(info));
    assert!(rest.is_empty());
    for len in 0..bytes.len() {
        assert_eq!(RunDescription::decode(&mut WireReader::new(&bytes[..len])), None);
    }
    assert_eq!(RunDescription::read(dir.path(), "run").unwrap().as_ref(), Some(info));
    let names = info.file_names();
    let len = |name: &String| std::fs::metadata(dir.path().join(name)).unwrap().len();
    assert!(names.iter().all(|name| len(name).is_multiple_of(4096)));
    assert_eq!(names.len(), 4 + usize::from(params.version_trees));
    let files = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(files, names.len(), "no temporary file stays");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn a_run_answers_as_a_map_does(
        keys in any_keys(),
        params in any_params(),
        count in prop_oneof![1usize..40, 40usize..6_000],
        version_trees: bool,
        seed: u64,
    ) {
        let params = ColeParams { version_trees, ..params };
        all_is_well(&pairs(keys, count, seed), keys, &params, seed);
    }
}

#[test]
fn many_pairs_of_every_kind() {
    for keys in [
        KeyPattern::Random,
        KeyPattern::Consecutive,
        KeyPattern::Near,
        KeyPattern::Exponential,
        KeyPattern::One,
    ] {
        let params = ColeParams { epsilon: 32, ..ColeParams::default() };
        all_is_well(&pairs(keys, 40_000, 7), keys, &params, 7);
    }
}

#[test]
fn a_key_with_a_hundred_thousand_versions() {
    let key = KeyPattern::One.key(0, &mut StdRng::seed_from_u64(0));
    let pairs: PairMap =
        (0..100_000u64).map(|n| ((key.clone(), 3 * n), Some(n.to_be_bytes().to_vec()))).collect();
    all_is_well(&pairs, KeyPattern::One, &ColeParams { epsilon: 8, ..ColeParams::default() }, 0);
}

#[test]
fn few_absent_keys_pass_the_filter() {
    let dir = tempfile::tempdir().unwrap();
    let keys = KeyPattern::Consecutive;
    let mut rng = StdRng::seed_from_u64(0);
    let pairs = (0..20_000).map(|n| ((keys.key(n, &mut rng), 1), Some(vec![1]))).collect();
    let run = build(dir.path(), &ColeParams::default(), &pairs);
    let passes = |n| run.may_hold(hash::filter_key(&keys.key(n, &mut rng))).unwrap();
    let passed = (20_000..120_000).map(passes).filter(|passed| *passed).count();
    // An unblocked filter lets 0.8% pass.
    assert!((500..1_500).contains(&passed), "{passed} of 100000");
}

#[test]
fn pairs_out_of_order_and_odd_names_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let params = ColeParams::default();
    assert!(RunBuilder::new(dir.path(), "../run", &params).is_err());
    assert!(RunBuilder::new(&dir.path().join("absent"), "run", &params).is_err());
    let mut run = RunBuilder::new(dir.path(), "run", &params).unwrap();
    assert!(run.push(&[], 0, None, None).is_err());
    assert!(run.push(&[1; 66], 0, None, None).is_err());
    run.push(&[1; 53], 5, None, None).unwrap();
    for (key, block) in [([1; 53], 5), ([1; 53], 4), ([0; 53], 6)] {
        let error = run.push(&key, block, None, None).unwrap_err().to_string();
        assert!(error.contains("out of order"), "{error}");
    }
    drop(run);
    let empty = RunBuilder::new(dir.path(), "run", &params).unwrap();
    assert!(empty.finish().unwrap_err().to_string().contains("no pairs"));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    assert_eq!(RunDescription::read(dir.path(), "run").unwrap(), None);
}
