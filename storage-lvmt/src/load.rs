//! Bulk load: a whole state as one block, streaming. Rows go directly to the tables; only the
//! occupancy of entries and the commitments are in memory.

use crate::{
    apply::root_of,
    hash,
    merkle::{self, TreeBuilder},
    params::LvmtParams,
    point::{G1Point, sum},
    record::{
        AMTS, BLOCKS, BlockRow, EntryPath, KEY_SLOTS, KEYS, KeyRecord, LvmtMeta, META, META_KEY,
        NAME, RANGE, SLOTS, SubAmt, TREES, TuplePosition, amt_key, group_key, range_key, slot_key,
    },
    second_level::{CHUNKS, LOG, loaded_rows},
    shard::ProofShard,
};
use alloy_primitives::B256;
use hashbrown::HashMap;
use retrie_state::{BackendKey, BulkSink, StateError, StateValue};

/// Entries that are hashed together.
const AT_ONCE: usize = 4096;

/// Loads `entries`, sorted by key, as block `number`. The root is the one of the same block applied
/// to the empty state.
pub(crate) fn load(
    params: &LvmtParams,
    shard: ProofShard,
    number: u64,
    entries: &mut dyn Iterator<Item = Result<(BackendKey, StateValue), StateError>>,
    sink: &mut dyn BulkSink,
) -> Result<B256, StateError> {
    let mut load = StateLoad {
        params,
        number,
        keeps_tree: shard.keeps_tree(number),
        index: HashMap::from([(EntryPath::root(), 0)]),
        ways: vec![EntryPath::root()],
        points: vec![G1Point::INFINITY],
        terms: Vec::new(),
        used: (vec![0; 1 << params.height()], HashMap::new(), HashMap::new()),
        tree: TreeBuilder::default(),
    };
    let mut meta = LvmtMeta { first: number, blocks: 1, ..LvmtMeta::EMPTY };
    loop {
        let part = (&mut *entries).take(AT_ONCE).collect::<Result<Vec<_>, _>>()?;
        if part.is_empty() {
            break;
        }
        meta.keys += part.len() as u64;
        load.add(&part, sink)?;
    }
    load.finish(meta, sink)
}

struct StateLoad<'a> {
    params: &'a LvmtParams,
    number: u64,
    keeps_tree: bool,
    /// AMTs by path, the root AMT first; and their commitments.
    index: HashMap<EntryPath, u32>,
    ways: Vec<EntryPath>,
    points: Vec<G1Point>,
    terms: Vec<(u32, G1Point)>,
    /// The number of occupied slots of each entry. The entries of the first two levels are packed
    /// into numbers.
    used: (Vec<u8>, HashMap<u32, u8>, HashMap<EntryPath, u8>),
    tree: TreeBuilder,
}

impl StateLoad<'_> {
    fn add(
        &mut self,
        part: &[(BackendKey, StateValue)],
        sink: &mut dyn BulkSink,
    ) -> Result<(), StateError> {
        let mut locations = hash::HashBatch::with_capacity(part.len());
        part.iter().for_each(|(key, _)| locations.location(&key.encode()));
        let mut tuples = hash::HashBatch::with_capacity(part.len());
        let mut row = Vec::new();
        for (n, ((key, value), location)) in part.iter().zip(locations.finish()).enumerate() {
            let encoded = key.encode();
            let (way, slot) = self.allocate(key, &location)?;
            let position = TuplePosition { block: self.number, leaf: self.leaf(n)? };
            row.clear();
            KeyRecord::encode(slot, 1, position, &way, Some(value), &mut row);
            sink.put(KEYS, &encoded, &row)?;
            sink.put_unordered(SLOTS, &slot_key(&way, slot), &encoded)?;
            tuples.key_tuple((way.len() - 1) as u8, slot, 1, &encoded, Some(value));
        }
        self.leaves(tuples, sink)?;
        sum(&mut self.points, &mut self.terms);
        self.terms.clear();
        Ok(())
    }

    /// The number of the leaf that comes `n` leaves after the tree's last one.
    fn leaf(&self, n: usize) -> Result<u32, StateError> {
        u32::try_from(self.tree.count() + n as u64).map_err(|_| StateError::Exhausted {
            backend: NAME,
            what: format!("the number of changes of block {}", self.number),
            limit: u32::MAX.into(),
        })
    }

    fn leaves(
        &mut self,
        batch: hash::HashBatch,
        sink: &mut dyn BulkSink,
    ) -> Result<(), StateError> {
        for leaf in batch.finish() {
            if let Some((group, row)) = self.tree.push(leaf)
                && self.keeps_tree
            {
                sink.put(TREES, &group_key(self.number, 0, group as u32), &row)?;
            }
        }
        Ok(())
    }

    /// The first vacant slot on the path, as in `apply`.
    fn allocate(
        &mut self,
        key: &BackendKey,
        location: &B256,
    ) -> Result<(EntryPath, u8), StateError> {
        let mut way = EntryPath::root();
        let mut amt = 0;
        for level in 0.. {
            let entry = hash::entry_of(location, self.params.height(), level);
            let entry = entry.ok_or_else(|| StateError::Exhausted {
                backend: NAME,
                what: format!("the number of levels on the path of {key}"),
                limit: level as u64,
            })?;
            way.push(entry as u16);
            let used = match way[..] {
                [a] => &mut self.used.0[usize::from(a)],
                [a, b] => self.used.1.entry(u32::from(a) << 16 | u32::from(b)).or_insert(0),
                _ => self.used.2.entry_ref(&way).or_insert(0),
            };
            if *used < *KEY_SLOTS.end() {
                *used += 1;
                let slot = *used;
                self.bump(amt, entry, slot);
                return Ok((way, slot));
            }
            amt = match self.index.get(&way) {
                Some(amt) => *amt,
                None => {
                    // At the end of the block its version is 1, however many keys it gets.
                    self.bump(amt, entry, 0);
                    let amt = self.ways.len() as u32;
                    self.index.insert(way.clone(), amt);
                    self.ways.push(way.clone());
                    self.points.push(G1Point::INFINITY);
                    amt
                }
            };
        }
        unreachable!("levels end with the hash")
    }

    fn bump(&mut self, amt: u32, entry: u32, slot: u8) {
        self.terms.push((amt, *self.params.increment(entry, slot.into())));
    }

    fn finish(mut self, mut meta: LvmtMeta, sink: &mut dyn BulkSink) -> Result<B256, StateError> {
        let number = self.number;
        let mut order: Vec<usize> = (1..self.ways.len()).collect();
        order.sort_unstable_by(|a, b| {
            let (a, b) = (&self.ways[*a], &self.ways[*b]);
            b.len().cmp(&a.len()).then_with(|| a.cmp(b))
        });
        let mut tuples = hash::HashBatch::with_capacity(order.len());
        let (mut rows, mut second) = (Vec::new(), vec![SubAmt::NONE; 1 << self.params.height()]);
        meta.amts = order.len() as u64;
        for (n, at) in order.into_iter().enumerate() {
            let (way, commitment) = (&self.ways[at], self.points[at]);
            tuples.amt_tuple(way, 1, &commitment.to_bytes());
            let position = TuplePosition { block: number, leaf: self.leaf(n)? };
            let amt = SubAmt { version: 1, position, commitment };
            if let [entry] = way[..] {
                second[usize::from(entry)] = amt;
                continue;
            }
            let mut row = Vec::new();
            amt.encode(&mut row);
            rows.push((amt_key(way), row));
        }
        rows.sort_unstable();
        rows.iter().try_for_each(|(key, row)| sink.put(AMTS, key, row))?;
        let (mut chunks, (key, row)) = loaded_rows(self.params.height(), number, &second);
        chunks.try_for_each(|(key, row)| sink.put(CHUNKS, &key, &row))?;
        sink.put(LOG, &key, &row)?;
        meta.commitment = self.points[0];
        self.leaves(tuples, sink)?;

        let count = self.leaf(0)?;
        let keeps_tree = self.keeps_tree;
        let top = self.tree.finish(|level, group, row| {
            if !keeps_tree {
                return Ok(());
            }
            sink.put(TREES, &group_key(number, level, group as u32), &row)
        })?;
        if count > 0 {
            let row = BlockRow { leaves: count, top, kept: if keeps_tree { count } else { 0 } };
            sink.put(BLOCKS, &number.to_be_bytes(), &row.encode())?;
            meta.leaves = row.kept.into();
        }
        let mut range = merkle::RangeEdge::default();
        let range_top = range.append(hash::block(number, count, &top), |level, group, row| {
            sink.put(RANGE, &range_key(level, group), &row)
        })?;
        sink.put(META, META_KEY, &meta.encode())?;
        Ok(root_of(&meta, &range_top))
    }
}
