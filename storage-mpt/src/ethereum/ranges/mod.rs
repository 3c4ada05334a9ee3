//! A state as [leaves and nodes](retrie_state::StateRanges) in the order of hashes, as `snap` hands
//! it out: a server, and chunks with hashed keys that a receiver makes of what peers send.

mod change;
mod chunk;
mod part;
mod serve;

pub use serve::{TriesOwner, server};

use alloy_primitives::{B256, Bytes};
use chunk::RangeSlot;
use retrie_state::{
    ChunkId, ChunkPlace, OpenedChunk, ProofError, RangeChanges, RangeFormat, StateTrie, TrieLeaf,
};

/// Ranges of Ethereum's tries.
#[derive(Clone, Copy, Debug)]
pub struct HashedRanges;

impl RangeFormat for HashedRanges {
    fn whole_range(&self, trie: StateTrie, root: B256) -> Option<ChunkId> {
        RangeSlot::root(trie, root).id().filter(|_| root != chunk::WITH.empty_root())
    }

    fn place(&self, id: &ChunkId) -> Option<ChunkPlace> {
        RangeSlot::of(id).map(|slot| slot.place())
    }

    fn pack_leaves(&self, leaves: &[TrieLeaf]) -> Bytes {
        chunk::pack_leaves(leaves)
    }

    fn unpack_leaves(&self, answer: &[u8]) -> Option<Vec<TrieLeaf>> {
        chunk::unpack_leaves(answer)
    }

    fn pack_node(&self, node: &Bytes) -> Bytes {
        chunk::pack_node(node)
    }

    fn find_node<'a>(&self, id: &ChunkId, nodes: &'a [Bytes]) -> Option<&'a Bytes> {
        let hash = RangeSlot::of(id)?.reference.as_hash()?;
        nodes.iter().find(|node| chunk::WITH.hash(node) == hash)
    }

    fn check_part(
        &self,
        id: &ChunkId,
        leaves: &[TrieLeaf],
        proof: &[Bytes],
    ) -> Result<(), ProofError> {
        part::check_part(id, leaves, proof)
    }

    fn open_range(&self, id: &ChunkId, answer: &[u8]) -> Result<OpenedChunk, ProofError> {
        chunk::open(id, answer)
    }

    fn changed(
        &self,
        place: &ChunkPlace,
        leaves: &[TrieLeaf],
        changes: &RangeChanges,
        storage: &mut dyn FnMut(B256, B256) -> Option<Vec<TrieLeaf>>,
    ) -> Vec<TrieLeaf> {
        match place.trie {
            StateTrie::Accounts => change::accounts(place, leaves, changes, storage),
            StateTrie::Storage(account) => match changes.0.get(&account) {
                Some(values) => change::slots(&place.keys, leaves, &values.slots),
                None => leaves.to_vec(),
            },
        }
    }
}
