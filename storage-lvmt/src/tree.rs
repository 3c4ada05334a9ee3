//! The root AMT's proof tree, as far as this node keeps it.
//!
//! It follows from the state, so it is in memory alone: the first block after the store was opened
//! starts a job that makes it (some seconds of one thread at height 16, however large the state: the
//! root AMT has 65,536 entries), and blocks move it on. What blocks do meanwhile is noted and made
//! up for. A proof that is asked for earlier makes it in place.
//!
//! Of older blocks the lowest nodes are given up. They are most of the tree, and change the most from
//! block to block; but few versions are below each, so a proof computes those on its way from the rows.
//!
//! Sub-AMTs need no tree: they are sparse, and an opening of one is computed from its few entries
//! when it is asked for ([`amt::open_sparse`]).

use crate::{
    amt,
    cache::Shared,
    hash,
    params::Params,
    point::{Point, sum},
    record::{
        AMTS, Amt, KEYS, Record, RowKey, SLOTS, amts_below, check_way, corrupt, read_amt_key,
        read_slot_key, slots_of_amt,
    },
    second::{Level, Second},
    shard::ProofShard,
};
use alloy_primitives::B256;
use retrie_state::{
    ApplyContext, Direction, Job, JobHandle, KeyRange, NodeRead, StateError, StateKey, prefix_end,
};
use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, OnceLock, Weak},
};

/// Six versions of an entry: that of its sub-AMT, then those of its keys.
pub(crate) type Versions = [u64; 6];

/// A version of the root AMT that went up by one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bump {
    pub(crate) entry: u16,
    pub(crate) slot: u8,
}

/// The proof tree of a shard at one block.
#[derive(Clone)]
pub(crate) struct ProofTree {
    bits: u32,
    prefix: u32,
    nodes: Nodes,
    /// Under way: what is to be kept of the trees of blocks that came before this one was there.
    past: Option<JobHandle>,
}

#[derive(Clone)]
enum Nodes {
    Ready(Shared<Point>),
    /// Not there yet.
    Due {
        /// Under way: the tree of an earlier block.
        job: Option<JobHandle>,
        /// What has happened since that block.
        since: Vec<Passed>,
        /// The tree of this block, if a proof has asked for it meanwhile.
        made: Arc<OnceLock<Made>>,
        /// So many blocks' worth of changes a block makes up for itself; more are another job.
        /// Doubles with each, so that it comes to an end however fast blocks come.
        at_once: usize,
    },
    /// Of an older block: without the [`LOWEST`] depths, once it is made.
    Old(Arc<OnceLock<Made>>),
}

/// Nodes of a tree that was made later than its block.
struct Made {
    nodes: Shared<Point>,
    /// How many depths, from the root on.
    depths: u8,
}

/// A block that came while the tree was being made.
#[derive(Clone)]
struct Passed {
    bumps: Arc<[Bump]>,
    /// Where its tree is waited for, as long as its structure is there.
    made: Weak<OnceLock<Made>>,
}

/// Depths whose nodes are not kept of older blocks: seven eighths of all nodes. Below the highest of
/// these are eight entries.
const LOWEST: u8 = 3;

/// At first a block makes up for the changes of so many others.
const AT_ONCE: usize = 4;

/// A job that takes longer than so many blocks is given up, and one begun at a later block.
const PATIENCE: usize = 4096;

/// What a block adds to the nodes of a tree.
pub(crate) struct Growth {
    base: Shared<Point>,
    /// The nodes that change, in the order of their first change.
    pub(crate) nodes: Vec<u32>,
    /// Which of `nodes`, and what is added.
    pub(crate) terms: Vec<(u32, Point)>,
}

impl Growth {
    /// Node `node` before the block.
    pub(crate) fn base(&self, node: u32) -> &Point {
        self.base.get(node as usize)
    }
}

impl ProofTree {
    /// The tree of a state that is in the rows only. It is made once a block or a proof asks.
    pub(crate) fn new(height: u8, shard: ProofShard, is_empty: bool) -> Option<Self> {
        let (bits, prefix) = shard.prefix()?;
        let nodes = if is_empty {
            Nodes::Ready(Shared::new(amt::node_count(height, bits), Point::INFINITY))
        } else {
            Nodes::Due { job: None, since: Vec::new(), made: Arc::default(), at_once: AT_ONCE }
        };
        Some(Self { bits, prefix, nodes, past: None })
    }

    /// The same without its lowest nodes.
    pub(crate) fn thinned(&self, height: u8) -> Self {
        let upper = |nodes: &Shared<Point>| Arc::new(OnceLock::from(self.upper(height, nodes)));
        let made = match &self.nodes {
            Nodes::Ready(nodes) => upper(nodes),
            Nodes::Due { made, .. } => match made.get() {
                Some(made) if made.depths == height => upper(&made.nodes),
                // It is made in passing.
                _ => made.clone(),
            },
            Nodes::Old(made) => made.clone(),
        };
        Self { nodes: Nodes::Old(made), past: None, ..*self }
    }

    fn upper(&self, height: u8, nodes: &Shared<Point>) -> Made {
        let depths = upper_depths(height, self.bits);
        Made { nodes: nodes.prefix(amt::node_count(depths, self.bits)), depths }
    }

    /// Bytes that a [thinned](Self::thinned) tree of this shard takes at most.
    pub(crate) fn thinned_bytes(height: u8, shard: ProofShard) -> u64 {
        let nodes =
            shard.prefix().map_or(0, |(bits, _)| amt::node_count(upper_depths(height, bits), bits));
        Shared::<Point>::bytes(nodes)
    }

    /// What the next block adds with `bumps`; `None` while the tree is being made.
    pub(crate) fn growth(&self, params: &Params, bumps: &[Bump]) -> Option<Growth> {
        let (base, earlier) = match &self.nodes {
            Nodes::Ready(nodes) => (nodes.clone(), &[][..]),
            // It is made again: nobody goes on from an old block but in a deep reorganisation.
            Nodes::Old(_) => return None,
            Nodes::Due { job, since, made, at_once } => match made.get() {
                Some(made) if made.depths == params.height() => (made.nodes.clone(), &[][..]),
                _ if since.len() > *at_once => return None,
                _ => (Shared::from_slice(&finished(job)?, Point::INFINITY), &since[..]),
            },
        };
        let mut at = vec![u32::MAX; amt::node_count(params.height(), self.bits)];
        let mut growth = Growth { base, nodes: Vec::new(), terms: Vec::new() };
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

    /// The tree after `growth`, whose nodes now are `points`. While it is being made: the same with
    /// `bumps` to be made up for; a job is started that makes the tree of the parent, which `view`
    /// shows below what it was given.
    pub(crate) fn grown(
        &self,
        params: &Arc<Params>,
        growth: Option<(Growth, &[Point])>,
        bumps: Vec<Bump>,
        context: &ApplyContext<'_>,
        view: &dyn NodeRead,
    ) -> Self {
        let is_under_way = |job: &&JobHandle| job.output().is_none() && !job.has_failed();
        let mut past = self.past.as_ref().filter(is_under_way).cloned();
        let passed = |bumps: Vec<Bump>, made: &Arc<_>| Passed {
            bumps: bumps.into(),
            made: Arc::downgrade(made),
        };
        let nodes = match (growth, &self.nodes) {
            (Some((growth, points)), nodes) => {
                if let Nodes::Due { job, since, .. } = nodes
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
                Nodes::Ready(nodes)
            }
            (None, Nodes::Due { job, since, at_once, made: of_parent }) => {
                let mut at_once = *at_once;
                let has_failed = job.as_ref().is_none_or(JobHandle::has_failed);
                let (job, mut since) = match finished(job) {
                    Some(nodes) => {
                        at_once *= 2;
                        let name = "lvmt proof tree, caught up";
                        (Some(self.catch_up(name, params, nodes, since, context)), Vec::new())
                    }
                    None if has_failed || since.len() > PATIENCE => {
                        (self.start(params, of_parent, context, view), Vec::new())
                    }
                    None => (job.clone(), since.clone()),
                };
                let made = Arc::default();
                since.push(passed(bumps, &made));
                Nodes::Due { job, since, made, at_once }
            }
            (None, Nodes::Old(of_parent)) => {
                let (job, made) = (self.start(params, of_parent, context, view), Arc::default());
                Nodes::Due { job, since: vec![passed(bumps, &made)], made, at_once: AT_ONCE }
            }
            // A tree that is ready always grows.
            (None, Nodes::Ready(nodes)) => Nodes::Ready(nodes.clone()),
        };
        Self { nodes, past, ..*self }
    }

    /// Starts a job that makes the tree of the parent, which is waited for in `of_parent` too.
    fn start(
        &self,
        params: &Arc<Params>,
        of_parent: &Arc<OnceLock<Made>>,
        context: &ApplyContext<'_>,
        view: &dyn NodeRead,
    ) -> Option<JobHandle> {
        let (params, view, of_parent) = (params.clone(), view.detach()?, Arc::downgrade(of_parent));
        let tree = Self { nodes: Nodes::Old(Arc::default()), past: None, ..*self };
        let id = hash::parts(&[b"lvmt proof tree", &context.parent_root[..]]);
        Some(context.jobs.start(Job::new(id, "lvmt proof tree", move |context| {
            let pause = || context.pause_point();
            let second = Second::new(Level::read(&*view, params.height())?.amts);
            let nodes = make(&params, tree.bits, tree.prefix, &*view, &second, &pause)?;
            if let Some(made) = of_parent.upgrade() {
                let nodes = Shared::from_slice(&nodes, Point::INFINITY);
                let _ = made.set(tree.upper(params.height(), &nodes));
            }
            Ok(Arc::new(nodes))
        })))
    }

    /// Starts a job that moves `nodes` on by what has happened `since`: to the tree of the parent. What
    /// is kept of the trees that it passes goes to those who wait for them.
    fn catch_up(
        &self,
        name: &'static str,
        params: &Arc<Params>,
        nodes: Arc<Vec<Point>>,
        since: &[Passed],
        context: &ApplyContext<'_>,
    ) -> JobHandle {
        let (params, since, bits, prefix) =
            (params.clone(), since.to_vec(), self.bits, self.prefix);
        let id = hash::parts(&[name.as_bytes(), &context.parent_root[..]]);
        context.jobs.start(Job::new(id, name, move |context| {
            let depths = upper_depths(params.height(), bits);
            let kept = amt::node_count(depths, bits);
            let mut nodes = nodes.to_vec();
            let mut upper = Shared::from_slice(&nodes[..kept], Point::INFINITY);
            for Passed { bumps, made } in &since {
                context.pause_point()?;
                let add = |bump: &Bump| {
                    let additions = additions(&params, bits, prefix, *bump);
                    additions.map(|(node, add)| (node as u32, *add)).collect::<Vec<_>>()
                };
                let mut terms: Vec<(u32, Point)> = bumps.iter().flat_map(add).collect();
                let mut changed: Vec<usize> =
                    terms.iter().map(|(node, _)| *node as usize).collect();
                sum(&mut nodes, &mut terms);
                changed.retain(|node| *node < kept);
                changed.into_iter().for_each(|node| upper.set(node, nodes[node]));
                if let Some(made) = made.upgrade() {
                    let _ = made.set(Made { nodes: upper.clone(), depths });
                }
            }
            Ok(Arc::new(nodes))
        }))
    }

    /// The quotients on the ways of some entries, ascending, the root's first; `None` of those outside
    /// of the shard. Makes the tree of the state that `view` shows, with this second level, if nobody has
    /// done so yet.
    pub(crate) fn quotients(
        &self,
        params: &Params,
        view: &dyn NodeRead,
        second: &Second,
        entries: &[u16],
    ) -> Result<Vec<Option<Vec<Point>>>, StateError> {
        let height = params.height();
        let whole = || make(params, self.bits, self.prefix, view, second, &|| Ok(()));
        let (nodes, depths) = match &self.nodes {
            Nodes::Ready(nodes) => (nodes, height),
            Nodes::Due { made, .. } => {
                let made = match made.get() {
                    Some(made) => made,
                    None => {
                        let nodes = Shared::from_slice(&whole()?, Point::INFINITY);
                        made.get_or_init(|| Made { nodes, depths: height })
                    }
                };
                (&made.nodes, made.depths)
            }
            Nodes::Old(made) => {
                let made = match made.get() {
                    Some(made) => made,
                    None => {
                        let nodes = Shared::from_slice(&whole()?, Point::INFINITY);
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
        // Of the node whose entries were read last: its first entry, and these.
        let mut below: Option<(u32, Vec<(u32, Versions)>)> = None;
        let way = |entry: &u16| {
            // Whether it is in the shard shows in the deepest of these nodes.
            let upper = (0..u32::from(depths)).map(|depth| node(depth, *entry));
            let Some(mut way) = upper.collect::<Option<Vec<Point>>>() else { return Ok(None) };
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

/// Depths of which nodes are kept of older blocks: all but the lowest, and those above a shard, by which
/// an entry is known to be in it.
fn upper_depths(height: u8, bits: u32) -> u8 {
    height.saturating_sub(LOWEST).max((bits + 1).min(height.into()) as u8)
}

/// The output of a job, if it is done.
fn finished(job: &Option<JobHandle>) -> Option<Arc<Vec<Point>>> {
    job.as_ref()?.output()?.downcast().ok()
}

/// What `bump` adds to which nodes of a shard's tree.
fn additions(
    params: &Params,
    bits: u32,
    prefix: u32,
    bump: Bump,
) -> impl Iterator<Item = (usize, &Point)> {
    let (height, entry) = (params.height(), u32::from(bump.entry));
    let increments = params.quotient_increments(entry, bump.slot.into());
    // Below the first node outside of the shard all are.
    (0..).zip(increments).map_while(move |(depth, add)| {
        Some((amt::node_index(height, bits, prefix, depth, entry)?, add))
    })
}

fn make(
    params: &Params,
    bits: u32,
    prefix: u32,
    view: &dyn NodeRead,
    second: &Second,
    pause: &dyn Fn() -> Result<(), StateError>,
) -> Result<Vec<Point>, StateError> {
    let entries = entries_of(params.height(), view, second, &[], pause)?;
    amt::proof_tree(params, &entries, bits, prefix, &mut || pause())
}

/// The entries of the AMT at `way` that are not zero, in order, in a state with this second level.
pub(crate) fn entries_of(
    height: u8,
    view: &dyn NodeRead,
    second: &Second,
    way: &[u16],
    pause: &dyn Fn() -> Result<(), StateError>,
) -> Result<Vec<(u32, Versions)>, StateError> {
    entries_in(height, view, second, way, 0..1 << height, pause)
}

/// The entries of the AMT at `way` that are in `range` and not zero, in order.
fn entries_in(
    height: u8,
    view: &dyn NodeRead,
    second: &Second,
    way: &[u16],
    range: Range<u32>,
    pause: &dyn Fn() -> Result<(), StateError>,
) -> Result<Vec<(u32, Versions)>, StateError> {
    let mut entries = BTreeMap::<u32, Versions>::new();
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
    for (n, row) in view.scan(SLOTS, rows, Direction::Forward)?.enumerate() {
        if n % 1024 == 0 {
            pause()?;
        }
        let (key, row) = row?;
        let (way, slot) = read_slot_key(&key)
            .ok_or_else(|| corrupt(SLOTS, format!("row {key} names no slot")))?;
        check_way(height, &way, SLOTS)?;
        let Some((entry, _)) = way.split_last() else { continue };
        let record = occupant(view, &row)?.1;
        entries.entry(entry.into()).or_default()[usize::from(slot)] = record.version;
    }
    if way.is_empty() {
        for entry in range {
            // Entries of a height of 16 at most.
            let version = second.get(entry as u16).version;
            if version > 0 {
                entries.entry(entry).or_default()[0] = version;
            }
        }
        return Ok(entries.into_iter().collect());
    }
    let (start, end) = bounds(amts_below(way));
    let rows = KeyRange { start: &start, end: end.as_deref() };
    for row in view.scan(AMTS, rows, Direction::Forward)? {
        let (key, row) = row?;
        let below =
            read_amt_key(&key).ok_or_else(|| corrupt(AMTS, format!("row {key} names no AMT")))?;
        check_way(height, &below, AMTS)?;
        if let Some((entry, _)) = below.split_last() {
            entries.entry(entry.into()).or_default()[0] = Amt::decode(&below, &row)?.version;
        }
    }
    Ok(entries.into_iter().collect())
}

/// The key that a row of [`SLOTS`] names, and its record.
pub(crate) fn occupant(view: &dyn NodeRead, row: &[u8]) -> Result<(StateKey, Record), StateError> {
    let key = StateKey::decode(row).ok_or_else(|| {
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
    Ok((key, Record::decode(&key, &record)?))
}
