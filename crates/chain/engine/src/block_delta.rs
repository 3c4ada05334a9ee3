//! [`LiveView::block_delta`]: what one canonical block changed in the state.
//!
//! | source | costs | has |
//! |---|---|---|
//! | genesis | nothing | block 0 |
//! | flat history | two reads of each changed key | the blocks whose state history is kept |
//! | execution | the block again | the blocks whose parent's state can be opened |
//!
//! Each source gives the same: values before and after the block, with rewards, withdrawals, system
//! calls and a dev chain's patch.

use crate::view::LiveView;
use alloy_primitives::B256;
use retrie_chainspec::primitives::RecoveredBlock;
use retrie_execution::execute_block;
use retrie_pipeline::{InvalidBlockError, PipelineError, genesis_delta, validate_outcome};
use retrie_state::{BackendKey, DeltaBuilder, StateDelta, StateKey};

/// Why the changes of a block cannot be given.
#[derive(Debug, thiserror::Error)]
pub enum DeltaError {
    /// Neither the changes nor a state to execute the block on is kept.
    #[error("the changes of block {number} ({hash}) are not kept: {source}")]
    NotKept {
        /// Number of the block.
        number: u64,
        /// Its hash.
        hash: B256,
        /// Which states are kept.
        source: Box<PipelineError>,
    },
    /// Reading failed, or the block has another outcome than its header says.
    #[error(transparent)]
    Chain(#[from] PipelineError),
}

impl LiveView {
    /// What a canonical block of this view changed.
    ///
    /// # Errors
    /// [`DeltaError::NotKept`] if no source has it; [`DeltaError::Chain`] if reading fails.
    pub fn block_delta(&self, block: &RecoveredBlock) -> Result<StateDelta, DeltaError> {
        if block.number == 0 {
            return Ok(genesis_delta(self.live().spec()).0);
        }
        match self.kept_delta(block.number) {
            Ok(Some(delta)) => return Ok(delta),
            Ok(None) => {}
            Err(error) if error.lacks_state() => {}
            Err(error) => return Err(error.into()),
        }
        self.executed_delta(block).map_err(|error| match error {
            error if error.lacks_state() => DeltaError::NotKept {
                number: block.number,
                hash: block.hash(),
                source: Box::new(error),
            },
            error => error.into(),
        })
    }

    /// The changes of canonical block `number` by flat history. `None` if the store names a key by a
    /// hash whose preimage is not known.
    fn kept_delta(&self, number: u64) -> Result<Option<StateDelta>, PipelineError> {
        let store = self.live().chain().state();
        let changes = store.changes(self.at_head(), number)?;
        let after = store.flat_history(self.at_head(), number)?;
        let mut delta = DeltaBuilder::new();
        for (key, before) in changes {
            let Some(plain) = self.plain_key(&key)? else { return Ok(None) };
            delta.change(plain, before, after.get_key(&key)?);
        }
        Ok(Some(delta.build()))
    }

    /// A key as the client names it; `None` if a preimage is not known.
    fn plain_key(&self, key: &BackendKey) -> Result<Option<StateKey>, PipelineError> {
        if let Some(key) = key.plain() {
            return Ok(Some(key));
        }
        let Some(address) = self.address_of(key.account())? else { return Ok(None) };
        Ok(match key {
            StateKey::Account(_) => Some(StateKey::Account(address)),
            StateKey::Slot(_, slot) => {
                let slot = self.preimage(slot)?.and_then(|preimage| preimage.slot());
                slot.map(|slot| StateKey::Slot(address, slot))
            }
        })
    }

    /// The changes of a block by another execution.
    fn executed_delta(&self, block: &RecoveredBlock) -> Result<StateDelta, PipelineError> {
        let before = self.state_before(block)?;
        let spec = self.live().spec().for_header(block.header());
        let outcome = execute_block(&spec, block, before.input())?;
        validate_outcome(&spec, block.sealed_block(), &outcome, None)
            .map_err(|error| InvalidBlockError::rule(block.sealed_header(), error))?;
        Ok(match before.patch() {
            Some(patch) => patch.delta.then(&outcome.delta),
            None => outcome.delta,
        })
    }
}
