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
    proof_tree::RootRise,
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
    ApplyContext, EncodedKey, NodeWrite, StateChange, StateDelta, StateError, StateKey,
};
use std::{hint::black_box, sync::Arc};

/// Applies `delta` to the state `parent`. Returns the new root and structure.
pub(crate) fn apply(
    params: &Arc<LvmtParams>,
    shard: ProofShard,
    context: &ApplyContext<'_>,
    view: &mut dyn NodeWrite,
    parent: &LvmtState,
    delta: &StateDelta,
) -> Result<(B256, LvmtState), StateError> {
    let number = context.number;
    let ground = parent.apply_base(params, view.as_read())?;
    let mut meta = parent.meta;
    if meta.blocks == 0 {
        meta.first = number;
    }
    meta.blocks += 1;

    let mut writes = Vec::with_capacity(delta.changes().len());
    let mut rows_before = Vec::with_capacity(delta.changes().len());
    for change in delta.changes() {
        let (write, row) = raise_version(params, view, parent, ground, &mut meta, change)?;
        writes.push(write);
        rows_before.push(row);
    }
    warm(params, &ground.second, &writes);
    let mut amts = TouchedAmts::new(params, parent);
    for write in &writes {
        if let Some((entry, above)) = write.way.split_last() {
            let amt = amts.touch(view, above)?;
            amts.bump(amt, entry, write.slot);
        }
    }
    let TouchedAmts { ways, before, mut points, mut terms, bumps, rises, .. } = amts;
    let (keys, own) = (writes.len(), points.len());
    let count = u32::try_from(keys + own - 1).map_err(|_| StateError::Exhausted {
        backend: NAME,
        what: format!("the number of changes of block {number}"),
        limit: u32::MAX.into(),
    })?;

    // The increments of the proof tree's nodes join the same batch.
    let growth = parent.tree.as_ref().and_then(|tree| tree.growth(params, &bumps));
    if let Some(growth) = &growth {
        terms.extend(growth.terms.iter().map(|(node, point)| (own as u32 + node, *point)));
        points.extend(growth.nodes.iter().map(|node| *growth.base(*node)));
    }
    let keep = shard.keeps_tree(number);
    let compute = || {
        let tuples_of_keys = || {
            let mut tuples = hash::HashBatch::with_capacity(keys);
            for (write, change) in writes.iter().zip(delta.changes()) {
                let value = change.next.as_ref().map(|value| &value[..]);
                tuples.key_tuple(write.level(), write.slot, write.version, &write.key, value);
            }
            let mut groups = Vec::with_capacity(keys / 16);
            // The tuples of sub-AMTs are added later: their commitments are not computed yet.
            let tree = merkle::TreePrefix::new(tuples.finish(), |level, group, row| {
                groups.push((level, group, row));
            });
            (tree, groups)
        };
        // The thread that is done with the records takes the second closure.
        let ((), (tree, mut groups)) = both(keys, || sum(&mut points, &mut terms), tuples_of_keys);
        let amts = changed_amts(&ways, &before, &points, number, keys);
        let mut tuples = hash::HashBatch::with_capacity(amts.len());
        for (at, amt) in &amts {
            tuples.amt_tuple(&ways[*at], amt.version, &amt.commitment.to_bytes());
        }
        let top = tree.finish(&tuples.finish(), |level, group, row| {
            groups.push((level, group, row));
        });
        (amts, groups, top)
    };
    // Records contain the positions of their tuples; these follow from the order alone.
    let records = || {
        let mut rows = RowBuffer::with_capacity(keys);
        for (leaf, (write, change)) in writes.iter().zip(delta.changes()).enumerate() {
            let position = TuplePosition { block: number, leaf: leaf as u32 };
            let value = change.next.as_ref().map(|value| &value[..]);
            rows.add(|row| {
                KeyRecord::encode(write.slot, write.version, position, &write.way, value, row);
            });
        }
        let rows = rows.finish().into_iter();
        for (write, (old, row)) in writes.iter().zip(rows_before.into_iter().zip(rows)) {
            view.replace(KEYS, &write.key, old, Some(row))?;
        }
        Ok::<_, StateError>(())
    };
    let ((amts, groups, top), written) = both(keys, compute, records);
    written?;
    meta.commitment = points[0];
    meta.amts += amts.iter().filter(|(at, _)| before[*at].version == 0).count() as u64;

    // Sub-AMTs of the second level come last.
    let (deeper, second) = amts.split_at(amts.partition_point(|(at, _)| ways[*at].len() > 1));
    for (at, amt) in deeper {
        let row = |amt: &SubAmt| {
            let mut row = Vec::new();
            amt.encode(&mut row);
            Bytes::from(row)
        };
        let old = (before[*at].version > 0).then(|| row(&before[*at]));
        view.replace(AMTS, &amt_key(&ways[*at]), old, Some(row(amt)))?;
    }
    let mut ground = {
        let leaf = (keys + deeper.len()) as u32;
        let mut number_of = vec![0; ways.len()];
        (0u16..).zip(second).for_each(|(n, (at, _))| number_of[*at] = n);
        let rise = |VersionRise { of, entry, slot }| VersionRise {
            of: number_of[of as usize],
            entry,
            slot,
        };
        let rises = rises.into_iter().map(rise).collect();
        let changed: Vec<u16> = second.iter().map(|(at, _)| ways[*at][0]).collect();
        let log = if parent.meta.blocks == 0 { LevelLog::new(number) } else { ground.log };
        let amts = second.iter().map(|(at, amt)| (ways[*at][0], *amt)).collect();
        let second = ground.second.child(amts);
        let at = (params.height(), number);
        let log = log.step(view, at, &second, leaf, changed, rises)?;
        ApplyBase { second, log, range: ground.range.clone() }
    };
    for (level, group, row) in groups.into_iter().filter(|_| keep) {
        // A tree has fewer groups than leaves.
        view.replace(TREES, &group_key(number, level, group as u32), None, Some(row.into()))?;
    }
    if count > 0 {
        let row = BlockRow { leaves: count, top, kept: if keep { count } else { 0 } };
        view.replace(BLOCKS, &number.to_be_bytes(), None, Some(row.encode().into()))?;
        meta.leaves += u64::from(row.kept);
    }
    let range_top =
        ground.range.append(hash::block(number, count, &top), |level, group, row| {
            view.put(RANGE, &range_key(level, group), row.into())
        })?;

    let collection = parent.collection.step(params.height(), context, view, &mut meta, count)?;
    let old = (parent.meta.blocks > 0).then(|| parent.meta.encode().into());
    view.replace(META, META_KEY, old, Some(meta.encode().into()))?;

    let root = root_of(&meta, &range_top);
    let tree = parent.tree.as_ref().map(|tree| {
        let growth = growth.map(|growth| (growth, &points[own..]));
        tree.child(params, growth, bumps, context, view.as_read())
    });
    let child = parent.child(meta, ground, tree, collection);
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

/// The sub-AMTs that change, with their new content: deepest level first, within a level by path.
/// Their tuples follow the tuples of `keys` keys. The first of `ways` is the root AMT, which has no
/// tuple.
fn changed_amts(
    ways: &[EntryPath],
    before: &[SubAmt],
    points: &[G1Point],
    block: u64,
    keys: usize,
) -> Vec<(usize, SubAmt)> {
    let mut order: Vec<usize> = (1..ways.len()).collect();
    order.sort_unstable_by(|a, b| {
        let (a, b) = (&ways[*a], &ways[*b]);
        b.len().cmp(&a.len()).then_with(|| a.cmp(b))
    });
    let amt = |(n, at): (usize, usize)| {
        let position = TuplePosition { block, leaf: (keys + n) as u32 };
        (at, SubAmt { version: before[at].version + 1, position, commitment: points[at] })
    };
    order.into_iter().enumerate().map(amt).collect()
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

/// Finds the slot of a key, or allocates one, and raises its version (Algorithms 2 and 3). Also
/// returns the key's old record.
fn raise_version(
    params: &LvmtParams,
    view: &mut dyn NodeWrite,
    parent: &LvmtState,
    ground: &ApplyBase,
    meta: &mut LvmtMeta,
    change: &StateChange,
) -> Result<(KeyWrite, Option<Bytes>), StateError> {
    let key = change.key.encode();
    let row = match parent.memo.get(&change.key) {
        Some(row) => row,
        None => view.get(KEYS, &key)?,
    };
    let Some(row) = row else {
        let (way, slot) = allocate(params, view, &ground.second, &change.key, &key)?;
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
    key: &StateKey,
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
    /// The commitments of the AMTs.
    points: Vec<G1Point>,
    /// Pairs of an index into `points` and a point to add.
    terms: Vec<(u32, G1Point)>,
    /// Versions of the root AMT that rise.
    bumps: Vec<RootRise>,
    /// Versions of the second level that rise.
    rises: Vec<VersionRise<u32>>,
}

impl<'a> TouchedAmts<'a> {
    fn new(params: &'a LvmtParams, parent: &'a LvmtState) -> Self {
        Self {
            params,
            parent,
            index: HashMap::from([(EntryPath::root(), 0)]),
            ways: vec![EntryPath::root()],
            before: vec![SubAmt::NONE],
            points: vec![parent.meta.commitment],
            terms: Vec::new(),
            bumps: Vec::new(),
            rises: Vec::new(),
        }
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
