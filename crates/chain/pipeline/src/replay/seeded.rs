//! The pre-state of a bundle on a store, for measurements that are no replay.

use super::bundle::{BundleContext, BundleReplay};
use crate::{PipelineError, recover::recover_senders};
use retrie_chainspec::{ChainSpec, primitives::RecoveredBlock};
use retrie_execution::ExecutionInput;
use retrie_sources::Bundle;
use retrie_state::StateReader;
use retrie_state_store::StateStore;
use std::sync::Arc;

/// The block of a bundle, and a store whose tip is the state before it.
pub struct SeededBundle<'a> {
    /// The store.
    pub store: &'a StateStore,
    /// The rules of the block.
    pub spec: Arc<ChainSpec>,
    /// The block with the senders of its transactions.
    pub block: RecoveredBlock,
    context: BundleContext,
}

impl std::fmt::Debug for SeededBundle<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SeededBundle").field("block", &self.block.hash()).finish_non_exhaustive()
    }
}

impl SeededBundle<'_> {
    /// Input for an execution on `state`, with the codes and the ancestors' hashes of the bundle.
    pub fn input<'b>(&'b self, state: &'b dyn StateReader) -> ExecutionInput<'b> {
        ExecutionInput::new(state, &self.context.codes, &self.context.hashes)
    }
}

impl BundleReplay<'_> {
    /// Writes the pre-state of a bundle on the base state, calls `run`, and reverts it. Nothing is
    /// counted.
    ///
    /// # Errors
    /// Errors of the store and of `run`. The error of the bundle names file and block.
    pub fn with_pre_state<T, E: From<PipelineError>>(
        &self,
        bundle: &Bundle,
        run: impl FnOnce(&SeededBundle<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        self.prepare_for(bundle);
        let seeded = self.seed(bundle).map_err(|error| error.in_bundle(bundle))?;
        let ran = run(&seeded);
        // The error of the block is more useful than one that followed from it.
        let reverted = self.revert_to_base().map_err(E::from);
        ran.and_then(|value| reverted.map(|()| value))
    }

    fn seed(&self, bundle: &Bundle) -> Result<SeededBundle<'_>, PipelineError> {
        let pre = self.pre_state(bundle)?;
        let block = recover_senders(&self.options.spec, bundle.block.clone())?;
        let spec = self.options.spec.for_header(block.header());
        self.commit("pre-state", self.base.number + 1, &pre)?;
        Ok(SeededBundle { store: self.store, spec, block, context: BundleContext::of(bundle) })
    }
}
