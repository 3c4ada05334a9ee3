//! Makes witnesses: applies the block to the store's tree, opened as far as that needs.

use super::{
    PartialTree, WitnessFault, apply, bytes,
    chunk::{PartialChunk, WitnessEntry},
    tree::{NodeContent, PartialNode, TreeOrigin, TreeWork},
};
use crate::{
    ChunkEntries,
    chunk::CHUNKS,
    prove::{around, entries},
    tree::{ChunkTree, NodeKind, TreeNode},
};
use alloy_primitives::B256;
use parking_lot::Mutex;
use retrie_state::{
    BackendKey, NodeRead, StateError, StateValue, WitnessError, WitnessRequest, flat,
};
use std::{collections::BTreeMap, sync::Arc};

/// The witness of `block` in the state of `view` and `tree`.
pub(crate) fn make(
    most: ChunkEntries,
    view: &dyn NodeRead,
    tree: &ChunkTree,
    block: WitnessRequest<'_>,
) -> Result<Vec<u8>, StateError> {
    let origin = StoreOrigin { view, tree, loaded: Mutex::default() };
    make_from(&origin, most, block).map_err(|fault| match fault {
        WitnessFault::State(error) => error,
        WitnessFault::Witness(error) => bad_delta(&error),
    })
}

fn make_from(
    origin: &StoreOrigin<'_>,
    most: ChunkEntries,
    block: WitnessRequest<'_>,
) -> Result<Vec<u8>, WitnessFault> {
    let top = origin.tree.0.as_ref();
    let top = top.map(|top| PartialNode::closed(top.hash(), Some(top.clone())));
    if let Some(top) = &top {
        let work = TreeWork(origin);
        for (key, value) in origin.shown(block)? {
            let chunk = work.chunk(top, &origin.path(&key))?;
            chunk.show(origin.position(&key)?, WitnessEntry { key, value });
        }
    }
    let partial = PartialTree::new(most, top);
    apply(origin, &partial, block.delta)?;
    bytes::encode(most, partial.top.as_ref())
}

/// The delta does not fit the state, so that the tree lacks what it changes.
fn bad_delta(error: &WitnessError) -> StateError {
    StateError::corrupt("delta", format!("it does not fit the state: {error}"))
}

/// The tree of a state.
struct StoreOrigin<'a> {
    view: &'a dyn NodeRead,
    tree: &'a ChunkTree,
    /// The keys of loaded chunks, by the first one.
    loaded: Mutex<BTreeMap<BackendKey, Vec<BackendKey>>>,
}

impl StoreOrigin<'_> {
    /// The entries to show: of the block's keys, or around them.
    fn shown(
        &self,
        block: WitnessRequest<'_>,
    ) -> Result<BTreeMap<BackendKey, StateValue>, StateError> {
        let mut keys = block.keys();
        for account in block.listed {
            let ends = [B256::ZERO, B256::repeat_byte(0xff)];
            keys.extend(ends.map(|slot| BackendKey::Slot(*account, slot)));
            for slot in flat::slots(self.view, account)? {
                keys.push(BackendKey::Slot(*account, slot?));
            }
        }
        let mut shown = BTreeMap::new();
        for key in &keys {
            shown.extend(around(self.view, key)?);
        }
        Ok(shown)
    }

    /// The path of the chunk in whose range `key` lies.
    fn path(&self, key: &BackendKey) -> Vec<bool> {
        let mut path = Vec::new();
        let mut node = self.tree.0.as_ref();
        while let Some(NodeKind::Inner(_, left, right)) = node.map(|node| &node.kind) {
            let turn = *key >= right.first;
            path.push(turn);
            node = Some(if turn { right } else { left });
        }
        path
    }

    /// The position of `key` in its chunk, which is loaded.
    fn position(&self, key: &BackendKey) -> Result<usize, StateError> {
        let lost = || StateError::corrupt(CHUNKS.name, format!("no chunk has the entry of {key}"));
        let place = self.tree.find(key).ok_or_else(lost)?;
        let loaded = self.loaded.lock();
        let keys = loaded.get(&place.node.first).ok_or_else(lost)?;
        keys.binary_search(key).map_err(|_| lost())
    }

    /// The keys of the chunk with this first key, and the hashes of its entries.
    fn read(&self, first: &BackendKey) -> Result<(Vec<BackendKey>, Vec<B256>), StateError> {
        let next = self.tree.find(first).and_then(|place| place.next);
        let read = entries(self.view, first, next.as_ref())?.into_iter();
        let hashed = read.map(|(key, value)| (key, WitnessEntry { key, value }.hash()));
        Ok(hashed.unzip())
    }
}

impl TreeOrigin for StoreOrigin<'_> {
    type Handle = Arc<TreeNode>;

    fn open(&self, node: &Arc<TreeNode>) -> Result<NodeContent<Arc<TreeNode>>, WitnessFault> {
        let closed = |node: &Arc<TreeNode>| PartialNode::closed(node.hash(), Some(node.clone()));
        match &node.kind {
            NodeKind::Inner(_, left, right) => Ok(NodeContent::Inner(closed(left), closed(right))),
            NodeKind::Chunk(body) => {
                let mut tops = crate::chunk::levels(body.parts().collect());
                let top = tops.pop().and_then(|level| level.first().copied()).unwrap_or_default();
                Ok(NodeContent::Chunk(Arc::new(PartialChunk::new(body.count(), top))))
            }
        }
    }

    fn load(&self, node: &Arc<TreeNode>, chunk: &PartialChunk) -> Result<(), WitnessFault> {
        let (keys, hashes) = self.read(&node.first)?;
        if hashes.len() != chunk.count {
            let (found, count) = (hashes.len(), chunk.count);
            let what = format!("the chunk from {} on has {found} entries, not {count}", node.first);
            return Err(StateError::corrupt(CHUNKS.name, what).into());
        }
        self.loaded.lock().insert(node.first, keys);
        chunk.load(hashes);
        Ok(())
    }
}
