//! [`ReorgWalk`]: the way from a block that a reader knew back to the canonical chain.

use crate::view::LiveView;
use retrie_pipeline::PipelineError;
use retrie_state::BlockRef;

/// The way from a block that was canonical once, by its ancestors, to the canonical chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReorgWalk {
    /// The blocks on the way that are no longer canonical, the highest first.
    pub undone: Vec<BlockRef>,
    /// Where the way ends.
    pub end: WalkEnd,
}

/// Where a [`ReorgWalk`] ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkEnd {
    /// At this canonical block: the one it began at, or the parent of the last undone block.
    Canonical(BlockRef),
    /// At this block, which is not canonical and whose header is not known (any more).
    Forgotten(BlockRef),
}

impl LiveView {
    /// Walks from block `from` by its ancestors to the canonical chain. The number of `from` is
    /// believed.
    ///
    /// # Errors
    /// If the database fails.
    pub fn walk_back(&self, from: BlockRef) -> Result<ReorgWalk, PipelineError> {
        let mut at = from;
        let mut undone = Vec::new();
        while !self.is_canonical(&at.hash)? {
            let Some(header) = self.header(&at.hash)? else {
                return Ok(ReorgWalk { undone, end: WalkEnd::Forgotten(at) });
            };
            undone.push(at);
            at = BlockRef::new(header.number.saturating_sub(1), header.parent_hash);
        }
        Ok(ReorgWalk { undone, end: WalkEnd::Canonical(at) })
    }
}
