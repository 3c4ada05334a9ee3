//! Cuts and merges the chunks that a block leaves too large or too small, by the rules of
//! [`regroup`](mod@crate::regroup), without keys: a place in the tree says which chunk is next.

use super::{
    TouchedPlace, WitnessFault,
    chunk::PositionChange,
    new_chunk,
    tree::{ChunkReplacement, NodePath, NodePtr, PartialNode, TreeOrigin, TreeWork},
};
use crate::ChunkEntries;
use alloy_primitives::B256;

/// An entry after the block: its hash, and the old chunk in whose range it lies.
#[derive(Clone, Debug)]
pub(super) struct PlacedHash {
    hash: B256,
    /// Number of the chunk among the [places](RegionWork::places).
    of: usize,
}

/// The content of a chunk's range after the block.
enum RangeContent {
    /// The chunk with this number stays, with its changes.
    Stays(usize),
    /// Entries, perhaps too many or too few for a chunk, or none.
    Entries(Vec<PlacedHash>),
}

/// Neighbouring old chunks, by number, and the content of their range after the block.
#[derive(Default)]
struct PlaceRegion {
    old: Vec<usize>,
    new: Vec<RangeContent>,
}

/// The regions of a block.
pub(super) struct RegionWork<'a, O: TreeOrigin> {
    most: ChunkEntries,
    work: &'a TreeWork<'a, O>,
    top: &'a NodePtr<O::Handle>,
    /// The chunks that the block touches, or that merge with them.
    places: Vec<TouchedPlace>,
}

impl<'a, O: TreeOrigin> RegionWork<'a, O> {
    pub(super) const fn new(
        most: ChunkEntries,
        work: &'a TreeWork<'a, O>,
        top: &'a NodePtr<O::Handle>,
    ) -> Self {
        Self { most, work, top, places: Vec::new() }
    }

    /// What comes in place of each chunk, sorted by path. `touched` are in key order.
    pub(super) fn edits(
        mut self,
        touched: Vec<TouchedPlace>,
    ) -> Result<Vec<ChunkReplacement<O::Handle>>, WitnessFault> {
        let mut done: Vec<PlaceRegion> = Vec::new();
        for place in touched {
            if let Some(last) = done.last_mut().filter(|last| !self.follows(last, &place.path)) {
                // It may merge with its right neighbour, and then this chunk may directly follow it.
                self.finish(last)?;
            }
            let mut region =
                done.pop_if(|last| self.follows(last, &place.path)).unwrap_or_default();
            let number = self.places.len();
            self.places.push(place);
            region.old.push(number);
            let content = self.content(number)?;
            self.add(&mut region, content)?;
            done.push(region);
        }
        if let Some(last) = done.last_mut() {
            self.finish(last)?;
        }
        let mut edits = Vec::new();
        for region in done {
            edits.extend(self.replacements(region)?);
        }
        Ok(edits)
    }

    /// Whether the chunk at `path` directly follows a region.
    fn follows(&self, region: &PlaceRegion, path: &[bool]) -> bool {
        let last = region.old.last().and_then(|last| self.places.get(*last));
        last.is_some_and(|last| follows(&last.path, path))
    }

    fn entries_of(&self, number: usize) -> Result<Vec<PlacedHash>, WitnessFault> {
        let Some(TouchedPlace { path, changes }) = self.places.get(number) else {
            return Ok(Vec::new());
        };
        let hashes = self.work.chunk(self.top, path)?.entries_after(changes)?;
        Ok(hashes.into_iter().map(|hash| PlacedHash { hash, of: number }).collect())
    }

    /// The content of the range of a touched chunk.
    fn content(&self, number: usize) -> Result<RangeContent, WitnessFault> {
        let Some(TouchedPlace { path, changes }) = self.places.get(number) else {
            return Ok(RangeContent::Entries(Vec::new()));
        };
        let count = |of: fn(&PositionChange) -> bool| changes.iter().filter(|c| of(c)).count();
        let (gone, new) = (count(|c| c.removes), count(|c| c.adds.is_some()));
        let before = self.work.chunk(self.top, path)?.count;
        let after = (before + new).saturating_sub(gone);
        let is_in_place = !changes.iter().any(PositionChange::moves);
        match is_in_place || self.most.holds(after) {
            true => Ok(RangeContent::Stays(number)),
            false => Ok(RangeContent::Entries(self.entries_of(number)?)),
        }
    }

    fn entries(&self, content: RangeContent) -> Result<Vec<PlacedHash>, WitnessFault> {
        match content {
            RangeContent::Stays(number) => self.entries_of(number),
            RangeContent::Entries(entries) => Ok(entries),
        }
    }

    /// Adds a chunk that the block does not touch.
    fn neighbour(&mut self, of: usize, is_next: bool) -> Result<Option<usize>, WitnessFault> {
        let Some(place) = self.places.get(of) else { return Ok(None) };
        let path = self.work.neighbour(self.top, &place.path, is_next)?;
        Ok(path.map(|path| {
            self.places.push(TouchedPlace { path, changes: Vec::new() });
            self.places.len() - 1
        }))
    }

    /// Adds the content of the region's last old chunk.
    fn add(&mut self, region: &mut PlaceRegion, content: RangeContent) -> Result<(), WitnessFault> {
        if matches!(&content, RangeContent::Entries(run) if run.is_empty()) {
            return Ok(());
        }
        // The first chunk of all waits for its right neighbour.
        if let Some(waiting) = region.new.pop_if(|last| self.is_out_of_bounds(last)) {
            let mut run = self.entries(waiting)?;
            run.extend(self.entries(content)?);
            self.put(region, &run);
            return Ok(());
        }
        let run = match content {
            RangeContent::Entries(run) if !self.most.holds(run.len()) => run,
            sound => {
                region.new.push(sound);
                return Ok(());
            }
        };
        let left = match region.new.pop() {
            Some(left) => Some(self.entries(left)?),
            None => {
                let first = region.old.first().copied();
                let left = first.map(|first| self.neighbour(first, false)).transpose()?.flatten();
                left.map(|left| {
                    region.old.insert(0, left);
                    self.entries_of(left)
                })
                .transpose()?
            }
        };
        match left {
            None => region.new.push(RangeContent::Entries(run)),
            Some(mut left) => {
                left.extend(run);
                self.put(region, &left);
            }
        }
        Ok(())
    }

    /// Cuts entries into chunks and adds these. Too few entries become one chunk, which waits.
    fn put(&self, region: &mut PlaceRegion, run: &[PlacedHash]) {
        let chunks = self.most.cut(run).into_iter();
        region.new.extend(chunks.map(|chunk| RangeContent::Entries(chunk.to_vec())));
    }

    /// Merges a chunk that still waits with its right neighbour, if there is one.
    fn finish(&mut self, region: &mut PlaceRegion) -> Result<(), WitnessFault> {
        let Some(waiting) = region.new.pop_if(|last| self.is_out_of_bounds(last)) else {
            return Ok(());
        };
        let mut run = self.entries(waiting)?;
        let last = region.old.last().copied();
        let right = last.map(|last| self.neighbour(last, true)).transpose()?.flatten();
        if let Some(right) = right {
            run.extend(self.entries_of(right)?);
            region.old.push(right);
        }
        self.put(region, &run);
        Ok(())
    }

    fn is_out_of_bounds(&self, content: &RangeContent) -> bool {
        matches!(content, RangeContent::Entries(run) if !self.most.holds(run.len()))
    }

    /// What comes in place of the old chunks of a region: a new chunk in place of the one in whose
    /// range it begins.
    fn replacements(
        &self,
        region: PlaceRegion,
    ) -> Result<Vec<ChunkReplacement<O::Handle>>, WitnessFault> {
        let path = |number: &usize| -> NodePath {
            self.places.get(*number).map(|place| place.path.clone()).unwrap_or_default()
        };
        let mut edits: Vec<ChunkReplacement<O::Handle>> = region
            .old
            .iter()
            .map(|number| ChunkReplacement { path: path(number), new: Vec::new() })
            .collect();
        for content in region.new {
            let (of, node) = match content {
                RangeContent::Stays(number) => (number, self.changed(number)?),
                RangeContent::Entries(run) => {
                    let Some(first) = run.first() else { continue };
                    let hashes: Vec<B256> = run.iter().map(|entry| entry.hash).collect();
                    (first.of, Some(new_chunk(&hashes)))
                }
            };
            let at = region.old.iter().position(|old| *old == of);
            if let Some(edit) = at.and_then(|at| edits.get_mut(at)) {
                edit.new.extend(node);
            }
        }
        Ok(edits)
    }

    /// A chunk that stays, after the block.
    fn changed(&self, number: usize) -> Result<Option<NodePtr<O::Handle>>, WitnessFault> {
        let Some(TouchedPlace { path, changes }) = self.places.get(number) else { return Ok(None) };
        let chunk = self.work.chunk(self.top, path)?.after(changes)?;
        Ok(Some(PartialNode::chunk(chunk)))
    }
}

/// Whether the chunk at the path `next` directly follows the chunk at `path`.
fn follows(path: &[bool], next: &[bool]) -> bool {
    let common = path.iter().zip(next).take_while(|(a, b)| a == b).count();
    let is_last = |rest: &[bool]| {
        rest.split_first().is_some_and(|(turn, rest)| !turn && rest.iter().all(|turn| *turn))
    };
    let is_first = |rest: &[bool]| {
        rest.split_first().is_some_and(|(turn, rest)| *turn && rest.iter().all(|turn| !turn))
    };
    is_last(&path[common..]) && is_first(&next[common..])
}
