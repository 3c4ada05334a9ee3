//! What the user of a dev chain changes of the head's state, until a block follows.

use super::Service;
use crate::{EngineError, live::patch_note};
use alloy_primitives::B256;
use retrie_pipeline::StatePatch;
use std::sync::Arc;

impl Service<'_> {
    /// Changes what is read of the head's state. It is kept for the next start.
    pub(super) fn set_patch(&mut self, patch: Option<Arc<StatePatch>>) -> Result<(), EngineError> {
        if patch.is_none() && self.patch.is_none() {
            return Ok(());
        }
        let (name, note) = patch_note(&self.tree.head().header.hash(), patch.as_deref());
        self.patch = patch;
        Ok(self.tree.put_note_of_head(name, note)?)
    }

    /// The head is another one: its block has the changes that were made before it.
    pub(super) fn drop_patch(&mut self) {
        if self.patch.take().is_some() {
            self.forget_note();
        }
    }

    /// What a kill has left of a block that was taken back must not count when that block comes again.
    pub(super) fn forget_stale_patch(&mut self) {
        if self.config.is_dev && self.patch.is_none() {
            self.forget_note();
        }
    }

    /// With the next commit there is no note.
    fn forget_note(&mut self) {
        let (name, note) = patch_note(&B256::ZERO, None);
        self.tree.put_note(name, note);
    }
}
