//! Keys whose paths in Ethereum's trie are long.
//!
//! A path is as long as there are branches on it, and there is a branch wherever another key shares
//! the nibbles of the hash so far and no more. So many keys are hashed, and sorted: in the trie of all
//! of them the paths are about as long as the logarithm of their number to base 16, and those of a few
//! are longer by chance. These few are the *victims*; and for each branch on their paths one other key,
//! a *sibling*, is enough to have it in any state. All other keys are thrown away.
//!
//! Whoever sends one wei to an address makes an account there, and a contract of the attacker's own
//! writes whatever slot it is told to: keys cost a hash each to find, and one write each to put there
//! (He et al., Nurgle, S&P 2024).

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

/// Nibbles of a hash that are looked at. Among 2^32 keys no two share as many, but by a chance of one
/// in two.
const NIBBLES: u32 = 16;
/// Keys hashed until the user is asked whether to go on.
const BATCH: u32 = 1 << 18;
const FILE: &str = "ground.json";

/// Which keys are ground.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::state) enum Kind {
    Accounts,
    /// Slots of this contract.
    Slots(Address),
}

/// What is to be found, and with how much work.
#[derive(Clone, Copy, Debug)]
pub(in crate::state) struct Grinding {
    pub(in crate::state) kind: Kind,
    /// Keys hashed.
    pub(in crate::state) effort: u32,
    /// Keys wanted.
    pub(in crate::state) victims: u32,
    pub(in crate::state) seed: u64,
}

/// Keys that were found, as what was counted up to get them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::state) struct Ground {
    /// Those with the longest paths, these first.
    pub(in crate::state) victims: Vec<u32>,
    /// Those that make the branches on these paths.
    pub(in crate::state) siblings: Vec<u32>,
    /// How long it took.
    pub(in crate::state) seconds: f64,
}

/// The first nibbles of a key's hash, and what was counted up to get it.
type Candidate = (u64, u32);

impl Grinding {
    /// The key of number `n`.
    pub(in crate::state) fn key(&self, n: u32) -> StateKey {
        match self.kind {
            Kind::Accounts => {
                let mut address = Address::ZERO;
                address[..8].copy_from_slice(&self.seed.to_be_bytes());
                address[8..16].copy_from_slice(b"ground-a");
                address[16..].copy_from_slice(&n.to_be_bytes());
                StateKey::Account(address)
            }
            Kind::Slots(contract) => {
                let mut slot = B256::ZERO;
                slot[..8].copy_from_slice(&self.seed.to_be_bytes());
                slot[28..].copy_from_slice(&n.to_be_bytes());
                StateKey::Slot(contract, slot)
            }
        }
    }

    /// Finds them, or takes those that were found before.
    ///
    /// # Errors
    /// [`BenchError::Stopped`], and whatever the cache meets.
    pub(in crate::state) fn run(
        &self,
        cache: &StateCache,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Ground, BenchError> {
        let Self { effort, victims, seed, .. } = self;
        let kind = match self.kind {
            Kind::Accounts => "accounts",
            Kind::Slots(_) => "slots",
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
    ) -> Result<Ground, BenchError> {
        let start = Instant::now();
        let mut sorted: Vec<Candidate> = Vec::with_capacity(self.effort as usize);
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
        Ok(Ground { victims, siblings, seconds: start.elapsed().as_secs_f64() })
    }
}

fn read(path: &Path) -> Result<Ground, BenchError> {
    let json = fs::read(path).and_then(|json| Ok(serde_json::from_slice(&json)?));
    json.map_err(|source| BenchError::Io { action: "reading", path: path.into(), source })
}

/// The first nibbles of what Ethereum's trie has a key under.
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
fn longest(sorted: &[Candidate], count: usize) -> Vec<Candidate> {
    // Of so many keys the two uppermost levels are full: every thread takes parts of the third.
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

/// Calls `visit` with each of the candidates, which share `nibble` nibbles, and the number of branches
/// on its path, of which `branches` lie above.
fn walk(sorted: &[Candidate], nibble: u32, branches: u32, visit: &mut impl FnMut(Candidate, u32)) {
    if sorted.len() <= 1 || nibble == NIBBLES {
        sorted.iter().for_each(|candidate| visit(*candidate, branches));
        return;
    }
    let digits = |candidate: &Candidate| candidate.0 >> (60 - 4 * nibble);
    let differ = sorted.first().map(digits) != sorted.last().map(digits);
    let branches = branches + u32::from(differ);
    for child in sorted.chunk_by(|a, b| digits(a) == digits(b)) {
        walk(child, nibble + 1, branches, visit);
    }
}

/// The branches on the path of the key with this prefix among sorted ones: how many nibbles lead there,
/// and one other key below.
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

/// How long the paths of some keys are in Ethereum's trie.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Depth {
    /// Branches on a path, on average.
    pub mean: f64,
    /// Branches on the longest path.
    pub most: u32,
    /// Nibbles that lead to the lowest branch of a path, on average.
    pub mean_nibbles: f64,
    /// The most of these.
    pub most_nibbles: u32,
}

/// The hashes of a state: accounts, and the slots of one contract.
#[derive(Debug, Default)]
pub(super) struct Paths {
    accounts: Vec<u64>,
    slots: Vec<u64>,
}

impl Paths {
    /// Those of `keys`, whose slots are of one contract.
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

    /// How long the paths of `keys` are, each in its own trie.
    pub(super) fn depth(&self, keys: &[StateKey]) -> Depth {
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
        Depth {
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

    const SLOTS: Kind = Kind::Slots(Address::repeat_byte(7));

    fn grinding(kind: Kind) -> Grinding {
        Grinding { kind, effort: 40_000, victims: 50, seed: 3 }
    }

    fn ground(grinding: &Grinding) -> Ground {
        grinding.grind(&AtomicBool::new(false), &mut |_| ()).unwrap()
    }

    /// The branches on a path by the definition: how many nibbles other keys share with this one.
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

    /// Siblings alone, without all the other keys that were tried, hold the paths as long.
    #[test]
    fn victims_and_siblings_keep_the_longest_paths_of_all_keys_tried() {
        for kind in [Kind::Accounts, SLOTS] {
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
            let paths = Paths::of(&all);
            let depth = paths.depth(&victims);
            assert_eq!(Paths::of(&few).depth(&victims), depth);
            // Of so many keys four levels are full, and nearly a half of the fifth.
            let usual: Vec<_> = all.iter().step_by(400).map(|(key, _)| *key).collect();
            let usual = paths.depth(&usual);
            assert!((4.2..4.8).contains(&usual.mean), "{usual:?}");
            assert!(depth.mean > usual.mean + 1.0 && depth.most >= 6, "{depth:?}");
            // None of the others has a longer one.
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
        let grinding = grinding(Kind::Accounts);
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
