//! The rows on disk and their codecs. Byte-exact description: `docs/formats/lvmt.md`.
//!
//! | table | key | value |
//! |---|---|---|
//! | [`KEYS`] | state key | [`Record`]: where its version is, which one, where its tuple is, value |
//! | [`SLOTS`] | level, way of the entry, slot | state key that has the slot |
//! | [`AMTS`] | level, way of the sub-AMT | [`Amt`]: version, where its tuple is, commitment. Those of the second level have [rows of their own](crate::second) |
//! | [`TREES`] | block, level, group | a group of a block's Merkle tree |
//! | [`BLOCKS`] | block | [`BlockRow`]: leaves, top, leaves still provable |
//! | [`RANGE`] | level, group | a group of the tree over all blocks |
//! | [`META`] | `state` | [`Meta`] |
//!
//! Numbers in keys are big-endian; most in values are varints (LEB128), as they are small.

use crate::point::Point;
use alloy_primitives::{B256, Bytes};
use retrie_state::{
    NodeRead, StateError, StateKey, Table,
    wire::{WireReader, put_varint},
};
use smallvec::SmallVec;
use std::{borrow::Borrow, cmp::Ordering, fmt, ops::Deref};

/// Name of the backend.
pub(crate) const NAME: &str = "lvmt";

/// One record a key: value, version slot, version and Merkle position in one row (paper, section 5).
pub(crate) const KEYS: Table = Table::new(0x20, "LvmtKeys");
/// Which key has which slot of an entry. Written once a key, never changed.
pub(crate) const SLOTS: Table = Table::new(0x21, "LvmtSlots");
/// The sub-AMTs below the second level.
pub(crate) const AMTS: Table = Table::new(0x22, "LvmtAmts");
/// The Merkle trees of the blocks.
pub(crate) const TREES: Table = Table::new(0x23, "LvmtTrees");
/// One row a block, until all its tuples are stale.
pub(crate) const BLOCKS: Table = Table::new(0x24, "LvmtBlocks");
/// The append-only tree over the blocks' trees.
pub(crate) const RANGE: Table = Table::new(0x25, "LvmtRange");
/// One row of counts and the root AMT's commitment.
pub(crate) const META: Table = Table::new(0x26, "LvmtMeta");

/// The only key of [`META`].
pub(crate) const META_KEY: &[u8] = b"state";

/// Slots of an entry that keys can have: 1 to 5. Slot 0 is the sub-AMT's (paper, section 3.2).
pub(crate) const KEY_SLOTS: std::ops::RangeInclusive<u8> = 1..=5;

/// Versions are below this (paper, section 3.1: slots of 40 bits).
pub(crate) const VERSION_END: u64 = 1 << 40;

/// Entries passed from the root AMT downwards: the way to a sub-AMT, or to one of its entries.
/// Ordered by level, then by entries.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Way(SmallVec<[u16; 4]>);

impl Way {
    /// The root AMT.
    pub(crate) fn root() -> Self {
        Self::default()
    }

    pub(crate) fn new(entries: &[u16]) -> Self {
        Self(SmallVec::from_slice(entries))
    }

    /// The entry `entry` of the AMT at this way.
    pub(crate) fn entry(&self, entry: u16) -> Self {
        let mut way = self.clone();
        way.0.push(entry);
        way
    }

    pub(crate) fn push(&mut self, entry: u16) {
        self.0.push(entry);
    }

    /// The AMT an entry belongs to, and its number there.
    pub(crate) fn split_last(&self) -> Option<(u16, &[u16])> {
        self.0.split_last().map(|(last, above)| (*last, above))
    }

    fn read(bytes: &[u8]) -> Self {
        Self(bytes.chunks_exact(2).map(|e| u16::from_be_bytes([e[0], e[1]])).collect())
    }
}

impl Borrow<[u16]> for Way {
    fn borrow(&self) -> &[u16] {
        &self.0
    }
}

impl Deref for Way {
    type Target = [u16];
    fn deref(&self) -> &[u16] {
        &self.0
    }
}

impl Ord for Way {
    fn cmp(&self, other: &Self) -> Ordering {
        self.len().cmp(&other.len()).then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for Way {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("/")?;
        self.iter().try_for_each(|entry| write!(f, "{entry:x}/"))
    }
}

/// Key of a row.
pub(crate) type RowKey = SmallVec<[u8; 24]>;

/// `level || way`: key of [`AMTS`], and start of the keys in [`SLOTS`] and [`AMTS`] of what lies one
/// level below. The level is that of the AMT in which the last entry of `way` is, plus `below`.
fn way_key(level: usize, way: &[u16]) -> RowKey {
    // A key's hash has 256 bits, so there are 256 levels at most.
    let mut key = RowKey::from_slice(&[level as u8]);
    way.iter().for_each(|entry| key.extend_from_slice(&entry.to_be_bytes()));
    key
}

/// Key of the sub-AMT at `way` in [`AMTS`].
pub(crate) fn amt_key(way: &[u16]) -> RowKey {
    way_key(way.len(), way)
}

/// First bytes of the keys in [`AMTS`] of all sub-AMTs right below the AMT at `way`, which is not the root
/// AMT.
pub(crate) fn amts_below(way: &[u16]) -> RowKey {
    way_key(way.len() + 1, way)
}

/// Key of slot `slot` of the entry at `way` in [`SLOTS`].
pub(crate) fn slot_key(entry: &[u16], slot: u8) -> RowKey {
    let mut key = way_key(entry.len() - 1, entry);
    key.push(slot);
    key
}

/// First bytes of the keys in [`SLOTS`] of all slots of the AMT at `way`.
pub(crate) fn slots_of_amt(way: &[u16]) -> RowKey {
    way_key(way.len(), way)
}

/// Way of the entry and slot of a key of [`SLOTS`].
pub(crate) fn read_slot_key(key: &[u8]) -> Option<(Way, u8)> {
    let (level, rest) = key.split_first()?;
    let (slot, way) = rest.split_last()?;
    let right = way.len() == 2 * (*level as usize + 1) && KEY_SLOTS.contains(slot);
    right.then(|| (Way::read(way), *slot))
}

/// Way of the sub-AMT of a key of [`AMTS`].
pub(crate) fn read_amt_key(key: &[u8]) -> Option<Way> {
    let (level, way) = key.split_first()?;
    (*level > 0 && way.len() == 2 * *level as usize).then(|| Way::read(way))
}

/// Key of a group in [`TREES`].
pub(crate) fn group_key(block: u64, level: u8, group: u32) -> [u8; 13] {
    let mut key = [0; 13];
    key[..8].copy_from_slice(&block.to_be_bytes());
    key[8] = level;
    key[9..].copy_from_slice(&group.to_be_bytes());
    key
}

/// Key of a group in [`RANGE`].
pub(crate) fn range_key(level: u8, group: u64) -> [u8; 9] {
    let mut key = [0; 9];
    key[0] = level;
    key[1..].copy_from_slice(&group.to_be_bytes());
    key
}

/// Where a tuple is: in which block's tree, and at which leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    pub(crate) block: u64,
    pub(crate) leaf: u32,
}

impl Position {
    fn put(self, row: &mut Vec<u8>) {
        put_varint(row, self.block);
        put_varint(row, self.leaf.into());
    }
}

/// What is stored of a key, in [`KEYS`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) slot: u8,
    pub(crate) version: u64,
    pub(crate) position: Position,
    /// Way of its entry.
    pub(crate) way: Way,
    /// `None`: deleted.
    pub(crate) value: Option<Bytes>,
}

/// In the second byte of a record: the slot, and whether there is a value.
const SLOT: u8 = 0b0111;
const LIVE: u8 = 0b1000;

impl Record {
    /// Level of the AMT in which its version is.
    pub(crate) fn level(&self) -> u8 {
        (self.way.len() - 1) as u8
    }

    pub(crate) fn encode(
        slot: u8,
        version: u64,
        position: Position,
        way: &[u16],
        value: Option<&[u8]>,
        row: &mut Vec<u8>,
    ) {
        let live = if value.is_some() { LIVE } else { 0 };
        row.extend_from_slice(&[(way.len() - 1) as u8, slot | live]);
        put_varint(row, version);
        position.put(row);
        way.iter().for_each(|entry| row.extend_from_slice(&entry.to_be_bytes()));
        row.extend_from_slice(value.unwrap_or_default());
    }

    /// Reads the row of `key`.
    pub(crate) fn decode(key: &StateKey, row: &Bytes) -> Result<Self, StateError> {
        Self::parse(row).ok_or_else(|| corrupt(KEYS, format!("the record of {key} is malformed")))
    }

    fn parse(row: &Bytes) -> Option<Self> {
        let ([level, flags], rest) = row.split_first_chunk()?;
        let (slot, live) = (flags & SLOT, flags & LIVE != 0);
        let mut head = WireReader::new(rest);
        let (version, position) = (version(&mut head)?, position(&mut head)?);
        let way = head.take(2 * (usize::from(*level) + 1)).ok()?;
        let value = row.slice_ref(head.rest());
        let right = KEY_SLOTS.contains(&slot) && flags & !(SLOT | LIVE) == 0;
        let right = right && version > 0 && (live || value.is_empty());
        let way = Way::read(way);
        right.then(|| Self { slot, version, position, way, value: live.then_some(value) })
    }

    /// The value alone.
    pub(crate) fn value_of(key: &StateKey, row: &Bytes) -> Result<Option<Bytes>, StateError> {
        let parse = || {
            let ([level, flags], rest) = row.split_first_chunk()?;
            let mut head = WireReader::new(rest);
            version(&mut head)?;
            position(&mut head)?;
            head.take(2 * (usize::from(*level) + 1)).ok()?;
            Some((flags & LIVE != 0).then(|| row.slice_ref(head.rest())))
        };
        parse().ok_or_else(|| corrupt(KEYS, format!("the record of {key} is malformed")))
    }
}

/// A sub-AMT: how often its commitment has changed, where its newest tuple is, the commitment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Amt {
    /// 0: there is no such AMT.
    pub(crate) version: u64,
    pub(crate) position: Position,
    pub(crate) commitment: Point,
}

impl Amt {
    /// One that does not exist yet.
    pub(crate) const NONE: Self =
        Self { version: 0, position: Position { block: 0, leaf: 0 }, commitment: Point::INFINITY };

    pub(crate) fn encode(&self, row: &mut Vec<u8>) {
        put_varint(row, self.version);
        self.position.put(row);
        row.extend_from_slice(&self.commitment.to_bytes());
    }

    /// Reads what [`encode`](Self::encode) writes from the front of `row`.
    pub(crate) fn read(row: &mut WireReader<'_>) -> Option<Self> {
        let (version, position, commitment) = (version(row)?, position(row)?, point(row)?);
        (version > 0).then_some(Self { version, position, commitment })
    }

    pub(crate) fn decode(way: &[u16], row: &[u8]) -> Result<Self, StateError> {
        let parse = || {
            let mut row = WireReader::new(row);
            Self::read(&mut row).filter(|_| row.is_empty())
        };
        let bad = || corrupt(AMTS, format!("the row of AMT {} is malformed", Way::new(way)));
        parse().ok_or_else(bad)
    }

    /// The sub-AMT at `way`, from its row.
    pub(crate) fn get(view: &dyn NodeRead, way: &[u16]) -> Result<Self, StateError> {
        let row = view.get(AMTS, &amt_key(way))?;
        row.map_or(Ok(Self::NONE), |row| Self::decode(way, &row))
    }
}

/// A block that wrote a tuple which is the newest of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockRow {
    pub(crate) leaves: u32,
    pub(crate) top: B256,
    /// Leaves that can be proven here: all of them, until the first collection; 0 for a tree of
    /// another shard.
    pub(crate) kept: u32,
}

impl BlockRow {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut row = self.leaves.to_be_bytes().to_vec();
        row.extend_from_slice(&self.top[..]);
        row.extend_from_slice(&self.kept.to_be_bytes());
        row
    }

    pub(crate) fn decode(block: u64, row: &[u8]) -> Result<Self, StateError> {
        let parse = || {
            let mut row = WireReader::new(row);
            let (leaves, top) = (row.u32().ok()?, row.hash().ok()?);
            let it = Self { leaves, top, kept: row.u32().ok()? };
            (row.is_empty() && it.kept <= it.leaves).then_some(it)
        };
        parse().ok_or_else(|| corrupt(BLOCKS, format!("the row of block {block} is malformed")))
    }
}

/// Counts and the root AMT's commitment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    /// The first block of the range.
    pub(crate) first: u64,
    /// How many blocks the range has.
    pub(crate) blocks: u64,
    /// Keys that have a slot.
    pub(crate) keys: u64,
    /// Keys that have a slot and no value.
    pub(crate) dead: u64,
    /// Sub-AMTs.
    pub(crate) amts: u64,
    /// Leaves of all trees that are kept.
    pub(crate) leaves: u64,
    pub(crate) commitment: Point,
}

impl Meta {
    pub(crate) const EMPTY: Self = Self {
        first: 0,
        blocks: 0,
        keys: 0,
        dead: 0,
        amts: 0,
        leaves: 0,
        commitment: Point::INFINITY,
    };

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut row = Vec::with_capacity(112);
        for n in [self.first, self.blocks, self.keys, self.dead, self.amts, self.leaves] {
            row.extend_from_slice(&n.to_be_bytes());
        }
        row.extend_from_slice(&self.commitment.to_bytes());
        row
    }

    /// The last block; `None` on the empty state.
    pub(crate) fn tip(&self) -> Option<u64> {
        self.first.checked_add(self.blocks.checked_sub(1)?)
    }

    pub(crate) fn get(view: &dyn NodeRead) -> Result<Self, StateError> {
        let Some(row) = view.get(META, META_KEY)? else { return Ok(Self::EMPTY) };
        let parse = || {
            let mut row = WireReader::new(&row);
            let it = Self {
                first: row.u64().ok()?,
                blocks: row.u64().ok()?,
                keys: row.u64().ok()?,
                dead: row.u64().ok()?,
                amts: row.u64().ok()?,
                leaves: row.u64().ok()?,
                commitment: point(&mut row)?,
            };
            (row.is_empty() && it.dead <= it.keys).then_some(it)
        };
        parse().ok_or_else(|| corrupt(META, "the row `state` is malformed"))
    }
}

/// A version, which has 40 bits at most.
fn version(row: &mut WireReader<'_>) -> Option<u64> {
    row.varint().ok().filter(|version| *version < VERSION_END)
}

fn position(row: &mut WireReader<'_>) -> Option<Position> {
    Some(Position { block: row.varint().ok()?, leaf: row.varint().ok()?.try_into().ok()? })
}

fn point(row: &mut WireReader<'_>) -> Option<Point> {
    Point::from_bytes(row.array().ok()?)
}

/// Refuses a way, read from `table`, with an entry that AMTs of this height do not have.
pub(crate) fn check_way(height: u8, way: &Way, table: Table) -> Result<(), StateError> {
    let is_right = way.iter().all(|entry| u32::from(*entry) >> height == 0);
    is_right.then_some(()).ok_or_else(|| {
        corrupt(table, format!("way {way} has an entry that AMTs of height {height} have not"))
    })
}

/// A row of `table` that cannot be right.
pub(crate) fn corrupt(table: Table, what: impl Into<String>) -> StateError {
    StateError::corrupt(table.name, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::Address;

    #[test]
    fn a_number_in_a_longer_form_than_need_be_is_refused() {
        let key = StateKey::Account(Address::ZERO);
        let (position, way) = (Position { block: 5, leaf: 6 }, Way::new(&[7]));
        let mut row = Vec::new();
        Record::encode(1, 4, position, &way, Some(&[9]), &mut row);
        // Level, slot and flag; version, block, leaf.
        assert_eq!(row[2..5], [4, 5, 6]);
        assert!(Record::decode(&key, &Bytes::copy_from_slice(&row)).is_ok());
        for at in 2..5 {
            let longer = [&row[..at], &[row[at] | 0x80, 0], &row[at + 1..]].concat().into();
            assert!(Record::decode(&key, &longer).is_err(), "byte {at}");
            assert!(Record::value_of(&key, &longer).is_err(), "byte {at}");
        }
    }
}
