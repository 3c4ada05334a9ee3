//! Finds keys with long paths in Ethereum's trie.
//!
//! The length of a path is its number of branches. There is a branch wherever another key shares
//! exactly the nibbles of the hash so far. Grinding hashes a large number of keys and sorts them.
//! In the trie of n keys a path has about log16(n) branches; a few paths are longer by chance. The
//! keys of these paths are the *victims*. For each branch on their paths one other key, a
//! *sibling*, is enough to create the branch in any state. All other keys are dropped.
//!
//! Sending one wei to an address creates its account, and a contract of the attacker writes any
//! slot. So a key costs some hashes to find, and one write to create (He et al., Nurgle, S&P 2024).

use crate::{BenchError, cache::StateCache};
use alloy_primitives::{Address, B256, keccak256};
use rayon::prelude::*;
use retrie_state::StateKey;
use serde::{Deserialize, Serialize};
use std::{
    cmp::Reverse,
    collections::BTreeSet,
    fs, io,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

/// Number of compared nibbles of a hash. With 2^32 keys, two of them share this many nibbles with a
/// probability of one half.
const NIBBLES: u32 = 16;
/// Keys hashed between two checks of the stop flag.
const BATCH: u32 = 1 << 18;
const FILE: &str = "ground.json";

/// The kind of keys to grind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::state) enum GroundKeyKind {
    Accounts,
    /// Slots of this contract.
    Slots(Address),
}

/// The parameters of grinding.
#[derive(Clone, Copy, Debug)]
pub(in crate::state) struct KeyGrinding {
    pub(in crate::state) kind: GroundKeyKind,
    /// Number of keys to hash.
    pub(in crate::state) effort: u32,
    /// Number of victims to find.
    pub(in crate::state) victims: u32,
    pub(in crate::state) seed: u64,
}

/// The found keys, by their numbers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::state) struct GroundNumbers {
    /// Keys with the longest paths, longest first.
    pub(in crate::state) victims: Vec<u32>,
    /// Keys that make the branches on these paths.
    pub(in crate::state) siblings: Vec<u32>,
    /// Time that grinding took, in seconds.
    pub(in crate::state) seconds: f64,
}

/// The first nibbles of a key's hash, and the key's number.
type HashCandidate = (u64, u32);

impl KeyGrinding {
    /// The key of number `n`.
    pub(in crate::state) fn key(&self, n: u32) -> StateKey {
        match self.kind {
            GroundKeyKind::Accounts => {
                let mut address = Address::ZERO;
                address[..8].copy_from_slice(&self.seed.to_be_bytes());
                address[8..16].copy_from_slice(b"ground-a");
                address[16..].copy_from_slice(&n.to_be_bytes());
                StateKey::Account(address)
            }
            GroundKeyKind::Slots(contract) => {
                let mut slot = B256::ZERO;
                slot[..8].copy_from_slice(&self.seed.to_be_bytes());
                slot[28..].copy_from_slice(&n.to_be_bytes());
                StateKey::Slot(contract, slot)
            }
        }
    }

    /// Finds the keys, or takes them from `cache` if they were found before.
    ///
    /// # Errors
    /// [`BenchError::Stopped`], and errors of the cache.
    pub(in crate::state) fn run(
        &self,
        cache: &StateCache,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<GroundNumbers, BenchError> {
        let Self { effort, victims, seed, .. } = self;
        let kind = match self.kind {
            GroundKeyKind::Accounts => "accounts",
            GroundKeyKind::Slots(_) => "slots",
        };
        let name = format!("ground-{kind}-{victims}-of-{effort}-seed-{seed}-v1");
        let folder = cache.checkout(&name, |folder| {
            let path = folder.join(FILE);
            let ground = serde_json::to_vec(&self.grind(stop, progress)?);
            let written = ground.map_err(io::Error::from).and_then(|json| fs::write(&path, json));
            written.map_err(|source| BenchError::Io { action: "writing", path, source })
        })?;
        read(&folder.path().join(FILE))
    }

    fn grind(
        &self,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<GroundNumbers, BenchError> {
        let start = Instant::now();
        let mut sorted: Vec<HashCandidate> = Vec::with_capacity(self.effort as usize);
        for first in (0..self.effort).step_by(BATCH as usize) {
            if stop.load(Ordering::Relaxed) {
                return Err(BenchError::Stopped);
            }
            progress(first.into());
            let batch = first..first.saturating_add(BATCH).min(self.effort);
            sorted.par_extend(batch.into_par_iter().map(|n| (prefix(&self.key(n)), n)));
        }
        sorted.par_sort_unstable();
        let victims = longest(&sorted, self.victims as usize);
        let mut siblings: BTreeSet<u32> = victims
            .par_iter()
            .flat_map_iter(|victim| branches(&sorted, victim.0, |(prefix, _)| *prefix))
            .map(|(_, sibling)| sibling.1)
            .collect();
        let victims: Vec<u32> = victims.into_iter().map(|(_, n)| n).collect();
        victims.iter().for_each(|victim| {
            siblings.remove(victim);
        });
        let siblings = siblings.into_iter().collect();
        Ok(GroundNumbers { victims, siblings, seconds: start.elapsed().as_secs_f64() })
    }
}

fn read(path: &Path) -> Result<GroundNumbers, BenchError> {
    let json = fs::read(path).and_then(|json| Ok(serde_json::from_slice(&json)?));
    json.map_err(|source| BenchError::Io { action: "reading", path: path.into(), source })
}

/// The first nibbles of a key's hash in Ethereum's trie.
fn prefix(key: &StateKey) -> u64 {
    let hash = match key {
        StateKey::Account(address) => keccak256(address),
        StateKey::Slot(_, slot) => keccak256(slot),
    };
    let mut first = [0; 8];
    first.copy_from_slice(&hash[..8]);
    u64::from_be_bytes(first)
}

/// The `count` candidates with the most branches on their paths.
fn longest(sorted: &[HashCandidate], count: usize) -> Vec<HashCandidate> {
    // With so many keys the two top levels are full. Every thread takes subtrees of the third.
    let parts = || sorted.par_chunk_by(|a, b| a.0 >> 56 == b.0 >> 56);
    let lengths = parts().map(|part| {
        let mut lengths = [0_usize; NIBBLES as usize + 3];
        walk(part, 2, 2, &mut |_, branches| lengths[branches as usize] += 1);
        lengths
    });
    let lengths = lengths.reduce(Default::default, |mut sum, part| {
        sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
        sum
    });
    let mut least = lengths.len() - 1;
    let mut found = lengths[least];
    while found < count && least > 0 {
        least -= 1;
        found += lengths[least];
    }
    let long = parts().flat_map_iter(|part| {
        let mut long = Vec::new();
        walk(part, 2, 2, &mut |candidate, branches| {
            if branches as usize >= least {
                long.push((Reverse(branches), candidate));
            }
        });
        long
    });
    let mut long: Vec<_> = long.collect();
    long.par_sort_unstable();
    long.into_iter().take(count).map(|(_, candidate)| candidate).collect()
}

/// Calls `visit` with each candidate and the number of branches on its path. The candidates share
/// `nibble` nibbles; `branches` is the number of branches above.
fn walk(
    sorted: &[HashCandidate],
    nibble: u32,
    branches: u32,
    visit: &mut impl FnMut(HashCandidate, u32),
) {
    if sorted.len() <= 1 || nibble == NIBBLES {
        sorted.iter().for_each(|candidate| visit(*candidate, branches));
        return;
    }
    let digits = |candidate: &HashCandidate| candidate.0 >> (60 - 4 * nibble);
    let differ = sorted.first().map(digits) != sorted.last().map(digits);
    let branches = branches + u32::from(differ);
    for child in sorted.chunk_by(|a, b| digits(a) == digits(b)) {
        walk(child, nibble + 1, branches, visit);
    }
}

/// The branches on the path of a key with hash `prefix` among sorted keys: for each branch, the
/// number of nibbles above it, and one other key below it.
fn branches<T: Copy>(sorted: &[T], prefix: u64, of: impl Fn(&T) -> u64) -> Vec<(u32, T)> {
    let mut found = Vec::new();
    let mut same = sorted;
    for nibble in 0..NIBBLES {
        if same.len() <= 1 {
            break;
        }
        let shift = 60 - 4 * nibble;
        let start = same.partition_point(|other| of(other) >> shift < prefix >> shift);
        let end = same.partition_point(|other| of(other) >> shift <= prefix >> shift);
        let other = if start > 0 { same.first() } else { same.get(end) };
        found.extend(other.map(|other| (nibble, *other)));
        same = &same[start..end];
    }
    found
}

/// Lengths of the paths of some keys in Ethereum's trie.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PathDepth {
    /// Mean number of branches on a path.
    pub mean: f64,
    /// Largest number of branches on a path.
    pub most: u32,
    /// Mean number of nibbles above the lowest branch of a path.
    pub mean_nibbles: f64,
    /// Largest number of nibbles above the lowest branch of a path.
    pub most_nibbles: u32,
}

/// The hashes of a state: accounts, and the slots of one contract.
#[derive(Debug, Default)]
pub(super) struct HashPaths {
    accounts: Vec<u64>,
    slots: Vec<u64>,
}

impl HashPaths {
    /// The hashes of `keys`. All slots must be in one contract.
    pub(super) fn of(keys: &[(StateKey, u32)]) -> Self {
        let sorted = |accounts: bool| {
            let these = keys.par_iter().map(|(key, _)| key);
            let these = these.filter(|key| matches!(key, StateKey::Account(_)) == accounts);
            let mut hashes: Vec<_> = these.map(prefix).collect();
            hashes.par_sort_unstable();
            hashes
        };
        Self { accounts: sorted(true), slots: sorted(false) }
    }

    /// Lengths of the paths of `keys`, each in its own trie.
    pub(super) fn depth(&self, keys: &[StateKey]) -> PathDepth {
        let paths = keys.par_iter().map(|key| {
            let all = match key {
                StateKey::Account(_) => &self.accounts,
                StateKey::Slot(..) => &self.slots,
            };
            let branches = branches(all, prefix(key), |other| *other);
            (branches.len() as u32, branches.last().map_or(0, |(nibbles, _)| *nibbles))
        });
        let paths: Vec<_> = paths.collect();
        let mean = |of: fn(&(u32, u32)) -> u32| {
            paths.iter().map(of).map(f64::from).sum::<f64>() / paths.len().max(1) as f64
        };
        let most = |of: fn(&(u32, u32)) -> u32| paths.iter().map(of).max().unwrap_or(0);
        PathDepth {
            mean: mean(|path| path.0),
            most: most(|path| path.0),
            mean_nibbles: mean(|path| path.1),
            most_nibbles: most(|path| path.1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOTS: GroundKeyKind = GroundKeyKind::Slots(Address::repeat_byte(7));

    fn grinding(kind: GroundKeyKind) -> KeyGrinding {
        KeyGrinding { kind, effort: 40_000, victims: 50, seed: 3 }
    }

    fn ground(grinding: &KeyGrinding) -> GroundNumbers {
        grinding.grind(&AtomicBool::new(false), &mut |_| ()).unwrap()
    }

    /// The branches on a path by the definition: the numbers of nibbles that other keys share with
    /// this one.
    fn branches_by_definition(all: &[u64], prefix: u64) -> BTreeSet<u32> {
        let others = all.iter().filter(|other| **other != prefix);
        others.map(|other| (other ^ prefix).leading_zeros() / 4).collect()
    }

    #[test]
    fn branches_are_those_of_the_definition() {
        let grinding = grinding(SLOTS);
        let mut all: Vec<_> = (0..3000).map(|n| prefix(&grinding.key(n))).collect();
        all.sort_unstable();
        for prefix in all.iter().step_by(97) {
            let found: BTreeSet<_> = branches(&all, *prefix, |other| *other)
                .into_iter()
                .map(|(nibble, other)| {
                    assert_eq!((other ^ prefix).leading_zeros() / 4, nibble);
                    nibble
                })
                .collect();
            assert_eq!(found, branches_by_definition(&all, *prefix));
        }
    }

    /// The siblings keep the paths as long as all the hashed keys do.
    #[test]
    fn victims_and_siblings_keep_the_longest_paths_of_all_keys_tried() {
        for kind in [GroundKeyKind::Accounts, SLOTS] {
            let grinding = grinding(kind);
            let found = ground(&grinding);
            assert_eq!(found.victims.len(), 50);
            assert!(found.siblings.len() < 50 * 8, "{}", found.siblings.len());
            let keys = |numbers: &[u32]| -> Vec<_> {
                numbers.iter().map(|n| (grinding.key(*n), 0)).collect()
            };
            let (all, few) = (
                keys(&(0..grinding.effort).collect::<Vec<_>>()),
                keys(&[&found.victims[..], &found.siblings].concat()),
            );
            let victims: Vec<_> = found.victims.iter().map(|n| grinding.key(*n)).collect();
            let paths = HashPaths::of(&all);
            let depth = paths.depth(&victims);
            assert_eq!(HashPaths::of(&few).depth(&victims), depth);
            // With so many keys four levels are full, and nearly half of the fifth.
            let usual: Vec<_> = all.iter().step_by(400).map(|(key, _)| *key).collect();
            let usual = paths.depth(&usual);
            assert!((4.2..4.8).contains(&usual.mean), "{usual:?}");
            assert!(depth.mean > usual.mean + 1.0 && depth.most >= 6, "{depth:?}");
            // No other key has a longer path.
            let lengths = |key: &StateKey| paths.depth(&[*key]).most;
            let least = victims.iter().map(lengths).min();
            let others = all.iter().step_by(1999).map(|(key, _)| key);
            let chosen: BTreeSet<_> = victims.iter().collect();
            for other in others.filter(|key| !chosen.contains(key)) {
                assert!(Some(lengths(other)) <= least, "{other}");
            }
        }
    }

    #[test]
    fn what_was_ground_is_kept_and_a_stop_leaves_nothing() {
        let home = tempfile::tempdir().unwrap();
        let cache = StateCache::at(home.path().to_owned());
        let grinding = grinding(GroundKeyKind::Accounts);
        let stopped = grinding.run(&cache, &AtomicBool::new(true), &mut |_| ());
        assert!(matches!(stopped, Err(BenchError::Stopped)));
        let go = AtomicBool::new(false);
        let mut batches = 0;
        let mut run = || grinding.run(&cache, &go, &mut |_| batches += 1).unwrap();
        let (first, second) = (run(), run());
        assert_eq!(first.victims, second.victims);
        assert_eq!(first.siblings, second.siblings);
        assert_eq!(batches, 1, "it was ground twice");
    }
}
