//! The second level: the sub-AMTs right below the root AMT. Most blocks change hundreds of them, here
//! and there, and each is a version, a position and a point.
//!
//! ```text
//!  block --> one row of the log: which versions rose in which sub-AMT, five bytes each
//!        --> some chunks of the level as it is then, the next ones in turn: the rolling checkpoint
//! ```
//!
//! So a block costs a few rows, however many sub-AMTs it changes. What the log says of a chunk before
//! that was written is not needed any more, so the log begins at the block at which the oldest chunk
//! was written. Commitments follow from the log by additions: some hundred thousand, when the store is
//! opened. In memory the level is [one array](Second).

mod array;

pub(crate) use array::Second;

use crate::{
    params::Params,
    point::{Point, sum},
    record::{Amt, Meta, Position, corrupt},
};
use alloy_primitives::Bytes;
use retrie_state::{
    Direction, KeyRange, NodeRead, NodeWrite, StateError, Table,
    wire::{WireReader, put_varint},
};

/// The log: what each block changed of the second level.
pub(crate) const LOG: Table = Table::new(0x27, "LvmtSecondLog");
/// The chunks of the level, each as it was at some block.
pub(crate) const CHUNKS: Table = Table::new(0x28, "LvmtSecond");

/// Chunks of the level at most: 16 sub-AMTs each at height 16, one each at heights for tests.
const MOST_CHUNKS: usize = 1 << 12;
/// Sub-AMTs that change for each chunk that is written. The log then speaks of four times as many as
/// there are.
const CHANGES_A_CHUNK: usize = 64;

/// Where the log stands after a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Log {
    /// Chunks written so far, each again whenever its turn came: the next one is this, modulo the
    /// number of chunks.
    written: u64,
    /// The block with the first row.
    from: u64,
}

/// A version that went up by one: that of slot `slot` of entry `entry` in the sub-AMT `of`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rise<T> {
    pub(crate) of: T,
    pub(crate) entry: u16,
    pub(crate) slot: u8,
}

/// What a block changed, in a row of [`LOG`].
#[derive(Debug, PartialEq, Eq)]
struct Changes {
    log: Log,
    /// Leaf of the first changed sub-AMT's tuple; those of the others follow.
    leaf: u32,
    /// Entries of the changed sub-AMTs in the root AMT, ascending.
    amts: Vec<u16>,
    /// Of them, by their number among `amts`.
    rises: Vec<Rise<u16>>,
}

fn log_key(block: u64) -> [u8; 8] {
    block.to_be_bytes()
}

/// How many chunks there are, and sub-AMTs in each.
fn shape(height: u8) -> (usize, usize) {
    let entries = 1usize << height;
    let chunks = entries.min(MOST_CHUNKS);
    (chunks, entries / chunks)
}

impl Log {
    /// That of a state that was loaded as block `number`, whose chunks all are written.
    pub(crate) fn loaded(height: u8, number: u64) -> Self {
        Self { written: shape(height).0 as u64, from: number }
    }

    /// That of the state before the first block, which is block `number`.
    pub(crate) const fn new(number: u64) -> Self {
        Self { written: 0, from: number }
    }

    /// Writes what block `number` did to the second level, which now is `second`: `amts` changed, by
    /// ascending entry, the tuple of the first one at `leaf`.
    pub(crate) fn step(
        self,
        view: &mut dyn NodeWrite,
        (height, number): (u8, u64),
        second: &Second,
        leaf: u32,
        amts: Vec<u16>,
        rises: Vec<Rise<u16>>,
    ) -> Result<Self, StateError> {
        let (chunks, size) = shape(height);
        let due = amts.len().div_ceil(CHANGES_A_CHUNK).min(chunks) as u64;
        for turn in self.written..self.written + due {
            let chunk = (turn % chunks as u64) as usize;
            let first = chunk * size;
            let amts: Vec<Amt> = (first..first + size).map(|at| second.get(at as u16)).collect();
            if let Some(row) = chunk_row(number, &amts) {
                view.put(CHUNKS, &chunk_key(chunk), row.into())?;
            }
        }
        let written = self.written + due;
        let mut from = self.from;
        while from < number {
            let Some(row) = view.get(LOG, &log_key(from))? else { return Err(lost(from)) };
            if Changes::written(from, &row)?.saturating_add(chunks as u64) > written {
                break;
            }
            view.replace(LOG, &log_key(from), Some(row), None)?;
            from += 1;
        }
        let log = Self { written, from };
        let row = Changes { log, leaf, amts, rises }.encode();
        view.replace(LOG, &log_key(number), None, Some(row.into()))?;
        Ok(log)
    }
}

/// Key and value of a row.
type NewRow = (Vec<u8>, Vec<u8>);

/// The rows of a state that was loaded as block `number`: chunks in order, and the log's.
pub(crate) fn loaded_rows(
    height: u8,
    number: u64,
    amts: &[Amt],
) -> (impl Iterator<Item = NewRow>, NewRow) {
    let chunks = amts.chunks(shape(height).1).enumerate();
    let chunks = chunks
        .filter_map(move |(at, amts)| Some((chunk_key(at).to_vec(), chunk_row(number, amts)?)));
    let log = Log::loaded(height, number);
    let changes = Changes { log, leaf: 0, amts: Vec::new(), rises: Vec::new() };
    (chunks, (log_key(number).to_vec(), changes.encode()))
}

// ---------------------------------------------------------------------------------------------
// Reading
// ---------------------------------------------------------------------------------------------

/// The second level as rows have it.
#[derive(Debug)]
pub(crate) struct Level {
    /// By entry. Versions and positions are up to date; commitments lack `rises`.
    pub(crate) amts: Vec<Amt>,
    rises: Vec<Rise<u32>>,
    pub(crate) log: Log,
}

impl Level {
    /// Reads that of the state that `view` shows. Every row has to be what it was written as.
    pub(crate) fn read(view: &dyn NodeRead, height: u8) -> Result<Self, StateError> {
        let meta = Meta::get(view)?;
        let (chunks, size) = shape(height);
        let mut amts = vec![Amt::NONE; 1 << height];
        let Some(tip) = meta.tip() else {
            return Ok(Self { amts, rises: Vec::new(), log: Log::new(meta.first) });
        };
        // After which block a chunk is as it is in its row.
        let mut at_block = vec![None; chunks];
        for row in view.scan(CHUNKS, KeyRange::ALL, Direction::Forward)? {
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
        for row in view.scan(LOG, KeyRange::ALL, Direction::Forward)? {
            let (key, row) = row?;
            let block = key[..].try_into().map(u64::from_be_bytes);
            let block = block.map_err(|_| corrupt(LOG, format!("row {key} is of no block")))?;
            if let Some((_, last, _)) = seen
                && block != last + 1
            {
                return Err(lost(last + 1));
            }
            if block > tip {
                return Err(corrupt(LOG, format!("block {block} is yet to come")));
            }
            let changes = Changes::decode(block, height, &row)?;
            let is_new = |entry: u32| at_block[entry as usize / size].is_none_or(|at| at < block);
            for (leaf, entry) in (changes.leaf..).zip(&changes.amts) {
                if is_new((*entry).into()) {
                    let amt = &mut amts[usize::from(*entry)];
                    amt.version += 1;
                    amt.position = Position { block, leaf };
                }
            }
            let own = changes.rises.iter().map(|rise| Rise {
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

    /// All of it, the commitments as well.
    pub(crate) fn into_amts(self, params: &Params) -> Vec<Amt> {
        let Self { mut amts, rises, .. } = self;
        let mut commitments: Vec<Point> = amts.iter().map(|amt| amt.commitment).collect();
        let add =
            |rise: &Rise<u32>| (rise.of, *params.increment(rise.entry.into(), rise.slot.into()));
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
    // There are few chunks.
    (chunk as u16).to_be_bytes()
}

/// The row of a chunk as it is after block `number`; `None` if there is no sub-AMT in it.
fn chunk_row(number: u64, amts: &[Amt]) -> Option<Vec<u8>> {
    let is_there = |at: &usize| amts[*at].version > 0;
    let bits = (0..amts.len()).filter(is_there).fold(0u16, |bits, at| bits | 1 << at);
    (bits != 0).then(|| {
        let mut row = Vec::with_capacity(16 + 80 * bits.count_ones() as usize);
        put_varint(&mut row, number);
        row.extend_from_slice(&bits.to_be_bytes());
        amts.iter().filter(|amt| amt.version > 0).for_each(|amt| amt.encode(&mut row));
        checked(row)
    })
}

/// Reads the row of a chunk in a state whose last block is `tip`; after which block it was written.
fn read_chunk(row: &[u8], tip: u64, amts: &mut [Amt]) -> Option<u64> {
    let mut row = WireReader::new(unchecked(row)?);
    let block = row.varint().ok().filter(|block| *block <= tip)?;
    let bits = row.u16().ok()?;
    for at in (0..16).filter(|at| bits >> at & 1 == 1) {
        *amts.get_mut(at)? = Amt::read(&mut row)?;
    }
    row.is_empty().then_some(block)
}

/// Adds a checksum: not all that a row says shows elsewhere.
fn checked(mut row: Vec<u8>) -> Vec<u8> {
    let sum = crc32fast::hash(&row);
    row.extend_from_slice(&sum.to_be_bytes());
    row
}

fn unchecked(row: &[u8]) -> Option<&[u8]> {
    let (row, sum) = row.split_last_chunk()?;
    (crc32fast::hash(row).to_be_bytes() == *sum).then_some(row)
}

impl Changes {
    fn encode(&self) -> Vec<u8> {
        let mut row = Vec::with_capacity(32 + 2 * self.amts.len() + 5 * self.rises.len());
        put_varint(&mut row, self.log.written);
        put_varint(&mut row, self.log.from);
        put_varint(&mut row, self.leaf.into());
        put_varint(&mut row, self.amts.len() as u64);
        self.amts.iter().for_each(|entry| row.extend_from_slice(&entry.to_be_bytes()));
        for Rise { of, entry, slot } in &self.rises {
            let ([a, b], [c, d]) = (of.to_be_bytes(), entry.to_be_bytes());
            row.extend_from_slice(&[a, b, c, d, *slot]);
        }
        checked(row)
    }

    /// The first field of the row of `block`.
    fn written(block: u64, row: &Bytes) -> Result<u64, StateError> {
        WireReader::new(row).varint().map_err(|_| malformed(block))
    }

    fn decode(block: u64, height: u8, row: &[u8]) -> Result<Self, StateError> {
        let read = || {
            let mut row = WireReader::new(unchecked(row)?);
            let log = Log { written: row.varint().ok()?, from: row.varint().ok()? };
            let leaf = u32::try_from(row.varint().ok()?).ok()?;
            let count = row.count(2).ok()?;
            let is_entry = |entry: &u16| u32::from(*entry) >> height == 0;
            let amts = (0..count).map(|_| row.u16().ok().filter(is_entry));
            let amts = amts.collect::<Option<Vec<u16>>>()?;
            let (rises, []) = row.rest().as_chunks::<5>() else { return None };
            let rise = |&[a, b, c, d, slot]: &[u8; 5]| Rise {
                of: u16::from_be_bytes([a, b]),
                entry: u16::from_be_bytes([c, d]),
                slot,
            };
            let rises: Vec<Rise<u16>> = rises.iter().map(rise).collect();
            let is_right = |rise: &Rise<u16>| {
                usize::from(rise.of) < count && is_entry(&rise.entry) && rise.slot < 6
            };
            let last = u64::from(leaf) + count as u64;
            let is_right = rises.iter().all(is_right)
                && amts.is_sorted_by(|a, b| a < b)
                && last < u32::MAX.into()
                // More than any chain writes; beyond it the next turns could not be counted.
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
    use retrie_state::Rows;
    use std::{collections::BTreeMap, ops::ControlFlow};

    /// Rows in memory.
    #[derive(Default)]
    struct Memory(BTreeMap<(u8, Vec<u8>), Bytes>);

    impl NodeRead for Memory {
        fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, StateError> {
            Ok(self.0.get(&(table.id, key.to_vec())).cloned())
        }

        fn scan<'a>(
            &'a self,
            table: Table,
            _: KeyRange<'_>,
            _: Direction,
        ) -> Result<Rows<'a>, StateError> {
            let rows = self.0.iter().filter(move |((id, _), _)| *id == table.id);
            Ok(Box::new(rows.map(|((_, key), row)| Ok((key.clone().into(), row.clone())))))
        }
    }

    impl NodeWrite for Memory {
        fn put(&mut self, table: Table, key: &[u8], value: Bytes) -> Result<(), StateError> {
            self.0.insert((table.id, key.to_vec()), value);
            Ok(())
        }

        fn delete(&mut self, table: Table, key: &[u8]) -> Result<(), StateError> {
            self.0.remove(&(table.id, key.to_vec()));
            Ok(())
        }

        fn replace(
            &mut self,
            table: Table,
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

    /// Chunks of several sub-AMTs, each written more than once.
    #[test]
    fn rows_are_the_level_whatever_the_size_of_blocks() {
        const HEIGHT: u8 = 14;
        let params =
            Params::insecure_dev(HEIGHT, false, &|_, _, _| ControlFlow::Continue(())).unwrap();
        let mut random = StdRng::seed_from_u64(4);
        let (mut view, mut amts) = (Memory::default(), vec![Amt::NONE; 1 << HEIGHT]);
        let (mut second, mut log) = (Second::new(amts.clone()), Log::new(100));
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
                    rises.push(Rise { of, entry: rise, slot });
                    terms.push((u32::from(*entry), *params.increment(rise.into(), slot.into())));
                }
            }
            let mut commitments: Vec<Point> = amts.iter().map(|amt| amt.commitment).collect();
            sum(&mut commitments, &mut terms);
            for (leaf, entry) in (number as u32..).zip(&changed) {
                let amt = &mut amts[usize::from(*entry)];
                amt.version += 1;
                amt.position = Position { block: number, leaf };
                amt.commitment = commitments[usize::from(*entry)];
            }
            second = second.child(changed.iter().map(|e| (*e, amts[usize::from(*e)])).collect());
            let at = (HEIGHT, number);
            log = log.step(&mut view, at, &second, number as u32, changed, rises).unwrap();
            let meta = Meta { first: 100, blocks: number - 99, ..Meta::EMPTY };
            view.put(META, META_KEY, meta.encode().into()).unwrap();
            most = most.max(number - log.from);
            if number % 23 == 0 {
                let level = Level::read(&view, HEIGHT).unwrap();
                assert_eq!(level.log, log);
                assert!(level.into_amts(&params) == amts, "block {number}");
            }
        }
        assert!(log.written > 2 * 4096, "each chunk has had its turn twice: {log:?}");
        assert!(most < 190, "the log is cut: {most}");
    }

    fn amts(versions: &[u64]) -> Vec<Amt> {
        let amt = |version: &u64| match version {
            0 => Amt::NONE,
            _ => Amt {
                version: *version,
                position: Position { block: 300 + version, leaf: 7 },
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
        let mut read = vec![Amt::NONE; 16];
        assert_eq!(read_chunk(&row, 999, &mut read), Some(999));
        assert_eq!(read, chunk);
        // Of a block to come, or of a chunk with fewer places.
        assert_eq!(read_chunk(&row, 998, &mut read), None);
        assert_eq!(read_chunk(&row, 999, &mut read[..8]), None);
    }

    #[test]
    fn changes_come_back_and_nonsense_is_refused() {
        let right = || Changes {
            log: Log { written: 5000, from: 40 },
            leaf: 1000,
            amts: vec![0, 7, 65_535],
            rises: vec![Rise { of: 2, entry: 65_535, slot: 5 }, Rise { of: 0, entry: 1, slot: 0 }],
        };
        let row = right().encode();
        assert_eq!(Changes::decode(77, 16, &row).unwrap(), right());
        assert_eq!(Changes::written(77, &row.into()).unwrap(), 5000);
        let wrong = |change: fn(&mut Changes)| {
            let mut changes = right();
            change(&mut changes);
            assert!(Changes::decode(77, 16, &changes.encode()).is_err(), "{changes:?}");
        };
        wrong(|it| it.rises[0].of = 3);
        wrong(|it| it.rises[0].slot = 6);
        wrong(|it| it.amts = vec![7, 0, 9]);
        wrong(|it| it.leaf = u32::MAX - 3);
        wrong(|it| it.log.written = u64::MAX);
        assert!(Changes::decode(77, 15, &right().encode()).is_err(), "an entry beyond the height");
    }
}
