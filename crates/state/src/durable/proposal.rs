//! Proposals: the outcome of a block in memory, before and beside the durable chain.

use super::overlay::{Layer, LayerStack};
use crate::{AnyCache, BlockRef};
use alloy_primitives::B256;
use parking_lot::Mutex;
use std::{
    fmt,
    sync::{Arc, OnceLock},
};

/// The outcome of one block, or of a [run](crate::Run) of them, in memory: its root and its writes.
/// Cheap to clone; dropping the last clone leaves no trace.
#[derive(Clone)]
pub struct Proposal(pub(crate) Arc<ProposedBlock>);

pub(crate) struct ProposedBlock {
    pub(crate) number: u64,
    /// Number of the first block of the run; the same if it is one block.
    pub(crate) first: u64,
    pub(crate) hash: OnceLock<B256>,
    pub(crate) root: B256,
    pub(crate) parent: Mutex<Parent>,
    pub(crate) layer: Arc<Layer>,
    /// This layer and those of its ancestors above `base`.
    pub(crate) stack: LayerStack,
    pub(crate) base: Option<BlockRef>,
    pub(crate) cache: AnyCache,
}

#[derive(Clone)]
pub(crate) enum Parent {
    /// A durable block; `None` is the empty state.
    Durable(Option<BlockRef>),
    Proposal(Proposal),
}

impl Proposal {
    /// Number of the block, the last one of a run.
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

    /// Whether it is the outcome of several blocks.
    pub(crate) fn is_run(&self) -> bool {
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
        // A long chain must not unwind by recursion.
        let mut parent = std::mem::replace(self.parent.get_mut(), Parent::Durable(None));
        while let Parent::Proposal(Proposal(inner)) = parent {
            let Ok(mut inner) = Arc::try_unwrap(inner) else { break };
            parent = std::mem::replace(inner.parent.get_mut(), Parent::Durable(None));
        }
    }
}

impl ProposedBlock {
    /// The parent as it is known now.
    pub(crate) fn parent(&self) -> Parent {
        self.parent.lock().clone()
    }

    /// Whether the parent is this block (`None`: the empty state).
    pub(crate) fn stands_on(&self, block: Option<BlockRef>) -> bool {
        match &*self.parent.lock() {
            Parent::Durable(parent) => *parent == block,
            Parent::Proposal(parent) => block.is_some() && parent.block() == block,
        }
    }

    /// Lets go of the parent proposal, whose block has become durable.
    pub(crate) fn rest_on_durable(&self) {
        let mut parent = self.parent.lock();
        let block = match &*parent {
            Parent::Proposal(proposal) => proposal.block(),
            Parent::Durable(_) => None,
        };
        if block.is_some() {
            let old = std::mem::replace(&mut *parent, Parent::Durable(block));
            drop(parent);
            drop(old);
        }
    }
}
