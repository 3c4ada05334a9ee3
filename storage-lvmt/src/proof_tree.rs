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
//! The trees of the sub-AMTs: `sub_trees`.

use crate::{
    amt,
    cache::SharedArray,
    entries::{NodeEntries, PausePoint, root_entries},
    hash,
    params::LvmtParams,
    point::{G1Point, sum},
    second_level::{LevelArray, StoredLevel},
    shard::ProofShard,
};
use retrie_state::{ApplyContext, BackgroundJob, JobHandle, NodeRead, StateError};
use std::sync::{Arc, OnceLock, Weak};

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
    nodes: Vec<u32>,
    /// Pairs of an index into `nodes` and a point to add.
    pub(crate) terms: Vec<(u32, G1Point)>,
}

impl TreeGrowth {
    /// The points of `nodes` before the block.
    pub(crate) fn old(&self) -> impl Iterator<Item = G1Point> {
        self.nodes.iter().map(|node| *self.base.get(*node as usize))
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
        let mut below = NodeEntries::default();
        let way = |entry: &u16| {
            // The deepest of these nodes tells whether the entry is in the shard.
            let upper = (0..u32::from(depths)).map(|depth| node(depth, *entry));
            let Some(mut way) = upper.collect::<Option<Vec<G1Point>>>() else { return Ok(None) };
            if depths < height {
                way.extend(below.open(params, depths, (*entry).into(), |range| {
                    root_entries(height, view, second, range, &|| Ok(()))
                })?);
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
    pause: PausePoint<'_>,
) -> Result<Vec<G1Point>, StateError> {
    let height = params.height();
    let entries = root_entries(height, view, second, 0..1 << height, pause)?;
    amt::proof_tree(params, &entries, bits, prefix, &mut || pause())
}
