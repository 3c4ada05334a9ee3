//! Runs with version trees: merges that prune, and those that do not, of the same pairs.

use super::{
    super::{MergeCutoff, ShownKey, file::PAGE, merge},
    *,
};
use std::sync::Arc;

fn with_trees(params: ColeParams) -> ColeParams {
    ColeParams { version_trees: true, ..params }
}

/// The pairs by age: the oldest are last. No two parts have pairs of one block.
fn by_age(all: &PairMap, parts: usize) -> Vec<PairMap> {
    let mut blocks: Vec<u64> = all.keys().map(|(_, block)| *block).collect();
    blocks.sort_unstable();
    blocks.dedup();
    let size = blocks.len().div_ceil(parts);
    let part = |blocks: &[u64]| -> PairMap {
        let is_in = |block: &u64| blocks.first() <= Some(block) && Some(block) <= blocks.last();
        let of = all.iter().filter(|((_, block), _)| is_in(block));
        of.map(|(pair, value)| (pair.clone(), value.clone())).collect()
    };
    blocks.chunks(size).rev().map(part).collect()
}

/// Merges runs three by three until there is one. `cutoffs` has one for each layer of merges.
fn merged(dir: &Path, name: &str, params: &ColeParams, parts: &[PairMap], cutoffs: &[u64]) -> Run {
    let mut runs: Vec<_> = (0..)
        .zip(parts)
        .map(|(n, part)| {
            let info = write(dir, &format!("{name}-{n}"), params, part);
            Arc::new(Run::open(dir, info).unwrap())
        })
        .collect();
    let mut layer = 0;
    while runs.len() > 1 {
        let cutoff =
            cutoffs.get(layer).map(|block| MergeCutoff { block: *block, is_deepest: true });
        layer += 1;
        let merge = |(n, inputs): (usize, &[Arc<Run>])| {
            let stem = format!("{name}-{layer}-{n}");
            let out = RunBuilder::new(dir, &stem, params).unwrap();
            let info = merge(inputs, cutoff, out, &|| Ok(())).unwrap().unwrap();
            Arc::new(Run::open(dir, info).unwrap())
        };
        runs = runs.chunks(3).enumerate().map(merge).collect();
    }
    Arc::try_unwrap(runs.pop().unwrap()).unwrap()
}

/// All keys of a run, each with the positions of its pairs.
fn all_keys(run: &Run) -> Vec<ShownKey> {
    let mut keys: Vec<(Vec<u8>, ShownKey)> = Vec::new();
    let mut cursor = run.cursor_from_start();
    while let Some(pair) = cursor.next().unwrap() {
        let end = pair.position + 1;
        match keys.last_mut() {
            Some((key, shown)) if *key == pair.key => shown.pairs.end = end,
            _ => {
                let position = pair.position;
                keys.push((pair.key.to_vec(), ShownKey { position, pairs: position..end }));
            }
        }
    }
    keys.into_iter().map(|(_, shown)| shown).collect()
}

/// What a merge that prunes up to `cutoff` keeps.
fn kept(all: &PairMap, cutoff: u64) -> PairMap {
    let is_kept = |(key, block): &(Vec<u8>, u64)| {
        let newer = all.range((key.clone(), *block)..).nth(1);
        !newer.is_some_and(|((of, block), _)| of == key && *block <= cutoff)
    };
    all.iter().filter(|(pair, _)| is_kept(pair)).map(|(k, v)| (k.clone(), v.clone())).collect()
}

fn pairs_of(run: &Run) -> PairMap {
    let mut pairs = PairMap::new();
    let mut cursor = run.cursor_from_start();
    while let Some(pair) = cursor.next().unwrap() {
        pairs.insert((pair.key.to_vec(), pair.block), pair.value.map(<[u8]>::to_vec));
    }
    pairs
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn what_merges_drop_leaves_the_top_as_it_was(
        keys in any_keys(),
        params in any_params(),
        count in 1usize..2_000,
        parts in 1usize..9,
        seed: u64,
    ) {
        let (dir, params) = (tempfile::tempdir().unwrap(), with_trees(params));
        let mut rng = StdRng::seed_from_u64(seed);
        let all = pairs(keys, count, seed);
        let parts = by_age(&all, parts);
        let whole = merged(dir.path(), "whole", &params, &parts, &[]);
        prop_assert!(pairs_of(&whole) == all);
        let (_, cutoff) = all.keys().nth(rng.random_range(0..all.len())).unwrap().clone();
        let early = rng.random_range(0..=cutoff);
        let pruned = merged(dir.path(), "pruned", &params, &parts, &[early, cutoff]);
        prop_assert_eq!(&whole.description().source, &pruned.description().source);
        if parts.len() > 3 {
            prop_assert!(pairs_of(&pruned) == kept(&all, cutoff));
        }
        for run in [&whole, &pruned] {
            prop_assert_eq!(faults(run), Vec::<String>::new());
            let mut shown = all_keys(run);
            run.show_keys(&shown).unwrap();
            shown.retain(|_| rng.random_ratio(1, 5));
            for key in &mut shown {
                let pairs = key.pairs.clone();
                key.position = rng.random_range(pairs.clone());
                key.pairs.start = rng.random_range(pairs);
                if rng.random() {
                    key.pairs.end = key.pairs.start;
                }
            }
            // The top of what is shown is checked there.
            if !shown.is_empty() {
                run.show_keys(&shown).unwrap();
            }
        }
    }
}

#[test]
fn without_second_versions_the_trees_are_those_of_the_other_form() {
    let dir = tempfile::tempdir().unwrap();
    let mut pairs = pairs(KeyPattern::Random, 3_000, 5);
    let mut last = Vec::new();
    pairs.retain(|(key, _), _| std::mem::replace(&mut last, key.clone()) != *key);
    let plain = write(dir.path(), "plain", &ColeParams::default(), &pairs);
    let trees = write(dir.path(), "trees", &with_trees(ColeParams::default()), &pairs);
    assert_eq!(plain.source, trees.source);
    assert_eq!(trees.versions.map(|of| (of.trees, of.bytes)), Some((0, 0)));
}

#[test]
fn a_forged_page_of_version_trees_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let params = with_trees(ColeParams::default());
    let parts = by_age(&pairs(KeyPattern::Random, 6_000, 8), 3);
    let cutoff = *parts[1].keys().map(|(_, block)| block).min().unwrap();
    let run = merged(dir.path(), "run", &params, &parts, &[cutoff]);
    let info = run.description().clone();
    let path = dir.path().join(info.file_names().pop().unwrap());
    let whole = std::fs::read(&path).unwrap();
    let bytes = info.versions.unwrap().bytes as usize;
    assert!(bytes > 2 * PAGE && bytes.div_ceil(PAGE - 22) == whole.len() / PAGE);
    let mut rng = StdRng::seed_from_u64(3);
    for n in 0..60 {
        let mut damaged = whole.clone();
        let page = rng.random_range(0..whole.len() / PAGE);
        let used = 18 + (bytes - page * (PAGE - 22)).min(PAGE - 22);
        let at = if n % 4 == 0 { rng.random_range(0..18) } else { rng.random_range(0..used) };
        damaged[page * PAGE + at] ^= 1 << rng.random_range(0..8);
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&(page as u64).to_be_bytes());
        hasher.update(&damaged[page * PAGE..][..PAGE - 4]);
        damaged[(page + 1) * PAGE - 4..][..4].copy_from_slice(&hasher.finalize().to_be_bytes());
        std::fs::write(&path, &damaged).unwrap();
        let run = Run::open(dir.path(), info.clone()).unwrap();
        let said = faults(&run);
        assert!(!said.is_empty(), "page {page}, byte {at}");
        // Nor does a proof come of it that leads elsewhere, nor a panic.
        let keys = all_keys(&run);
        for key in keys.iter().step_by(97) {
            let _ = run.show_keys(std::slice::from_ref(key));
        }
    }
}
