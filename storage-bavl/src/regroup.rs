//! Chunks that do not stay in their places: what they are cut into, with which neighbours.
//!
//! Chunks that a block touches are taken in key order. One that has too many entries or too few is put
//! together with its left neighbour, as that is by then; the first of all, which has none, with its right
//! neighbour. Both are cut anew. Neighbours may be chunks that the block does not touch: these are
//! read, too. One without entries vanishes.

use crate::{
    ChunkEntries,
    chunk::{Entry, read_entries},
    touch::Updated,
    tree::{Place, Tree},
};
use retrie_state::{NodeRead, StateError, StateKey};

/// What a chunk has become.
#[derive(Debug)]
pub(crate) enum Content<'a> {
    /// It stays in its place.
    Same(Place<'a>, Updated),
    /// Other ones, perhaps too many, too few, or none.
    Run(Vec<Entry>),
}

/// Neighbouring chunks, and what is in their places after the block.
#[derive(Debug, Default)]
pub(crate) struct Region<'a> {
    /// In key order.
    pub(crate) old: Vec<Place<'a>>,
    /// In key order. All are within bounds once the region is finished.
    pub(crate) new: Vec<Content<'a>>,
}

impl<'a> Region<'a> {
    /// First key of the chunk behind it.
    fn next(&self) -> Option<StateKey> {
        self.old.last().and_then(|last| last.next)
    }
}

/// Regroups what has become of touched chunks, in key order.
pub(crate) fn regroup<'a>(
    view: &dyn NodeRead,
    most: ChunkEntries,
    tree: &'a Tree,
    touched: impl Iterator<Item = (Place<'a>, Content<'a>)>,
) -> Result<Vec<Region<'a>>, StateError> {
    let work = Work { view, most, tree };
    let mut done: Vec<Region<'a>> = Vec::new();
    for (place, content) in touched {
        let follows = |region: &Region<'_>| region.next() == Some(place.node.first);
        if let Some(last) = done.last_mut().filter(|last| !follows(last)) {
            // It may need its right neighbour, and then this chunk may follow after all.
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

struct Work<'v, 'a> {
    view: &'v dyn NodeRead,
    most: ChunkEntries,
    tree: &'a Tree,
}

impl<'a> Work<'_, 'a> {
    fn read(&self, place: &Place<'_>) -> Result<Vec<Entry>, StateError> {
        read_entries(self.view, place.start().as_ref(), place.next.as_ref())
    }

    fn entries(&self, content: Content<'_>) -> Result<Vec<Entry>, StateError> {
        match content {
            Content::Same(place, _) => self.read(&place),
            Content::Run(entries) => Ok(entries),
        }
    }

    /// Adds what is in the place of the region's last old chunk.
    fn add(&self, region: &mut Region<'a>, content: Content<'a>) -> Result<(), StateError> {
        if matches!(&content, Content::Run(run) if run.is_empty()) {
            return Ok(());
        }
        // Of what has no left neighbour.
        if let Some(waiting) = region.new.pop_if(|last| self.is_out_of_bounds(last)) {
            let mut run = self.entries(waiting)?;
            run.extend(self.entries(content)?);
            self.place(region, run);
            return Ok(());
        }
        let run = match content {
            Content::Run(run) if !self.most.holds(run.len()) => run,
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
            None => region.new.push(Content::Run(run)),
            Some(mut left) => {
                left.extend(run);
                self.place(region, left);
            }
        }
        Ok(())
    }

    /// Adds a run: cut, or whole if it is too short, and waits then.
    fn place(&self, region: &mut Region<'_>, run: Vec<Entry>) {
        let chunks = self.most.cut(&run).into_iter();
        region.new.extend(chunks.map(|chunk| Content::Run(chunk.to_vec())));
    }

    /// Puts what still waits together with its right neighbour, if there is one.
    fn finish(&self, region: &mut Region<'a>) -> Result<(), StateError> {
        let Some(waiting) = region.new.pop_if(|last| self.is_out_of_bounds(last)) else {
            return Ok(());
        };
        let mut run = self.entries(waiting)?;
        if let Some(right) = region.next().and_then(|next| self.tree.begins(&next)) {
            run.extend(self.read(&right)?);
            region.old.push(right);
        }
        self.place(region, run);
        Ok(())
    }

    fn is_out_of_bounds(&self, content: &Content<'_>) -> bool {
        matches!(content, Content::Run(run) if !self.most.holds(run.len()))
    }
}
