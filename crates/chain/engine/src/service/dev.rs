//! The patch of a dev chain: changes of the head's state by the user, until the next block.

use super::EngineLoop;
use crate::{EngineError, live::patch_note};
use alloy_primitives::B256;
use retrie_pipeline::StatePatch;
use std::sync::Arc;

impl EngineLoop<'_> {
    /// Sets the patch of the head's state, and stores it for the next start.
    pub(super) fn set_patch(&mut self, patch: Option<Arc<StatePatch>>) -> Result<(), EngineError> {
        if patch.is_none() && self.patch.is_none() {
            return Ok(());
        }
        let (name, note) = patch_note(&self.tree.head().header.hash(), patch.as_deref());
        self.patch = patch;
        Ok(self.tree.put_note_of_head(name, note)?)
    }

    /// Drops the patch at a new head, whose block contains the changes.
    pub(super) fn drop_patch(&mut self) {
        if self.patch.take().is_some() {
            self.delete_note();
        }
    }

    /// Deletes a note that a killed process left of a removed block, so that it does not apply if
    /// that block returns.
    pub(super) fn delete_stale_note(&mut self) {
        if self.config.is_dev && self.patch.is_none() {
            self.delete_note();
        }
    }

    /// Deletes the note with the next commit.
    fn delete_note(&mut self) {
        let (name, note) = patch_note(&B256::ZERO, None);
        self.tree.put_note(name, note);
    }
}
