//! The in-memory structures of durable blocks below the tip: whole ones of the last few, so that a short
//! reorganisation need not open them, and of older ones what proofs need.

use crate::{AnyCache, BlockRef, Thinned};
use alloy_primitives::B256;
use std::collections::{BTreeMap, VecDeque};

/// How many that were opened from rows are kept.
const OPENED: usize = 4;
/// How many may wait to be thinned.
const LEAVING: usize = 8;

/// Structures by block.
#[derive(Default)]
pub(crate) struct Structures {
    /// Those of the last blocks below the tip, newest last.
    recent: VecDeque<(B256, AnyCache)>,
    /// Of older ones what is worth keeping, by number.
    thinned: BTreeMap<u64, (B256, Thinned<AnyCache>)>,
    /// Bytes of these.
    bytes: u64,
    /// Those of older blocks that were opened to read there.
    opened: VecDeque<(B256, AnyCache)>,
    /// Those that are to be thinned, oldest first.
    leaving: VecDeque<(B256, AnyCache)>,
}

impl Structures {
    /// Takes that of the newest block below the tip, and gives the oldest one if they are more than
    /// `kept` then.
    pub(crate) fn remember(
        &mut self,
        hash: B256,
        cache: AnyCache,
        kept: usize,
    ) -> Option<(B256, AnyCache)> {
        self.recent.retain(|(known, _)| *known != hash);
        self.recent.push_back((hash, cache));
        if self.recent.len() > kept { self.recent.pop_front() } else { None }
    }

    /// Takes one that is to be thinned; gives it back if too many wait.
    pub(crate) fn leave(&mut self, hash: B256, cache: AnyCache) -> Option<AnyCache> {
        if self.leaving.len() >= LEAVING {
            return Some(cache);
        }
        self.leaving.push_back((hash, cache));
        None
    }

    /// The one to be thinned next, which stays until [taken off](Self::left).
    pub(crate) fn leaving(&self) -> Option<(B256, AnyCache)> {
        self.leaving.front().cloned()
    }

    /// Takes off the one that was to be thinned next.
    pub(crate) fn left(&mut self) -> Option<(B256, AnyCache)> {
        self.leaving.pop_front()
    }

    /// Takes one that was opened from rows.
    pub(crate) fn remember_opened(&mut self, hash: B256, cache: AnyCache) {
        self.opened.retain(|(known, _)| *known != hash);
        self.opened.push_back((hash, cache));
        if self.opened.len() > OPENED {
            self.opened.pop_front();
        }
    }

    /// Takes what is left of that of an older block; all of them have `bytes` at most.
    pub(crate) fn keep(&mut self, block: BlockRef, thinned: Thinned<AnyCache>, bytes: u64) {
        self.bytes += thinned.bytes;
        if let Some((_, before)) = self.thinned.insert(block.number, (block.hash, thinned)) {
            self.bytes -= before.bytes;
        }
        while self.bytes > bytes
            && let Some((_, (_, oldest))) = self.thinned.pop_first()
        {
            self.bytes -= oldest.bytes;
        }
    }

    /// Gives up what belongs to blocks before `first`, or after `last`.
    pub(crate) fn retain(&mut self, first: u64, last: u64) {
        let is_outside = |number: &u64| *number < first || *number > last;
        let bytes = &mut self.bytes;
        self.thinned.retain(|number, (_, thinned)| {
            let goes = is_outside(number);
            *bytes -= if goes { thinned.bytes } else { 0 };
            !goes
        });
    }

    /// That of a block, whole or thinned.
    pub(crate) fn get(&self, block: BlockRef) -> Option<AnyCache> {
        let thinned = || {
            let (hash, thinned) = self.thinned.get(&block.number)?;
            (*hash == block.hash).then(|| thinned.cache.clone())
        };
        self.whole(block).or_else(thinned)
    }

    /// That of a block, if it is whole: what many reads are to come from, and other blocks.
    pub(crate) fn whole(&self, block: BlockRef) -> Option<AnyCache> {
        let mut whole = self.recent.iter().chain(&self.leaving).chain(&self.opened);
        whole.find(|(hash, _)| *hash == block.hash).map(|(_, cache)| cache.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn block(number: u64) -> BlockRef {
        BlockRef::new(number, B256::with_last_byte(number as u8))
    }

    fn thinned(bytes: u64) -> Thinned<AnyCache> {
        Thinned { cache: Arc::new(bytes), bytes }
    }

    /// Numbers of the blocks whose structures are there.
    fn kept(structures: &Structures) -> Vec<u64> {
        (0..40).filter(|number| structures.get(block(*number)).is_some()).collect()
    }

    #[test]
    fn the_oldest_are_given_up_when_they_take_too_much() {
        let mut structures = Structures::default();
        (1..=9).for_each(|number| structures.keep(block(number), thinned(10), 60));
        assert_eq!(kept(&structures), (4..=9).collect::<Vec<_>>());
        structures.keep(block(10), thinned(45), 60);
        assert_eq!(kept(&structures), [9, 10]);
        // Of the same number as one before, in another branch or not.
        structures.keep(block(10), thinned(5), 60);
        structures.keep(block(11), thinned(45), 60);
        assert_eq!(kept(&structures), [9, 10, 11]);
        structures.keep(block(12), thinned(61), 60);
        assert_eq!(kept(&structures), [0; 0]);
        structures.keep(block(13), thinned(60), 60);
        assert_eq!(kept(&structures), [13]);
    }

    #[test]
    fn what_is_beyond_the_retained_blocks_goes_and_makes_room() {
        let mut structures = Structures::default();
        (1..=6).for_each(|number| structures.keep(block(number), thinned(10), 60));
        structures.retain(3, 5);
        assert_eq!(kept(&structures), [3, 4, 5]);
        (7..=9).for_each(|number| structures.keep(block(number), thinned(10), 60));
        assert_eq!(kept(&structures), [3, 4, 5, 7, 8, 9]);
        // Of another block with that number there is none.
        assert!(structures.get(BlockRef::new(7, B256::repeat_byte(7))).is_none());
        assert!(structures.whole(block(7)).is_none());
    }

    #[test]
    fn those_to_be_thinned_are_whole_until_then_and_few() {
        let mut structures = Structures::default();
        let mut leave = |number: u64| structures.leave(block(number).hash, Arc::new(number));
        assert!((1..=LEAVING as u64).all(|number| leave(number).is_none()));
        assert!(leave(20).is_some());
        assert!(structures.whole(block(1)).is_some() && structures.whole(block(20)).is_none());
        assert_eq!(structures.leaving().map(|(hash, _)| hash), Some(block(1).hash));
        assert_eq!(structures.left().map(|(hash, _)| hash), Some(block(1).hash));
        assert_eq!(structures.leaving().map(|(hash, _)| hash), Some(block(2).hash));
        assert!(structures.get(block(1)).is_none() && structures.get(block(2)).is_some());
    }

    #[test]
    fn the_last_ones_are_whole_and_the_next_one_is_handed_back() {
        let mut structures = Structures::default();
        let mut remember = |number: u64| {
            let cache: AnyCache = Arc::new(number);
            structures.remember(block(number).hash, cache, 2).map(|(hash, _)| hash)
        };
        assert_eq!([1, 2, 2].map(&mut remember), [None; 3]);
        assert_eq!(remember(3), Some(block(1).hash));
        (1..=5).for_each(|number| structures.remember_opened(block(number).hash, Arc::new(())));
        assert_eq!(kept(&structures), [2, 3, 4, 5]);
    }
}
