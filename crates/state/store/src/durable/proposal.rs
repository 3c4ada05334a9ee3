//! Proposals: results of blocks in memory, on top of and beside the durable chain.

use super::overlay::{DiffLayer, LayerStack};
use alloy_primitives::B256;
use parking_lot::Mutex;
use retrie_state::{AnyCache, BlockRef};
use std::{
    fmt,
    sync::{Arc, OnceLock},
};

/// The result of one block, or of a [batch](retrie_state::DeltaBatch) of blocks, in memory: its root and
/// its writes. Cheap to clone; dropping the last clone discards it.
#[derive(Clone)]
pub struct Proposal(pub(crate) Arc<ProposedBlock>);

pub(crate) struct ProposedBlock {
    pub(crate) number: u64,
    /// Number of the first block of the batch; equal to `number` for a single block.
    pub(crate) first: u64,
    pub(crate) hash: OnceLock<B256>,
    pub(crate) root: B256,
    pub(crate) parent: Mutex<ProposalParent>,
    pub(crate) layer: Arc<DiffLayer>,
    /// This layer and the layers of its ancestors above `base`.
    pub(crate) stack: LayerStack,
    pub(crate) base: Option<BlockRef>,
    pub(crate) cache: AnyCache,
}

#[derive(Clone)]
pub(crate) enum ProposalParent {
    /// A durable block; `None` is the empty state.
    Durable(Option<BlockRef>),
    Proposal(Proposal),
}

impl Proposal {
    /// Number of the block; of a batch, its last block.
    pub fn number(&self) -> u64 {
        self.0.number
    }

    /// Root of the state after the block.
    pub fn root(&self) -> B256 {
        self.0.root
    }

    /// Hash of the block, once [sealed](crate::StateStore::seal).
    pub fn hash(&self) -> Option<B256> {
        self.0.hash.get().copied()
    }

    /// Number of rows the block writes.
    pub fn rows(&self) -> usize {
        self.0.layer.len()
    }

    /// Whether it is the result of several blocks.
    pub(crate) fn is_batch(&self) -> bool {
        self.0.first < self.0.number
    }

    pub(crate) fn block(&self) -> Option<BlockRef> {
        Some(BlockRef::new(self.0.number, self.hash()?))
    }
}

impl fmt::Debug for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proposal")
            .field("number", &self.0.number)
            .field("hash", &self.0.hash.get())
            .field("root", &self.0.root)
            .finish_non_exhaustive()
    }
}

impl Drop for ProposedBlock {
    fn drop(&mut self) {
        // A loop, as dropping a long chain recursively would overflow the stack.
        let mut parent = std::mem::replace(self.parent.get_mut(), ProposalParent::Durable(None));
        while let ProposalParent::Proposal(Proposal(inner)) = parent {
            let Ok(mut inner) = Arc::try_unwrap(inner) else { break };
            parent = std::mem::replace(inner.parent.get_mut(), ProposalParent::Durable(None));
        }
    }
}

impl ProposedBlock {
    /// The parent now; it changes when the parent becomes durable.
    pub(crate) fn parent(&self) -> ProposalParent {
        self.parent.lock().clone()
    }

    /// Whether the parent is this block (`None`: the empty state).
    pub(crate) fn stands_on(&self, block: Option<BlockRef>) -> bool {
        match &*self.parent.lock() {
            ProposalParent::Durable(parent) => *parent == block,
            ProposalParent::Proposal(parent) => block.is_some() && parent.block() == block,
        }
    }

    /// Drops the reference to the parent proposal, whose block has become durable.
    pub(crate) fn rest_on_durable(&self) {
        let mut parent = self.parent.lock();
        let block = match &*parent {
            ProposalParent::Proposal(proposal) => proposal.block(),
            ProposalParent::Durable(_) => None,
        };
        if block.is_some() {
            let old = std::mem::replace(&mut *parent, ProposalParent::Durable(block));
            drop(parent);
            drop(old);
        }
    }
}
