//! Merges and cuts again the chunks that do not stay in place.
//!
//! The chunks that a block touches are processed in key order. A chunk with too many or too few
//! entries is merged with its left neighbour (as it is after the earlier steps); the first chunk of
//! all is merged with its right neighbour. The entries of both are cut again. Neighbours that the
//! block does not touch are read for this. A chunk without entries is removed.

use crate::{
    ChunkEntries,
    chunk::{HashedEntry, read_entries},
    tree::{ChunkPlace, ChunkTree},
    update::UpdatedChunk,
};
use retrie_state::{BackendKey, NodeRead, StateError};

/// The content of a chunk's range after a block.
#[derive(Debug)]
pub(crate) enum ChunkContent<'a> {
    /// The chunk stays in place.
    Same(ChunkPlace<'a>, UpdatedChunk),
    /// The entries, perhaps too many or too few for a chunk, or none.
    Entries(Vec<HashedEntry>),
}

/// Neighbouring chunks of the old tree, and the content of their range after the block.
#[derive(Debug, Default)]
pub(crate) struct ChunkRegion<'a> {
    /// In key order.
    pub(crate) old: Vec<ChunkPlace<'a>>,
    /// In key order. All have a valid size once the region is finished.
    pub(crate) new: Vec<ChunkContent<'a>>,
}

impl<'a> ChunkRegion<'a> {
    /// First key of the chunk behind the region.
    fn next(&self) -> Option<BackendKey> {
        self.old.last().and_then(|last| last.next)
    }
}

/// Merges and cuts the contents of touched chunks, in key order.
pub(crate) fn regroup<'a>(
    view: &dyn NodeRead,
    most: ChunkEntries,
    tree: &'a ChunkTree,
    touched: impl Iterator<Item = (ChunkPlace<'a>, ChunkContent<'a>)>,
) -> Result<Vec<ChunkRegion<'a>>, StateError> {
    let work = RegroupWork { view, most, tree };
    let mut done: Vec<ChunkRegion<'a>> = Vec::new();
    for (place, content) in touched {
        let follows = |region: &ChunkRegion<'_>| region.next() == Some(place.node.first);
        if let Some(last) = done.last_mut().filter(|last| !follows(last)) {
            // It may merge with its right neighbour, and then this chunk may directly follow it.
            work.finish(last)?;
        }
        let mut region = done.pop_if(|last| follows(last)).unwrap_or_default();
        region.old.push(place);
        work.add(&mut region, content)?;
        done.push(region);
    }
    if let Some(last) = done.last_mut() {
        work.finish(last)?;
    }
    Ok(done)
}

struct RegroupWork<'v, 'a> {
    view: &'v dyn NodeRead,
    most: ChunkEntries,
    tree: &'a ChunkTree,
}

impl<'a> RegroupWork<'_, 'a> {
    fn read(&self, place: &ChunkPlace<'_>) -> Result<Vec<HashedEntry>, StateError> {
        read_entries(self.view, place.start().as_ref(), place.next.as_ref())
    }

    fn entries(&self, content: ChunkContent<'_>) -> Result<Vec<HashedEntry>, StateError> {
        match content {
            ChunkContent::Same(place, _) => self.read(&place),
            ChunkContent::Entries(entries) => Ok(entries),
        }
    }

    /// Adds the new content of the region's last old chunk.
    fn add(
        &self,
        region: &mut ChunkRegion<'a>,
        content: ChunkContent<'a>,
    ) -> Result<(), StateError> {
        if matches!(&content, ChunkContent::Entries(run) if run.is_empty()) {
            return Ok(());
        }
        // The first chunk of all waits for its right neighbour.
        if let Some(waiting) = region.new.pop_if(|last| self.is_out_of_bounds(last)) {
            let mut run = self.entries(waiting)?;
            run.extend(self.entries(content)?);
            self.place(region, run);
            return Ok(());
        }
        let run = match content {
            ChunkContent::Entries(run) if !self.most.holds(run.len()) => run,
            sound => {
                region.new.push(sound);
                return Ok(());
            }
        };
        let left = match region.new.pop() {
            Some(left) => Some(self.entries(left)?),
            None => {
                let first = region.old.first();
                let left = first.and_then(|first| self.tree.before(&first.node.first));
                left.map(|left| {
                    region.old.insert(0, left);
                    self.read(&left)
                })
                .transpose()?
            }
        };
        match left {
            None => region.new.push(ChunkContent::Entries(run)),
            Some(mut left) => {
                left.extend(run);
                self.place(region, left);
            }
        }
        Ok(())
    }

    /// Cuts entries into chunks and adds these. Too few entries become one chunk, which waits for
    /// its right neighbour.
    fn place(&self, region: &mut ChunkRegion<'_>, run: Vec<HashedEntry>) {
        let chunks = self.most.cut(&run).into_iter();
        region.new.extend(chunks.map(|chunk| ChunkContent::Entries(chunk.to_vec())));
    }

    /// Merges a chunk that still waits with its right neighbour, if there is one.
    fn finish(&self, region: &mut ChunkRegion<'a>) -> Result<(), StateError> {
        let Some(waiting) = region.new.pop_if(|last| self.is_out_of_bounds(last)) else {
            return Ok(());
        };
        let mut run = self.entries(waiting)?;
        if let Some(right) = region.next().and_then(|next| self.tree.starting_at(&next)) {
            run.extend(self.read(&right)?);
            region.old.push(right);
        }
        self.place(region, run);
        Ok(())
    }

    fn is_out_of_bounds(&self, content: &ChunkContent<'_>) -> bool {
        matches!(content, ChunkContent::Entries(run) if !self.most.holds(run.len()))
    }
}
