//! Trees and their parts compared with plain trees.

use super::*;
use crate::{
    hash,
    shown_tree::{CompoundPair, ShownNode},
};
use alloy_primitives::B256;
use std::ops::Range;

type PairEntry<'a> = (&'a (Vec<u8>, u64), &'a Option<Vec<u8>>);

fn layers(leaves: Vec<B256>, fanout: u8) -> Vec<Vec<B256>> {
    let mut layers = vec![leaves];
    while layers.last().unwrap().len() > 1 {
        let above = layers.last().unwrap().chunks(fanout.into()).map(hash::node).collect();
        layers.push(above);
    }
    layers
}

fn plain(
    pairs: &[PairEntry<'_>],
    tree: &[Vec<B256>],
    fanout: usize,
    shown: &[Range<u64>],
    (layer, index): (usize, usize),
) -> ShownNode {
    let width = fanout.pow(layer as u32);
    let leaves = (index * width) as u64..((index + 1) * width) as u64;
    if !shown.iter().any(|range| range.start < leaves.end && leaves.start < range.end) {
        return ShownNode::Hidden(tree[layer][index]);
    }
    if layer == 0 {
        let ((key, block), value) = pairs[index];
        let value = value.clone().map(Into::into);
        return ShownNode::Pair(CompoundPair { key: key.clone(), block: *block, value });
    }
    let children = index * fanout..((index + 1) * fanout).min(tree[layer - 1].len());
    ShownNode::Inner(
        children.map(|child| plain(pairs, tree, fanout, shown, (layer - 1, child))).collect(),
    )
}

fn compare(pairs: &PairMap, params: &ColeParams, seed: u64) {
    let dir = tempfile::tempdir().unwrap();
    let run = build(dir.path(), params, pairs);
    let mut rng = StdRng::seed_from_u64(seed);
    let all: Vec<_> = pairs.iter().collect();
    let leaves = all.iter().map(|((key, block), value)| hash::pair(key, *block, value.as_deref()));
    let tree = layers(leaves.collect(), params.fanout);
    assert_eq!(run.description().source.top, tree.last().unwrap()[0]);
    for parts in [0, 1, 2, 5, 40] {
        let mut shown = Vec::new();
        let mut at = 0;
        for _ in 0..parts {
            let start = at + rng.random_range(0..=2 * all.len() / parts);
            let end = start + rng.random_range(1..=3 + all.len() / parts / 4);
            if end > all.len() {
                break;
            }
            shown.push(start as u64..end as u64);
            at = end;
        }
        let expected = plain(&all, &tree, params.fanout.into(), &shown, (tree.len() - 1, 0));
        assert!(run.show(&shown).unwrap() == expected, "{shown:?}");
    }

    let count = run.description().source.filter_blocks;
    let block = |n| *super::super::filter::block(&run.filter, n).unwrap();
    let blocks = (0..count).map(|n| hash::filter_block(&block(n)));
    let tree = layers(blocks.collect(), params.fanout);
    assert_eq!(run.description().source.filter_top, tree.last().unwrap()[0]);
    for _ in 0..6 {
        let mut shown: Vec<_> =
            (0..rng.random_range(1..30)).map(|_| rng.random_range(0..count)).collect();
        shown.sort_unstable();
        shown.dedup();
        let (bytes, hashes) = run.show_filter(&shown).unwrap();
        assert_eq!(bytes, shown.iter().map(|n| block(*n)).collect::<Vec<_>>());
        let mut expected = Vec::new();
        let mut known = shown;
        for layer in &tree[..tree.len() - 1] {
            let m = u64::from(params.fanout);
            let mut parents: Vec<_> = known.iter().map(|n| n / m).collect();
            parents.dedup();
            for (n, digest) in (0..).zip(layer) {
                if parents.contains(&(n / m)) && !known.contains(&n) {
                    expected.push(*digest);
                }
            }
            known = parents;
        }
        assert_eq!(hashes, expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn parts_of_trees_are_those_of_plain_trees(
        keys in any_keys(),
        params in any_params(),
        count in prop_oneof![1usize..70, 70usize..4_000],
        seed: u64,
    ) {
        compare(&pairs(keys, count, seed), &params, seed);
    }
}

#[test]
fn trees_of_every_small_size() {
    for fanout in [2, 3, 4, 16] {
        for count in 1..90 {
            let mut pairs = pairs(KeyPattern::Near, 90, 3);
            while pairs.len() > count {
                pairs.pop_last();
            }
            compare(&pairs, &ColeParams { fanout, ..ColeParams::default() }, 3);
        }
    }
}

#[test]
fn the_trees_of_a_large_run() {
    for fanout in [2, 4, 64] {
        let pairs = pairs(KeyPattern::Random, 60_000, 5);
        compare(&pairs, &ColeParams { fanout, ..ColeParams::default() }, 5);
    }
}
