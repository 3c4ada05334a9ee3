//! `retrie stage unwind`: chain and state back to an earlier block.

use crate::{ChainStore, PipelineError};
use retrie_state::{BlockRef, StateError};

/// Blocks reverted in one transaction: a bound of its size, whatever the retention is.
const CHUNK: u64 = 256;

impl ChainStore {
    /// Takes chain and state back to block `to` and removes all blocks above it, side blocks too,
    /// as if they had never been imported. (Code stays, as always.) Returns how many blocks were
    /// removed. A kill leaves a complete chain up to some block in between; the same call then
    /// continues.
    ///
    /// `progress` is called with the tip after each transaction.
    ///
    /// # Errors
    /// [`StateError::AboveTip`], [`AnchorError::Below`](crate::AnchorError::Below) and
    /// [`StateError::BeyondRetention`]; nothing is changed then.
    pub fn unwind(
        &self,
        to: u64,
        progress: &mut dyn FnMut(BlockRef),
    ) -> Result<u64, PipelineError> {
        let mut tip = self.tip()?;
        if to > tip.number {
            return Err(StateError::AboveTip { number: to, tip }.into());
        }
        self.refuse_below_anchor(to)?;
        if self.states.first_retained().is_none_or(|first| to < first) {
            return Err(self.states.beyond_retention(to).into());
        }
        let mut removed = 0;
        loop {
            let next = to.max(tip.number.saturating_sub(CHUNK));
            self.revert_with(next, |txn| {
                removed += txn.remove_blocks_above(next)?;
                Ok(())
            })?;
            tip = self.tip()?;
            progress(tip);
            if tip.number <= to {
                return Ok(removed);
            }
        }
    }
}
