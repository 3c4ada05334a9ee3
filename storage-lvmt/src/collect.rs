//! Garbage collection of the append-only Merkle trees (paper, section 5).
//!
//! Only the newest tuple of a key or sub-AMT is ever proven again. Once more than half of the stored
//! leaves are stale, a job *marks* the live ones in a snapshot; the blocks that follow *sweep*, each
//! in proportion to the leaves it adds: what lies on no way of a live leaf goes. A leaf that is
//! stale once stays stale on every chain above, and rows changed by a sweep are rows of that block,
//! with undo: so reverts bring back what they make live again. No root depends on any of it.

use crate::{
    hash,
    merkle::{GROUP, Group, group_size},
    record::{
        AMTS, Amt, BLOCKS, BlockRow, KEYS, Meta, Position, RANGE, Record, TREES, corrupt,
        group_key, range_key, read_amt_key,
    },
    second::{CHUNKS, Level},
    shard::ProofShard,
};
use alloy_primitives::hex;
use retrie_state::{
    ApplyContext, Direction, Job, JobHandle, KeyRange, NodeRead, NodeWrite, StateError, StateKey,
};
use std::sync::Arc;

/// Stale leaves that are put up with beside as many as there are live ones.
pub(crate) const SLACK: u64 = 1 << 16;

/// What a block sweeps at least: so many groups that are looked at, of which one that changes
/// counts [`CHANGED`].
const LEAST: u64 = 1024;
/// How much more a group costs that changes: it is hashed, written, and kept for undo.
const CHANGED: u64 = 8;

/// Where the collection stands at a block.
#[derive(Clone)]
pub(crate) struct Collection {
    slack: u64,
    shard: ProofShard,
    /// Leaves that the last collection has left: not all of them need be stale, since a shard can
    /// have more than its share.
    floor: u64,
    phase: Phase,
}

#[derive(Clone)]
enum Phase {
    Idle,
    Marking(JobHandle),
    /// Trees, then groups of the range; how many of each are done.
    Sweeping {
        marks: Arc<Marks>,
        next: Cursor,
    },
}

#[derive(Clone, Copy, Default)]
struct Cursor {
    tree: usize,
    level: usize,
    group: usize,
    range: usize,
}

impl Collection {
    pub(crate) const fn new(slack: u64, shard: ProofShard) -> Self {
        Self { slack, shard, floor: 0, phase: Phase::Idle }
    }

    /// Whether stale leaves are the larger part of what is stored.
    fn is_due(&self, meta: &Meta) -> bool {
        let live = (meta.keys + meta.amts) >> self.shard.tree_bits();
        meta.leaves > 2 * live.max(self.floor) + self.slack
    }

    /// The share of the block that is being applied, which has added `added` leaves.
    pub(crate) fn step(
        &self,
        height: u8,
        context: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        meta: &mut Meta,
        added: u32,
    ) -> Result<Self, StateError> {
        let (marks, next) = match &self.phase {
            Phase::Idle if self.is_due(meta) => {
                let Some(view) = view.detach() else { return Ok(self.clone()) };
                let id = hash::parts(&[b"lvmt collection", &context.parent_root[..]]);
                let job = Job::new(id, "lvmt collection", move |context| {
                    Ok(Arc::new(mark(height, &*view, &|| context.pause_point())?))
                });
                return Ok(self.at(Phase::Marking(context.jobs.start(job))));
            }
            Phase::Idle => return Ok(self.clone()),
            Phase::Marking(job) if job.has_failed() => {
                tracing::warn!("lvmt: collecting old Merkle trees has failed, and is put off");
                return Ok(self.ended(meta));
            }
            Phase::Marking(job) => {
                let Some(output) = job.output() else { return Ok(self.clone()) };
                let Ok(marks) = output.downcast::<Marks>() else { return Ok(self.ended(meta)) };
                (marks, Cursor::default())
            }
            Phase::Sweeping { marks, next } => (marks.clone(), *next),
        };
        Ok(match sweep(&marks, next, LEAST.max(added.into()), view, meta)? {
            Some(next) => self.at(Phase::Sweeping { marks, next }),
            None => self.ended(meta),
        })
    }

    fn ended(&self, meta: &Meta) -> Self {
        Self { floor: meta.leaves, phase: Phase::Idle, ..*self }
    }

    fn at(&self, phase: Phase) -> Self {
        Self { phase, ..*self }
    }
}

/// What is live, as far as something else is stored.
struct Marks {
    trees: Vec<TreeMarks>,
    /// Groups of the range with stale blocks: level, number, blocks or groups below that are live.
    range: Vec<(u8, u64, u32)>,
}

struct TreeMarks {
    block: u64,
    leaves: u32,
    /// Whether any tuple of the block is live, its tree kept or not.
    is_live: bool,
    /// By level: one bitmap a group.
    levels: Vec<Vec<u32>>,
}

/// One bit for each of so many leaves, in groups.
fn bitmaps(leaves: usize) -> Vec<u32> {
    vec![0; leaves.div_ceil(GROUP)]
}

/// Sets the bit of a leaf; `None` if there is no such leaf.
fn set(bits: &mut [u32], at: usize) -> Option<()> {
    *bits.get_mut(at / GROUP)? |= 1 << (at % GROUP);
    Some(())
}

/// The bitmaps of all levels over those of level 0: a group is live if anything in it is.
fn upper(lowest: Vec<u32>) -> Vec<Vec<u32>> {
    let mut levels = vec![lowest];
    while let Some(below) = levels.last().filter(|below| below.len() > 1) {
        let mut bits = bitmaps(below.len());
        for (at, _) in below.iter().enumerate().filter(|(_, group)| **group != 0) {
            set(&mut bits, at);
        }
        levels.push(bits);
    }
    levels
}

/// A stored tree while it is marked.
struct Stored {
    block: u64,
    leaves: u32,
    kept: u32,
    /// Where its bitmaps are; `None` if nothing of it is stored.
    bits: Option<usize>,
}

fn mark(
    height: u8,
    view: &dyn NodeRead,
    pause: &dyn Fn() -> Result<(), StateError>,
) -> Result<Marks, StateError> {
    let meta = Meta::get(view)?;
    let slow = |n: usize| if n.is_multiple_of(1024) { pause() } else { Ok(()) };
    let (mut trees, mut all_bits) = (Vec::new(), Vec::new());
    for (n, row) in view.scan(BLOCKS, KeyRange::ALL, Direction::Forward)?.enumerate() {
        slow(n)?;
        let (key, row) = row?;
        let block = block_of(&key)?;
        let BlockRow { leaves, kept, .. } = BlockRow::decode(block, &row)?;
        if block < meta.first {
            return Err(corrupt(BLOCKS, format!("block {block} comes before the first one")));
        }
        // Of one without kept leaves there may be rest: a sweep that was cut short by a restart.
        let bits = (kept > 0 || has_groups(view, block)?).then_some(all_bits.len());
        if bits.is_some() {
            all_bits.resize(all_bits.len() + (leaves as usize).div_ceil(GROUP), 0u32);
        }
        trees.push(Stored { block, leaves, kept, bits });
    }
    let blocks = usize::try_from(meta.blocks)
        .map_err(|_| corrupt(crate::record::META, "there are too many blocks"))?;
    let mut live_blocks = bitmaps(blocks);
    let mut see = |position: Position| {
        let ordinal = position.block.checked_sub(meta.first)?;
        set(&mut live_blocks, usize::try_from(ordinal).ok()?)?;
        let at = trees.binary_search_by_key(&position.block, |tree| tree.block).ok()?;
        let Stored { leaves, bits: Some(start), .. } = trees[at] else { return Some(()) };
        let len = (leaves as usize).div_ceil(GROUP);
        set(&mut all_bits[start..start + len], position.leaf as usize)
    };
    for (n, row) in view.scan(KEYS, KeyRange::ALL, Direction::Forward)?.enumerate() {
        slow(n)?;
        let (key, row) = row?;
        let key = StateKey::decode(&key)
            .ok_or_else(|| corrupt(KEYS, format!("row {key} is not a state key")))?;
        see(Record::decode(&key, &row)?.position)
            .ok_or_else(|| corrupt(KEYS, format!("the tuple of {key} is in no block")))?;
    }
    for (n, row) in view.scan(AMTS, KeyRange::ALL, Direction::Forward)?.enumerate() {
        slow(n)?;
        let (key, row) = row?;
        let way =
            read_amt_key(&key).ok_or_else(|| corrupt(AMTS, format!("row {key} names no AMT")))?;
        see(Amt::decode(&way, &row)?.position)
            .ok_or_else(|| corrupt(AMTS, format!("the tuple of AMT {way} is in no block")))?;
    }
    let second = Level::read(view, height)?.amts;
    for (entry, amt) in second.iter().enumerate().filter(|(_, amt)| amt.version > 0) {
        see(amt.position).ok_or_else(|| {
            corrupt(CHUNKS, format!("the tuple of AMT /{entry:x}/ is in no block"))
        })?;
    }
    let is_live = |block: u64| {
        let at = (block - meta.first) as usize;
        live_blocks.get(at / GROUP).is_some_and(|group| group & 1 << (at % GROUP) != 0)
    };
    let mut marks = Vec::new();
    for Stored { block, leaves, kept, bits } in trees {
        let len = (leaves as usize).div_ceil(GROUP);
        let bits = bits.map_or(&[][..], |start| &all_bits[start..start + len]);
        let live = bits.iter().map(|bits| bits.count_ones()).sum::<u32>();
        let is_live = is_live(block);
        let has_rest = kept == 0 && !bits.is_empty();
        if live < kept || !is_live || has_rest {
            marks.push(TreeMarks { block, leaves, is_live, levels: upper(bits.to_vec()) });
        }
    }
    Ok(Marks { trees: marks, range: mark_range(view, live_blocks, pause)? })
}

/// Whether any group of a block's tree is stored.
fn has_groups(view: &dyn NodeRead, block: u64) -> Result<bool, StateError> {
    let (start, end) = (group_key(block, 0, 0), group_key(block, u8::MAX, u32::MAX));
    let first = view.scan(TREES, KeyRange::new(&start, &end), Direction::Forward)?.next();
    Ok(first.transpose()?.is_some())
}

fn mark_range(
    view: &dyn NodeRead,
    live_blocks: Vec<u32>,
    pause: &dyn Fn() -> Result<(), StateError>,
) -> Result<Vec<(u8, u64, u32)>, StateError> {
    let live = upper(live_blocks);
    let mut marks = Vec::new();
    for (n, row) in view.scan(RANGE, KeyRange::ALL, Direction::Forward)?.enumerate() {
        if n.is_multiple_of(1024) {
            pause()?;
        }
        let (key, row) = row?;
        let bad = || corrupt(RANGE, format!("row {key} is malformed"));
        let (level, group) = key.split_first().ok_or_else(bad)?;
        let group = u64::from_be_bytes(group.try_into().map_err(|_| bad())?);
        let kept = u32::from_be_bytes(*row.first_chunk().ok_or_else(bad)?);
        let bits = live.get(usize::from(*level)).ok_or_else(bad)?;
        // The last group of a level still grows.
        let is_last = group + 1 >= bits.len() as u64;
        let bits = *bits.get(group as usize).ok_or_else(bad)?;
        if !is_last && kept & !bits != 0 {
            marks.push((*level, group, bits));
        }
    }
    Ok(marks)
}

fn block_of(key: &[u8]) -> Result<u64, StateError> {
    let number = key.try_into().map(u64::from_be_bytes);
    number.map_err(|_| corrupt(BLOCKS, "a key is not a block number"))
}

/// Sweeps a block's share from `at` on; where to go on, or `None` when all is done.
fn sweep(
    marks: &Marks,
    mut at: Cursor,
    mut left: u64,
    view: &mut dyn NodeWrite,
    meta: &mut Meta,
) -> Result<Option<Cursor>, StateError> {
    while let Some(tree) = marks.trees.get(at.tree) {
        if left == 0 || !sweep_tree(tree, &mut at, &mut left, view, meta)? {
            return Ok(Some(at));
        }
        at = Cursor { tree: at.tree + 1, ..Cursor::default() };
    }
    while let Some((level, group, keep)) = marks.range.get(at.range) {
        if left == 0 {
            return Ok(Some(at));
        }
        let pruned = prune(view, RANGE, &range_key(*level, *group), GROUP as u8, *keep)?;
        left = left.saturating_sub(cost(pruned));
        at.range += 1;
    }
    Ok(None)
}

fn cost(pruned: u32) -> u64 {
    if pruned > 0 { CHANGED } else { 1 }
}

/// Sweeps one tree as far as `left` goes; says whether that was all of it.
fn sweep_tree(
    tree: &TreeMarks,
    at: &mut Cursor,
    left: &mut u64,
    view: &mut dyn NodeWrite,
    meta: &mut Meta,
) -> Result<bool, StateError> {
    let mut gone = 0;
    // Also a tree without groups is looked at.
    *left = left.saturating_sub(1);
    'done: while let Some(level) = tree.levels.get(at.level) {
        while let Some(keep) = level.get(at.group) {
            if *left == 0 {
                break 'done;
            }
            let (number, group) = (at.level as u8, at.group as u64);
            let size = group_size(tree.leaves.into(), number, group);
            if keep.count_ones() < size.into() {
                let key = group_key(tree.block, number, at.group as u32);
                let pruned = prune(view, TREES, &key, size, *keep)?;
                *left = left.saturating_sub(cost(pruned));
                gone += if at.level == 0 { pruned } else { 0 };
            }
            at.group += 1;
        }
        (at.level, at.group) = (at.level + 1, 0);
    }
    let done = at.level >= tree.levels.len();
    let key = tree.block.to_be_bytes();
    if let Some(old) = view.get(BLOCKS, &key)? {
        let row = BlockRow::decode(tree.block, &old)?;
        let row = BlockRow { kept: row.kept.saturating_sub(gone), ..row };
        let new = (tree.is_live || !done).then(|| row.encode().into());
        view.replace(BLOCKS, &key, Some(old), new)?;
        meta.leaves = meta.leaves.saturating_sub(gone.into());
    }
    Ok(done)
}

/// Keeps of a group what is in `keep`; returns how many leaves go.
fn prune(
    view: &mut dyn NodeWrite,
    table: retrie_state::Table,
    key: &[u8],
    size: u8,
    keep: u32,
) -> Result<u32, StateError> {
    // A group that is gone had nothing live.
    let Some(old) = view.get(table, key)? else { return Ok(0) };
    let Some(group) = Group::decode(&old, size) else {
        // No root depends on it: blocks go on, and proofs and the check of the state report it.
        tracing::warn!(table = table.name, key = %hex::encode(key), "a malformed group is not swept");
        return Ok(0);
    };
    let keep = keep & group.kept();
    if keep != group.kept() {
        let new = group.prune(keep).map(|group| group.encode().into());
        view.replace(table, key, Some(old), new)?;
    }
    Ok((group.kept() & !keep).count_ones())
}
