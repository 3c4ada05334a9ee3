//! The root AMT's proof tree, as far as the proof shard needs it.
//!
//! The tree follows from the state, so it is only in memory. The first block after the store was
//! opened starts a job that makes it: some seconds of one thread at height 16, for any size of the
//! state, because the root AMT has 65,536 entries. Blocks that come meanwhile are recorded, and
//! their changes are added afterwards. From then on each block updates the tree. A proof that is
//! requested before the tree is ready makes it itself.
//!
//! For older blocks the lowest nodes are dropped. They are most of the tree, and most of them
//! change from block to block. There are few versions below each of them, so a proof computes those
//! on its path from rows.
//!
//! Sub-AMTs need no tree: they are sparse, and [`amt::open_sparse`] computes an opening from their
//! few entries.

use crate::{
    amt,
    cache::SharedArray,
    hash,
    params::LvmtParams,
    point::{G1Point, sum},
    record::{
        AMTS, KEYS, KeyRecord, RowKey, SLOTS, SubAmt, amts_below, check_path, corrupt,
        read_amt_key, read_slot_key, slots_of_amt,
    },
    second_level::{LevelArray, StoredLevel},
    shard::ProofShard,
};
use alloy_primitives::B256;
use retrie_state::{
    ApplyContext, BackendKey, BackgroundJob, JobHandle, KeyRange, NodeRead, ScanDirection,
    StateError, prefix_end,
};
use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, OnceLock, Weak},
};

/// The six versions of an entry: of its sub-AMT, then of its keys.
pub(crate) type EntryVersions = [u64; 6];

/// A version of the root AMT that rose by one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RootRise {
    pub(crate) entry: u16,
    pub(crate) slot: u8,
}

/// The proof tree of a shard at one block.
#[derive(Clone)]
pub(crate) struct ProofTree {
    bits: u32,
    prefix: u32,
    nodes: TreeNodes,
    /// The job that computes the compacted trees of the blocks that came before this tree was ready.
    past: Option<JobHandle>,
}

#[derive(Clone)]
enum TreeNodes {
    Ready(SharedArray<G1Point>),
    /// The tree is not ready.
    Due {
        /// The job that makes the tree of an earlier block.
        job: Option<JobHandle>,
        /// The blocks since that block.
        since: Vec<PassedBlock>,
        /// The tree of this block, if a proof has made it meanwhile.
        made: Arc<OnceLock<LateTree>>,
        /// If at most this number of blocks came since, a block adds their changes itself; for more
        /// it starts another job. The number doubles with each job, so that catching up ends
        /// however fast blocks come.
        at_once: usize,
    },
    /// The tree of an older block, without the lowest [`DROPPED_DEPTHS`] depths, once it is made.
    Old(Arc<OnceLock<LateTree>>),
}

/// A tree that was made later than its block.
struct LateTree {
    nodes: SharedArray<G1Point>,
    /// The number of depths it has, from the root on.
    depths: u8,
}

/// A block that came while the tree was being made.
#[derive(Clone)]
struct PassedBlock {
    bumps: Arc<[RootRise]>,
    /// The cell of the block's own tree, as long as the block's structure exists.
    made: Weak<OnceLock<LateTree>>,
}

/// The number of lowest depths whose nodes are dropped for older blocks: seven eighths of all
/// nodes. There are eight entries below the highest of them.
const DROPPED_DEPTHS: u8 = 3;

/// The initial number of blocks whose changes a block adds itself.
const AT_ONCE: usize = 4;

/// A job that takes longer than this number of blocks is abandoned, and a new job starts at a later
/// block.
const MAX_PASSED_BLOCKS: usize = 4096;

/// The points that a block adds to the nodes of a tree.
pub(crate) struct TreeGrowth {
    base: SharedArray<G1Point>,
    /// The nodes that change, in the order of their first change.
    pub(crate) nodes: Vec<u32>,
    /// Pairs of an index into `nodes` and a point to add.
    pub(crate) terms: Vec<(u32, G1Point)>,
}

impl TreeGrowth {
    /// The point of node `node` before the block.
    pub(crate) fn base(&self, node: u32) -> &G1Point {
        self.base.get(node as usize)
    }
}

impl ProofTree {
    /// The tree of a state of which only the rows exist. The first block or proof makes it.
    pub(crate) fn new(height: u8, shard: ProofShard, is_empty: bool) -> Option<Self> {
        let (bits, prefix) = shard.prefix()?;
        let nodes = if is_empty {
            TreeNodes::Ready(SharedArray::new(amt::node_count(height, bits), G1Point::INFINITY))
        } else {
            TreeNodes::Due { job: None, since: Vec::new(), made: Arc::default(), at_once: AT_ONCE }
        };
        Some(Self { bits, prefix, nodes, past: None })
    }

    /// The same tree without its lowest nodes.
    pub(crate) fn compacted(&self, height: u8) -> Self {
        let upper =
            |nodes: &SharedArray<G1Point>| Arc::new(OnceLock::from(self.upper(height, nodes)));
        let made = match &self.nodes {
            TreeNodes::Ready(nodes) => upper(nodes),
            TreeNodes::Due { made, .. } => match made.get() {
                Some(made) if made.depths == height => upper(&made.nodes),
                // `catch_up` will store it, without its lowest nodes.
                _ => made.clone(),
            },
            TreeNodes::Old(made) => made.clone(),
        };
        Self { nodes: TreeNodes::Old(made), past: None, ..*self }
    }

    fn upper(&self, height: u8, nodes: &SharedArray<G1Point>) -> LateTree {
        let depths = upper_depths(height, self.bits);
        LateTree { nodes: nodes.prefix(amt::node_count(depths, self.bits)), depths }
    }

    /// Bytes that a [compacted](Self::compacted) tree of this shard takes at most.
    pub(crate) fn compacted_bytes(height: u8, shard: ProofShard) -> u64 {
        let nodes =
            shard.prefix().map_or(0, |(bits, _)| amt::node_count(upper_depths(height, bits), bits));
        SharedArray::<G1Point>::bytes(nodes)
    }

    /// The points that the next block adds with `bumps`; `None` while the tree is being made.
    pub(crate) fn growth(&self, params: &LvmtParams, bumps: &[RootRise]) -> Option<TreeGrowth> {
        let (base, earlier) = match &self.nodes {
            TreeNodes::Ready(nodes) => (nodes.clone(), &[][..]),
            // The tree must be made again. Only a deep reorganisation builds on an old block.
            TreeNodes::Old(_) => return None,
            TreeNodes::Due { job, since, made, at_once } => match made.get() {
                Some(made) if made.depths == params.height() => (made.nodes.clone(), &[][..]),
                _ if since.len() > *at_once => return None,
                _ => (SharedArray::from_slice(&finished(job)?, G1Point::INFINITY), &since[..]),
            },
        };
        let mut at = vec![u32::MAX; amt::node_count(params.height(), self.bits)];
        let mut growth = TreeGrowth { base, nodes: Vec::new(), terms: Vec::new() };
        for bump in earlier.iter().flat_map(|passed| &passed.bumps[..]).chain(bumps) {
            for (node, add) in additions(params, self.bits, self.prefix, *bump) {
                if at[node] == u32::MAX {
                    at[node] = growth.nodes.len() as u32;
                    growth.nodes.push(node as u32);
                }
                growth.terms.push((at[node], *add));
            }
        }
        Some(growth)
    }

    /// The tree after `growth`; `points` are the new values of the changed nodes. While the tree is
    /// being made, the result only records `bumps`. If no job is under way, a job starts that makes
    /// the tree of the parent, whose state is in `view` below the block's own writes.
    pub(crate) fn child(
        &self,
        params: &Arc<LvmtParams>,
        growth: Option<(TreeGrowth, &[G1Point])>,
        bumps: Vec<RootRise>,
        context: &ApplyContext<'_>,
        view: &dyn NodeRead,
    ) -> Self {
        let is_under_way = |job: &&JobHandle| job.output().is_none() && !job.has_failed();
        let mut past = self.past.as_ref().filter(is_under_way).cloned();
        let passed = |bumps: Vec<RootRise>, made: &Arc<_>| PassedBlock {
            bumps: bumps.into(),
            made: Arc::downgrade(made),
        };
        let nodes = match (growth, &self.nodes) {
            (Some((growth, points)), nodes) => {
                if let TreeNodes::Due { job, since, .. } = nodes
                    && !since.is_empty()
                    && let Some(nodes) = finished(job)
                {
                    let name = "lvmt proof trees passed";
                    past = Some(self.catch_up(name, params, nodes, since, context));
                }
                let mut nodes = growth.base;
                for (node, point) in growth.nodes.iter().zip(points) {
                    nodes.set(*node as usize, *point);
                }
                TreeNodes::Ready(nodes)
            }
            (None, TreeNodes::Due { job, since, at_once, made: of_parent }) => {
                let mut at_once = *at_once;
                let has_failed = job.as_ref().is_none_or(JobHandle::has_failed);
                let (job, mut since) = match finished(job) {
                    Some(nodes) => {
                        at_once *= 2;
                        let name = "lvmt proof tree, caught up";
                        (Some(self.catch_up(name, params, nodes, since, context)), Vec::new())
                    }
                    None if has_failed || since.len() > MAX_PASSED_BLOCKS => {
                        (self.start(params, of_parent, context, view), Vec::new())
                    }
                    None => (job.clone(), since.clone()),
                };
                let made = Arc::default();
                since.push(passed(bumps, &made));
                TreeNodes::Due { job, since, made, at_once }
            }
            (None, TreeNodes::Old(of_parent)) => {
                let (job, made) = (self.start(params, of_parent, context, view), Arc::default());
                TreeNodes::Due { job, since: vec![passed(bumps, &made)], made, at_once: AT_ONCE }
            }
            // `growth` is never `None` for a tree that is ready.
            (None, TreeNodes::Ready(nodes)) => TreeNodes::Ready(nodes.clone()),
        };
        Self { nodes, past, ..*self }
    }

    /// Starts a job that makes the tree of the parent. The job also stores it in `of_parent`.
    fn start(
        &self,
        params: &Arc<LvmtParams>,
        of_parent: &Arc<OnceLock<LateTree>>,
        context: &ApplyContext<'_>,
        view: &dyn NodeRead,
    ) -> Option<JobHandle> {
        let (params, view, of_parent) = (params.clone(), view.detach()?, Arc::downgrade(of_parent));
        let tree = Self { nodes: TreeNodes::Old(Arc::default()), past: None, ..*self };
        let id = hash::parts(&[b"lvmt proof tree", &context.parent_root[..]]);
        Some(context.jobs.start(BackgroundJob::new(id, "lvmt proof tree", move |context| {
            let pause = || context.pause_point();
            let second = LevelArray::new(StoredLevel::read(&*view, params.height())?.amts);
            let nodes = make(&params, tree.bits, tree.prefix, &*view, &second, &pause)?;
            if let Some(made) = of_parent.upgrade() {
                let nodes = SharedArray::from_slice(&nodes, G1Point::INFINITY);
                let _ = made.set(tree.upper(params.height(), &nodes));
            }
            Ok(Arc::new(nodes))
        })))
    }

    /// Starts a job that adds the changes of the blocks `since` to `nodes`; the result is the tree
    /// of the parent. The job also stores the compacted tree of each of these blocks.
    fn catch_up(
        &self,
        name: &'static str,
        params: &Arc<LvmtParams>,
        nodes: Arc<Vec<G1Point>>,
        since: &[PassedBlock],
        context: &ApplyContext<'_>,
    ) -> JobHandle {
        let (params, since, bits, prefix) =
            (params.clone(), since.to_vec(), self.bits, self.prefix);
        let id = hash::parts(&[name.as_bytes(), &context.parent_root[..]]);
        context.jobs.start(BackgroundJob::new(id, name, move |context| {
            let depths = upper_depths(params.height(), bits);
            let kept = amt::node_count(depths, bits);
            let mut nodes = nodes.to_vec();
            let mut upper = SharedArray::from_slice(&nodes[..kept], G1Point::INFINITY);
            for PassedBlock { bumps, made } in &since {
                context.pause_point()?;
                let add = |bump: &RootRise| {
                    let additions = additions(&params, bits, prefix, *bump);
                    additions.map(|(node, add)| (node as u32, *add)).collect::<Vec<_>>()
                };
                let mut terms: Vec<(u32, G1Point)> = bumps.iter().flat_map(add).collect();
                let mut changed: Vec<usize> =
                    terms.iter().map(|(node, _)| *node as usize).collect();
                sum(&mut nodes, &mut terms);
                changed.retain(|node| *node < kept);
                changed.into_iter().for_each(|node| upper.set(node, nodes[node]));
                if let Some(made) = made.upgrade() {
                    let _ = made.set(LateTree { nodes: upper.clone(), depths });
                }
            }
            Ok(Arc::new(nodes))
        }))
    }

    /// The quotients on the paths of `entries` (ascending), root first; `None` for an entry outside
    /// of the shard. If the tree does not exist yet, the function makes it from the state that
    /// `view` shows, with this second level.
    pub(crate) fn quotients(
        &self,
        params: &LvmtParams,
        view: &dyn NodeRead,
        second: &LevelArray,
        entries: &[u16],
    ) -> Result<Vec<Option<Vec<G1Point>>>, StateError> {
        let height = params.height();
        let whole = || make(params, self.bits, self.prefix, view, second, &|| Ok(()));
        let (nodes, depths) = match &self.nodes {
            TreeNodes::Ready(nodes) => (nodes, height),
            TreeNodes::Due { made, .. } => {
                let made = match made.get() {
                    Some(made) => made,
                    None => {
                        let nodes = SharedArray::from_slice(&whole()?, G1Point::INFINITY);
                        made.get_or_init(|| LateTree { nodes, depths: height })
                    }
                };
                (&made.nodes, made.depths)
            }
            TreeNodes::Old(made) => {
                let made = match made.get() {
                    Some(made) => made,
                    None => {
                        let nodes = SharedArray::from_slice(&whole()?, G1Point::INFINITY);
                        made.get_or_init(|| self.upper(height, &nodes))
                    }
                };
                (&made.nodes, made.depths)
            }
        };
        let node = |depth, entry: u16| {
            let index = amt::node_index(height, self.bits, self.prefix, depth, entry.into())?;
            Some(*nodes.get(index))
        };
        // The node whose entries were read last: its first entry, and the entries below it.
        let mut below: Option<(u32, Vec<(u32, EntryVersions)>)> = None;
        let way = |entry: &u16| {
            // The deepest of these nodes tells whether the entry is in the shard.
            let upper = (0..u32::from(depths)).map(|depth| node(depth, *entry));
            let Some(mut way) = upper.collect::<Option<Vec<G1Point>>>() else { return Ok(None) };
            if depths < height {
                let entry = u32::from(*entry);
                let first = entry >> (height - depths) << (height - depths);
                let (_, entries) = match below.take() {
                    Some(below) if below.0 == first => below,
                    _ => {
                        let range = first..first + (1 << (height - depths));
                        (first, entries_in(height, view, second, &[], range, &|| Ok(()))?)
                    }
                };
                way.extend(amt::open_sparse(params, &entries, entry, depths));
                below = Some((first, entries));
            }
            Ok(Some(way))
        };
        entries.iter().map(way).collect()
    }
}

/// The number of depths whose nodes are kept for older blocks: all but the lowest, and at least the
/// depths that tell whether an entry is in the shard.
fn upper_depths(height: u8, bits: u32) -> u8 {
    height.saturating_sub(DROPPED_DEPTHS).max((bits + 1).min(height.into()) as u8)
}

/// The output of a job that has finished.
fn finished(job: &Option<JobHandle>) -> Option<Arc<Vec<G1Point>>> {
    job.as_ref()?.output()?.downcast().ok()
}

/// The nodes of a shard's tree that `bump` changes, and the points to add.
fn additions(
    params: &LvmtParams,
    bits: u32,
    prefix: u32,
    bump: RootRise,
) -> impl Iterator<Item = (usize, &G1Point)> {
    let (height, entry) = (params.height(), u32::from(bump.entry));
    let increments = params.quotient_increments(entry, bump.slot.into());
    // All nodes below the first node outside of the shard are outside, too.
    (0..).zip(increments).map_while(move |(depth, add)| {
        Some((amt::node_index(height, bits, prefix, depth, entry)?, add))
    })
}

fn make(
    params: &LvmtParams,
    bits: u32,
    prefix: u32,
    view: &dyn NodeRead,
    second: &LevelArray,
    pause: &dyn Fn() -> Result<(), StateError>,
) -> Result<Vec<G1Point>, StateError> {
    let entries = entries_of(params.height(), view, second, &[], pause)?;
    amt::proof_tree(params, &entries, bits, prefix, &mut || pause())
}

/// The entries of the AMT at the path `way` that are not zero, in order, in a state with this
/// second level.
pub(crate) fn entries_of(
    height: u8,
    view: &dyn NodeRead,
    second: &LevelArray,
    way: &[u16],
    pause: &dyn Fn() -> Result<(), StateError>,
) -> Result<Vec<(u32, EntryVersions)>, StateError> {
    entries_in(height, view, second, way, 0..1 << height, pause)
}

/// The entries of the AMT at the path `way` that are in `range` and not zero, in order.
fn entries_in(
    height: u8,
    view: &dyn NodeRead,
    second: &LevelArray,
    way: &[u16],
    range: Range<u32>,
    pause: &dyn Fn() -> Result<(), StateError>,
) -> Result<Vec<(u32, EntryVersions)>, StateError> {
    let mut entries = BTreeMap::<u32, EntryVersions>::new();
    let bounds = |of_amt: RowKey| {
        let entry =
            |entry: u32| Some([&of_amt[..], &u16::try_from(entry).ok()?.to_be_bytes()].concat());
        let is_whole = range == (0..1 << height);
        let start = if is_whole { None } else { entry(range.start) };
        let end = if is_whole { None } else { entry(range.end) };
        (start.unwrap_or_else(|| of_amt.to_vec()), end.or_else(|| prefix_end(&of_amt)))
    };
    let (start, end) = bounds(slots_of_amt(way));
    let rows = KeyRange { start: &start, end: end.as_deref() };
    for (n, row) in view.scan(SLOTS, rows, ScanDirection::Forward)?.enumerate() {
        if n % 1024 == 0 {
            pause()?;
        }
        let (key, row) = row?;
        let (way, slot) = read_slot_key(&key)
            .ok_or_else(|| corrupt(SLOTS, format!("row {key} names no slot")))?;
        check_path(height, &way, SLOTS)?;
        let Some((entry, _)) = way.split_last() else { continue };
        let record = occupant(view, &row)?.1;
        entries.entry(entry.into()).or_default()[usize::from(slot)] = record.version;
    }
    if way.is_empty() {
        for entry in range {
            // The height is at most 16, so an entry has at most 16 bits.
            let version = second.get(entry as u16).version;
            if version > 0 {
                entries.entry(entry).or_default()[0] = version;
            }
        }
        return Ok(entries.into_iter().collect());
    }
    let (start, end) = bounds(amts_below(way));
    let rows = KeyRange { start: &start, end: end.as_deref() };
    for row in view.scan(AMTS, rows, ScanDirection::Forward)? {
        let (key, row) = row?;
        let below =
            read_amt_key(&key).ok_or_else(|| corrupt(AMTS, format!("row {key} names no AMT")))?;
        check_path(height, &below, AMTS)?;
        if let Some((entry, _)) = below.split_last() {
            entries.entry(entry.into()).or_default()[0] = SubAmt::decode(&below, &row)?.version;
        }
    }
    Ok(entries.into_iter().collect())
}

/// The key that a row of [`SLOTS`] contains, and the key's record.
pub(crate) fn occupant(
    view: &dyn NodeRead,
    row: &[u8],
) -> Result<(BackendKey, KeyRecord), StateError> {
    let key = BackendKey::decode(row).ok_or_else(|| {
        corrupt(
            SLOTS,
            format!(
                "a row holds {}, which is no state key",
                B256::right_padding_from(&row[..row.len().min(32)])
            ),
        )
    })?;
    let record = view
        .get(KEYS, &key.encode())?
        .ok_or_else(|| corrupt(KEYS, format!("the record of {key} is missing")))?;
    Ok((key, KeyRecord::decode(&key, &record)?))
}
