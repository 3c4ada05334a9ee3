//! One block (paper, Algorithms 1 to 5): versions go up, commitments follow, the block's Merkle tree
//! is built, the root binds both.
//!
//! ```text
//!  delta --> place: slot and version of each key --> increments of every AMT on the way
//!                          |                                   | one batch of additions
//!                          v                                   v
//!                   tuples of keys                     tuples of sub-AMTs
//!                          '---------> Merkle tree <-----------'
//!                                          | its leaf of the range
//!            root = H(root AMT's commitment || range) --> rows, the child's structure
//! ```
//!
//! That a sub-AMT changes is known before its new commitment: only versions enter the AMT above. So
//! all additions of all levels are one batch, with shared inversions.

use crate::{
    hash, merkle,
    params::Params,
    point::{Point, sum},
    record::{
        AMTS, Amt, BLOCKS, BlockRow, KEY_SLOTS, KEYS, META, META_KEY, Meta, NAME, Position, RANGE,
        Record, SLOTS, TREES, VERSION_END, Way, amt_key, check_way, corrupt, group_key, range_key,
        slot_key,
    },
    second::{Log, Rise, Second},
    shard::ProofShard,
    state::{Ground, State},
    tree::Bump,
};
use alloy_primitives::{B256, Bytes};
use hashbrown::HashMap;
use retrie_state::{ApplyContext, Change, EncodedKey, NodeWrite, StateDelta, StateError, StateKey};
use std::{hint::black_box, sync::Arc};

/// Applies `delta` to the state `parent`: the new root and structure.
pub(crate) fn apply(
    params: &Arc<Params>,
    shard: ProofShard,
    context: &ApplyContext<'_>,
    view: &mut dyn NodeWrite,
    parent: &State,
    delta: &StateDelta,
) -> Result<(B256, State), StateError> {
    let number = context.number;
    let ground = parent.ground(params, view.as_read())?;
    let mut meta = parent.meta;
    if meta.blocks == 0 {
        meta.first = number;
    }
    meta.blocks += 1;

    let mut writes = Vec::with_capacity(delta.changes().len());
    let mut rows_before = Vec::with_capacity(delta.changes().len());
    for change in delta.changes() {
        let (write, row) = place(params, view, parent, ground, &mut meta, change)?;
        writes.push(write);
        rows_before.push(row);
    }
    warm(params, &ground.second, &writes);
    let mut amts = Touched::new(params, parent);
    for write in &writes {
        if let Some((entry, above)) = write.way.split_last() {
            let amt = amts.touch(view, above)?;
            amts.bump(amt, entry, write.slot);
        }
    }
    let Touched { ways, before, mut points, mut terms, bumps, rises, .. } = amts;
    let (keys, own) = (writes.len(), points.len());
    let count = u32::try_from(keys + own - 1).map_err(|_| StateError::Exhausted {
        backend: NAME,
        what: format!("the number of changes of block {number}"),
        limit: u32::MAX.into(),
    })?;

    // The proof tree's nodes are added to in the same batch.
    let growth = parent.tree.as_ref().and_then(|tree| tree.growth(params, &bumps));
    if let Some(growth) = &growth {
        terms.extend(growth.terms.iter().map(|(node, point)| (own as u32 + node, *point)));
        points.extend(growth.nodes.iter().map(|node| *growth.base(*node)));
    }
    let keep = shard.keeps_tree(number);
    let compute = || {
        let tuples_of_keys = || {
            let mut tuples = hash::Batch::with_capacity(keys);
            for (write, change) in writes.iter().zip(delta.changes()) {
                let value = change.next.as_ref().map(|value| &value[..]);
                tuples.key_tuple(write.level(), write.slot, write.version, &write.key, value);
            }
            let mut groups = Vec::with_capacity(keys / 16);
            // The tuples of sub-AMTs are not known yet.
            let tree = merkle::Begun::new(tuples.finish(), |level, group, row| {
                groups.push((level, group, row));
            });
            (tree, groups)
        };
        // Whoever is done with the records takes the second of these.
        let ((), (tree, mut groups)) = both(keys, || sum(&mut points, &mut terms), tuples_of_keys);
        let amts = changed(&ways, &before, &points, number, keys);
        let mut tuples = hash::Batch::with_capacity(amts.len());
        for (at, amt) in &amts {
            tuples.amt_tuple(&ways[*at], amt.version, &amt.commitment.to_bytes());
        }
        let top = tree.finish(&tuples.finish(), |level, group, row| {
            groups.push((level, group, row));
        });
        (amts, groups, top)
    };
    // Records need the positions of their tuples, and these follow from the order alone.
    let records = || {
        let mut rows = Rows::with_capacity(keys);
        for (leaf, (write, change)) in writes.iter().zip(delta.changes()).enumerate() {
            let position = Position { block: number, leaf: leaf as u32 };
            let value = change.next.as_ref().map(|value| &value[..]);
            rows.add(|row| {
                Record::encode(write.slot, write.version, position, &write.way, value, row);
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

    // The second level comes last.
    let (deeper, second) = amts.split_at(amts.partition_point(|(at, _)| ways[*at].len() > 1));
    for (at, amt) in deeper {
        let row = |amt: &Amt| {
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
        let rise = |Rise { of, entry, slot }| Rise { of: number_of[of as usize], entry, slot };
        let rises = rises.into_iter().map(rise).collect();
        let changed: Vec<u16> = second.iter().map(|(at, _)| ways[*at][0]).collect();
        let log = if parent.meta.blocks == 0 { Log::new(number) } else { ground.log };
        let amts = second.iter().map(|(at, amt)| (ways[*at][0], *amt)).collect();
        let second = ground.second.child(amts);
        let at = (params.height(), number);
        let log = log.step(view, at, &second, leaf, changed, rises)?;
        Ground { second, log, range: ground.range.clone() }
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
        tree.grown(params, growth, bumps, context, view.as_read())
    });
    let child = parent.child(meta, ground, tree, collection);
    parent.memo.clear();
    Ok((root, child))
}

/// Changed keys from which on it pays to wake another thread.
const KEYS_FOR_TWO: usize = 64;

/// Does both, side by side if `keys` changed keys are worth it.
fn both<A: Send, B: Send>(
    keys: usize,
    a: impl FnOnce() -> A + Send,
    b: impl FnOnce() -> B + Send,
) -> (A, B) {
    if keys < KEYS_FOR_TWO { (a(), b()) } else { rayon::join(a, b) }
}

/// The sub-AMTs that change, with their new content: deepest level first, within a level by way.
/// Their tuples come after those of `keys` keys. The first of `ways` is the root AMT, which has none.
fn changed(
    ways: &[Way],
    before: &[Amt],
    points: &[Point],
    block: u64,
    keys: usize,
) -> Vec<(usize, Amt)> {
    let mut order: Vec<usize> = (1..ways.len()).collect();
    order.sort_unstable_by(|a, b| {
        let (a, b) = (&ways[*a], &ways[*b]);
        b.len().cmp(&a.len()).then_with(|| a.cmp(b))
    });
    let amt = |(n, at): (usize, usize)| {
        let position = Position { block, leaf: (keys + n) as u32 };
        (at, Amt { version: before[at].version + 1, position, commitment: points[at] })
    };
    order.into_iter().enumerate().map(amt).collect()
}

/// The root of a state with these counts, whose range has this top.
pub(crate) fn root_of(meta: &Meta, range_top: &B256) -> B256 {
    hash::root(&meta.commitment.to_bytes(), meta.first, meta.blocks, range_top)
}

/// A key that changes: where its version is, and which one is new.
struct Write {
    key: EncodedKey,
    way: Way,
    slot: u8,
    version: u64,
}

impl Write {
    /// Level of the AMT in which its version is.
    fn level(&self) -> u8 {
        (self.way.len() - 1) as u8
    }
}

/// Finds the slot of a key, or gives it one, and raises its version (Algorithms 2 and 3). Returns
/// its record so far as well.
fn place(
    params: &Params,
    view: &mut dyn NodeWrite,
    parent: &State,
    ground: &Ground,
    meta: &mut Meta,
    change: &Change,
) -> Result<(Write, Option<Bytes>), StateError> {
    let key = change.key.encode();
    let row = match parent.memo.get(&change.key) {
        Some(row) => row,
        None => view.get(KEYS, &key)?,
    };
    let Some(row) = row else {
        let (way, slot) = allocate(params, view, &ground.second, &change.key, &key)?;
        meta.keys += 1;
        meta.dead += u64::from(change.next.is_none());
        return Ok((Write { key, way, slot, version: 1 }, None));
    };
    let record = Record::decode(&change.key, &row)?;
    check_way(params.height(), &record.way, KEYS)?;
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
    Ok((Write { key, way: record.way, slot: record.slot, version }, Some(row)))
}

/// Reads what the block will add and change in memory: loads that do not wait for each other take a
/// fraction of the time of those on the way through.
fn warm(params: &Params, second: &Second, writes: &[Write]) {
    let load = |write: &Write| {
        let Some((entry, above)) = write.way.split_last() else { return 0 };
        let mut seen = u64::from(params.increment(entry.into(), write.slot.into()).is_infinity());
        if let [above, ..] = above {
            seen += u64::from(params.increment((*above).into(), 0).is_infinity());
        }
        seen
    };
    black_box(writes.iter().map(load).fold(0, u64::wrapping_add));
    let is_below = |write: &&Write| write.way.len() > 1;
    second.warm(writes.iter().filter(is_below).map(|write| write.way[0]));
}

/// The first vacant slot on the way of a key: always the lowest of the highest entry that has one,
/// since slots are never freed. Absence proofs rest on this.
fn allocate(
    params: &Params,
    view: &mut dyn NodeWrite,
    second: &Second,
    key: &StateKey,
    encoded: &[u8],
) -> Result<(Way, u8), StateError> {
    let location = hash::location(encoded);
    let height = params.height();
    let mut way = Way::root();
    for level in 0.. {
        let entry =
            hash::entry_of(&location, height, level).ok_or_else(|| StateError::Exhausted {
                backend: NAME,
                what: format!("the number of levels on the way of {key}"),
                limit: level as u64,
            })?;
        // Entries of a height of 16 at most.
        way.push(entry as u16);
        // Where there is a sub-AMT the entry is full.
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
struct Touched<'a> {
    params: &'a Params,
    parent: &'a State,
    index: HashMap<Way, u32>,
    ways: Vec<Way>,
    before: Vec<Amt>,
    /// Their commitments.
    points: Vec<Point>,
    /// What is added to which of `points`.
    terms: Vec<(u32, Point)>,
    /// What changes in the root AMT.
    bumps: Vec<Bump>,
    /// What changes in the second level.
    rises: Vec<Rise<u32>>,
}

impl<'a> Touched<'a> {
    fn new(params: &'a Params, parent: &'a State) -> Self {
        Self {
            params,
            parent,
            index: HashMap::from([(Way::root(), 0)]),
            ways: vec![Way::root()],
            before: vec![Amt::NONE],
            points: vec![parent.meta.commitment],
            terms: Vec::new(),
            bumps: Vec::new(),
            rises: Vec::new(),
        }
    }

    /// The AMT at `way`. The first time, its version goes up: the slot 0 above it.
    fn touch(&mut self, view: &dyn NodeWrite, way: &[u16]) -> Result<u32, StateError> {
        if let Some(at) = self.index.get(way) {
            return Ok(*at);
        }
        let at = self.ways.len() as u32;
        let amt = self.parent.amt(self.params, view.as_read(), way)?;
        let way = Way::new(way);
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

    /// Raises a version of the AMT `at` by one (paper, section 5: no multiplication).
    fn bump(&mut self, at: u32, entry: u16, slot: u8) {
        self.terms.push((at, *self.params.increment(entry.into(), slot.into())));
        match self.ways[at as usize].len() {
            0 => self.bumps.push(Bump { entry, slot }),
            1 => self.rises.push(Rise { of: at, entry, slot }),
            _ => {}
        }
    }
}

/// Rows written one behind the other, a few in one piece of memory: an allocation for each would
/// take longer, and one for all would stay as long as any of them does.
#[derive(Default)]
struct Rows {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    done: Vec<Bytes>,
}

/// Rows in one piece of memory.
const ROWS_A_PIECE: usize = 8;

impl Rows {
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
