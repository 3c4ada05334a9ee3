//! Runs: consecutive blocks that are applied at once, by the sum of what they change.

use crate::{DeltaBuilder, StateDelta};
use alloc::{sync::Arc, vec::Vec};

/// What consecutive blocks change, each for itself and all together.
#[derive(Clone, Debug)]
pub struct Run {
    deltas: Vec<Arc<StateDelta>>,
    sum: Arc<StateDelta>,
}

impl Run {
    /// The delta of each block, in their order; at least one.
    pub fn deltas(&self) -> &[Arc<StateDelta>] {
        &self.deltas
    }

    /// The effect of all of them as one delta.
    pub const fn sum(&self) -> &Arc<StateDelta> {
        &self.sum
    }
}

/// Collects the deltas of consecutive blocks into a [`Run`].
#[derive(Clone, Debug)]
pub struct RunBuilder {
    deltas: Vec<Arc<StateDelta>>,
    sum: DeltaBuilder,
}

impl RunBuilder {
    /// With the delta of the first block.
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

    /// The effect of the blocks so far. A read asks this one, and then the state below the first
    /// block, however many blocks there are.
    pub const fn sum(&self) -> &DeltaBuilder {
        &self.sum
    }

    /// The run.
    pub fn build(self) -> Run {
        let Self { deltas, sum } = self;
        Run { deltas, sum: Arc::new(sum.build()) }
    }
}
