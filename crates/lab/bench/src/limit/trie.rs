//! How many nodes of a Merkle Patricia trie of random keys must be hashed.
//!
//! A prefix of `d` nibbles is *touched* if a changed key begins with it. The node there is a branch
//! if keys go on in at least two ways. For a set of `j` of its 16 children, the probability that the
//! prefix is touched and no key goes on outside the set is, with `q = 16^-(d+1)`, `n` changed keys
//! and `u` others,
//!
//! ```text
//!  (1 - (16 - j) q)^u ((1 - (16 - j) q)^n - (1 - 16 q)^n)
//! ```
//!
//! Inclusion and exclusion over the sets gives the expected number of touched prefixes with exactly
//! `k` children, exactly. A node with `k` children is a list of `17 + 32 k` bytes and its header, and
//! keccak-256 takes 136 bytes at a time (a *permutation*, Keccak-f), with one byte of padding at
//! least.

use std::ops::{Add, AddAssign, Mul};

/// Bytes that one permutation of keccak-256 takes.
const RATE: u64 = 136;
/// Children of a branch.
const WAYS: u32 = 16;
/// Depth at which a trie of any number of keys has no branches any more.
const DEEPEST: u32 = 24;

/// Nodes of a trie that are hashed with keccak-256.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HashWork {
    /// Number of nodes: branches and leaves.
    pub nodes: f64,
    /// Number of permutations (Keccak-f) for them.
    pub permutations: f64,
}

impl HashWork {
    /// `leaves` leaves of at most 135 bytes: slots and accounts.
    pub const fn leaves(leaves: u64) -> Self {
        Self { nodes: leaves as f64, permutations: leaves as f64 }
    }

    /// The branches above `changed` different keys in a trie of `keys` random keys. It is monotone
    /// in both. A trie with fewer keys than are changed has as many as these.
    pub fn branches(changed: u64, keys: u64) -> Self {
        let (changed, keys) = (changed as f64, keys.max(changed) as f64);
        let mut work = Self::default();
        if changed < 1.0 {
            return work;
        }
        for depth in 0..DEEPEST {
            let at_depth = branches_at(depth, changed, keys - changed);
            work += at_depth;
            if at_depth.nodes < 1e-6 * work.nodes {
                break;
            }
        }
        work
    }
}

/// The expected work for the branches at a depth, above `changed` keys beside `others`.
fn branches_at(depth: u32, changed: f64, others: f64) -> HashWork {
    let prefixes = f64::from(WAYS).powi(depth as i32);
    let child = 1.0 / (prefixes * f64::from(WAYS));
    // By number of children in the set.
    let within: [f64; WAYS as usize + 1] = std::array::from_fn(|size| {
        let outside = f64::from(WAYS - size as u32) * child;
        let no_changed = less_one(outside, changed) - less_one(f64::from(WAYS) * child, changed);
        (less_one(outside, others) + 1.0) * no_changed
    });
    let mut work = HashWork::default();
    for children in 2..=WAYS {
        let exactly: f64 = (1..=children)
            .map(|size| {
                let sign = if (children - size).is_multiple_of(2) { 1.0 } else { -1.0 };
                sign * choices(children, size) * within[size as usize]
            })
            .sum();
        // Rounding can leave a little less than nothing.
        let expected = prefixes * choices(WAYS, children) * exactly.max(0.0);
        let permutations = permutations(children.into()) as f64;
        work += HashWork { nodes: 1.0, permutations } * expected;
    }
    work
}

/// `(1 - p)^count - 1`, without cancellation.
fn less_one(p: f64, count: f64) -> f64 {
    match p < 1.0 {
        true => ((-p).ln_1p() * count).exp_m1(),
        false if count > 0.0 => -1.0,
        false => 0.0,
    }
}

/// Number of ways to choose `few` of `all`.
fn choices(all: u32, few: u32) -> f64 {
    (0..few).map(|n| f64::from(all - n) / f64::from(n + 1)).product()
}

/// Permutations for a branch with this number of children.
const fn permutations(children: u64) -> u64 {
    // 16 bytes for no or 33 for a child each, one for the missing value, three for the list.
    (17 + 32 * children + 3) / RATE + 1
}

impl AddAssign for HashWork {
    fn add_assign(&mut self, other: Self) {
        self.nodes += other.nodes;
        self.permutations += other.permutations;
    }
}

impl Add for HashWork {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        self += other;
        self
    }
}

impl Mul<f64> for HashWork {
    type Output = Self;

    fn mul(self, times: f64) -> Self {
        Self { nodes: self.nodes * times, permutations: self.permutations * times }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;
    use std::collections::{BTreeMap, BTreeSet};

    /// Branches, and their permutations, above the first `changed` of `keys` random keys, counted.
    fn counted(changed: usize, keys: usize) -> HashWork {
        let mut random = SplitMix64::new(7);
        let all: Vec<u64> = (0..keys).map(|_| random.next()).collect();
        let mut work = HashWork::default();
        for depth in 0..12 {
            let prefix = |key: u64| if depth == 0 { 0 } else { key >> (64 - 4 * depth) };
            let child = |key: u64| key >> (60 - 4 * depth);
            let mut children: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
            for key in &all {
                children.entry(prefix(*key)).or_default().insert(child(*key));
            }
            let touched: BTreeSet<u64> = all[..changed].iter().map(|key| prefix(*key)).collect();
            for prefix in touched {
                let ways = children[&prefix].len() as u64;
                if ways > 1 {
                    work += HashWork { nodes: 1.0, permutations: permutations(ways) as f64 };
                }
            }
        }
        work
    }

    #[test]
    fn expected_branches_are_those_of_random_keys() {
        for (changed, keys) in
            [(1, 2000), (100, 5000), (1000, 1000), (1000, 10_000), (2000, 40_000), (5, 7)]
        {
            let (found, expected) =
                (HashWork::branches(changed as u64, keys as u64), counted(changed, keys));
            let near = |a: f64, b: f64| (a / b - 1.0).abs() < 0.05 || (a - b).abs() < 1.0;
            assert!(
                near(found.nodes, expected.nodes),
                "{changed} of {keys}: {found:?} {expected:?}"
            );
            assert!(
                near(found.permutations, expected.permutations),
                "{changed} of {keys}: {found:?} {expected:?}"
            );
        }
    }

    #[test]
    fn more_keys_and_more_changes_need_more_hashes() {
        assert_eq!(HashWork::branches(0, 1000), HashWork::default());
        let alone = HashWork::branches(1, 1);
        assert!(alone.nodes < 1e-6 && alone.permutations < 1e-6, "a leaf has no branch: {alone:?}");
        assert!((HashWork::branches(2, 2).nodes - 1.0).abs() < 1e-6, "two keys part once");
        assert_eq!(HashWork::branches(9, 3), HashWork::branches(9, 9));
        let mut last = 0.0;
        for keys in [1_000, 10_000, 100_000, 10_000_000, 1_000_000_000] {
            let of = |changed| HashWork::branches(changed, keys).permutations;
            assert!(of(1000) > last && of(1000) > of(999), "{keys}");
            last = of(1000);
        }
        // About five levels above each of a thousand keys of a million, shared at the top.
        let nodes = HashWork::branches(1000, 1_000_000).nodes;
        assert!((2_500.0..3_800.0).contains(&nodes), "{nodes}");
    }

    #[test]
    fn full_branches_take_four_permutations() {
        assert_eq!([2, 3, 4, 7, 8, 16].map(permutations), [1, 1, 2, 2, 3, 4]);
        let leaves = HashWork::leaves(3);
        assert_eq!((leaves.nodes, leaves.permutations), (3.0, 3.0));
    }
}
