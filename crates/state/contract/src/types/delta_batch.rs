//! Batches: consecutive blocks that a backend applies at once, as the sum of their deltas.

use crate::{DeltaBuilder, StateDelta};
use alloc::{sync::Arc, vec::Vec};

/// The deltas of consecutive blocks, and their sum.
#[derive(Clone, Debug)]
pub struct DeltaBatch {
    deltas: Vec<Arc<StateDelta>>,
    sum: Arc<StateDelta>,
}

impl DeltaBatch {
    /// The delta of each block, in their order; at least one.
    pub fn deltas(&self) -> &[Arc<StateDelta>] {
        &self.deltas
    }

    /// The net effect of all blocks as one delta.
    pub const fn sum(&self) -> &Arc<StateDelta> {
        &self.sum
    }
}

/// Collects the deltas of consecutive blocks into a [`DeltaBatch`].
#[derive(Clone, Debug)]
pub struct DeltaBatchBuilder {
    deltas: Vec<Arc<StateDelta>>,
    sum: DeltaBuilder,
}

impl DeltaBatchBuilder {
    /// Starts with the delta of the first block.
    pub fn new(first: Arc<StateDelta>) -> Self {
        let mut run = Self { deltas: Vec::new(), sum: DeltaBuilder::new() };
        run.push(first);
        run
    }

    /// Adds the delta of the next block.
    pub fn push(&mut self, delta: Arc<StateDelta>) {
        self.sum.add(&delta);
        self.deltas.push(delta);
    }

    /// The net effect of the blocks so far. A read looks here first, then in the state below the
    /// first block, whatever the number of blocks.
    pub const fn sum(&self) -> &DeltaBuilder {
        &self.sum
    }

    /// Builds the batch.
    pub fn build(self) -> DeltaBatch {
        let Self { deltas, sum } = self;
        DeltaBatch { deltas, sum: Arc::new(sum.build()) }
    }
}
