//! Applies one block (paper, Algorithms 1 to 5): raises versions, updates commitments, builds the
//! block's Merkle tree, and computes the root from both.
//!
//! ```text
//!  delta --> slot and version of each key --> increments of every AMT on its path
//!                          |                                   | one batch of additions
//!                          v                                   v
//!                   tuples of keys                     tuples of sub-AMTs
//!                          '---------> Merkle tree <-----------'
//!                                          | its leaf of the range
//!            root = H(root AMT's commitment || range) --> rows, the child's structure
//! ```
//!
//! An AMT contains versions of its sub-AMTs and not their commitments. So all changes are known
//! before any new commitment, and the additions of all levels are one batch with shared inversions.

mod amts;
mod slots;

use crate::{
    hash, merkle,
    params::LvmtParams,
    point::sum,
    record::{
        BLOCKS, BlockRow, EntryPath, KEYS, KeyRecord, LvmtMeta, META, META_KEY, NAME, RANGE,
        SubAmt, TREES, TuplePosition, VERSION_END, check_path, corrupt, group_key, range_key,
    },
    second_level::{LevelArray, VersionRise},
    shard::ProofShard,
    state::{ApplyBase, LvmtState},
};
use alloy_primitives::{B256, Bytes};
use amts::TouchedAmts;
use retrie_state::{ApplyContext, BackendChange, BackendDelta, EncodedKey, NodeWrite, StateError};
use slots::RootSlots;
use std::{
    hint::black_box,
    sync::{Arc, OnceLock},
};

/// Applies `delta` to the state `parent`. Returns the new root and structure.
pub(crate) fn apply(
    params: &Arc<LvmtParams>,
    shard: ProofShard,
    context: &ApplyContext<'_>,
    view: &mut dyn NodeWrite,
    parent: &LvmtState,
    delta: &BackendDelta,
) -> Result<(B256, LvmtState), StateError> {
    let number = context.number;
    let base = parent.apply_base(params, view.as_read())?;
    let mut meta = parent.meta;
    if meta.blocks == 0 {
        meta.first = number;
    }
    meta.blocks += 1;

    let mut slots = RootSlots::new(base);
    let (block, old_records) =
        BlockChange::raise_versions(params, view, parent, (&mut meta, &mut slots), number, delta)?;
    warm(params, &base.second, &block.writes);
    let mut amts = TouchedAmts::above(&block.writes, view, params, parent)?;
    let leaves = block.leaf_count(&amts)?;
    let rises: Vec<VersionRise<u16>> = match parent.sub_trees {
        Some(_) => amts.second_rises().collect(),
        None => Vec::new(),
    };
    let growth = parent.tree.as_ref().and_then(|tree| tree.growth(params, &amts.bumps));
    let nodes = growth.as_ref().map_or(0..0, |growth| amts.append(growth.old(), &growth.terms));
    let sub_growth = parent.sub_trees.as_ref().map(|trees| trees.growth(params, &rises));
    let sub_nodes =
        sub_growth.as_ref().map_or(0..0, |growth| amts.append(growth.old(), &growth.terms));

    let keys = block.writes.len();
    let (tree, written) =
        both(keys, || block.build_tree(&mut amts), || block.write_records(view, old_records));
    written?;
    meta.commitment = amts.points[0];
    meta.amts += amts.new_count(&tree.amts);

    // Sub-AMTs of the second level come last.
    let is_deeper = |(at, _): &(usize, SubAmt)| amts.ways[*at].len() > 1;
    let (deeper, second) = tree.amts.split_at(tree.amts.partition_point(is_deeper));
    amts.write_rows(view, deeper)?;
    let first_leaf = (keys + deeper.len()) as u32;
    let (second, log) = amts.write_second_level(view, base, second, number, first_leaf)?;
    let top = tree.top;
    if leaves > 0 {
        meta.leaves += u64::from(tree.write(view, number, leaves, shard.keeps_tree(number))?);
    }
    let mut range = base.range.clone();
    let range_top = range.append(hash::block(number, leaves, &top), |level, group, row| {
        view.put(RANGE, &range_key(level, group), row.into())
    })?;

    let collection = parent.collection.step(params.height(), context, view, &mut meta, leaves)?;
    let old = (parent.meta.blocks > 0).then(|| parent.meta.encode().into());
    view.replace(META, META_KEY, old, Some(meta.encode().into()))?;

    let root = root_of(&meta, &range_top);
    let tree = parent.tree.as_ref().map(|tree| {
        let growth = growth.map(|growth| (growth, &amts.points[nodes]));
        tree.child(params, growth, amts.bumps, context, view.as_read())
    });
    let sub_trees = parent.sub_trees.as_ref().zip(sub_growth).map(|(trees, growth)| {
        let growth = (growth, &amts.points[sub_nodes]);
        trees.child(params, growth, &rises, parent.meta.keys, context, view.as_read())
    });
    let occupied = slots.finish().map_or_else(OnceLock::new, OnceLock::from);
    let base = ApplyBase { second, log, range, occupied };
    let child = parent.child(meta, base, (tree, sub_trees), collection);
    parent.memo.clear();
    Ok((root, child))
}

/// Changed keys from which on a second thread is worth its start.
const KEYS_FOR_TWO: usize = 64;

/// Runs both closures, in parallel if the block changes enough `keys`.
fn both<A: Send, B: Send>(
    keys: usize,
    a: impl FnOnce() -> A + Send,
    b: impl FnOnce() -> B + Send,
) -> (A, B) {
    if keys < KEYS_FOR_TWO { (a(), b()) } else { rayon::join(a, b) }
}

/// The root of a state with these counts, whose range has the top `range_top`.
pub(crate) fn root_of(meta: &LvmtMeta, range_top: &B256) -> B256 {
    hash::root(&meta.commitment.to_bytes(), meta.first, meta.blocks, range_top)
}

/// A key that changes: the slot of its version, and the new version.
struct KeyWrite {
    key: EncodedKey,
    way: EntryPath,
    slot: u8,
    version: u64,
}

impl KeyWrite {
    /// Level of the AMT that holds the version.
    fn level(&self) -> u8 {
        (self.way.len() - 1) as u8
    }
}

/// The keys that a block changes.
struct BlockChange<'a> {
    number: u64,
    delta: &'a BackendDelta,
    /// One for each change of the delta.
    writes: Vec<KeyWrite>,
}

impl<'a> BlockChange<'a> {
    /// Raises the version of each key that `delta` changes. Also returns the keys' old records.
    fn raise_versions(
        params: &LvmtParams,
        view: &mut dyn NodeWrite,
        parent: &LvmtState,
        (meta, slots): (&mut LvmtMeta, &mut RootSlots<'_>),
        number: u64,
        delta: &'a BackendDelta,
    ) -> Result<(Self, Vec<Option<Bytes>>), StateError> {
        let mut writes = Vec::with_capacity(delta.changes().len());
        let mut old_records = Vec::with_capacity(delta.changes().len());
        for change in delta.changes() {
            let (write, record) = raise_version(params, view, parent, slots, meta, change)?;
            writes.push(write);
            old_records.push(record);
        }
        Ok((Self { number, delta, writes }, old_records))
    }

    /// Each write with the new value of its key.
    fn values(&self) -> impl Iterator<Item = (&KeyWrite, Option<&[u8]>)> {
        let value = |change: &'a BackendChange| change.next.as_ref().map(|value| &value[..]);
        self.writes.iter().zip(self.delta.changes().iter().map(value))
    }

    /// Number of the leaves of the block's Merkle tree: a tuple for each key, and for each of
    /// `amts` but the root AMT.
    fn leaf_count(&self, amts: &TouchedAmts<'_>) -> Result<u32, StateError> {
        u32::try_from(self.writes.len() + amts.ways.len() - 1).map_err(|_| StateError::Exhausted {
            backend: NAME,
            what: format!("the number of changes of block {}", self.number),
            limit: u32::MAX.into(),
        })
    }

    /// Adds up the commitments of `amts`, and builds the block's Merkle tree.
    fn build_tree(&self, amts: &mut TouchedAmts<'_>) -> BlockTree {
        let keys = self.writes.len();
        let TouchedAmts { points, terms, .. } = amts;
        // The thread that is done with the records takes the second closure.
        let ((), (tree, mut groups)) = both(keys, || sum(points, terms), || self.key_tree());
        let changed = amts.changed(self.number, keys);
        let mut tuples = hash::HashBatch::with_capacity(changed.len());
        for (at, amt) in &changed {
            tuples.amt_tuple(&amts.ways[*at], amt.version, &amt.commitment.to_bytes());
        }
        let top = tree.finish(&tuples.finish(), |level, group, row| {
            groups.push((level, group, row));
        });
        BlockTree { amts: changed, groups, top }
    }

    /// The beginning of the block's Merkle tree: the tuples of keys. The tuples of sub-AMTs are
    /// added later: their commitments are not computed yet.
    fn key_tree(&self) -> (merkle::TreePrefix, Vec<TreeGroup>) {
        let mut tuples = hash::HashBatch::with_capacity(self.writes.len());
        for (write, value) in self.values() {
            tuples.key_tuple(write.level(), write.slot, write.version, &write.key, value);
        }
        let mut groups = Vec::with_capacity(self.writes.len() / 16);
        let tree = merkle::TreePrefix::new(tuples.finish(), |level, group, row| {
            groups.push((level, group, row));
        });
        (tree, groups)
    }

    /// Writes the records of the keys. They contain the positions of the keys' tuples, which follow
    /// from the order alone.
    fn write_records(
        &self,
        view: &mut dyn NodeWrite,
        old_records: Vec<Option<Bytes>>,
    ) -> Result<(), StateError> {
        let mut rows = RowBuffer::with_capacity(self.writes.len());
        for (leaf, (write, value)) in self.values().enumerate() {
            let position = TuplePosition { block: self.number, leaf: leaf as u32 };
            rows.add(|row| {
                KeyRecord::encode(write.slot, write.version, position, &write.way, value, row);
            });
        }
        for (write, (old, row)) in
            self.writes.iter().zip(old_records.into_iter().zip(rows.finish()))
        {
            view.replace(KEYS, &write.key, old, Some(row))?;
        }
        Ok(())
    }
}

/// A group of a Merkle tree: its level, its number in this level, and its row.
type TreeGroup = (u8, u64, Vec<u8>);

/// The Merkle tree of a block.
struct BlockTree {
    /// The AMTs whose tuples are its last leaves, by their number among the [touched](TouchedAmts)
    /// AMTs.
    amts: Vec<(usize, SubAmt)>,
    groups: Vec<TreeGroup>,
    top: B256,
}

impl BlockTree {
    /// Writes the block's row, and the tree's rows if they are kept; returns the number of leaves
    /// kept.
    fn write(
        self,
        view: &mut dyn NodeWrite,
        number: u64,
        leaves: u32,
        is_kept: bool,
    ) -> Result<u32, StateError> {
        for (level, group, row) in self.groups.into_iter().filter(|_| is_kept) {
            // A tree has fewer groups than leaves.
            view.replace(TREES, &group_key(number, level, group as u32), None, Some(row.into()))?;
        }
        let row = BlockRow { leaves, top: self.top, kept: if is_kept { leaves } else { 0 } };
        view.replace(BLOCKS, &number.to_be_bytes(), None, Some(row.encode().into()))?;
        Ok(row.kept)
    }
}

/// Finds the slot of a key, or allocates one, and raises its version (Algorithms 2 and 3). Also
/// returns the key's old record.
fn raise_version(
    params: &LvmtParams,
    view: &mut dyn NodeWrite,
    parent: &LvmtState,
    slots: &mut RootSlots<'_>,
    meta: &mut LvmtMeta,
    change: &BackendChange,
) -> Result<(KeyWrite, Option<Bytes>), StateError> {
    let key = change.key.encode();
    let row = match parent.memo.get(&change.key) {
        Some(row) => row,
        None => view.get(KEYS, &key)?,
    };
    let Some(row) = row else {
        let (way, slot) = slots::allocate(params, view, slots, &change.key, &key)?;
        meta.keys += 1;
        meta.dead += u64::from(change.next.is_none());
        return Ok((KeyWrite { key, way, slot, version: 1 }, None));
    };
    let record = KeyRecord::decode(&change.key, &row)?;
    check_path(params.height(), &record.way, KEYS)?;
    match (record.value.is_some(), change.next.is_some()) {
        (true, false) => meta.dead += 1,
        (false, true) => {
            meta.dead = meta.dead.checked_sub(1).ok_or_else(|| {
                corrupt(META, format!("{} is dead, but no key is counted", change.key))
            })?;
        }
        _ => {}
    }
    let version = next_version(record.version, || change.key.to_string())?;
    Ok((KeyWrite { key, way: record.way, slot: record.slot, version }, Some(row)))
}

/// Reads the points and sub-AMTs that the block will use. Loads that do not wait for each other
/// take a fraction of the time of the same loads during the additions.
fn warm(params: &LvmtParams, second: &LevelArray, writes: &[KeyWrite]) {
    let load = |write: &KeyWrite| {
        let Some((entry, above)) = write.way.split_last() else { return 0 };
        let mut seen = u64::from(params.increment(entry.into(), write.slot.into()).is_infinity());
        if let [above, ..] = above {
            seen += u64::from(params.increment((*above).into(), 0).is_infinity());
        }
        seen
    };
    black_box(writes.iter().map(load).fold(0, u64::wrapping_add));
    let is_below = |write: &&KeyWrite| write.way.len() > 1;
    let entries = writes.iter().filter(is_below).map(|write| write.way[0].into());
    second.warm(entries, |amt| amt.version);
}

fn next_version(version: u64, of: impl Fn() -> String) -> Result<u64, StateError> {
    let next = version + 1;
    if next >= VERSION_END {
        let what = format!("the version of {}", of());
        return Err(StateError::Exhausted { backend: NAME, what, limit: VERSION_END - 1 });
    }
    Ok(next)
}

/// Rows that are written one behind the other, several in one allocation. An allocation for each
/// row would be slower; one for all rows would stay in memory as long as any of them.
#[derive(Default)]
struct RowBuffer {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    done: Vec<Bytes>,
}

/// Rows in one allocation.
const ROWS_A_PIECE: usize = 8;

impl RowBuffer {
    fn with_capacity(rows: usize) -> Self {
        Self { done: Vec::with_capacity(rows), ..Self::default() }
    }

    fn add(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.bytes);
        self.ends.push(self.bytes.len());
        if self.ends.len() == ROWS_A_PIECE {
            self.cut();
        }
    }

    fn cut(&mut self) {
        let next = Vec::with_capacity(self.bytes.len());
        let bytes = Bytes::from(std::mem::replace(&mut self.bytes, next));
        let mut start = 0;
        for end in self.ends.drain(..) {
            self.done.push(bytes.slice(start..end));
            start = end;
        }
    }

    fn finish(mut self) -> Vec<Bytes> {
        self.cut();
        self.done
    }
}
