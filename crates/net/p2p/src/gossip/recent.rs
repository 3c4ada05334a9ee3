//! Bounded sets of hashes.

use alloy_primitives::B256;
use std::{
    collections::{HashSet, VecDeque},
    hash::{BuildHasher, RandomState},
    time::{Duration, Instant},
};

/// The hashes that were inserted last. It keeps 64 bits of each, under a secret random key: with
/// 2^15 hashes in the set, one of 2^49 new ones is wrongly taken as present.
#[derive(Debug)]
pub(super) struct RecentHashes {
    key: RandomState,
    marks: HashSet<u64>,
    order: VecDeque<u64>,
    most: usize,
}

impl RecentHashes {
    /// A set of at most `most` hashes.
    pub(super) fn new(most: usize) -> Self {
        Self { key: RandomState::new(), marks: HashSet::new(), order: VecDeque::new(), most }
    }

    /// Inserts a hash. False if it is present.
    pub(super) fn insert(&mut self, hash: &B256) -> bool {
        let mark = self.key.hash_one(hash);
        if self.marks.contains(&mark) {
            return false;
        }
        // Removed before the insertion, so that no collection grows beyond its capacity.
        while self.order.len() >= self.most
            && let Some(oldest) = self.order.pop_front()
        {
            self.marks.remove(&oldest);
        }
        self.marks.insert(mark);
        self.order.push_back(mark);
        true
    }

    /// Whether a hash is present.
    pub(super) fn contains(&self, hash: &B256) -> bool {
        self.marks.contains(&self.key.hash_one(hash))
    }
}

/// Hashes that expire: each stays for at least `time`, and at most twice as long.
#[derive(Debug)]
pub(super) struct ExpiringHashes {
    now: RecentHashes,
    before: RecentHashes,
    since: Instant,
    time: Duration,
}

impl ExpiringHashes {
    /// A set of at most `most` hashes in each period of `time`.
    pub(super) fn new(most: usize, time: Duration, now: Instant) -> Self {
        Self { now: RecentHashes::new(most), before: RecentHashes::new(most), since: now, time }
    }

    /// Inserts a hash.
    pub(super) fn insert(&mut self, hash: &B256) {
        self.now.insert(hash);
    }

    /// Whether a hash is present.
    pub(super) fn contains(&self, hash: &B256) -> bool {
        self.now.contains(hash) || self.before.contains(hash)
    }

    /// Removes expired hashes.
    pub(super) fn forget(&mut self, now: Instant) {
        if now.duration_since(self.since) >= self.time {
            self.since = now;
            let new = RecentHashes::new(self.now.most);
            self.before = std::mem::replace(&mut self.now, new);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: fn(u8) -> B256 = B256::with_last_byte;

    #[test]
    fn the_oldest_are_forgotten() {
        let mut recent = RecentHashes::new(3);
        for n in 0..5 {
            assert!(recent.insert(&HASH(n)));
            assert!(!recent.insert(&HASH(n)));
        }
        let here: Vec<_> = (0..5).filter(|n| recent.contains(&HASH(*n))).collect();
        assert_eq!(here, [2, 3, 4]);
    }

    #[test]
    fn what_passes_is_forgotten_in_time() {
        let start = Instant::now();
        let minute = Duration::from_secs(60);
        let mut passing = ExpiringHashes::new(3, minute, start);
        passing.insert(&HASH(1));
        passing.forget(start + minute / 2);
        passing.insert(&HASH(2));
        passing.forget(start + minute);
        assert!(passing.contains(&HASH(1)) && passing.contains(&HASH(2)));
        passing.insert(&HASH(3));
        passing.forget(start + minute * 2);
        assert!(!passing.contains(&HASH(1)) && passing.contains(&HASH(3)));
        passing.forget(start + minute * 3);
        assert!(!passing.contains(&HASH(3)));
    }
}
