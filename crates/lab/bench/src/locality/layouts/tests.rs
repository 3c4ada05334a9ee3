//! Checks layouts against the whole permutation and the paper's definitions.

use super::{duplicated::lower, *};
use crate::locality::{
    count::{LeafTally, TreeCounts, count},
    theory::ExpectedCounts,
};
use std::collections::{BTreeSet, HashMap};

/// Up to three layers of blocks and records, and three steps of DupTree+.
const HEIGHTS: std::ops::RangeInclusive<u32> = 0..=12;

/// All layouts, those with subtrees also with P = 2 and 8.
fn trees() -> impl Iterator<Item = DenseTree> {
    let of = |layout| HEIGHTS.map(move |height| DenseTree::new(layout, height).unwrap());
    let small = ["2", "8"].map(|p| p.parse().unwrap());
    TreeLayout::ALL.into_iter().flat_map(of).flat_map(move |tree| {
        let small = small.into_iter().filter(move |_| tree.layout().has_subtrees());
        std::iter::once(tree).chain(small.map(move |p| tree.with_subtrees(p)))
    })
}

/// The node in each slot.
fn permutation(tree: DenseTree) -> Vec<Option<LayoutNode>> {
    let mut slots = Vec::new();
    tree.nodes(|node| {
        slots.push(node);
        Ok(())
    })
    .unwrap();
    assert_eq!(slots.len() as u64, tree.slots(), "{tree:?}");
    slots
}

fn is_above(node: LayoutNode, leaf: u64) -> bool {
    leaf >> node.height == node.index
}

/// Number of maximal runs of adjacent slots, by the definition: the slots whose predecessor is
/// missing.
fn runs(slots: &BTreeSet<u64>) -> u64 {
    let begins = |slot: &&u64| slot.checked_sub(1).is_none_or(|before| !slots.contains(&before));
    slots.iter().filter(begins).count() as u64
}

fn covered(regions: &[Region]) -> BTreeSet<u64> {
    regions.iter().flat_map(|region| region.start..region.end).collect()
}

/// Expected number of copies of a node.
fn copies(tree: DenseTree, node: LayoutNode) -> u64 {
    let height = tree.height();
    // One copy of an ancestor in each of the trees of height `below`.
    let above = |below: u32| 1 << (node.height - below);
    match tree.layout() {
        TreeLayout::Naive | TreeLayout::Third | TreeLayout::Blocked => 1,
        TreeLayout::DupTree => match lower(height) {
            Some(below) if node.height > below => above(below),
            _ => 1,
        },
        TreeLayout::DupTreePlus => {
            let steps = std::iter::successors(lower(height), |height| lower(*height));
            steps.into_iter().find(|below| node.height > *below).map_or(1, above)
        }
        TreeLayout::DupTreePlusPlus if node.height == height => 0,
        TreeLayout::DupTreePlusPlus => above(node.height / tree.levels() * tree.levels()),
    }
}

#[test]
fn every_node_stands_in_as_many_slots_as_it_should() {
    for tree in trees() {
        let mut found: HashMap<LayoutNode, u64> = HashMap::new();
        let permutation = permutation(tree);
        permutation.iter().flatten().for_each(|node| *found.entry(*node).or_default() += 1);
        for height in 0..=tree.height() {
            for index in 0..1 << (tree.height() - height) {
                let node = LayoutNode { height, index };
                let counted = found.remove(&node).unwrap_or(0);
                assert_eq!(counted, copies(tree, node), "{tree:?}: {node:?}");
            }
        }
        assert_eq!(found.len(), 0, "{tree:?} has nodes that are none of the tree");
        let nodes = permutation.iter().flatten();
        let most = nodes.map(|node| copies(tree, *node)).max().unwrap_or(0);
        assert_eq!(most, ExpectedCounts::of(tree).copies, "{tree:?}");
        let may_have_gaps = tree.layout() == TreeLayout::Blocked;
        assert!(may_have_gaps || permutation.iter().all(Option::is_some), "{tree:?}");
    }
}

#[test]
fn a_path_is_all_ancestors_in_slots_that_hold_them_and_a_read_covers_it() {
    for tree in trees() {
        let permutation = permutation(tree);
        let mut regions = Vec::new();
        for leaf in 0..tree.leaves() {
            let mut heights = BTreeSet::new();
            let mut slots = BTreeSet::new();
            tree.path(leaf, |NodePlace { node, slot }| {
                assert!(is_above(node, leaf), "{tree:?}, leaf {leaf}: {node:?}");
                assert_eq!(permutation[slot as usize], Some(node), "{tree:?}, leaf {leaf}");
                assert!(heights.insert(node.height) && slots.insert(slot));
            });
            let stored = match tree.layout() {
                TreeLayout::DupTreePlusPlus => tree.height(),
                _ => tree.height() + 1,
            };
            assert_eq!(heights, (0..stored).collect(), "{tree:?}, leaf {leaf}");
            tree.read(leaf, &mut regions);
            let read = covered(&regions);
            match tree.layout() {
                TreeLayout::Blocked => {
                    assert!(slots.is_subset(&read));
                    assert!(read.iter().all(|slot| permutation[*slot as usize].is_some()));
                }
                _ => assert_eq!(read, slots, "{tree:?}, leaf {leaf}"),
            }
            assert_eq!(regions.len() as u64, runs(&read), "{tree:?}, leaf {leaf}");
            assert!(regions.windows(2).all(|pair| pair[0].end < pair[1].start));
        }
    }
}

#[test]
fn a_write_changes_every_copy_of_an_ancestor_and_nothing_else() {
    for tree in trees().filter(|tree| tree.height() <= 8) {
        let permutation = permutation(tree);
        let mut regions = Vec::new();
        for leaf in 0..tree.leaves() {
            tree.write(leaf, &mut regions);
            let written = covered(&regions);
            let shows =
                |(_, node): &(u64, &Option<LayoutNode>)| node.is_some_and(|n| is_above(n, leaf));
            let changed: BTreeSet<u64> =
                (0..).zip(&permutation).filter(shows).map(|(slot, _)| slot).collect();
            match tree.layout() {
                TreeLayout::Blocked => {
                    tree.read(leaf, &mut regions);
                    assert!(changed.is_subset(&written) && written == covered(&regions));
                }
                _ => assert_eq!(written, changed, "{tree:?}, leaf {leaf}"),
            }
            assert_eq!(written.len() as u64, ExpectedCounts::of(tree).write_slots, "{tree:?}");
        }
    }
}

/// Counts over the whole permutation, for layouts without duplicates: these do not depend on the
/// arithmetic of paths.
#[test]
fn permutations_have_the_locality_of_the_theorems() {
    for tree in trees().filter(|t| matches!(t.layout(), TreeLayout::Naive | TreeLayout::Third)) {
        let permutation = permutation(tree);
        let places: HashMap<LayoutNode, u64> =
            (0..).zip(&permutation).filter_map(|(slot, node)| Some(((*node)?, slot))).collect();
        let mut counted = LeafTally::default();
        for leaf in 0..tree.leaves() {
            let path = (0..=tree.height()).map(|height| places[&LayoutNode::above(leaf, height)]);
            counted.add(runs(&path.collect()));
        }
        assert_eq!(counted, ExpectedCounts::of(tree).read_regions, "{tree:?}");
    }
}

#[test]
fn theory_is_that_of_the_paper_in_words() {
    for height in HEIGHTS {
        let theory =
            |layout| ExpectedCounts::of(DenseTree::new(layout, height).unwrap()).read_regions;
        let (h, n) = (f64::from(height), f64::from(1 << height));
        let mean = |layout| theory(layout).total as f64 / n;
        let sign = if height % 2 == 0 { 1.0 } else { -1.0 };
        let third = (h + 1.0) / 3.0 + 4.0 / 9.0 + 2.0 / 9.0 * sign / n;
        assert!((mean(TreeLayout::Third) - third).abs() < 1e-9, "height {height}");
        // The recurrences (1) and (2) of the proof of Theorem 3.4.
        let (mut middle, mut end) = (1, 1);
        for below in 0..height {
            (middle, end) = (2 * end, end + middle + (1 << below));
        }
        assert_eq!(theory(TreeLayout::Third).total, middle, "height {height}");
        assert_eq!(theory(TreeLayout::Naive).max, u64::from(height) + 1);
        assert_eq!(mean(TreeLayout::DupTreePlusPlus), (h / 5.0).ceil());
        assert_eq!(mean(TreeLayout::Blocked), (h / 5.0).ceil().max(1.0));
        for subtree in SubtreeLeaves::all() {
            let tree = |layout| DenseTree::new(layout, height).unwrap().with_subtrees(subtree);
            let records = ExpectedCounts::of(tree(TreeLayout::DupTreePlusPlus));
            let layers = (h / (subtree.count() as f64).log2()).ceil();
            assert_eq!(records.read_regions.total as f64, layers * n, "P = {subtree}");
            // Theorem 3.9, with K = P / 2: a layer has log K + 1 levels, and the bound has 2 log K + 4.
            let least = records.least_mean_regions(tree(TreeLayout::DupTreePlusPlus)).unwrap();
            assert!(
                layers >= least && (height < 2 || layers <= 6.0 * least + 1.0),
                "P = {subtree}"
            );
            let blocks = ExpectedCounts::of(tree(TreeLayout::Blocked)).read_regions;
            assert_eq!(blocks.total as f64, layers.max(1.0) * n, "P = {subtree}");
        }
        let log_star = std::iter::successors(Some(height), |height| lower(*height)).count() - 1;
        assert_eq!(theory(TreeLayout::DupTreePlus).max, (log_star as u64).max(1));
    }
}

/// No permutation of 3, 7 or 15 nodes has less than Delta(h). The best order is found by dynamic
/// programming over all sets of nodes (Held and Karp).
#[test]
fn nothing_without_duplicates_is_better_than_third() {
    for height in 1..=3 {
        let nodes: Vec<LayoutNode> =
            permutation(DenseTree::new(TreeLayout::Naive, height).unwrap())
                .into_iter()
                .flatten()
                .collect();
        // What two neighbours save: one region for every leaf below both.
        let saved = |a: LayoutNode, b: LayoutNode| {
            let (high, low) = if a.height > b.height { (a, b) } else { (b, a) };
            let related = low.index >> (high.height - low.height) == high.index;
            if related { 1_u64 << low.height } else { 0 }
        };
        let count = nodes.len();
        let mut best = vec![vec![None; count]; 1 << count];
        (0..count).for_each(|n| best[1 << n][n] = Some(0));
        for set in 1..1_usize << count {
            for last in 0..count {
                let Some(gain) = best[set][last] else { continue };
                for next in (0..count).filter(|next| set >> next & 1 == 0) {
                    let other = &mut best[set | 1 << next][next];
                    *other = (*other).max(Some(gain + saved(nodes[last], nodes[next])));
                }
            }
        }
        let most = best[(1 << count) - 1].iter().flatten().max().unwrap();
        let least = ((u64::from(height) + 1) << height) - most;
        let tree = DenseTree::new(TreeLayout::Third, height).unwrap();
        assert_eq!(least, ExpectedCounts::of(tree).read_regions.total, "height {height}");
    }
}

#[test]
fn counts_meet_theory_and_a_wrong_one_is_an_error() {
    let stop = std::sync::atomic::AtomicBool::new(false);
    for tree in trees() {
        let counts = count(tree, &stop).unwrap();
        assert!(counts.read.all && counts.read.leaves == tree.leaves(), "{tree:?}");
        // A region has one page at least.
        assert!(counts.read.slots.total >= counts.read.regions.total);
        let theory = ExpectedCounts::of(tree);
        let mut wrong = counts;
        wrong.read.regions.total += 1;
        let error = theory.check(tree, &wrong).unwrap_err().to_string();
        assert!(error.contains(&tree.name()) && error.contains("regions"), "{error}");
        let mut wrong = counts;
        wrong.write.slots.max += 1;
        assert!(theory.check(tree, &wrong).is_err());
        let wrong = TreeCounts { copies: counts.copies + 1, ..counts };
        assert!(theory.check(tree, &wrong).unwrap_err().to_string().contains("copies"));
    }
    // A layout with these counts, and without the copies that they need, would refute Theorem 3.9.
    let tree = DenseTree::new(TreeLayout::DupTreePlus, 12).unwrap();
    let counts = count(tree, &stop).unwrap();
    let refuted = ExpectedCounts { copies: 1, ..ExpectedCounts::of(tree) };
    let error = refuted.check(tree, &TreeCounts { copies: 1, ..counts }).unwrap_err().to_string();
    assert!(error.contains("4.777") && error.contains("at least"), "{error}");
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let tree = DenseTree::new(TreeLayout::Naive, 4).unwrap();
    assert!(matches!(count(tree, &stop), Err(LocalityError::Stopped)));
}

#[test]
fn rows_cover_all_slots_and_do_not_overlap() {
    for tree in trees() {
        let mut next = 0;
        while next < tree.slots() {
            let unit = tree.unit(next);
            assert_eq!(unit.start, next, "{tree:?}");
            assert!((unit.start..unit.end).all(|slot| tree.unit(slot) == unit), "{tree:?}");
            next = unit.end;
        }
        assert_eq!(next, tree.slots(), "{tree:?}");
    }
}

#[test]
fn names_lead_back_and_trees_have_an_end() {
    for layout in TreeLayout::ALL {
        assert_eq!(layout.name().parse(), Ok(layout));
        let highest = DenseTree::new(layout, MAX_HEIGHT).unwrap();
        assert!(SubtreeLeaves::all().all(|p| highest.with_subtrees(p).slots() < 1 << 41));
        assert!(DenseTree::new(layout, MAX_HEIGHT + 1).is_err());
    }
    for wrong in ["1", "6", "8192", "-2", "many"] {
        assert!(wrong.parse::<SubtreeLeaves>().is_err(), "{wrong}");
    }
    assert_eq!("32".parse(), Ok(SubtreeLeaves::DEFAULT));
    let error = "textbook".parse::<TreeLayout>().unwrap_err().to_string();
    assert!(TreeLayout::ALL.iter().all(|layout| error.contains(layout.name())), "{error}");
}
