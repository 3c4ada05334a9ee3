//! Sparse trees (section 3.4): the smallest possible locality, and the locality of tries of random
//! keys in depth-first order.
//!
//! In the paper's model a sparse tree of height h has all of its leaves at depth h, and inner nodes
//! with one or two children. (If every inner node had two children, as section 3.4 says,
//! Gamma(h, 1) = 2 could not hold beyond h = 1.) A node with one child can always be stored next to it, so
//! chains of such nodes cost nothing, and the bound also holds for compressed tries of that height.

use super::{LocalityError, PAGE_BYTES, SlotContent, count::LeafTally};
use crate::random::SplitMix64;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};

/// Delta(n, h): the smallest possible locality of a sparse tree of `height` with n = `leaves`, over
/// all orders of its nodes. The locality of a tree is that of its worst leaf (equation 7). `None`
/// if a tree of this height cannot have so many leaves.
fn least_locality(leaves: u64, height: u32) -> Option<u32> {
    if leaves == 0 || (height < u64::BITS && leaves > 1 << height) {
        return None;
    }
    let mut most = vec![0; height as usize + 1];
    // Half the height suffices for a full tree (Lemma 3.14).
    (1..=height / 2 + 1).find(|_| {
        most = one_region_more(&most);
        most.last().is_some_and(|most| *most >= leaves)
    })
}

/// Gamma(h, l) for each height h up to a limit: the largest number of leaves of a tree of that
/// height and locality l, computed from the values for l - 1 (equation 4 and Lemma 3.15). For
/// locality 0 there are no trees.
fn one_region_more(fewer: &[u64]) -> Vec<u64> {
    // A single leaf is a tree of height 0. gamma: only trees whose root is at one end of the order.
    let (mut most, mut gamma) = (vec![1], 1_u64);
    for fewer in fewer.split_last().map_or(&[][..], |(_, lower)| lower) {
        most.push(gamma.saturating_mul(2));
        gamma = gamma.saturating_add(*fewer);
    }
    most
}

/// The counts of a compressed trie of random keys. Its nodes lie in depth-first order (a node, then
/// the subtrees of its children), one per slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TrieCounts {
    /// Largest number of children: 2 or 16.
    pub arity: u32,
    /// Number of keys, which is the number of leaves.
    pub leaves: u64,
    /// Number of all nodes.
    pub nodes: u64,
    /// Edges of the longest path.
    pub height: u64,
    /// Nodes per path.
    pub path: LeafTally,
    /// Regions per path.
    pub regions: LeafTally,
    /// Distinct pages per path.
    pub pages: LeafTally,
    /// Delta(n, h) for this number of leaves and this height, of binary tries only.
    pub least_max_regions: Option<u32>,
}

/// Counts a trie of `keys` random keys of 64 bits. A key that is drawn twice counts once.
///
/// # Errors
/// [`LocalityError::Mismatch`] if a binary trie is better than the bound;
/// [`LocalityError::Stopped`].
pub fn random_trie(
    arity: TrieArity,
    keys: u64,
    seed: u64,
    stop: &AtomicBool,
) -> Result<TrieCounts, LocalityError> {
    let mut random = SplitMix64::new(seed);
    let mut keys: Vec<u64> = (0..keys).map(|_| random.next()).collect();
    keys.sort_unstable();
    keys.dedup();
    depth_first(arity, &keys, stop)
}

/// Largest number of children of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrieArity {
    /// Two: a bit per level.
    Two,
    /// Sixteen: a nibble per level.
    Sixteen,
}

impl TrieArity {
    const fn bits(self) -> u32 {
        match self {
            Self::Two => 1,
            Self::Sixteen => 4,
        }
    }
}

/// Counts the trie of `keys`, which are sorted.
fn depth_first(
    arity: TrieArity,
    keys: &[u64],
    stop: &AtomicBool,
) -> Result<TrieCounts, LocalityError> {
    let (path, regions, pages) = Default::default();
    let counts = TrieCounts {
        arity: 1 << arity.bits(),
        leaves: keys.len() as u64,
        nodes: 0,
        height: 0,
        path,
        regions,
        pages,
        least_max_regions: None,
    };
    let mut walk = TrieWalk { bits: arity.bits(), counts, stop };
    walk.visit(keys, None)?;
    let mut counts = walk.counts;
    counts.height = counts.path.max.saturating_sub(1);
    if arity == TrieArity::Two {
        let height = u32::try_from(counts.height).unwrap_or(u32::MAX);
        counts.least_max_regions = least_locality(counts.leaves, height);
        let least = u64::from(counts.least_max_regions.unwrap_or(0));
        if counts.regions.max < least {
            return Err(LocalityError::Mismatch {
                what: format!("binary trie of {} keys: regions of the worst leaf", keys.len()),
                theory: format!("{least} at least"),
                counted: counts.regions.max.to_string(),
            });
        }
    }
    Ok(counts)
}

/// A depth-first walk through all nodes.
struct TrieWalk<'a> {
    bits: u32,
    counts: TrieCounts,
    stop: &'a AtomicBool,
}

/// The path from the root to a node, and its counts.
#[derive(Clone, Copy)]
struct TriePath {
    /// Slot of the node.
    slot: u64,
    nodes: u64,
    regions: u64,
    pages: u64,
}

impl TriePath {
    const SLOTS_PER_PAGE: u64 = PAGE_BYTES / SlotContent::NodeHash.bytes();

    /// The path extended by one node. Slots increase along a path.
    const fn to(above: Option<Self>, slot: u64) -> Self {
        let Some(Self { slot: before, nodes, regions, pages }) = above else {
            return Self { slot, nodes: 1, regions: 1, pages: 1 };
        };
        let is_far = slot != before + 1;
        let turned = slot / Self::SLOTS_PER_PAGE != before / Self::SLOTS_PER_PAGE;
        Self {
            slot,
            nodes: nodes + 1,
            regions: regions + is_far as u64,
            pages: pages + turned as u64,
        }
    }
}

impl TrieWalk<'_> {
    /// Visits the subtree of `keys`, which are all keys with the prefix of this node. The recursion
    /// is as deep as a key has digits.
    fn visit(&mut self, keys: &[u64], above: Option<TriePath>) -> Result<(), LocalityError> {
        let (Some(first), Some(last)) = (keys.first(), keys.last()) else { return Ok(()) };
        let path = TriePath::to(above, self.counts.nodes);
        self.counts.nodes += 1;
        if first == last {
            self.counts.path.add(path.nodes);
            self.counts.regions.add(path.regions);
            self.counts.pages.add(path.pages);
            return match self.stop.load(Ordering::Relaxed) {
                true => Err(LocalityError::Stopped),
                false => Ok(()),
            };
        }
        // The first digit in which the first and the last key differ, in bits from the right.
        let shift = (first ^ last).ilog2() / self.bits * self.bits;
        let digit = |key: &u64| key >> shift;
        keys.chunk_by(|a, b| digit(a) == digit(b))
            .try_for_each(|child| self.visit(child, Some(path)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    /// Gamma for heights from 0 up.
    fn most_leaves(height: u32, locality: u32) -> Vec<u64> {
        (0..locality).fold(vec![0; height as usize + 1], |fewer, _| one_region_more(&fewer))
    }

    fn binomial(n: u64, k: u64) -> u64 {
        (0..k).fold(1, |product, i| product * (n - i) / (i + 1))
    }

    #[test]
    fn most_leaves_are_those_of_the_papers_formula() {
        for l in 1..=8_u32 {
            for h in 0..=30_u32 {
                let most = most_leaves(h, l)[h as usize];
                if h < 2 * l {
                    assert_eq!(most, 1 << h, "a full tree, equation 3: {h}, {l}");
                    continue;
                }
                let (h, l) = (u64::from(h), u64::from(l));
                let sum: u64 =
                    (0..=h - 2 * l).map(|i| binomial(l + i - 1, i) << (h - 2 * l - i)).sum();
                assert_eq!(most, (1 << h) - (sum << l), "equation 6: {h}, {l}");
            }
        }
    }

    /// The maximum over all ways to place a root among its subtrees (Lemmas 3.12 and 3.13), with
    /// the ways that the paper shows to be no better.
    #[test]
    fn no_other_way_to_join_subtrees_gives_more_leaves() {
        const HEIGHT: usize = 20;
        let mut fewer = vec![0; HEIGHT + 1];
        for locality in 1..8 {
            let (mut anywhere, mut at_end) = (vec![1], vec![1]);
            for h in 1..=HEIGHT {
                let (any, end, less) = (anywhere[h - 1], at_end[h - 1], fewer[h - 1]);
                anywhere.push((2 * end).max(any + less).max(any));
                at_end.push((end + less).max(end));
            }
            assert_eq!(most_leaves(HEIGHT as u32, locality), anywhere, "{locality}");
            fewer = anywhere;
        }
    }

    #[test]
    fn full_trees_need_half_their_height_and_impossible_ones_are_none() {
        for height in 0..=40 {
            assert_eq!(least_locality(1 << height, height), Some(height / 2 + 1), "Lemma 3.14");
        }
        assert_eq!(least_locality(9, 3), None);
        assert_eq!(least_locality(2, 0), None);
        assert_eq!(least_locality(0, 5), None);
        assert_eq!((least_locality(2, 50), least_locality(3, 50)), (Some(1), Some(2)));
        // More leaves do not fit into a `u64`.
        assert_eq!(least_locality(u64::MAX, 64), Some(33));
        let rising: Vec<_> = (1..=1 << 12).map(|n| least_locality(n, 12).unwrap()).collect();
        assert!(rising.is_sorted());
    }

    /// For each leaf of a set, the numbers of the nodes on its path.
    fn paths(height: u32, leaves: &[u64]) -> Vec<BTreeSet<usize>> {
        let mut numbers = BTreeMap::new();
        let number = |node, numbers: &mut BTreeMap<(u32, u64), usize>| {
            let next = numbers.len();
            *numbers.entry(node).or_insert(next)
        };
        let path =
            |leaf: &u64| (0..=height).map(|at| number((at, leaf >> at), &mut numbers)).collect();
        leaves.iter().map(path).collect()
    }

    /// The best locality of the worst leaf over all orders of `count` nodes.
    fn best(paths: &[BTreeSet<usize>], count: usize) -> usize {
        fn extend(
            order: &mut Vec<usize>,
            runs: &mut Vec<usize>,
            paths: &[BTreeSet<usize>],
            count: usize,
            best: &mut usize,
        ) {
            let worst = runs.iter().copied().max().unwrap_or(0);
            if worst >= *best {
                return;
            }
            if order.len() == count {
                *best = worst;
                return;
            }
            for node in 0..count {
                if order.contains(&node) {
                    continue;
                }
                let before = order.last().copied();
                let begins = |path: &BTreeSet<usize>| {
                    path.contains(&node) && before.is_none_or(|before| !path.contains(&before))
                };
                let begun: Vec<bool> = paths.iter().map(begins).collect();
                let add = |runs: &mut Vec<usize>| {
                    runs.iter_mut().zip(&begun).for_each(|(run, one)| *run += usize::from(*one));
                };
                add(runs);
                order.push(node);
                extend(order, runs, paths, count, best);
                order.pop();
                runs.iter_mut().zip(&begun).for_each(|(run, one)| *run -= usize::from(*one));
            }
        }
        let mut best = usize::MAX;
        extend(&mut Vec::new(), &mut vec![0; paths.len()], paths, count, &mut best);
        best
    }

    /// Checks all trees of a height with this number of leaves, and all orders of their nodes.
    #[test]
    fn no_order_of_any_small_tree_beats_the_bound_and_some_meets_it() {
        for (height, most_leaves) in [(0, 1), (1, 2), (2, 4), (3, 4)] {
            for n in 1..=most_leaves {
                let sets = (0_u32..1 << (1 << height)).filter(|set| set.count_ones() == n);
                let localities = sets.map(|set| {
                    let leaves: Vec<u64> =
                        (0..1 << height).filter(|leaf| set >> leaf & 1 == 1).collect();
                    let paths = paths(height, &leaves);
                    let nodes: BTreeSet<_> = paths.iter().flatten().collect();
                    best(&paths, nodes.len())
                });
                let least = localities.min().map(|least| least as u32);
                assert_eq!(least_locality(n.into(), height), least, "{n} leaves, height {height}");
            }
        }
    }

    /// Nodes as sets of keys, in an order computed differently: prefixes sorted with shorter ones
    /// first.
    fn by_definition(bits: u32, keys: &[u64]) -> (u64, Vec<(u64, u64)>) {
        let prefix = |key: u64, digits: u32| {
            let kept = digits * bits;
            (key.checked_shr(64 - kept).map_or(0, |top| top << (64 - kept)), digits)
        };
        let below = |(prefix, digits): (u64, u32)| {
            let same = |key: &&u64| digits == 0 || (*key ^ prefix) >> (64 - digits * bits) == 0;
            keys.iter().filter(same).copied().collect::<Vec<u64>>()
        };
        // The longest prefix of each set of keys is its node.
        let mut nodes: BTreeMap<Vec<u64>, (u64, u32)> = BTreeMap::new();
        for key in keys {
            for digits in 0..=64 / bits {
                let prefix = prefix(*key, digits);
                nodes.insert(below(prefix), prefix);
            }
        }
        let mut order: Vec<_> = nodes.into_iter().map(|(keys, prefix)| (prefix, keys)).collect();
        order.sort();
        let of_key = |key: &u64| {
            let path: BTreeSet<u64> = (0..)
                .zip(&order)
                .filter(|(_, node)| node.1.contains(key))
                .map(|(n, _)| n)
                .collect();
            let begins = |slot: &&u64| **slot == 0 || !path.contains(&(**slot - 1));
            (path.len() as u64, path.iter().filter(begins).count() as u64)
        };
        (order.len() as u64, keys.iter().map(of_key).collect())
    }

    #[test]
    fn tries_are_counted_as_by_the_definition() {
        let stop = AtomicBool::new(false);
        for (arity, seed) in [(TrieArity::Two, 1), (TrieArity::Sixteen, 2), (TrieArity::Sixteen, 3)]
        {
            let mut random = SplitMix64::new(seed);
            // Neighbouring keys too, so that there are long common prefixes.
            let mut keys: Vec<u64> =
                (0..60).map(|n| if n % 3 == 0 { n } else { random.next() }).collect();
            keys.sort_unstable();
            let counts = depth_first(arity, &keys, &stop).unwrap();
            let (nodes, leaves) = by_definition(arity.bits(), &keys);
            assert_eq!((counts.nodes, counts.leaves), (nodes, 60));
            let sum = |of: fn(&(u64, u64)) -> u64| leaves.iter().map(of).sum::<u64>();
            let max = |of: fn(&(u64, u64)) -> u64| leaves.iter().map(of).max().unwrap();
            assert_eq!(counts.path, LeafTally { total: sum(|l| l.0), max: max(|l| l.0) });
            assert_eq!(counts.regions, LeafTally { total: sum(|l| l.1), max: max(|l| l.1) });
            assert!(counts.pages.total >= 60 && counts.pages.max <= counts.path.max);
        }
    }

    #[test]
    fn random_tries_have_n_leaves_and_stay_above_the_bound() {
        let stop = AtomicBool::new(false);
        let binary = random_trie(TrieArity::Two, 1000, 7, &stop).unwrap();
        assert_eq!(
            (binary.leaves, binary.nodes),
            (1000, 1999),
            "every inner node has two children"
        );
        assert!(binary.regions.max >= u64::from(binary.least_max_regions.unwrap()));
        // Half of the steps down go to a first child, which is the next slot.
        let mean = binary.regions.total as f64 / 1000.0;
        assert!(mean > 5.0 && mean < binary.path.total as f64 / 1000.0, "{mean}");
        let wide = random_trie(TrieArity::Sixteen, 1000, 7, &stop).unwrap();
        assert!(wide.nodes < binary.nodes && wide.height < binary.height);
        assert_eq!(random_trie(TrieArity::Two, 0, 7, &stop).unwrap().nodes, 0);
        stop.store(true, Ordering::Relaxed);
        assert!(matches!(random_trie(TrieArity::Two, 9, 7, &stop), Err(LocalityError::Stopped)));
    }
}
