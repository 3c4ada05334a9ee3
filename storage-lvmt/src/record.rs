//! Row encodings. Byte-exact description: `docs/formats/lvmt.md`.
//!
//! | table | key | value |
//! |---|---|---|
//! | [`KEYS`] | state key | [`KeyRecord`]: slot, version, position of the tuple, value |
//! | [`SLOTS`] | level, path of the entry, slot | the state key that occupies the slot |
//! | [`AMTS`] | level, path of the sub-AMT | [`SubAmt`]: version, position of the tuple, commitment. The second level has [its own rows](crate::second_level) |
//! | [`TREES`] | block, level, group | a group of a block's Merkle tree |
//! | [`BLOCKS`] | block | [`BlockRow`]: leaves, top, leaves that can still be proven |
//! | [`RANGE`] | level, group | a group of the tree over all blocks |
//! | [`META`] | `state` | [`LvmtMeta`] |
//!
//! Numbers in keys are big-endian. Most numbers in values are varints (LEB128), because they are
//! small.

use crate::point::G1Point;
use alloy_primitives::{B256, Bytes};
use retrie_state::{
    BackendKey, NodeRead, RowTable, StateError,
    wire::{WireReader, put_varint},
};
use smallvec::SmallVec;
use std::{borrow::Borrow, cmp::Ordering, fmt, ops::Deref};

/// Name of the backend.
pub(crate) const NAME: &str = "lvmt";

/// One record for each key: value, version slot, version and Merkle position in one row (paper,
/// section 5).
pub(crate) const KEYS: RowTable = RowTable::new(0x20, "LvmtKeys");
/// The key that occupies each slot of an entry. A row is written once and never changes.
pub(crate) const SLOTS: RowTable = RowTable::new(0x21, "LvmtSlots");
/// The sub-AMTs below the second level.
pub(crate) const AMTS: RowTable = RowTable::new(0x22, "LvmtAmts");
/// The Merkle trees of the blocks.
pub(crate) const TREES: RowTable = RowTable::new(0x23, "LvmtTrees");
/// One row for each block, until all tuples of the block are stale.
pub(crate) const BLOCKS: RowTable = RowTable::new(0x24, "LvmtBlocks");
/// The append-only tree over the blocks' trees.
pub(crate) const RANGE: RowTable = RowTable::new(0x25, "LvmtRange");
/// One row: counts, and the commitment of the root AMT.
pub(crate) const META: RowTable = RowTable::new(0x26, "LvmtMeta");

/// The only key of [`META`].
pub(crate) const META_KEY: &[u8] = b"state";

/// The slots of an entry that keys can occupy: 1 to 5. Slot 0 belongs to the sub-AMT (paper,
/// section 3.2).
pub(crate) const KEY_SLOTS: std::ops::RangeInclusive<u8> = 1..=5;

/// Versions are below this (paper, section 3.1: slots of 40 bits).
pub(crate) const VERSION_END: u64 = 1 << 40;

/// A path: the entries from the root AMT down to a sub-AMT, or to an entry of a sub-AMT. Ordered by
/// level, then by entries.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct EntryPath(SmallVec<[u16; 4]>);

impl EntryPath {
    /// The root AMT.
    pub(crate) fn root() -> Self {
        Self::default()
    }

    pub(crate) fn new(entries: &[u16]) -> Self {
        Self(SmallVec::from_slice(entries))
    }

    /// The path of entry `entry` of the AMT at this path.
    pub(crate) fn entry(&self, entry: u16) -> Self {
        let mut way = self.clone();
        way.0.push(entry);
        way
    }

    pub(crate) fn push(&mut self, entry: u16) {
        self.0.push(entry);
    }

    /// The last entry, and the path of its AMT.
    pub(crate) fn split_last(&self) -> Option<(u16, &[u16])> {
        self.0.split_last().map(|(last, above)| (*last, above))
    }

    fn read(bytes: &[u8]) -> Self {
        Self(bytes.chunks_exact(2).map(|e| u16::from_be_bytes([e[0], e[1]])).collect())
    }
}

impl Borrow<[u16]> for EntryPath {
    fn borrow(&self) -> &[u16] {
        &self.0
    }
}

impl Deref for EntryPath {
    type Target = [u16];
    fn deref(&self) -> &[u16] {
        &self.0
    }
}

impl Ord for EntryPath {
    fn cmp(&self, other: &Self) -> Ordering {
        self.len().cmp(&other.len()).then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for EntryPath {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Debug for EntryPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for EntryPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("/")?;
        self.iter().try_for_each(|entry| write!(f, "{entry:x}/"))
    }
}

/// Key of a row.
pub(crate) type RowKey = SmallVec<[u8; 24]>;

/// `level || way`: the key of a sub-AMT in [`AMTS`], and the prefix of keys in [`SLOTS`] and
/// [`AMTS`] of rows one level below.
fn path_key(level: usize, way: &[u16]) -> RowKey {
    // The hash of a key has 256 bits, so there are at most 256 levels.
    let mut key = RowKey::from_slice(&[level as u8]);
    way.iter().for_each(|entry| key.extend_from_slice(&entry.to_be_bytes()));
    key
}

/// The key in [`AMTS`] of the sub-AMT at the path `way`.
pub(crate) fn amt_key(way: &[u16]) -> RowKey {
    path_key(way.len(), way)
}

/// The prefix of the keys in [`AMTS`] of all sub-AMTs right below the AMT at the path `way`, which
/// must not be the root AMT.
pub(crate) fn amts_below(way: &[u16]) -> RowKey {
    path_key(way.len() + 1, way)
}

/// The key in [`SLOTS`] of slot `slot` of the entry at the path `entry`.
pub(crate) fn slot_key(entry: &[u16], slot: u8) -> RowKey {
    let mut key = path_key(entry.len() - 1, entry);
    key.push(slot);
    key
}

/// The prefix of the keys in [`SLOTS`] of all slots of the AMT at the path `way`.
pub(crate) fn slots_of_amt(way: &[u16]) -> RowKey {
    path_key(way.len(), way)
}

/// The path of the entry, and the slot, from a key of [`SLOTS`].
pub(crate) fn read_slot_key(key: &[u8]) -> Option<(EntryPath, u8)> {
    let (level, rest) = key.split_first()?;
    let (slot, way) = rest.split_last()?;
    let right = way.len() == 2 * (*level as usize + 1) && KEY_SLOTS.contains(slot);
    right.then(|| (EntryPath::read(way), *slot))
}

/// The path of the sub-AMT, from a key of [`AMTS`].
pub(crate) fn read_amt_key(key: &[u8]) -> Option<EntryPath> {
    let (level, way) = key.split_first()?;
    (*level > 0 && way.len() == 2 * *level as usize).then(|| EntryPath::read(way))
}

/// The key of a group in [`TREES`].
pub(crate) fn group_key(block: u64, level: u8, group: u32) -> [u8; 13] {
    let mut key = [0; 13];
    key[..8].copy_from_slice(&block.to_be_bytes());
    key[8] = level;
    key[9..].copy_from_slice(&group.to_be_bytes());
    key
}

/// The key of a group in [`RANGE`].
pub(crate) fn range_key(level: u8, group: u64) -> [u8; 9] {
    let mut key = [0; 9];
    key[0] = level;
    key[1..].copy_from_slice(&group.to_be_bytes());
    key
}

/// The position of a tuple: the block whose tree contains it, and the leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TuplePosition {
    pub(crate) block: u64,
    pub(crate) leaf: u32,
}

impl TuplePosition {
    fn put(self, row: &mut Vec<u8>) {
        put_varint(row, self.block);
        put_varint(row, self.leaf.into());
    }
}

/// The record of a key, in [`KEYS`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyRecord {
    pub(crate) slot: u8,
    pub(crate) version: u64,
    pub(crate) position: TuplePosition,
    /// Path of the key's entry.
    pub(crate) way: EntryPath,
    /// `None`: deleted.
    pub(crate) value: Option<Bytes>,
}

/// Bits of the second byte of a record: the slot, and whether there is a value.
const SLOT: u8 = 0b0111;
const LIVE: u8 = 0b1000;

impl KeyRecord {
    /// Level of the AMT that holds the version.
    pub(crate) fn level(&self) -> u8 {
        (self.way.len() - 1) as u8
    }

    pub(crate) fn encode(
        slot: u8,
        version: u64,
        position: TuplePosition,
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
    pub(crate) fn decode(key: &BackendKey, row: &Bytes) -> Result<Self, StateError> {
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
        let way = EntryPath::read(way);
        right.then(|| Self { slot, version, position, way, value: live.then_some(value) })
    }

    /// Reads only the value.
    pub(crate) fn value_of(key: &BackendKey, row: &Bytes) -> Result<Option<Bytes>, StateError> {
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

/// A sub-AMT: the number of changes of its commitment, the position of its newest tuple, the
/// commitment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SubAmt {
    /// 0 if there is no such AMT.
    pub(crate) version: u64,
    pub(crate) position: TuplePosition,
    pub(crate) commitment: G1Point,
}

impl SubAmt {
    /// A sub-AMT that does not exist yet.
    pub(crate) const NONE: Self = Self {
        version: 0,
        position: TuplePosition { block: 0, leaf: 0 },
        commitment: G1Point::INFINITY,
    };

    pub(crate) fn encode(&self, row: &mut Vec<u8>) {
        put_varint(row, self.version);
        self.position.put(row);
        row.extend_from_slice(&self.commitment.to_bytes());
    }

    /// Reads the bytes of [`encode`](Self::encode) from the front of `row`.
    pub(crate) fn read(row: &mut WireReader<'_>) -> Option<Self> {
        let (version, position, commitment) = (version(row)?, position(row)?, point(row)?);
        (version > 0).then_some(Self { version, position, commitment })
    }

    pub(crate) fn decode(way: &[u16], row: &[u8]) -> Result<Self, StateError> {
        let parse = || {
            let mut row = WireReader::new(row);
            Self::read(&mut row).filter(|_| row.is_empty())
        };
        let bad = || corrupt(AMTS, format!("the row of AMT {} is malformed", EntryPath::new(way)));
        parse().ok_or_else(bad)
    }

    /// Reads the sub-AMT at the path `way` from its row.
    pub(crate) fn get(view: &dyn NodeRead, way: &[u16]) -> Result<Self, StateError> {
        let row = view.get(AMTS, &amt_key(way))?;
        row.map_or(Ok(Self::NONE), |row| Self::decode(way, &row))
    }
}

/// A block that wrote at least one tuple that is the newest of its key or sub-AMT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockRow {
    pub(crate) leaves: u32,
    pub(crate) top: B256,
    /// Leaves that can be proven here: all leaves until the first garbage collection; 0 if the tree
    /// belongs to another shard.
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

/// Counts, and the commitment of the root AMT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LvmtMeta {
    /// The first block of the range.
    pub(crate) first: u64,
    /// The number of blocks in the range.
    pub(crate) blocks: u64,
    /// The number of keys that have a slot.
    pub(crate) keys: u64,
    /// The number of keys that have a slot and no value.
    pub(crate) dead: u64,
    /// The number of sub-AMTs.
    pub(crate) amts: u64,
    /// The number of leaves kept in all trees.
    pub(crate) leaves: u64,
    pub(crate) commitment: G1Point,
}

impl LvmtMeta {
    pub(crate) const EMPTY: Self = Self {
        first: 0,
        blocks: 0,
        keys: 0,
        dead: 0,
        amts: 0,
        leaves: 0,
        commitment: G1Point::INFINITY,
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

/// A version; it has at most 40 bits.
fn version(row: &mut WireReader<'_>) -> Option<u64> {
    row.varint().ok().filter(|version| *version < VERSION_END)
}

fn position(row: &mut WireReader<'_>) -> Option<TuplePosition> {
    Some(TuplePosition { block: row.varint().ok()?, leaf: row.varint().ok()?.try_into().ok()? })
}

fn point(row: &mut WireReader<'_>) -> Option<G1Point> {
    G1Point::from_bytes(row.array().ok()?)
}

/// Rejects a path, read from `table`, with an entry that AMTs of this height do not have.
pub(crate) fn check_path(height: u8, way: &EntryPath, table: RowTable) -> Result<(), StateError> {
    let is_right = way.iter().all(|entry| u32::from(*entry) >> height == 0);
    is_right.then_some(()).ok_or_else(|| {
        corrupt(table, format!("path {way} has an entry that AMTs of height {height} do not have"))
    })
}

/// The error of a malformed or contradictory row of `table`.
pub(crate) fn corrupt(table: RowTable, what: impl Into<String>) -> StateError {
    StateError::corrupt(table.name, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::Address;

    #[test]
    fn a_number_in_a_longer_form_than_need_be_is_refused() {
        let key = BackendKey::Account(Address::ZERO.into());
        let (position, way) = (TuplePosition { block: 5, leaf: 6 }, EntryPath::new(&[7]));
        let mut row = Vec::new();
        KeyRecord::encode(1, 4, position, &way, Some(&[9]), &mut row);
        // Level, slot and flag; version, block, leaf.
        assert_eq!(row[2..5], [4, 5, 6]);
        assert!(KeyRecord::decode(&key, &Bytes::copy_from_slice(&row)).is_ok());
        for at in 2..5 {
            let longer = [&row[..at], &[row[at] | 0x80, 0], &row[at + 1..]].concat().into();
            assert!(KeyRecord::decode(&key, &longer).is_err(), "byte {at}");
            assert!(KeyRecord::value_of(&key, &longer).is_err(), "byte {at}");
        }
    }
}
