//! Caches of durable blocks below the tip: full caches of the last few blocks, so that a short
//! reorganisation need not open them, and compacted caches of older blocks, for proofs.

use retrie_state::{AnyCache, BlockRef, CompactedCache};
use std::collections::{BTreeMap, VecDeque};

/// How many caches that were opened from rows are kept.
const OPENED: usize = 4;
/// How many caches may wait for compaction.
const LEAVING: usize = 8;

/// Caches by block. No cache outlives its block's time on the chain: a block that is reverted and
/// applied again may have other rows, of which the old cache knows nothing.
#[derive(Default)]
pub(crate) struct BlockCaches {
    /// Full caches of the last blocks below the tip, newest last.
    recent: VecDeque<(BlockRef, AnyCache)>,
    /// Compacted caches of older blocks, by number.
    compacted: BTreeMap<u64, (BlockRef, CompactedCache)>,
    /// Bytes of the compacted caches.
    bytes: u64,
    /// Full caches of older blocks that a reader has opened.
    opened: VecDeque<(BlockRef, AnyCache)>,
    /// Full caches that wait for compaction, oldest first.
    leaving: VecDeque<(BlockRef, AnyCache)>,
    /// How many times blocks were reverted.
    reverts: u64,
}

/// When a cache was taken from [`BlockCaches`], or began to be made. A result of later can be put
/// back unless blocks were reverted since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheTime(u64);

impl BlockCaches {
    /// Adds the cache of the newest block below the tip. If there are then more than `kept`, it
    /// returns the oldest.
    pub(crate) fn remember(
        &mut self,
        block: BlockRef,
        cache: AnyCache,
        kept: usize,
    ) -> Option<(BlockRef, AnyCache)> {
        self.recent.retain(|(known, _)| *known != block);
        self.recent.push_back((block, cache));
        if self.recent.len() > kept { self.recent.pop_front() } else { None }
    }

    /// Queues a cache for compaction; returns it if too many wait.
    pub(crate) fn queue_compaction(
        &mut self,
        block: BlockRef,
        cache: AnyCache,
    ) -> Option<AnyCache> {
        if self.leaving.len() >= LEAVING {
            return Some(cache);
        }
        self.leaving.push_back((block, cache));
        None
    }

    /// The next cache to compact. It stays in the queue until
    /// [`pop_compacted`](Self::pop_compacted).
    pub(crate) fn next_to_compact(&self) -> Option<(BlockRef, AnyCache)> {
        self.leaving.front().cloned()
    }

    /// Removes the first cache from the queue, once it is compacted. `since` is when it was taken.
    pub(crate) fn pop_compacted(&mut self, since: CacheTime) -> Option<(BlockRef, AnyCache)> {
        if self.now() == since { self.leaving.pop_front() } else { None }
    }

    /// The present.
    pub(crate) const fn now(&self) -> CacheTime {
        CacheTime(self.reverts)
    }

    /// Adds a cache that was opened from rows as they were at `since`.
    pub(crate) fn remember_opened(&mut self, block: BlockRef, cache: AnyCache, since: CacheTime) {
        if self.now() != since {
            return;
        }
        self.opened.retain(|(known, _)| *known != block);
        self.opened.push_back((block, cache));
        if self.opened.len() > OPENED {
            self.opened.pop_front();
        }
    }

    /// Adds the compacted cache of an older block, and drops the oldest ones while all together
    /// take more than `bytes`.
    pub(crate) fn keep_compacted(&mut self, block: BlockRef, thinned: CompactedCache, bytes: u64) {
        self.bytes += thinned.bytes;
        if let Some((_, before)) = self.compacted.insert(block.number, (block, thinned)) {
            self.bytes -= before.bytes;
        }
        while self.bytes > bytes
            && let Some((_, (_, oldest))) = self.compacted.pop_first()
        {
            self.bytes -= oldest.bytes;
        }
    }

    /// Drops the compacted caches of blocks before `first`.
    pub(crate) fn drop_before(&mut self, first: u64) {
        self.retain_compacted(|number| number >= first);
    }

    /// Drops all caches of blocks after `last`, which are reverted.
    pub(crate) fn revert_to(&mut self, last: u64) {
        self.reverts += 1;
        for caches in [&mut self.recent, &mut self.opened, &mut self.leaving] {
            caches.retain(|(block, _)| block.number <= last);
        }
        self.retain_compacted(|number| number <= last);
    }

    fn retain_compacted(&mut self, stays: impl Fn(u64) -> bool) {
        let bytes = &mut self.bytes;
        self.compacted.retain(|number, (_, thinned)| {
            let stays = stays(*number);
            *bytes -= if stays { 0 } else { thinned.bytes };
            stays
        });
    }

    /// The cache of a block, full or compacted.
    pub(crate) fn get(&self, block: BlockRef) -> Option<AnyCache> {
        let thinned = || {
            let (known, thinned) = self.compacted.get(&block.number)?;
            (*known == block).then(|| thinned.cache.clone())
        };
        self.get_full(block).or_else(thinned)
    }

    /// The full cache of a block, for many reads or for blocks on top of it.
    pub(crate) fn get_full(&self, block: BlockRef) -> Option<AnyCache> {
        let mut whole = self.recent.iter().chain(&self.leaving).chain(&self.opened);
        whole.find(|(known, _)| *known == block).map(|(_, cache)| cache.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::B256;

    fn block(number: u64) -> BlockRef {
        BlockRef::new(number, B256::with_last_byte(number as u8))
    }

    fn thinned(bytes: u64) -> CompactedCache {
        CompactedCache { cache: AnyCache::new(bytes), bytes }
    }

    /// Numbers of the blocks whose caches are kept.
    fn kept(structures: &BlockCaches) -> Vec<u64> {
        (0..40).filter(|number| structures.get(block(*number)).is_some()).collect()
    }

    #[test]
    fn the_oldest_are_given_up_when_they_take_too_much() {
        let mut structures = BlockCaches::default();
        (1..=9).for_each(|number| structures.keep_compacted(block(number), thinned(10), 60));
        assert_eq!(kept(&structures), (4..=9).collect::<Vec<_>>());
        structures.keep_compacted(block(10), thinned(45), 60);
        assert_eq!(kept(&structures), [9, 10]);
        // The number may be used twice, in another branch or not.
        structures.keep_compacted(block(10), thinned(5), 60);
        structures.keep_compacted(block(11), thinned(45), 60);
        assert_eq!(kept(&structures), [9, 10, 11]);
        structures.keep_compacted(block(12), thinned(61), 60);
        assert_eq!(kept(&structures), [0; 0]);
        structures.keep_compacted(block(13), thinned(60), 60);
        assert_eq!(kept(&structures), [13]);
    }

    #[test]
    fn what_is_beyond_the_retained_blocks_goes_and_makes_room() {
        let mut structures = BlockCaches::default();
        (1..=6).for_each(|number| structures.keep_compacted(block(number), thinned(10), 60));
        structures.drop_before(3);
        structures.revert_to(5);
        assert_eq!(kept(&structures), [3, 4, 5]);
        (7..=9).for_each(|number| structures.keep_compacted(block(number), thinned(10), 60));
        assert_eq!(kept(&structures), [3, 4, 5, 7, 8, 9]);
        // No cache of another block with the same number.
        assert!(structures.get(BlockRef::new(7, B256::repeat_byte(7))).is_none());
        assert!(structures.get_full(block(7)).is_none());
    }

    #[test]
    fn those_to_be_thinned_are_whole_until_then_and_few() {
        let mut structures = BlockCaches::default();
        let mut leave =
            |number: u64| structures.queue_compaction(block(number), AnyCache::new(number));
        assert!((1..=LEAVING as u64).all(|number| leave(number).is_none()));
        assert!(leave(20).is_some());
        assert!(
            structures.get_full(block(1)).is_some() && structures.get_full(block(20)).is_none()
        );
        assert_eq!(structures.next_to_compact().map(|(block, _)| block), Some(block(1)));
        let since = structures.now();
        assert_eq!(structures.pop_compacted(since).map(|(block, _)| block), Some(block(1)));
        assert_eq!(structures.next_to_compact().map(|(block, _)| block), Some(block(2)));
        assert!(structures.get(block(1)).is_none() && structures.get(block(2)).is_some());
    }

    #[test]
    fn the_last_ones_are_whole_and_the_next_one_is_handed_back() {
        let mut structures = BlockCaches::default();
        let mut remember = |number: u64| {
            let cache = AnyCache::new(number);
            structures.remember(block(number), cache, 2).map(|(block, _)| block)
        };
        assert_eq!([1, 2, 2].map(&mut remember), [None; 3]);
        assert_eq!(remember(3), Some(block(1)));
        let since = structures.now();
        (1..=5).for_each(|number| {
            structures.remember_opened(block(number), AnyCache::new(()), since);
        });
        assert_eq!(kept(&structures), [2, 3, 4, 5]);
    }

    #[test]
    fn a_reverted_block_leaves_no_cache_not_even_one_that_was_being_made() {
        let mut structures = BlockCaches::default();
        let since = structures.now();
        structures.remember(block(4), AnyCache::new(()), 9);
        structures.remember(block(5), AnyCache::new(()), 9);
        structures.remember_opened(block(6), AnyCache::new(()), since);
        structures.queue_compaction(block(7), AnyCache::new(()));
        structures.keep_compacted(block(8), thinned(10), 60);
        assert_eq!(kept(&structures), [4, 5, 6, 7, 8]);
        structures.revert_to(4);
        assert_eq!(kept(&structures), [4]);
        structures.remember_opened(block(6), AnyCache::new(()), since);
        assert_eq!(kept(&structures), [4]);
        // The same block again: what was compacted meanwhile is not this one.
        structures.queue_compaction(block(7), AnyCache::new(()));
        assert!(structures.pop_compacted(since).is_none());
        assert_eq!(kept(&structures), [4, 7]);
    }
}
