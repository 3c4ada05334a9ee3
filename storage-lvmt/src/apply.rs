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

use crate::{
    hash, merkle,
    params::LvmtParams,
    point::{G1Point, sum},
    proof_tree::{ProofTree, RootRise, TreeGrowth},
    record::{
        AMTS, BLOCKS, BlockRow, EntryPath, KEY_SLOTS, KEYS, KeyRecord, LvmtMeta, META, META_KEY,
        NAME, RANGE, SLOTS, SubAmt, TREES, TuplePosition, VERSION_END, amt_key, check_path,
        corrupt, group_key, range_key, slot_key,
    },
    second_level::{LevelArray, LevelLog, VersionRise},
    shard::ProofShard,
    state::{ApplyBase, LvmtState},
};
use alloy_primitives::{B256, Bytes};
use hashbrown::HashMap;
use retrie_state::{
    ApplyContext, BackendChange, BackendDelta, BackendKey, EncodedKey, NodeWrite, StateError,
};
use std::{hint::black_box, sync::Arc};

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

    let (block, old_records) =
        BlockChange::raise_versions(params, view, parent, &mut meta, number, delta)?;
    warm(params, &base.second, &block.writes);
    let mut amts = TouchedAmts::above(&block.writes, view, params, parent)?;
    let leaves = block.leaf_count(&amts)?;
    let growth = parent.tree.as_ref().and_then(|tree| amts.add_growth(tree));

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
    let nodes = &amts.points[amts.ways.len()..];
    let proof_tree = parent.tree.as_ref().map(|tree| {
        let growth = growth.map(|growth| (growth, nodes));
        tree.child(params, growth, amts.bumps, context, view.as_read())
    });
    let child = parent.child(meta, ApplyBase { second, log, range }, proof_tree, collection);
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
        meta: &mut LvmtMeta,
        number: u64,
        delta: &'a BackendDelta,
    ) -> Result<(Self, Vec<Option<Bytes>>), StateError> {
        let second = &parent.apply_base(params, view.as_read())?.second;
        let mut writes = Vec::with_capacity(delta.changes().len());
        let mut old_records = Vec::with_capacity(delta.changes().len());
        for change in delta.changes() {
            let (write, record) = raise_version(params, view, parent, second, meta, change)?;
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
    second: &LevelArray,
    meta: &mut LvmtMeta,
    change: &BackendChange,
) -> Result<(KeyWrite, Option<Bytes>), StateError> {
    let key = change.key.encode();
    let row = match parent.memo.get(&change.key) {
        Some(row) => row,
        None => view.get(KEYS, &key)?,
    };
    let Some(row) = row else {
        let (way, slot) = allocate(params, view, second, &change.key, &key)?;
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
    second.warm(writes.iter().filter(is_below).map(|write| write.way[0]));
}

/// The first vacant slot on the path of a key. Slots are never freed, so this is always the lowest
/// free slot of the highest entry that has one. Absence proofs rest on this.
fn allocate(
    params: &LvmtParams,
    view: &mut dyn NodeWrite,
    second: &LevelArray,
    key: &BackendKey,
    encoded: &[u8],
) -> Result<(EntryPath, u8), StateError> {
    let location = hash::location(encoded);
    let height = params.height();
    let mut way = EntryPath::root();
    for level in 0.. {
        let entry =
            hash::entry_of(&location, height, level).ok_or_else(|| StateError::Exhausted {
                backend: NAME,
                what: format!("the number of levels on the path of {key}"),
                limit: level as u64,
            })?;
        // The height is at most 16, so an entry has at most 16 bits.
        way.push(entry as u16);
        // An entry with a sub-AMT is full.
        if level == 0 && second.get(entry as u16).version > 0 {
            continue;
        }
        for slot in KEY_SLOTS {
            let at = slot_key(&way, slot);
            if view.get(SLOTS, &at)?.is_none() {
                view.replace(SLOTS, &at, None, Some(Bytes::copy_from_slice(encoded)))?;
                return Ok((way, slot));
            }
        }
    }
    unreachable!("levels end with the hash")
}

fn next_version(version: u64, of: impl Fn() -> String) -> Result<u64, StateError> {
    let next = version + 1;
    if next >= VERSION_END {
        let what = format!("the version of {}", of());
        return Err(StateError::Exhausted { backend: NAME, what, limit: VERSION_END - 1 });
    }
    Ok(next)
}

/// The AMTs that a block changes, the root AMT first.
struct TouchedAmts<'a> {
    params: &'a LvmtParams,
    parent: &'a LvmtState,
    index: HashMap<EntryPath, u32>,
    ways: Vec<EntryPath>,
    before: Vec<SubAmt>,
    /// The commitments of the AMTs, then the nodes of the proof tree that change.
    points: Vec<G1Point>,
    /// Pairs of an index into `points` and a point to add.
    terms: Vec<(u32, G1Point)>,
    /// Versions of the root AMT that rise.
    bumps: Vec<RootRise>,
    /// Versions of the second level that rise.
    rises: Vec<VersionRise<u32>>,
}

impl<'a> TouchedAmts<'a> {
    /// The AMTs on the paths of `writes`.
    fn above(
        writes: &[KeyWrite],
        view: &dyn NodeWrite,
        params: &'a LvmtParams,
        parent: &'a LvmtState,
    ) -> Result<Self, StateError> {
        let mut amts = Self {
            params,
            parent,
            index: HashMap::from([(EntryPath::root(), 0)]),
            ways: vec![EntryPath::root()],
            before: vec![SubAmt::NONE],
            points: vec![parent.meta.commitment],
            terms: Vec::new(),
            bumps: Vec::new(),
            rises: Vec::new(),
        };
        for write in writes {
            if let Some((entry, above)) = write.way.split_last() {
                let amt = amts.touch(view, above)?;
                amts.bump(amt, entry, write.slot);
            }
        }
        Ok(amts)
    }

    /// The number of the AMT at the path `way`. At the first call for an AMT its version rises:
    /// slot 0 of the entry above.
    fn touch(&mut self, view: &dyn NodeWrite, way: &[u16]) -> Result<u32, StateError> {
        if let Some(at) = self.index.get(way) {
            return Ok(*at);
        }
        let at = self.ways.len() as u32;
        let amt = self.parent.amt(self.params, view.as_read(), way)?;
        let way = EntryPath::new(way);
        next_version(amt.version, || format!("the AMT {way}"))?;
        self.index.insert(way.clone(), at);
        self.before.push(amt);
        self.points.push(amt.commitment);
        self.ways.push(way.clone());
        if let Some((entry, above)) = way.split_last() {
            let above = self.touch(view, above)?;
            self.bump(above, entry, 0);
        }
        Ok(at)
    }

    /// Raises a version of AMT `at` by one (paper, section 5: no multiplication).
    fn bump(&mut self, at: u32, entry: u16, slot: u8) {
        self.terms.push((at, *self.params.increment(entry.into(), slot.into())));
        match self.ways[at as usize].len() {
            0 => self.bumps.push(RootRise { entry, slot }),
            1 => self.rises.push(VersionRise { of: at, entry, slot }),
            _ => {}
        }
    }

    /// Adds the increments of the proof tree's nodes to the same batch.
    fn add_growth(&mut self, tree: &ProofTree) -> Option<TreeGrowth> {
        let growth = tree.growth(self.params, &self.bumps)?;
        let own = self.points.len() as u32;
        self.terms.extend(growth.terms.iter().map(|(node, point)| (own + node, *point)));
        self.points.extend(growth.nodes.iter().map(|node| *growth.base(*node)));
        Some(growth)
    }

    /// The sub-AMTs that change, with their new content: deepest level first, within a level by
    /// path. Their tuples follow the tuples of `keys` keys. The root AMT has no tuple.
    fn changed(&self, block: u64, keys: usize) -> Vec<(usize, SubAmt)> {
        let mut order: Vec<usize> = (1..self.ways.len()).collect();
        order.sort_unstable_by(|a, b| {
            let (a, b) = (&self.ways[*a], &self.ways[*b]);
            b.len().cmp(&a.len()).then_with(|| a.cmp(b))
        });
        let amt = |(n, at): (usize, usize)| {
            let position = TuplePosition { block, leaf: (keys + n) as u32 };
            let version = self.before[at].version + 1;
            (at, SubAmt { version, position, commitment: self.points[at] })
        };
        order.into_iter().enumerate().map(amt).collect()
    }

    /// How many of `changed` did not exist before the block.
    fn new_count(&self, changed: &[(usize, SubAmt)]) -> u64 {
        changed.iter().filter(|(at, _)| self.before[*at].version == 0).count() as u64
    }

    /// Writes the rows of `changed` AMTs below the second level.
    fn write_rows(
        &self,
        view: &mut dyn NodeWrite,
        changed: &[(usize, SubAmt)],
    ) -> Result<(), StateError> {
        let row = |amt: &SubAmt| {
            let mut row = Vec::new();
            amt.encode(&mut row);
            Bytes::from(row)
        };
        for (at, amt) in changed {
            let old = (self.before[*at].version > 0).then(|| row(&self.before[*at]));
            view.replace(AMTS, &amt_key(&self.ways[*at]), old, Some(row(amt)))?;
        }
        Ok(())
    }

    /// Writes the `changed` AMTs of the second level as those of block `number`; `leaf` is the leaf
    /// of the first one's tuple. Returns the level after the block, and its log.
    fn write_second_level(
        &self,
        view: &mut dyn NodeWrite,
        base: &ApplyBase,
        changed: &[(usize, SubAmt)],
        number: u64,
        leaf: u32,
    ) -> Result<(LevelArray, LevelLog), StateError> {
        let mut number_of = vec![0; self.ways.len()];
        (0u16..).zip(changed).for_each(|(n, (at, _))| number_of[*at] = n);
        let rise = |&VersionRise { of, entry, slot }: &VersionRise<u32>| VersionRise {
            of: number_of[of as usize],
            entry,
            slot,
        };
        let rises = self.rises.iter().map(rise).collect();
        let entries: Vec<u16> = changed.iter().map(|(at, _)| self.ways[*at][0]).collect();
        let is_first = self.parent.meta.blocks == 0;
        let log = if is_first { LevelLog::new(number) } else { base.log };
        let amts = changed.iter().map(|(at, amt)| (self.ways[*at][0], *amt)).collect();
        let second = base.second.child(amts);
        let at = (self.params.height(), number);
        let log = log.step(view, at, &second, leaf, entries, rises)?;
        Ok((second, log))
    }
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
