//! Sets that forget.

use alloy_primitives::B256;
use std::{
    collections::{HashSet, VecDeque},
    hash::{BuildHasher, RandomState},
    time::{Duration, Instant},
};

/// The hashes that were added last. Of each 64 bits are kept, under a key that nobody knows: one of
/// 2^49 new ones is taken for one of 2^15 that are here.
#[derive(Debug)]
pub(super) struct Recent {
    key: RandomState,
    marks: HashSet<u64>,
    order: VecDeque<u64>,
    most: usize,
}

impl Recent {
    /// Of so many at most.
    pub(super) fn new(most: usize) -> Self {
        Self { key: RandomState::new(), marks: HashSet::new(), order: VecDeque::new(), most }
    }

    /// Adds one. False if it is here.
    pub(super) fn insert(&mut self, hash: &B256) -> bool {
        let mark = self.key.hash_one(hash);
        if self.marks.contains(&mark) {
            return false;
        }
        // First, so that neither grows beyond what it needs.
        while self.order.len() >= self.most
            && let Some(oldest) = self.order.pop_front()
        {
            self.marks.remove(&oldest);
        }
        self.marks.insert(mark);
        self.order.push_back(mark);
        true
    }

    /// Whether it is here.
    pub(super) fn contains(&self, hash: &B256) -> bool {
        self.marks.contains(&self.key.hash_one(hash))
    }
}

/// Hashes that are forgotten after a while: at least one and at most two times that long.
#[derive(Debug)]
pub(super) struct Passing {
    now: Recent,
    before: Recent,
    since: Instant,
    time: Duration,
}

impl Passing {
    /// Of so many in that time at most.
    pub(super) fn new(most: usize, time: Duration, now: Instant) -> Self {
        Self { now: Recent::new(most), before: Recent::new(most), since: now, time }
    }

    /// Adds one.
    pub(super) fn insert(&mut self, hash: &B256) {
        self.now.insert(hash);
    }

    /// Whether it is here.
    pub(super) fn contains(&self, hash: &B256) -> bool {
        self.now.contains(hash) || self.before.contains(hash)
    }

    /// Forgets what is old.
    pub(super) fn forget(&mut self, now: Instant) {
        if now.duration_since(self.since) >= self.time {
            self.since = now;
            let new = Recent::new(self.now.most);
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
        let mut recent = Recent::new(3);
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
        let mut passing = Passing::new(3, minute, start);
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
