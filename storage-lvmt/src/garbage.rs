//! Garbage collection of the append-only Merkle trees (paper, section 5).
//!
//! Proofs need only the newest tuple of each key and sub-AMT; older tuples are *stale*. Once more
//! than half of the stored leaves are stale, a job *marks* the live leaves in a snapshot. Then each
//! block *sweeps* some trees, in proportion to the leaves that it adds: it removes the hashes that
//! are on the path of no live leaf. A leaf that is stale stays stale on every chain above. The rows
//! that a sweep changes are rows of that block, with undo. So a revert restores the rows of leaves
//! that become live again. No root depends on any of it.

use crate::{
    hash,
    merkle::{GROUP, MerkleGroup, group_size},
    record::{
        AMTS, BLOCKS, BlockRow, KEYS, KeyRecord, LvmtMeta, RANGE, SubAmt, TREES, TuplePosition,
        corrupt, group_key, range_key, read_amt_key,
    },
    second_level::{CHUNKS, StoredLevel},
    shard::ProofShard,
};
use alloy_primitives::hex;
use retrie_state::{
    ApplyContext, BackendKey, BackgroundJob, JobHandle, KeyRange, NodeRead, NodeWrite,
    ScanDirection, StateError,
};
use std::sync::Arc;

/// Stale leaves that are tolerated beside as many as there are live leaves.
pub(crate) const SLACK: u64 = 1 << 16;

/// The least work of a block's sweep, in groups that are read. A group that changes counts
/// [`CHANGED`].
const LEAST: u64 = 1024;
/// The cost of a group that changes, compared with one that is read: it is hashed, written, and
/// kept for undo.
const CHANGED: u64 = 8;

/// The state of garbage collection after a block.
#[derive(Clone)]
pub(crate) struct GarbageCollection {
    slack: u64,
    shard: ProofShard,
    /// The leaves that the last collection left. Not all other leaves need be stale: a shard can
    /// have more than its share.
    floor: u64,
    phase: CollectionPhase,
}

#[derive(Clone)]
enum CollectionPhase {
    Idle,
    Marking(JobHandle),
    /// Sweeps the trees, then the groups of the range; `next` is the progress.
    Sweeping {
        marks: Arc<LiveMarks>,
        next: SweepCursor,
    },
}

#[derive(Clone, Copy, Default)]
struct SweepCursor {
    tree: usize,
    level: usize,
    group: usize,
    range: usize,
}

impl GarbageCollection {
    pub(crate) const fn new(slack: u64, shard: ProofShard) -> Self {
        Self { slack, shard, floor: 0, phase: CollectionPhase::Idle }
    }

    /// Whether most of the stored leaves are stale.
    fn is_due(&self, meta: &LvmtMeta) -> bool {
        let live = (meta.keys + meta.amts) >> self.shard.tree_bits();
        meta.leaves > 2 * live.max(self.floor) + self.slack
    }

    /// Does the share of the block that is being applied. The block has added `added` leaves.
    pub(crate) fn step(
        &self,
        height: u8,
        context: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        meta: &mut LvmtMeta,
        added: u32,
    ) -> Result<Self, StateError> {
        let (marks, next) = match &self.phase {
            CollectionPhase::Idle if self.is_due(meta) => {
                let Some(view) = view.detach() else { return Ok(self.clone()) };
                let id = hash::parts(&[b"lvmt collection", &context.parent_root[..]]);
                let job = BackgroundJob::new(id, "lvmt collection", move |context| {
                    Ok(Arc::new(mark(height, &*view, &|| context.pause_point())?))
                });
                return Ok(self.at(CollectionPhase::Marking(context.jobs.start(job))));
            }
            CollectionPhase::Idle => return Ok(self.clone()),
            CollectionPhase::Marking(job) if job.has_failed() => {
                tracing::warn!("lvmt: collecting old Merkle trees failed and will be tried again");
                return Ok(self.ended(meta));
            }
            CollectionPhase::Marking(job) => {
                let Some(output) = job.output() else { return Ok(self.clone()) };
                let Ok(marks) = output.downcast::<LiveMarks>() else { return Ok(self.ended(meta)) };
                (marks, SweepCursor::default())
            }
            CollectionPhase::Sweeping { marks, next } => (marks.clone(), *next),
        };
        Ok(match sweep(&marks, next, LEAST.max(added.into()), view, meta)? {
            Some(next) => self.at(CollectionPhase::Sweeping { marks, next }),
            None => self.ended(meta),
        })
    }

    fn ended(&self, meta: &LvmtMeta) -> Self {
        Self { floor: meta.leaves, phase: CollectionPhase::Idle, ..*self }
    }

    fn at(&self, phase: CollectionPhase) -> Self {
        Self { phase, ..*self }
    }
}

/// The live leaves of trees that also store stale ones.
struct LiveMarks {
    trees: Vec<TreeMarks>,
    /// Groups of the range with stale blocks: level, number, bitmap of live blocks or groups below.
    range: Vec<(u8, u64, u32)>,
}

struct TreeMarks {
    block: u64,
    leaves: u32,
    /// Whether any tuple of the block is live, even if its tree is not kept.
    is_live: bool,
    /// By level: one bitmap for each group.
    levels: Vec<Vec<u32>>,
}

/// One bit for each of `leaves` leaves, in groups.
fn bitmaps(leaves: usize) -> Vec<u32> {
    vec![0; leaves.div_ceil(GROUP)]
}

/// Sets the bit of a leaf; `None` if there is no such leaf.
fn set(bits: &mut [u32], at: usize) -> Option<()> {
    *bits.get_mut(at / GROUP)? |= 1 << (at % GROUP);
    Some(())
}

/// The bitmaps of all levels, from the bitmap of level 0: a group is live if it contains anything
/// live.
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

/// A stored tree during marking.
struct StoredTree {
    block: u64,
    leaves: u32,
    kept: u32,
    /// Where its bitmaps start; `None` if no group of it is stored.
    bits: Option<usize>,
}

fn mark(
    height: u8,
    view: &dyn NodeRead,
    pause: &dyn Fn() -> Result<(), StateError>,
) -> Result<LiveMarks, StateError> {
    let meta = LvmtMeta::get(view)?;
    let slow = |n: usize| if n.is_multiple_of(1024) { pause() } else { Ok(()) };
    let (mut trees, mut all_bits) = (Vec::new(), Vec::new());
    for (n, row) in view.scan(BLOCKS, KeyRange::ALL, ScanDirection::Forward)?.enumerate() {
        slow(n)?;
        let (key, row) = row?;
        let block = block_of(&key)?;
        let BlockRow { leaves, kept, .. } = BlockRow::decode(block, &row)?;
        if block < meta.first {
            return Err(corrupt(BLOCKS, format!("block {block} comes before the first one")));
        }
        // A tree without kept leaves may still have groups: a restart can cut a sweep short.
        let bits = (kept > 0 || has_groups(view, block)?).then_some(all_bits.len());
        if bits.is_some() {
            all_bits.resize(all_bits.len() + (leaves as usize).div_ceil(GROUP), 0u32);
        }
        trees.push(StoredTree { block, leaves, kept, bits });
    }
    let blocks = usize::try_from(meta.blocks)
        .map_err(|_| corrupt(crate::record::META, "there are too many blocks"))?;
    let mut live_blocks = bitmaps(blocks);
    let mut see = |position: TuplePosition| {
        let ordinal = position.block.checked_sub(meta.first)?;
        set(&mut live_blocks, usize::try_from(ordinal).ok()?)?;
        let at = trees.binary_search_by_key(&position.block, |tree| tree.block).ok()?;
        let StoredTree { leaves, bits: Some(start), .. } = trees[at] else { return Some(()) };
        let len = (leaves as usize).div_ceil(GROUP);
        set(&mut all_bits[start..start + len], position.leaf as usize)
    };
    for (n, row) in view.scan(KEYS, KeyRange::ALL, ScanDirection::Forward)?.enumerate() {
        slow(n)?;
        let (key, row) = row?;
        let key = BackendKey::decode(&key)
            .ok_or_else(|| corrupt(KEYS, format!("row {key} is not a state key")))?;
        see(KeyRecord::decode(&key, &row)?.position)
            .ok_or_else(|| corrupt(KEYS, format!("the tuple of {key} is in no block")))?;
    }
    for (n, row) in view.scan(AMTS, KeyRange::ALL, ScanDirection::Forward)?.enumerate() {
        slow(n)?;
        let (key, row) = row?;
        let way =
            read_amt_key(&key).ok_or_else(|| corrupt(AMTS, format!("row {key} names no AMT")))?;
        see(SubAmt::decode(&way, &row)?.position)
            .ok_or_else(|| corrupt(AMTS, format!("the tuple of AMT {way} is in no block")))?;
    }
    let second = StoredLevel::read(view, height)?.amts;
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
    for StoredTree { block, leaves, kept, bits } in trees {
        let len = (leaves as usize).div_ceil(GROUP);
        let bits = bits.map_or(&[][..], |start| &all_bits[start..start + len]);
        let live = bits.iter().map(|bits| bits.count_ones()).sum::<u32>();
        let is_live = is_live(block);
        let has_rest = kept == 0 && !bits.is_empty();
        if live < kept || !is_live || has_rest {
            marks.push(TreeMarks { block, leaves, is_live, levels: upper(bits.to_vec()) });
        }
    }
    Ok(LiveMarks { trees: marks, range: mark_range(view, live_blocks, pause)? })
}

/// Whether any group of a block's tree is stored.
fn has_groups(view: &dyn NodeRead, block: u64) -> Result<bool, StateError> {
    let (start, end) = (group_key(block, 0, 0), group_key(block, u8::MAX, u32::MAX));
    let first = view.scan(TREES, KeyRange::new(&start, &end), ScanDirection::Forward)?.next();
    Ok(first.transpose()?.is_some())
}

fn mark_range(
    view: &dyn NodeRead,
    live_blocks: Vec<u32>,
    pause: &dyn Fn() -> Result<(), StateError>,
) -> Result<Vec<(u8, u64, u32)>, StateError> {
    let live = upper(live_blocks);
    let mut marks = Vec::new();
    for (n, row) in view.scan(RANGE, KeyRange::ALL, ScanDirection::Forward)?.enumerate() {
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

/// Sweeps a block's share from `at` on. Returns the next position, or `None` when all is swept.
fn sweep(
    marks: &LiveMarks,
    mut at: SweepCursor,
    mut left: u64,
    view: &mut dyn NodeWrite,
    meta: &mut LvmtMeta,
) -> Result<Option<SweepCursor>, StateError> {
    while let Some(tree) = marks.trees.get(at.tree) {
        if left == 0 || !sweep_tree(tree, &mut at, &mut left, view, meta)? {
            return Ok(Some(at));
        }
        at = SweepCursor { tree: at.tree + 1, ..SweepCursor::default() };
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

/// Sweeps one tree with the budget `left`. Returns whether the tree is done.
fn sweep_tree(
    tree: &TreeMarks,
    at: &mut SweepCursor,
    left: &mut u64,
    view: &mut dyn NodeWrite,
    meta: &mut LvmtMeta,
) -> Result<bool, StateError> {
    let mut gone = 0;
    // A tree without groups costs one step, too.
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

/// Prunes a group to the leaves in `keep`. Returns the number of leaves removed.
fn prune(
    view: &mut dyn NodeWrite,
    table: retrie_state::RowTable,
    key: &[u8],
    size: u8,
    keep: u32,
) -> Result<u32, StateError> {
    // A group without a row had nothing live.
    let Some(old) = view.get(table, key)? else { return Ok(0) };
    let Some(group) = MerkleGroup::decode(&old, size) else {
        // No root depends on it. Blocks go on; proofs and `db verify` report the row.
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
