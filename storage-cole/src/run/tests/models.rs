//! Models keep their error bound, for all kinds of keys.

use super::{
    super::{
        file::PageWriter,
        index::{self, IndexBuilder},
        model::{LearnedModel, MODEL, ModelLearner, NUMBER, PARTS, number},
    },
    *,
};

/// The models of these keys, on pages that increase by one or more. Checks all bounds.
fn models(keys: &[[u8; NUMBER]], epsilon: u8, rng: &mut StdRng) -> Vec<LearnedModel> {
    let mut learner = ModelLearner::new(epsilon);
    let mut page = rng.random_range(1..1u64 << 20);
    let mut points = Vec::new();
    let mut models = Vec::new();
    for key in keys {
        models.extend(learner.push(key, page));
        points.push((*key, page));
        page += if rng.random_bool(0.01) { rng.random_range(1..20) } else { 1 };
    }
    models.extend(learner.finish());
    for model in &models {
        let mut bytes = Vec::new();
        model.encode(&mut bytes);
        let bytes: [u8; MODEL] = bytes.try_into().unwrap();
        assert_eq!(LearnedModel::decode(&bytes), Some(*model));
    }
    let mut last = 0;
    let bound = i128::from(epsilon) * i128::from(PARTS) / 64;
    for (key, page) in &points {
        let of = models.partition_point(|model| model.first <= *key);
        let model = &models[of - 1];
        let error = model.exact(key) - i128::from(page * PARTS);
        assert!(error.abs() <= bound, "{error} of {bound}");
        let guess = model.page(key);
        assert!(guess == *page || guess + 1 == *page, "{guess} for {page}");
        assert!(guess >= last, "not monotone");
        last = guess;
    }
    // Far above the last key nothing overflows.
    let (end, last) = (models.last().unwrap().page(&[255; NUMBER]), points.last().unwrap().1);
    assert!(end == last || end + 1 == last);
    models
}

fn sorted(mut keys: Vec<[u8; NUMBER]>) -> Vec<[u8; NUMBER]> {
    keys.sort_unstable();
    keys.dedup();
    keys
}

proptest! {
    #[test]
    fn errors_stay_within_epsilon(
        keys in any_keys(), epsilon in 1u8..=32, count in 1usize..400, seed: u64,
    ) {
        let mut rng = StdRng::seed_from_u64(seed);
        let keys = (0..count as u64).map(|n| {
            number(&keys.key(n * 1000, &mut rng), n * n)
        });
        models(&sorted(keys.collect()), epsilon, &mut rng);
    }

    #[test]
    fn errors_stay_within_epsilon_when_steps_jump_between_scales(
        steps in prop::collection::vec((0usize..NUMBER, 1u8..=255), 1..300),
        epsilon in 1u8..=32, seed: u64,
    ) {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut key = [0; NUMBER];
        let mut keys = vec![key];
        for (at, by) in steps {
            // Add with carry.
            let mut carry = u16::from(by);
            for byte in key[..=at].iter_mut().rev() {
                carry += u16::from(*byte);
                *byte = carry as u8;
                carry >>= 8;
            }
            if carry > 0 {
                break;
            }
            keys.push(key);
        }
        models(&keys, epsilon, &mut rng);
    }
}

#[test]
fn keys_on_a_line_need_one_model_and_others_few() {
    let mut rng = StdRng::seed_from_u64(1);
    let line: Vec<_> = (0..50_000u64)
        .map(|n| number(&KeyPattern::Consecutive.key(n * 101, &mut rng), 0))
        .collect();
    let mut learner = ModelLearner::new(1);
    for (key, page) in line.iter().zip(1..) {
        assert_eq!(learner.push(key, page), None);
    }
    assert!(learner.finish().is_some());
    // The first keys of pages of random keys vary by about the root of the number of keys in a
    // page.
    let random: Vec<_> =
        (0..1_000_000).map(|_| number(&KeyPattern::Random.key(0, &mut rng), 0)).collect();
    let random: Vec<_> = sorted(random).into_iter().step_by(100).collect();
    let count = models(&random, 32, &mut rng).len();
    assert!(count * 10 < random.len(), "{count} models for {} pages", random.len());
}

#[test]
fn curves_are_followed() {
    let mut rng = StdRng::seed_from_u64(2);
    for power in 1..=6u32 {
        for epsilon in [1, 8, 32] {
            let curve = |n: u64| number(&KeyPattern::Consecutive.key(n.pow(power), &mut rng), 0);
            let keys: Vec<_> = (1..1_500).map(curve).collect();
            let falling: Vec<_> = keys.iter().rev().map(|key| key.map(|byte| !byte)).collect();
            models(&keys, epsilon, &mut StdRng::seed_from_u64(3));
            models(&falling, epsilon, &mut StdRng::seed_from_u64(4));
        }
    }
}

#[test]
fn a_long_curve_ends_a_model_before_its_hulls_grow_without_bound() {
    // Less than a page off a line, so one model would do, with every point on a hull.
    let mut rng = StdRng::seed_from_u64(0);
    let curve = |n: u64| number(&KeyPattern::Consecutive.key((n << 32) + 4 * n * n, &mut rng), 0);
    let keys: Vec<_> = (0..20_000).map(curve).collect();
    let mut learner = ModelLearner::new(32);
    let models: Vec<_> =
        keys.iter().zip(1..).filter_map(|(key, page)| learner.push(key, page)).collect();
    assert_eq!(models.len(), 1);
    assert!([16_000, 16_001].contains(&models[0].page(&keys[16_000])));
}

#[test]
fn an_index_of_several_layers_finds_every_page() {
    let dir = tempfile::tempdir().unwrap();
    let mut rng = StdRng::seed_from_u64(5);
    for keys in [KeyPattern::Random, KeyPattern::Near, KeyPattern::Consecutive] {
        let firsts = (0..40_000u64).map(|n| number(&keys.key(n * n, &mut rng), n));
        let firsts = sorted(firsts.collect());
        let file = PageWriter::new(dir.path(), "index").unwrap();
        let mut builder = IndexBuilder::new(file, 1);
        let mut pages = Vec::new();
        let mut page = 1;
        for key in &firsts {
            builder.push(key, page).unwrap();
            pages.push(page);
            page += if rng.random_bool(0.01) { rng.random_range(1..20) } else { 1 };
        }
        let (mut file, layers) = builder.finish().unwrap();
        assert!(layers.is_sorted_by(|a, b| a > b), "{layers:?}");
        assert!(layers.len() >= 3 || !matches!(keys, KeyPattern::Random), "{layers:?}");
        assert_eq!(layers.last(), Some(&1));
        let file = file.map().unwrap();
        assert_eq!(layers.iter().sum::<u64>(), file.pages());
        let search = |key: &[u8; NUMBER]| index::search(&file, &layers, key).unwrap();
        let mut last = 0;
        for (n, (key, page)) in firsts.iter().zip(&pages).enumerate() {
            let guess = search(key);
            assert!(guess == *page || guess + 1 == *page, "{guess} for {page}");
            assert!(guess >= last, "not monotone");
            // Just below the first key of the next page.
            let Some(next) = firsts.get(n + 1) else { continue };
            let mut below = *next;
            let at = below.iter().rposition(|byte| *byte > 0).unwrap();
            below[at] -= 1;
            below[at + 1..].fill(255);
            last = search(&below);
            assert!(guess <= last && last <= pages[n + 1], "{last} for {page}");
        }
        assert_eq!(search(&[0; NUMBER]), 1);
    }
}
