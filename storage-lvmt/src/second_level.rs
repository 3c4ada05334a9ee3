//! The second level: the sub-AMTs right below the root AMT. Most blocks change hundreds of them, at
//! random places, and each of them has a version, a position and a commitment.
//!
//! ```text
//!  block --> one row of the log: which versions rose in which sub-AMT, five bytes each
//!        --> the next few chunks of the level as it is after the block: the rolling checkpoint
//! ```
//!
//! So a block writes a few rows, however many sub-AMTs it changes. The log of a chunk is needed
//! only since that chunk was written last, so the log begins at the block at which the oldest chunk
//! was written. When the store opens, it computes the commitments from the log, by some hundred
//! thousand additions. In memory the level is [one array](StateArray).

use crate::{
    params::LvmtParams,
    point::{G1Point, sum},
    record::{LvmtMeta, SubAmt, TuplePosition, corrupt},
    state_array::StateArray,
};
use alloy_primitives::Bytes;
use retrie_state::{
    KeyRange, NodeRead, NodeWrite, RowTable, ScanDirection, StateError,
    wire::{WireReader, put_varint},
};

/// The log: the changes of each block in the second level.
pub(crate) const LOG: RowTable = RowTable::new(0x27, "LvmtSecondLog");
/// The chunks of the level, each as it was after some block.
pub(crate) const CHUNKS: RowTable = RowTable::new(0x28, "LvmtSecond");

/// The sub-AMTs of the level in memory, by their entry in the root AMT.
pub(crate) type LevelArray = StateArray<SubAmt>;

/// Most chunks of the level: 16 sub-AMTs each at height 16, one each at the heights of tests.
const MOST_CHUNKS: usize = 1 << 12;
/// A block writes one chunk for each 64 sub-AMTs that it changes. So the log has about four changes
/// for each sub-AMT.
const CHANGES_A_CHUNK: usize = 64;

/// The state of the log after a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LevelLog {
    /// The number of chunks written so far, repetitions included. The next chunk is this number
    /// modulo the number of chunks.
    written: u64,
    /// The first block that has a row in the log.
    from: u64,
}

/// One version that rose by one: slot `slot` of entry `entry` in the sub-AMT `of`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VersionRise<T> {
    pub(crate) of: T,
    pub(crate) entry: u16,
    pub(crate) slot: u8,
}

/// The changes of one block, in a row of [`LOG`].
#[derive(Debug, PartialEq, Eq)]
struct LevelChanges {
    log: LevelLog,
    /// Leaf of the tuple of the first changed sub-AMT. The tuples of the others follow.
    leaf: u32,
    /// Entries in the root AMT of the changed sub-AMTs, ascending.
    amts: Vec<u16>,
    /// The versions that rose. `of` is a position in `amts`.
    rises: Vec<VersionRise<u16>>,
}

fn log_key(block: u64) -> [u8; 8] {
    block.to_be_bytes()
}

/// The number of chunks, and the number of sub-AMTs in each chunk.
fn shape(height: u8) -> (usize, usize) {
    let entries = 1usize << height;
    let chunks = entries.min(MOST_CHUNKS);
    (chunks, entries / chunks)
}

impl LevelLog {
    /// The log of a state that was loaded as block `number`: every chunk is written.
    pub(crate) fn loaded(height: u8, number: u64) -> Self {
        Self { written: shape(height).0 as u64, from: number }
    }

    /// The log of the state before the first block, which is block `number`.
    pub(crate) const fn new(number: u64) -> Self {
        Self { written: 0, from: number }
    }

    /// Writes the changes of block `number` in the second level. `second` is the level after the
    /// block; `amts` are the changed entries, ascending; `leaf` is the leaf of the first one's
    /// tuple.
    pub(crate) fn step(
        self,
        view: &mut dyn NodeWrite,
        (height, number): (u8, u64),
        second: &LevelArray,
        leaf: u32,
        amts: Vec<u16>,
        rises: Vec<VersionRise<u16>>,
    ) -> Result<Self, StateError> {
        let (chunks, size) = shape(height);
        let due = amts.len().div_ceil(CHANGES_A_CHUNK).min(chunks) as u64;
        for turn in self.written..self.written + due {
            let chunk = (turn % chunks as u64) as usize;
            let first = chunk * size;
            let amts: Vec<SubAmt> = (first..first + size).map(|at| second.get(at as u32)).collect();
            if let Some(row) = chunk_row(number, &amts) {
                view.put(CHUNKS, &chunk_key(chunk), row.into())?;
            }
        }
        let written = self.written + due;
        let mut from = self.from;
        while from < number {
            let Some(row) = view.get(LOG, &log_key(from))? else { return Err(lost(from)) };
            if LevelChanges::written(from, &row)?.saturating_add(chunks as u64) > written {
                break;
            }
            view.replace(LOG, &log_key(from), Some(row), None)?;
            from += 1;
        }
        let log = Self { written, from };
        let row = LevelChanges { log, leaf, amts, rises }.encode();
        view.replace(LOG, &log_key(number), None, Some(row.into()))?;
        Ok(log)
    }
}

/// Key and value of a new row.
type NewRow = (Vec<u8>, Vec<u8>);

/// The rows of a state that was loaded as block `number`: the chunks in order, and the log's row.
pub(crate) fn loaded_rows(
    height: u8,
    number: u64,
    amts: &[SubAmt],
) -> (impl Iterator<Item = NewRow>, NewRow) {
    let chunks = amts.chunks(shape(height).1).enumerate();
    let chunks = chunks
        .filter_map(move |(at, amts)| Some((chunk_key(at).to_vec(), chunk_row(number, amts)?)));
    let log = LevelLog::loaded(height, number);
    let changes = LevelChanges { log, leaf: 0, amts: Vec::new(), rises: Vec::new() };
    (chunks, (log_key(number).to_vec(), changes.encode()))
}

// ---------------------------------------------------------------------------------------------
// Reading
// ---------------------------------------------------------------------------------------------

/// The second level as its rows describe it.
#[derive(Debug)]
pub(crate) struct StoredLevel {
    /// By entry. Versions and positions are up to date; the commitments do not include `rises`.
    pub(crate) amts: Vec<SubAmt>,
    rises: Vec<VersionRise<u32>>,
    pub(crate) log: LevelLog,
}

impl StoredLevel {
    /// Reads the level of the state that `view` shows. A malformed or missing row is an error.
    pub(crate) fn read(view: &dyn NodeRead, height: u8) -> Result<Self, StateError> {
        let meta = LvmtMeta::get(view)?;
        let (chunks, size) = shape(height);
        let mut amts = vec![SubAmt::NONE; 1 << height];
        let Some(tip) = meta.tip() else {
            return Ok(Self { amts, rises: Vec::new(), log: LevelLog::new(meta.first) });
        };
        // The block after which the chunk was written.
        let mut at_block = vec![None; chunks];
        for row in view.scan(CHUNKS, KeyRange::ALL, ScanDirection::Forward)? {
            let (key, row) = row?;
            let mut read = || {
                let chunk = usize::from(u16::from_be_bytes(key[..].try_into().ok()?));
                let own = amts.chunks_mut(size).nth(chunk)?;
                *at_block.get_mut(chunk)? = Some(read_chunk(&row, tip, own)?);
                Some(())
            };
            read()
                .ok_or_else(|| corrupt(CHUNKS, format!("the row of chunk {key} is malformed")))?;
        }
        let (mut rises, mut seen) = (Vec::new(), None);
        for row in view.scan(LOG, KeyRange::ALL, ScanDirection::Forward)? {
            let (key, row) = row?;
            let block = key[..].try_into().map(u64::from_be_bytes);
            let block = block.map_err(|_| corrupt(LOG, format!("key {key} is no block number")))?;
            if let Some((_, last, _)) = seen
                && block != last + 1
            {
                return Err(lost(last + 1));
            }
            if block > tip {
                return Err(corrupt(LOG, format!("block {block} is above the last block")));
            }
            let changes = LevelChanges::decode(block, height, &row)?;
            let is_new = |entry: u32| at_block[entry as usize / size].is_none_or(|at| at < block);
            for (leaf, entry) in (changes.leaf..).zip(&changes.amts) {
                if is_new((*entry).into()) {
                    let amt = &mut amts[usize::from(*entry)];
                    amt.version += 1;
                    amt.position = TuplePosition { block, leaf };
                }
            }
            let own = changes.rises.iter().map(|rise| VersionRise {
                of: u32::from(changes.amts[usize::from(rise.of)]),
                entry: rise.entry,
                slot: rise.slot,
            });
            rises.extend(own.filter(|rise| is_new(rise.of)));
            let first = seen.map_or(block, |(first, _, _)| first);
            seen = Some((first, block, changes.log));
        }
        match seen {
            Some((_, last, _)) if last != tip => Err(lost(last + 1)),
            Some((first, _, log)) if first != log.from => Err(lost(log.from)),
            Some((_, _, log)) => Ok(Self { amts, rises, log }),
            None => Err(lost(tip)),
        }
    }

    /// All sub-AMTs, with their commitments.
    pub(crate) fn into_amts(self, params: &LvmtParams) -> Vec<SubAmt> {
        let Self { mut amts, rises, .. } = self;
        let mut commitments: Vec<G1Point> = amts.iter().map(|amt| amt.commitment).collect();
        let add = |rise: &VersionRise<u32>| {
            (rise.of, *params.increment(rise.entry.into(), rise.slot.into()))
        };
        for rises in rises.chunks(AT_ONCE) {
            sum(&mut commitments, &mut rises.iter().map(add).collect());
        }
        for (amt, commitment) in amts.iter_mut().zip(commitments) {
            amt.commitment = commitment;
        }
        amts
    }
}

/// Additions that are in memory at a time.
const AT_ONCE: usize = 1 << 16;

fn lost(block: u64) -> StateError {
    corrupt(LOG, format!("the row of block {block} is missing"))
}

// ---------------------------------------------------------------------------------------------
// Rows
// ---------------------------------------------------------------------------------------------

fn chunk_key(chunk: usize) -> [u8; 2] {
    // There are at most 2^12 chunks.
    (chunk as u16).to_be_bytes()
}

/// The row of a chunk as it is after block `number`; `None` if the chunk has no sub-AMT.
fn chunk_row(number: u64, amts: &[SubAmt]) -> Option<Vec<u8>> {
    let is_there = |at: &usize| amts[*at].version > 0;
    let bits = (0..amts.len()).filter(is_there).fold(0u16, |bits, at| bits | 1 << at);
    (bits != 0).then(|| {
        let mut row = Vec::with_capacity(16 + 80 * bits.count_ones() as usize);
        put_varint(&mut row, number);
        row.extend_from_slice(&bits.to_be_bytes());
        amts.iter().filter(|amt| amt.version > 0).for_each(|amt| amt.encode(&mut row));
        with_checksum(row)
    })
}

/// Reads the row of a chunk, in a state whose last block is `tip`. Returns the block that wrote it.
fn read_chunk(row: &[u8], tip: u64, amts: &mut [SubAmt]) -> Option<u64> {
    let mut row = WireReader::new(without_checksum(row)?);
    let block = row.varint().ok().filter(|block| *block <= tip)?;
    let bits = row.u16().ok()?;
    for at in (0..16).filter(|at| bits >> at & 1 == 1) {
        *amts.get_mut(at)? = SubAmt::read(&mut row)?;
    }
    row.is_empty().then_some(block)
}

/// Appends a checksum: some parts of a row cannot be compared with other rows.
fn with_checksum(mut row: Vec<u8>) -> Vec<u8> {
    let sum = crc32fast::hash(&row);
    row.extend_from_slice(&sum.to_be_bytes());
    row
}

/// Checks and removes the checksum.
fn without_checksum(row: &[u8]) -> Option<&[u8]> {
    let (row, sum) = row.split_last_chunk()?;
    (crc32fast::hash(row).to_be_bytes() == *sum).then_some(row)
}

impl LevelChanges {
    fn encode(&self) -> Vec<u8> {
        let mut row = Vec::with_capacity(32 + 2 * self.amts.len() + 5 * self.rises.len());
        put_varint(&mut row, self.log.written);
        put_varint(&mut row, self.log.from);
        put_varint(&mut row, self.leaf.into());
        put_varint(&mut row, self.amts.len() as u64);
        self.amts.iter().for_each(|entry| row.extend_from_slice(&entry.to_be_bytes()));
        for VersionRise { of, entry, slot } in &self.rises {
            let ([a, b], [c, d]) = (of.to_be_bytes(), entry.to_be_bytes());
            row.extend_from_slice(&[a, b, c, d, *slot]);
        }
        with_checksum(row)
    }

    /// The first field of the row of `block`: the chunks written so far.
    fn written(block: u64, row: &Bytes) -> Result<u64, StateError> {
        WireReader::new(row).varint().map_err(|_| malformed(block))
    }

    fn decode(block: u64, height: u8, row: &[u8]) -> Result<Self, StateError> {
        let read = || {
            let mut row = WireReader::new(without_checksum(row)?);
            let log = LevelLog { written: row.varint().ok()?, from: row.varint().ok()? };
            let leaf = u32::try_from(row.varint().ok()?).ok()?;
            let count = row.count(2).ok()?;
            let is_entry = |entry: &u16| u32::from(*entry) >> height == 0;
            let amts = (0..count).map(|_| row.u16().ok().filter(is_entry));
            let amts = amts.collect::<Option<Vec<u16>>>()?;
            let (rises, []) = row.rest().as_chunks::<5>() else { return None };
            let rise = |&[a, b, c, d, slot]: &[u8; 5]| VersionRise {
                of: u16::from_be_bytes([a, b]),
                entry: u16::from_be_bytes([c, d]),
                slot,
            };
            let rises: Vec<VersionRise<u16>> = rises.iter().map(rise).collect();
            let is_right = |rise: &VersionRise<u16>| {
                usize::from(rise.of) < count && is_entry(&rise.entry) && rise.slot < 6
            };
            let last = u64::from(leaf) + count as u64;
            let is_right = rises.iter().all(is_right)
                && amts.is_sorted_by(|a, b| a < b)
                && last < u32::MAX.into()
                // More than any chain writes; a larger number would overflow.
                && log.written <= u64::MAX >> 1;
            is_right.then_some(Self { log, leaf, amts, rises })
        };
        read().ok_or_else(|| malformed(block))
    }
}

fn malformed(block: u64) -> StateError {
    corrupt(LOG, format!("the row of block {block} is malformed"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        amt::model::point,
        record::{META, META_KEY},
    };
    use ark_bn254::Fr;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use retrie_state::RowScan;
    use std::{collections::BTreeMap, ops::ControlFlow};

    /// Rows in memory.
    #[derive(Default)]
    struct MemoryRows(BTreeMap<(u8, Vec<u8>), Bytes>);

    impl NodeRead for MemoryRows {
        fn get(&self, table: RowTable, key: &[u8]) -> Result<Option<Bytes>, StateError> {
            Ok(self.0.get(&(table.id, key.to_vec())).cloned())
        }

        fn scan<'a>(
            &'a self,
            table: RowTable,
            _: KeyRange<'_>,
            _: ScanDirection,
        ) -> Result<RowScan<'a>, StateError> {
            let rows = self.0.iter().filter(move |((id, _), _)| *id == table.id);
            Ok(Box::new(rows.map(|((_, key), row)| Ok((key.clone().into(), row.clone())))))
        }
    }

    impl NodeWrite for MemoryRows {
        fn put(&mut self, table: RowTable, key: &[u8], value: Bytes) -> Result<(), StateError> {
            self.0.insert((table.id, key.to_vec()), value);
            Ok(())
        }

        fn delete(&mut self, table: RowTable, key: &[u8]) -> Result<(), StateError> {
            self.0.remove(&(table.id, key.to_vec()));
            Ok(())
        }

        fn replace(
            &mut self,
            table: RowTable,
            key: &[u8],
            previous: Option<Bytes>,
            next: Option<Bytes>,
        ) -> Result<(), StateError> {
            assert_eq!(self.get(table, key)?, previous);
            match next {
                Some(value) => self.put(table, key, value),
                None => self.delete(table, key),
            }
        }

        fn publish_file(&mut self, _: &str) -> Result<(), StateError> {
            unreachable!("there are no files here")
        }

        fn retire_file(&mut self, _: &str) -> Result<(), StateError> {
            unreachable!("there are no files here")
        }

        fn as_read(&self) -> &dyn NodeRead {
            self
        }
    }

    /// Chunks with several sub-AMTs, each written more than once.
    #[test]
    fn rows_are_the_level_whatever_the_size_of_blocks() {
        const HEIGHT: u8 = 14;
        let params =
            LvmtParams::insecure_dev(HEIGHT, false, &|_, _, _| ControlFlow::Continue(())).unwrap();
        let mut random = StdRng::seed_from_u64(4);
        let (mut view, mut amts) = (MemoryRows::default(), vec![SubAmt::NONE; 1 << HEIGHT]);
        let (mut second, mut log) = (LevelArray::new(amts.clone()), LevelLog::new(100));
        let mut most = 0;
        for number in 100..300u64 {
            // Some entries stay empty.
            let entries = if number < 150 { 3000 } else { 1 << HEIGHT };
            let count = [0, 70, 5000, 20_000][random.random_range(0..4)];
            let mut changed: Vec<u16> =
                (0..count).map(|_| random.random_range(0..entries)).collect();
            changed.sort_unstable();
            changed.dedup();
            let (mut rises, mut terms) = (Vec::new(), Vec::new());
            for (of, entry) in (0..).zip(&changed) {
                for _ in 0..random.random_range(1..3) {
                    let (rise, slot) =
                        (random.random_range(0..1 << HEIGHT), random.random_range(0..6));
                    rises.push(VersionRise { of, entry: rise, slot });
                    terms.push((u32::from(*entry), *params.increment(rise.into(), slot.into())));
                }
            }
            let mut commitments: Vec<G1Point> = amts.iter().map(|amt| amt.commitment).collect();
            sum(&mut commitments, &mut terms);
            for (leaf, entry) in (number as u32..).zip(&changed) {
                let amt = &mut amts[usize::from(*entry)];
                amt.version += 1;
                amt.position = TuplePosition { block: number, leaf };
                amt.commitment = commitments[usize::from(*entry)];
            }
            second = second
                .child(changed.iter().map(|e| ((*e).into(), amts[usize::from(*e)])).collect());
            let at = (HEIGHT, number);
            log = log.step(&mut view, at, &second, number as u32, changed, rises).unwrap();
            let meta = LvmtMeta { first: 100, blocks: number - 99, ..LvmtMeta::EMPTY };
            view.put(META, META_KEY, meta.encode().into()).unwrap();
            most = most.max(number - log.from);
            if number % 23 == 0 {
                let level = StoredLevel::read(&view, HEIGHT).unwrap();
                assert_eq!(level.log, log);
                assert!(level.into_amts(&params) == amts, "block {number}");
            }
        }
        assert!(log.written > 2 * 4096, "each chunk has had its turn twice: {log:?}");
        assert!(most < 190, "the log is cut: {most}");
    }

    fn amts(versions: &[u64]) -> Vec<SubAmt> {
        let amt = |version: &u64| match version {
            0 => SubAmt::NONE,
            _ => SubAmt {
                version: *version,
                position: TuplePosition { block: 300 + version, leaf: 7 },
                commitment: point(Fr::from(*version)),
            },
        };
        versions.iter().map(amt).collect()
    }

    #[test]
    fn chunks_come_back_and_are_as_many_as_said() {
        assert_eq!(
            [1, 5, 12, 13, 16].map(shape),
            [(2, 1), (32, 1), (4096, 1), (4096, 2), (4096, 16)]
        );
        let mut versions = [0; 16];
        assert_eq!(chunk_row(9, &amts(&versions)), None);
        (versions[0], versions[3], versions[15]) = (1, 500, 3);
        let chunk = amts(&versions);
        let row = chunk_row(999, &chunk).unwrap();
        let mut read = vec![SubAmt::NONE; 16];
        assert_eq!(read_chunk(&row, 999, &mut read), Some(999));
        assert_eq!(read, chunk);
        // A chunk of a later block, and a chunk with fewer places.
        assert_eq!(read_chunk(&row, 998, &mut read), None);
        assert_eq!(read_chunk(&row, 999, &mut read[..8]), None);
    }

    #[test]
    fn changes_come_back_and_nonsense_is_refused() {
        let right = || LevelChanges {
            log: LevelLog { written: 5000, from: 40 },
            leaf: 1000,
            amts: vec![0, 7, 65_535],
            rises: vec![
                VersionRise { of: 2, entry: 65_535, slot: 5 },
                VersionRise { of: 0, entry: 1, slot: 0 },
            ],
        };
        let row = right().encode();
        assert_eq!(LevelChanges::decode(77, 16, &row).unwrap(), right());
        assert_eq!(LevelChanges::written(77, &row.into()).unwrap(), 5000);
        let wrong = |change: fn(&mut LevelChanges)| {
            let mut changes = right();
            change(&mut changes);
            assert!(LevelChanges::decode(77, 16, &changes.encode()).is_err(), "{changes:?}");
        };
        wrong(|it| it.rises[0].of = 3);
        wrong(|it| it.rises[0].slot = 6);
        wrong(|it| it.amts = vec![7, 0, 9]);
        wrong(|it| it.leaf = u32::MAX - 3);
        wrong(|it| it.log.written = u64::MAX);
        assert!(
            LevelChanges::decode(77, 15, &right().encode()).is_err(),
            "an entry beyond the height"
        );
    }
}
