//! The upper parts of the proof trees of the second level's sub-AMTs (paper, section 3.3), as far
//! as the proof shard needs them.
//!
//! An opening has one quotient at each depth. The first ones sum up most keys of the sub-AMT, the
//! last ones few. So the first few depths are kept in memory and each block updates them; a proof
//! computes the others from the rows of the entries below the lowest kept node.
//!
//! The trees follow from the state, so they are only in memory. After the store was opened they are
//! made in **pieces** of neighbouring sub-AMTs, lowest first. A job makes a piece, while the blocks
//! record their changes in it. The first block after the job's end adds these changes, and starts
//! the job of the next piece. Each job has a snapshot of its own, so that none is held for long. If
//! few changes came meanwhile, the next piece is larger, if many came, smaller.
//!
//! Until its piece is there, and for older blocks, a sub-AMT is opened from all its entries.

use crate::{
    amt,
    entries::{PausePoint, sub_entries},
    hash,
    params::LvmtParams,
    point::G1Point,
    second_level::VersionRise,
    shard::ProofShard,
    state_array::StateArray,
};
use retrie_state::{ApplyContext, BackgroundJob, JobHandle, NodeRead, StateError};
use std::{ops::Range, sync::Arc};

/// Depths that are kept if the shard has all sub-AMTs: 15 points for each. A shard with half as
/// many keeps one more, up to [`MOST_DEPTHS`].
const DEPTHS: u8 = 4;
/// 255 points for each sub-AMT.
const MOST_DEPTHS: u8 = 8;

/// The work of the first piece, in keys for each entry of the root AMT: about two seconds at height
/// 16.
const FIRST_WORK: u64 = 4;
/// The largest work of a piece, likewise. The time of a job bounds how long its snapshot keeps the
/// store from reusing pages.
const MOST_WORK: u64 = 128;
/// The work for a sub-AMT beside its keys.
const AMT_WORK: u64 = 8;
/// The next piece is larger if fewer changes came during a job.
const FEW_RISES: usize = 1 << 10;
/// The next piece is smaller if more changes came during a job: one block adds them all.
const MANY_RISES: usize = 1 << 13;
/// A job is abandoned after this number of changes.
const MAX_RISES: usize = 1 << 15;

/// Changes of several blocks that are recorded together at most.
const RISES_TOGETHER: usize = 256;

/// Entries that a job sums up at a time, and nodes.
const AT_ONCE: usize = 1 << 12;

/// Keys of a large block, for the [bound of memory](SubAmtTrees::bytes).
const BLOCK_KEYS: u64 = 1 << 14;

/// The upper trees at one block.
#[derive(Clone)]
pub(crate) struct SubAmtTrees {
    shape: TreesShape,
    /// Without gaps, from the first sub-AMT of the shard on.
    pieces: Vec<TreePiece>,
    /// The job that makes the next piece.
    due: Option<DuePiece>,
    /// The work of the next piece, in keys.
    work: u64,
}

/// The sub-AMTs and the nodes that a shard has. The **place** of a node counts all nodes of the
/// shard, sub-AMT by sub-AMT.
#[derive(Clone, Copy)]
struct TreesShape {
    height: u8,
    depths: u8,
    /// Entries of the root AMT above the first sub-AMT, and above the one after the last.
    first: u32,
    end: u32,
}

/// The trees of some neighbouring sub-AMTs.
#[derive(Clone)]
struct TreePiece {
    /// By their entries in the root AMT.
    amts: Range<u32>,
    nodes: StateArray<G1Point>,
}

/// A piece that is being made.
#[derive(Clone)]
struct DuePiece {
    amts: Range<u32>,
    /// Makes the piece as it is after some block.
    job: JobHandle,
    /// The changes of the blocks since that block, in these sub-AMTs, a few blocks together.
    since: Vec<Arc<[VersionRise<u16>]>>,
    /// The number of these changes.
    rises: usize,
}

/// The points that a block adds to the nodes of the trees.
pub(crate) struct SubTreeGrowth {
    shape: TreesShape,
    /// The pieces before the block, with the one that is ready now.
    pieces: Vec<TreePiece>,
    is_piece_new: bool,
    /// The places of the nodes that change, ascending.
    places: Vec<u32>,
    /// Pairs of an index into `places` and a point to add.
    pub(crate) terms: Vec<(u32, G1Point)>,
}

impl TreesShape {
    /// `None` if there is nothing to keep.
    fn new(height: u8, shard: ProofShard) -> Option<Self> {
        let (bits, index) = shard.prefix()?;
        // At least the lowest depth is always computed from rows.
        let depths = MOST_DEPTHS.min(DEPTHS + bits as u8).min(height - 1);
        let amts = u32::from(height) - bits;
        let shape = Self { height, depths, first: index << amts, end: (index + 1) << amts };
        (depths > 0).then_some(shape)
    }

    /// The number of nodes of a tree.
    const fn nodes(&self) -> u32 {
        amt::node_count(self.depths, 0) as u32
    }

    /// The place of the first node of the sub-AMT below an entry of the root AMT.
    const fn place(&self, amt: u32) -> u32 {
        (amt - self.first) * self.nodes()
    }

    /// The node at a place.
    fn node(&self, pieces: &[TreePiece], place: u32) -> G1Point {
        let amt = self.first + place / self.nodes();
        let piece = &pieces[pieces.partition_point(|piece| piece.amts.end <= amt)];
        piece.nodes.get(place - self.place(piece.amts.start))
    }

    /// The first sub-AMT after `pieces`.
    fn next(&self, pieces: &[TreePiece]) -> u32 {
        pieces.last().map_or(self.first, |piece| piece.amts.end)
    }
}

impl DuePiece {
    /// The piece, as it was before the changes `since`.
    fn finished(&self) -> Option<TreePiece> {
        let nodes = self.job.output()?.downcast::<StateArray<G1Point>>().ok()?;
        Some(TreePiece { amts: self.amts.clone(), nodes: StateArray::clone(&nodes) })
    }

    /// Records the changes of a block.
    fn pass(&mut self, rises: &[VersionRise<u16>]) {
        let own = rises.iter().filter(|rise| self.amts.contains(&rise.of.into())).copied();
        let own: Vec<VersionRise<u16>> = own.collect();
        self.rises += own.len();
        // Every state has a copy of the list, so it should be short.
        match self.since.last_mut() {
            Some(last) if last.len() + own.len() <= RISES_TOGETHER => {
                *last = [&last[..], &own].concat().into();
            }
            _ => self.since.push(own.into()),
        }
    }
}

impl SubTreeGrowth {
    /// The points of the changed nodes before the block.
    pub(crate) fn old(&self) -> impl Iterator<Item = G1Point> {
        self.places.iter().map(|place| self.shape.node(&self.pieces, *place))
    }
}

impl SubAmtTrees {
    /// The trees of a state of which only the rows exist. Blocks make them. `None` if the shard
    /// has none.
    pub(crate) fn new(height: u8, shard: ProofShard, is_empty: bool) -> Option<Self> {
        let (shape, work) = (TreesShape::new(height, shard)?, FIRST_WORK << height);
        let pieces = is_empty.then(|| TreePiece {
            amts: shape.first..shape.end,
            nodes: StateArray::new(vec![G1Point::INFINITY; shape.place(shape.end) as usize]),
        });
        Some(Self { shape, pieces: pieces.into_iter().collect(), due: None, work })
    }

    /// The first quotients above `entry` of the sub-AMT below entry `amt` of the root AMT, root
    /// first. `None` if its tree is not there.
    pub(crate) fn upper(&self, amt: u16, entry: u32) -> Option<Vec<G1Point>> {
        let TreesShape { height, depths, first, .. } = self.shape;
        let amt = u32::from(amt);
        (first..self.shape.next(&self.pieces)).contains(&amt).then(|| {
            let tree = self.shape.place(amt);
            let place = |depth| tree + amt::upper_node(height, depth, entry);
            (0..depths).map(|depth| self.shape.node(&self.pieces, place(depth))).collect()
        })
    }

    /// The points that the next block adds with `rises`, by the sub-AMTs' entries in the root AMT.
    pub(crate) fn growth(&self, params: &LvmtParams, rises: &[VersionRise<u16>]) -> SubTreeGrowth {
        let TreesShape { height, depths, first, .. } = self.shape;
        let mut pieces = self.pieces.clone();
        let finished = self.due.as_ref().and_then(DuePiece::finished);
        let is_piece_new = finished.is_some();
        pieces.extend(finished);
        let amts = first..self.shape.next(&pieces);
        let since = self.due.iter().filter(|_| is_piece_new).flat_map(|due| &due.since);
        let rises = since.flat_map(|rises| &rises[..]).chain(rises);
        let rises = rises.filter(|rise| amts.contains(&rise.of.into()));
        let mut additions: Vec<(u32, &G1Point)> = rises
            .flat_map(|rise| {
                let (tree, entry) = (self.shape.place(rise.of.into()), rise.entry.into());
                let points = params.quotient_increments(entry, rise.slot.into());
                let place = move |depth| tree + amt::upper_node(height, depth, entry);
                (0..depths).zip(points).map(move |(depth, point)| (place(depth), point))
            })
            .collect();
        additions.sort_unstable_by_key(|(place, _)| *place);
        let (mut places, mut terms) = (Vec::new(), Vec::with_capacity(additions.len()));
        for (place, point) in additions {
            if places.last() != Some(&place) {
                places.push(place);
            }
            terms.push((places.len() as u32 - 1, *point));
        }
        SubTreeGrowth { shape: self.shape, pieces, is_piece_new, places, terms }
    }

    /// The trees after `growth`; `points` are the new values of the changed nodes. If no job is
    /// under way, a job starts that makes the next piece as it is after the parent, whose state is
    /// in `view` below the block's own writes and has `keys` keys.
    pub(crate) fn child(
        &self,
        params: &Arc<LvmtParams>,
        (growth, points): (SubTreeGrowth, &[G1Point]),
        rises: &[VersionRise<u16>],
        keys: u64,
        context: &ApplyContext<'_>,
        view: &dyn NodeRead,
    ) -> Self {
        let SubTreeGrowth { mut pieces, is_piece_new, places, .. } = growth;
        let mut changed = places.into_iter().zip(points).peekable();
        for TreePiece { amts, nodes } in &mut pieces {
            let (start, end) = (self.shape.place(amts.start), self.shape.place(amts.end));
            let mut items = Vec::new();
            while let Some((place, point)) = changed.next_if(|(place, _)| *place < end) {
                items.push((place - start, *point));
            }
            *nodes = nodes.child(items);
        }
        let mut work = self.work;
        let mut due = match &self.due {
            Some(due) if is_piece_new => {
                work = match due.rises {
                    ..FEW_RISES => work * 2,
                    FEW_RISES..MANY_RISES => work,
                    _ => work / 2,
                };
                None
            }
            Some(due) if due.job.has_failed() => None,
            Some(due) if due.rises > MAX_RISES => {
                work /= 4;
                None
            }
            due => due.clone(),
        };
        work = work.clamp(1, MOST_WORK << self.shape.height);
        if due.is_none() {
            due = self.start(self.shape.next(&pieces), params, (work, keys), context, view);
        }
        if let Some(due) = &mut due {
            due.pass(rises);
        }
        Self { shape: self.shape, pieces, due, work }
    }

    /// Starts the job of the piece that begins at `first`; `None` if there is none left.
    fn start(
        &self,
        first: u32,
        params: &Arc<LvmtParams>,
        (work, keys): (u64, u64),
        context: &ApplyContext<'_>,
        view: &dyn NodeRead,
    ) -> Option<DuePiece> {
        let TreesShape { height, depths, end, .. } = self.shape;
        if first == end {
            return None;
        }
        // A full root AMT has five keys in each entry; the others are evenly spread over the
        // sub-AMTs.
        let each = (keys >> height).saturating_sub(amt::SLOTS as u64 - 1) + AMT_WORK;
        let amts = first..first + (work / each).clamp(1, u64::from(end - first)) as u32;
        let (params, view, of) = (params.clone(), view.detach()?, amts.clone());
        let range = [amts.start, amts.end].map(u32::to_be_bytes);
        let id = hash::parts(&[b"lvmt sub-trees", range.as_flattened(), &context.parent_root[..]]);
        let job = BackgroundJob::new(id, "lvmt proof trees of sub-AMTs", move |context| {
            let nodes = make(&params, depths, &*view, of.clone(), &|| context.pause_point())?;
            Ok(Arc::new(StateArray::new(nodes)))
        });
        let job = context.jobs.start(job);
        Some(DuePiece { amts, job, since: Vec::new(), rises: 0 })
    }

    /// Bytes of the trees of `count` states at most, if each differs from another in a large block.
    pub(crate) fn bytes(height: u8, shard: ProofShard, count: u64) -> u64 {
        let Some(shape) = TreesShape::new(height, shard) else { return 0 };
        let nodes = u64::from(shape.place(shape.end));
        let changed = nodes.min(u64::from(shape.depths) * BLOCK_KEYS);
        StateArray::<G1Point>::bytes(nodes)
            + count * StateArray::<G1Point>::difference_bytes(changed)
    }
}

/// The nodes of the sub-AMTs below the entries `amts` of the root AMT.
fn make(
    params: &LvmtParams,
    depths: u8,
    view: &dyn NodeRead,
    amts: Range<u32>,
    pause: PausePoint<'_>,
) -> Result<Vec<G1Point>, StateError> {
    let (height, each) = (params.height(), amt::node_count(depths, 0));
    let mut nodes = Vec::with_capacity(amts.len() * each);
    let (mut group, mut entries) = (Vec::new(), 0);
    for amt in amts.clone() {
        // The height is at most 16, so an entry has at most 16 bits.
        let of_amt = sub_entries(height, view, &[amt as u16], 0..1 << height, pause)?;
        entries += of_amt.len();
        group.push(of_amt);
        if entries >= AT_ONCE || group.len() * each >= AT_ONCE || amt + 1 == amts.end {
            nodes.extend(amt::upper_trees(params, &group, depths, &mut || pause())?);
            pause()?;
            group.clear();
            entries = 0;
        }
    }
    Ok(nodes)
}
