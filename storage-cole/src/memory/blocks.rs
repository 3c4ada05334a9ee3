//! The pairs of a group, block by block in the order in which they came.

use super::keys::KeyWords;
use crate::shown_tree::CompoundPair;
use retrie_state::{BackendKey, StateValue};
use smallvec::SmallVec;
use std::sync::Arc;

/// A pair in memory. Small values are stored inline.
#[derive(Debug)]
pub(crate) struct MemoryPair {
    id: KeyWords,
    value: Option<SmallVec<[u8; 40]>>,
}

impl MemoryPair {
    pub(super) fn new(id: KeyWords, value: Option<&[u8]>) -> Self {
        Self { id, value: value.map(SmallVec::from_slice) }
    }

    #[inline]
    pub(super) const fn id(&self) -> &KeyWords {
        &self.id
    }

    /// Its state key.
    pub(crate) fn key(&self) -> BackendKey {
        self.id.key()
    }

    /// The block that set it.
    pub(crate) const fn block(&self) -> u64 {
        self.id.block()
    }

    /// The new value; `None`: deleted.
    pub(crate) fn value(&self) -> Option<&[u8]> {
        self.value.as_deref()
    }

    pub(super) fn to_pair(&self) -> CompoundPair {
        CompoundPair {
            key: self.key().encode().to_vec(),
            block: self.block(),
            value: self.value().map(StateValue::copy_from_slice),
        }
    }
}

/// The position of a pair: the block within the group, and the pair within the block.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PairPlace {
    pub(super) block: u32,
    pub(super) pair: u32,
}

/// Blocks in a chunk.
const CHUNK: usize = 64;

type BlockChunk = SmallVec<[Arc<[MemoryPair]>; CHUNK]>;

/// Pairs by [`PairPlace`]. A copy costs one reference for each chunk, and shares all pairs.
#[derive(Clone, Debug, Default)]
pub(super) struct PairBlocks(Vec<Arc<BlockChunk>>);

impl PairBlocks {
    /// Adds a block and returns its number in the group.
    pub(super) fn push(&mut self, pairs: Arc<[MemoryPair]>) -> u32 {
        match self.0.last_mut() {
            Some(chunk) if chunk.len() < CHUNK => Arc::make_mut(chunk).push(pairs),
            _ => self.0.push(Arc::new(SmallVec::from_iter([pairs]))),
        }
        let full = (self.0.len() - 1) * CHUNK;
        // A group has no more blocks than pairs, and its pairs fit into memory.
        (full + self.0.last().map_or(0, |chunk| chunk.len()) - 1) as u32
    }

    /// Number of blocks.
    pub(super) fn len(&self) -> usize {
        self.0.last().map_or(0, |last| (self.0.len() - 1) * CHUNK + last.len())
    }

    /// Bytes of the pairs of the last block.
    pub(super) fn bytes_of_last(&self) -> u64 {
        let last = self.0.last().and_then(|chunk| chunk.last());
        last.map_or(0, |pairs| size_of_val(&pairs[..]) as u64)
    }

    /// The pairs from `first` on and before `end`, in order.
    pub(super) fn between(
        &self,
        first: &KeyWords,
        end: Option<&KeyWords>,
    ) -> Vec<(KeyWords, PairPlace)> {
        let mut found = Vec::new();
        for (block, pairs) in (0..).zip(self.0.iter().flat_map(|chunk| chunk.iter())) {
            let from = pairs.partition_point(|entry| entry.id < *first);
            let own = pairs.iter().enumerate().skip(from);
            let own = own.take_while(|(_, entry)| end.is_none_or(|end| entry.id < *end));
            found.extend(
                own.map(|(pair, entry)| (entry.id, PairPlace { block, pair: pair as u32 })),
            );
        }
        found.sort_unstable_by_key(|(id, _)| *id);
        found
    }

    #[inline]
    pub(super) fn at(&self, place: PairPlace) -> &MemoryPair {
        let block = place.block as usize;
        &self.0[block / CHUNK][block % CHUNK][place.pair as usize]
    }
}
