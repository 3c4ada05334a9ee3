//! Trees compared with the definition of RFC 6962, however they were built, stored and pruned.

use super::*;
use rand::{Rng, SeedableRng, rngs::StdRng, seq::index};
use retrie_state::StateError;
use std::collections::{BTreeMap, BTreeSet};

type GroupRows = BTreeMap<(u8, u64), Vec<u8>>;

/// RFC 6962, 2.1, word for word.
fn model(leaves: &[B256]) -> B256 {
    match leaves.len() {
        0 => B256::ZERO,
        1 => leaves[0],
        n => {
            let mut k = 1;
            while k * 2 < n {
                k *= 2;
            }
            hash::node(&model(&leaves[..k]), &model(&leaves[k..]))
        }
    }
}

fn leaves(n: usize) -> Vec<B256> {
    (0..n as u64).map(|i| hash::parts(&[b"leaf", &i.to_be_bytes()])).collect()
}

fn sizes(rng: &mut StdRng) -> Vec<usize> {
    let mut sizes: Vec<_> = (0..=200).collect();
    sizes.extend([1023, 1024, 1025, 1056, 1057, 2047]);
    sizes.extend((0..8).map(|_| rng.random_range(200..40_000)));
    sizes
}

fn put(rows: &mut GroupRows) -> impl FnMut(u8, u64, Vec<u8>) -> Result<(), StateError> {
    |level, group, row| {
        rows.insert((level, group), row);
        Ok(())
    }
}

fn built(leaves: &[B256]) -> (B256, GroupRows) {
    built_in_parts(leaves, leaves.len() / 3)
}

fn built_in_parts(leaves: &[B256], first: usize) -> (B256, GroupRows) {
    let mut rows = GroupRows::new();
    let mut put = |level: u8, group: u64, row: Vec<u8>| {
        assert!(rows.insert((level, group), row).is_none(), "group {group} of {level} comes twice");
    };
    let (first, rest) = leaves.split_at(first);
    let top = TreePrefix::new(first.to_vec(), &mut put).finish(rest, &mut put);
    (top, rows)
}

fn read(rows: &GroupRows) -> impl FnMut(u8, u64, u8) -> Result<Option<MerkleGroup>, StateError> {
    move |level, group, size| {
        let row = rows.get(&(level, group));
        Ok(row.map(|row| MerkleGroup::decode(row, size).expect("a canonical row")))
    }
}

/// Keeps only the leaves `keep`, as garbage collection would: group by group, from level 0 up.
fn prune(rows: &GroupRows, n: u64, keep: &BTreeSet<u64>) -> GroupRows {
    let mut pruned = GroupRows::new();
    let mut keep = keep.clone();
    for level in 0..levels(n) {
        let mut above = BTreeSet::new();
        for (&(_, number), row) in rows.range((level, 0)..=(level, u64::MAX)) {
            let group = MerkleGroup::decode(row, group_size(n, level, number)).unwrap();
            let first = number * GROUP as u64;
            let kept = keep.range(first..first + 32).fold(0, |bits, at| bits | 1 << (at - first));
            if let Some(group) = group.prune(kept) {
                assert_eq!(group.top(), MerkleGroup::decode(row, group.size()).unwrap().top());
                pruned.insert((level, number), group.encode());
                above.insert(number);
            }
        }
        keep = above;
    }
    pruned
}

fn check_proof(n: usize, leaves: &[B256], top: B256, rows: &GroupRows, shown: &[u64]) {
    let siblings = prove(n as u64, shown, read(rows)).unwrap().expect("a proof");
    assert_eq!(siblings.len(), super::siblings(n as u64, shown), "{n} {shown:?}");
    let mut shown: Vec<_> = shown.iter().map(|at| (*at, leaves[*at as usize])).collect();
    let mut given = siblings.iter().copied();
    assert_eq!(verify_many(n as u64, &shown, &mut given), Some(top), "{n} {shown:?}");
    assert_eq!(given.next(), None);
    // With one hash fewer, another leaf or another position, the result is not the top.
    if let Some(short) = siblings.len().checked_sub(1) {
        let mut given = siblings[..short].iter().copied();
        assert_eq!(verify_many(n as u64, &shown, &mut given), None);
    }
    if let Some((at, leaf)) = shown.last_mut() {
        leaf.0[0] ^= 1;
        let other = verify_many(n as u64, &[(*at, *leaf)], &mut siblings.iter().copied());
        assert_ne!(other, Some(top));
        *at = n as u64;
        assert_eq!(verify_many(n as u64, &shown, &mut siblings.iter().copied()), None);
    }
}

#[test]
fn every_way_to_build_a_tree_gives_the_one_of_rfc_6962_and_the_same_rows() {
    let rng = &mut StdRng::seed_from_u64(1);
    for n in sizes(rng) {
        let leaves = leaves(n);
        let (top, rows) = built(&leaves);
        assert_eq!(top, model(&leaves), "{n} leaves");
        assert_eq!(super::top(&leaves), top);
        let groups: usize =
            (0..levels(n as u64)).map(|l| width(n as u64, l).div_ceil(32) as usize).sum();
        assert_eq!(rows.len(), groups, "{n} leaves");
        for first in [0, n / 2, n / 32 * 32, n] {
            assert!(built_in_parts(&leaves, first) == (top, rows.clone()), "{first} of {n} leaves");
        }

        let mut streamed = GroupRows::new();
        let mut builder = TreeBuilder::default();
        for leaf in &leaves {
            streamed.extend(builder.push(*leaf).map(|(group, row)| ((0, group), row)));
        }
        assert_eq!(builder.count(), n as u64);
        assert_eq!(builder.finish(put(&mut streamed)).unwrap(), top);
        assert_eq!(streamed, rows, "{n} leaves");
    }
}

#[test]
fn a_range_has_the_rows_of_a_built_tree_after_every_append_and_when_reopened() {
    let leaves = leaves(33_000);
    let (mut range, mut rows) = (RangeEdge::default(), GroupRows::new());
    assert_eq!(range.top(), B256::ZERO);
    for (at, leaf) in leaves.iter().enumerate() {
        let n = at as u64 + 1;
        let mut changed = 0;
        let top = range
            .append(*leaf, |level, group, row| {
                changed += 1;
                put(&mut rows)(level, group, row)
            })
            .unwrap();
        assert_eq!(range.top(), top);
        assert_eq!(changed, levels(n));
        if n < 1100 || n.is_multiple_of(997) || n > 32_760 && n < 32_810 {
            let (expected, all) = built(&leaves[..=at]);
            assert_eq!(top, expected, "{n} leaves");
            assert!(rows == all, "{n} leaves");
            assert_eq!(RangeEdge::open(n, read(&rows)).unwrap().as_ref(), Some(&range));
        }
    }
    assert_eq!(RangeEdge::open(0, read(&GroupRows::new())).unwrap(), Some(RangeEdge::default()));
    // A missing, pruned or contradictory edge is detected.
    let n = leaves.len() as u64;
    for level in 0..levels(n) {
        let number = (width(n, level) - 1) / 32;
        let key = (level, number);
        let mut damaged = rows.clone();
        let row = damaged.remove(&key).unwrap();
        assert_eq!(RangeEdge::open(n, read(&damaged)).unwrap(), None);
        let group = MerkleGroup::decode(&row, group_size(n, level, number)).unwrap();
        if group.size() > 1 {
            damaged.insert(key, group.prune(1).unwrap().encode());
            assert_eq!(RangeEdge::open(n, read(&damaged)).unwrap(), None);
        }
        if level > 0 {
            let mut other = row.clone();
            *other.last_mut().unwrap() ^= 1;
            damaged.insert(key, other);
            assert_eq!(RangeEdge::open(n, read(&damaged)).unwrap(), None);
        }
    }
}

#[test]
fn multi_proofs_of_any_leaves_hold_and_others_do_not() {
    let rng = &mut StdRng::seed_from_u64(2);
    for n in sizes(rng) {
        let leaves = leaves(n);
        let (top, rows) = built(&leaves);
        check_proof(n, &leaves, top, &rows, &[]);
        for _ in 0..if n > 300 { 12 } else { 4 } {
            let count = rng.random_range(0..=n.min(40));
            let mut shown: Vec<_> =
                index::sample(rng, n, count).into_iter().map(|at| at as u64).collect();
            shown.sort_unstable();
            check_proof(n, &leaves, top, &rows, &shown);
        }
        if n < 600 {
            check_proof(n, &leaves, top, &rows, &(0..n as u64).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_pruned_tree_still_proves_every_kept_leaf_and_has_one_form() {
    let rng = &mut StdRng::seed_from_u64(3);
    for n in sizes(rng).into_iter().skip(1) {
        let leaves = leaves(n);
        let (top, rows) = built(&leaves);
        let some = |rng: &mut StdRng, of: &BTreeSet<u64>| -> BTreeSet<u64> {
            let share = [0.02, 0.2, 0.9][rng.random_range(0..3)];
            of.iter().copied().filter(|_| rng.random_bool(share)).collect()
        };
        let first = some(rng, &(0..n as u64).collect());
        let second = some(rng, &first);
        let once = prune(&rows, n as u64, &first);
        let twice = prune(&once, n as u64, &second);
        assert!(twice == prune(&rows, n as u64, &second), "{n} leaves: the way matters");
        for (rows, kept) in [(&once, &first), (&twice, &second)] {
            assert_eq!(rows.is_empty(), kept.is_empty());
            let all: Vec<_> = kept.iter().copied().collect();
            for shown in all.chunks(7).take(50).chain([&all[..]]) {
                if !shown.is_empty() {
                    check_proof(n, &leaves, top, rows, shown);
                }
            }
            let dropped: Vec<_> = (0..n as u64).filter(|at| !kept.contains(at)).collect();
            for at in dropped.iter().take(40) {
                let size = group_size(n as u64, 0, at / 32);
                let group = read(rows)(0, at / 32, size).unwrap();
                assert_eq!(group.and_then(|group| group.leaf((at % 32) as u8)), None);
            }
        }
        // If no leaf is kept, no proof is possible, and the prover says so.
        assert_eq!(prove(n as u64, &[], read(&GroupRows::new())).unwrap(), None);
    }
}

#[test]
fn a_group_gives_the_subtrees_that_its_kept_leaves_need_and_no_wrong_one() {
    let rng = &mut StdRng::seed_from_u64(4);
    let all = leaves(32);
    for size in 1..=32u8 {
        let leaves = &all[..size.into()];
        let full = MerkleGroup::full(leaves);
        assert_eq!(full.leaves(), Some(leaves));
        for _ in 0..60 {
            let mask = rng.random::<u32>() & rng.random::<u32>() & rng.random::<u32>();
            let keep = mask & (u32::MAX >> (32 - u32::from(size)));
            let Some(group) = full.prune(keep) else { continue };
            assert_eq!((group.size(), group.kept(), group.top()), (size, keep, model(leaves)));
            for start in 0..size {
                for len in 1..=size - start {
                    let range = usize::from(start)..usize::from(start + len);
                    if let Some(top) = group.subtree(start, len) {
                        assert_eq!(top, model(&leaves[range]), "{keep:b} {start} {len}");
                    }
                }
                let kept = keep & 1 << start != 0;
                assert_eq!(group.leaf(start), kept.then(|| leaves[usize::from(start)]));
            }
            assert_eq!(group.subtree(size, 1), None);
            let bytes = group.encode();
            assert_eq!(MerkleGroup::decode(&bytes, size), Some(group));
            // Any other length, or a bitmap with leaves that do not exist, is refused.
            assert_eq!(MerkleGroup::decode(&bytes[..bytes.len() - 1], size), None);
            assert_eq!(MerkleGroup::decode(&bytes[..bytes.len() - 32], size), None);
            assert_eq!(MerkleGroup::decode(&[&bytes[..], &[0; 32]].concat(), size), None);
            if size < 32 {
                let mut more = bytes.clone();
                more[usize::from(3 - size / 8)] |= 1 << (size % 8);
                assert_eq!(MerkleGroup::decode(&more, size), None);
            }
        }
    }
    for bytes in [&[][..], &[0; 4], &[0; 36], &[0, 0, 1]] {
        assert_eq!(MerkleGroup::decode(bytes, 1), None);
        assert_eq!(MerkleGroup::decode(bytes, 0), None);
        assert_eq!(MerkleGroup::decode(bytes, 33), None);
    }
}

#[test]
fn the_numbers_of_levels_and_groups_are_those_of_the_tree() {
    for (n, expected) in [(0, 0), (1, 1), (32, 1), (33, 2), (1024, 2), (1025, 3), (u64::MAX, 13)] {
        assert_eq!(levels(n), expected, "{n} leaves");
    }
    assert_eq!(group_size(33, 0, 1), 1);
    assert_eq!(group_size(33, 0, 2), 0);
    assert_eq!(group_size(33, 1, 0), 2);
    assert_eq!(group_size(33, 2, 0), 1);
    assert_eq!(group_size(u64::MAX, 12, 0), 16);
    assert_eq!(group_size(u64::MAX, 0, u64::MAX), 0);
}

#[test]
fn positions_that_come_twice_or_out_of_order_show_nothing() {
    let leaves = leaves(9);
    let (top, rows) = built(&leaves);
    let siblings = prove(9, &[3, 5], read(&rows)).unwrap().unwrap();
    for shown in [[5, 3], [3, 3], [5, 5]] {
        let shown = shown.map(|at| (at, leaves[at as usize]));
        assert_ne!(verify_many(9, &shown, &mut siblings.iter().copied()), Some(top));
    }
    assert_eq!(verify_many(0, &[(0, leaves[0])], &mut siblings.iter().copied()), None);
    assert_eq!(verify_many(0, &[], &mut siblings.iter().copied()), Some(B256::ZERO));
}
