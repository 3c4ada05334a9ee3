//! Flat history: what each block changed. The framework keeps it for every backend alike, so that
//! the state after any kept block can be read.
//!
//! ```text
//!  Changes       key || block                 value of the key before the block
//!  ChangedKeys   block || piece               first block of the range, and the changed keys
//! ```
//!
//! The rows of a block are written with the block's own rows, into the same view, so journal, undo,
//! forks and reverts need no special cases. The state after block n, seen from a later block, is:
//! for each key the value before its first change above n, or its value at the later block if there
//! is no such change.
//!
//! A *range* is a sequence of blocks without a gap whose history was kept; every block stores the
//! first block of its range. A gap arises when history is switched off for some blocks: states
//! before the gap can no longer be read. History that no block can read is deleted, oldest block
//! first, a bounded part in each commit. Deletions have no undo: a revert does not restore pruned
//! history.

use super::{
    layer::RowKey,
    overlay::{DiffLayer, PreviousValue, RowView, RowWriter},
    record::{PIECE, record_id, record_key},
    scan::MergedScan,
};
use alloy_primitives::{B256, Bytes};
use retrie_state::{
    AccountKey, BackendDelta, BackendKey, KeyRange, RowTable, StateError, StateValue, prefix_end,
};
use std::{collections::BTreeMap, ops::RangeInclusive};

/// How much flat history is kept. Flat history is what each block changed; old states are read with
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlatHistory {
    /// None. History that earlier openings have kept is deleted step by step.
    #[default]
    Off,
    /// All of it, from the block at which it was switched on.
    All,
    /// As much as is needed to read the states of the last N blocks below the tip; never less than
    /// the [retention](crate::StoreOptions::retention).
    Last(u64),
}

/// Rows: key = state key || block number (8 bytes, big-endian), value = 0, or 1 and the value that
/// the key had before the block.
pub(crate) const CHANGES: RowTable = RowTable::framework(0xf5, "Changes");

/// Rows: key = block number (8 bytes, big-endian) || piece (4 bytes, big-endian). The first piece
/// starts with the first block of the range (8, BE) and the number of keys (4, BE); then, as in all
/// pieces, come the keys in order: [`BackendKey::encode`], or 2 and a slot of the same account as the
/// slot before it in the piece.
pub(crate) const CHANGED_KEYS: RowTable = RowTable::framework(0xf6, "ChangedKeys");

const HEAD: usize = 12;
/// Tag of a slot of the same account as the slot before it.
const SAME_ACCOUNT: u8 = 2;
/// A commit deletes about as many rows as it writes, and at most this many more to catch up.
const PRUNED_BEYOND: usize = 4096;

/// Key of the row of [`CHANGES`] for `key` in block `number`.
pub(crate) fn change_key(key: &BackendKey, number: u64) -> RowKey {
    let mut row = RowKey::from_slice(&key.encode());
    row.extend_from_slice(&number.to_be_bytes());
    row
}

/// The first row key beyond all changes of `key`.
fn changes_end(key: &BackendKey) -> RowKey {
    let mut end = change_key(key, u64::MAX);
    end.push(0);
    end
}

/// Decodes the key of a row of [`CHANGES`].
pub(crate) fn decode_change_key(row: &[u8]) -> Result<(BackendKey, u64), StateError> {
    let parts = row.split_last_chunk::<8>();
    let decoded = parts
        .and_then(|(key, number)| Some((BackendKey::decode(key)?, u64::from_be_bytes(*number))));
    decoded.ok_or_else(|| {
        let what = format!("the row {} is not a state key and a block number", HexKey(row));
        StateError::corrupt(CHANGES.name, what)
    })
}

/// Decodes the value of a row of [`CHANGES`].
pub(crate) fn decode_change(row: &[u8], value: &Bytes) -> Result<Option<StateValue>, StateError> {
    match value.first() {
        Some(0) if value.len() == 1 => Ok(None),
        Some(1) => Ok(Some(value.slice(1..))),
        _ => Err(StateError::corrupt(
            CHANGES.name,
            format!("the row {} starts with neither 0 nor 1", HexKey(row)),
        )),
    }
}

/// A row key in hexadecimal.
struct HexKey<'a>(&'a [u8]);

impl std::fmt::Display for HexKey<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&alloy_primitives::hex::encode_prefixed(self.0))
    }
}

// ---------------------------------------------------------------------------------------------
// Writing
// ---------------------------------------------------------------------------------------------

/// Adds the history of consecutive blocks from `number` on to their writes. The first of the blocks
/// must have a parent.
pub(crate) fn record(
    view: &mut RowWriter,
    number: u64,
    deltas: &[BackendDelta],
) -> Result<(), StateError> {
    let first = match number.checked_sub(1) {
        Some(parent) => range_start(view.base(), parent)?.unwrap_or(number),
        None => number,
    };
    (number..).zip(deltas).try_for_each(|(number, delta)| record_block(view, first, number, delta))
}

/// Adds the history of block `number`, in the range that begins with block `first`.
fn record_block(
    view: &mut RowWriter,
    first: u64,
    number: u64,
    delta: &BackendDelta,
) -> Result<(), StateError> {
    let len = |previous: &Option<StateValue>| 1 + previous.as_ref().map_or(0, |value| value.len());
    // One allocation for all values of the block.
    let mut values =
        Vec::with_capacity(delta.changes().iter().map(|change| len(&change.previous)).sum());
    let mut list = KeyList::new(first, delta.len());
    for change in delta.changes() {
        list.push(&change.key);
        values.push(u8::from(change.previous.is_some()));
        if let Some(previous) = &change.previous {
            values.extend_from_slice(previous);
        }
    }
    let mut values = Bytes::from(values);
    let mut bytes = 0;
    for change in delta.changes() {
        let key = change_key(&change.key, number);
        let value = values.split_to(len(&change.previous));
        bytes += key.len() + value.len();
        view.add(CHANGES, &key, value)?;
    }
    for (piece, keys) in list.pieces.into_iter().enumerate() {
        let key = record_key(number, piece as u32);
        bytes += key.len() + keys.len();
        view.add(CHANGED_KEYS, &key, keys.into())?;
    }
    view.base().counters.history(bytes);
    Ok(())
}

/// Encodes the keys of one block into pieces.
struct KeyList {
    pieces: Vec<Vec<u8>>,
    /// Account of the slot before.
    account: Option<AccountKey>,
}

impl KeyList {
    fn new(first: u64, count: usize) -> Self {
        let mut head = first.to_be_bytes().to_vec();
        head.extend_from_slice(&(count as u32).to_be_bytes());
        Self { pieces: vec![head], account: None }
    }

    fn push(&mut self, key: &BackendKey) {
        if self.pieces.last().is_none_or(|last| last.len() + BackendKey::MAX_ENCODED_LEN > PIECE) {
            self.pieces.push(Vec::new());
            self.account = None;
        }
        let Some(piece) = self.pieces.last_mut() else { return };
        match key {
            BackendKey::Slot(account, slot) if self.account == Some(*account) => {
                piece.push(SAME_ACCOUNT);
                piece.extend_from_slice(slot.as_slice());
            }
            BackendKey::Slot(account, _) => {
                self.account = Some(*account);
                piece.extend_from_slice(&key.encode());
            }
            BackendKey::Account(_) => piece.extend_from_slice(&key.encode()),
        }
    }
}

/// First block whose history is kept once block `tip`, which writes `layer`, is durable. History of
/// lower blocks cannot be read, or `keep` does not ask for it.
pub(crate) fn floor(keep: FlatHistory, tip: u64, layer: &DiffLayer) -> Result<u64, StateError> {
    let head = layer.get(CHANGED_KEYS, &record_key(tip, 0)).and_then(|row| row.next.as_ref());
    let run = head.map(|head| head_of(tip, head)).transpose()?.map_or(0, |head| head.first);
    Ok(match keep {
        FlatHistory::Off => tip,
        FlatHistory::All => run,
        FlatHistory::Last(blocks) => run.max((tip + 1).saturating_sub(blocks)),
    })
}

/// Deletes the history of the blocks `from..floor` in `view`, oldest block first, up to about
/// `written` rows and a bounded number more. Returns the deletions, and the first block found.
pub(crate) fn outdated(
    view: &RowView,
    from: u64,
    floor: u64,
    written: usize,
) -> Result<(DiffLayer, Option<u64>), StateError> {
    let (mut rows, mut first) = (DiffLayer::default(), None);
    for block in blocks(view, from, floor) {
        let block = block?;
        first.get_or_insert(block.number);
        for key in &block.keys {
            rows.overwrite(CHANGES, change_key(key, block.number), PreviousValue::Unknown, None);
        }
        for piece in 0..block.pieces {
            let key = record_key(block.number, piece);
            rows.overwrite(CHANGED_KEYS, RowKey::from_slice(&key), PreviousValue::Unknown, None);
        }
        if rows.len() > written + PRUNED_BEYOND {
            break;
        }
    }
    let bytes = rows.iter().map(|(_, key, _)| key.len()).sum();
    view.counters.history(bytes);
    Ok((rows, first))
}

/// The first block from `from` on whose history is in `view`.
pub(crate) fn first_block(view: &RowView, from: u64) -> Result<Option<u64>, StateError> {
    let range = record_key(from, 0);
    let row = view.rows(CHANGED_KEYS, KeyRange::from(&range), 1).next().transpose()?;
    row.map(|(key, _)| record_id(CHANGED_KEYS, &key)).transpose()
}

// ---------------------------------------------------------------------------------------------
// Reading
// ---------------------------------------------------------------------------------------------

/// Numbers of the blocks whose state can be read from `view`, the state after block `at`. The
/// history of blocks below `pruned` may be gone.
pub(crate) fn kept(
    view: &RowView,
    at: u64,
    pruned: u64,
) -> Result<RangeInclusive<u64>, StateError> {
    let Some(run) = range_start(view, at)? else { return Ok(at..=at) };
    // Part of the range may have been pruned; the history of `at` exists.
    let oldest = first_block(view, run.max(pruned.min(at)))?.unwrap_or(at);
    // A block with history has a parent.
    Ok(oldest.saturating_sub(1)..=at)
}

/// The value of `key` before its first change above block `number`; `None` if there is no change.
pub(crate) fn before(
    view: &RowView,
    key: &BackendKey,
    number: u64,
) -> Result<Option<Option<StateValue>>, StateError> {
    let (start, end) = (change_key(key, number.saturating_add(1)), changes_end(key));
    let row = view.rows(CHANGES, KeyRange::new(&start, &end), 1).next().transpose()?;
    row.map(|(row, value)| decode_change(&row, &value)).transpose()
}

/// The value of `key` before block `number`, which has changed it.
pub(crate) fn before_change(
    view: &RowView,
    key: &BackendKey,
    number: u64,
) -> Result<Option<StateValue>, StateError> {
    let row = change_key(key, number);
    let value = view.lookup(CHANGES, &row)?.ok_or_else(|| {
        let what =
            format!("block {number} has changed {key}, but the row {} is missing", HexKey(&row));
        StateError::corrupt(CHANGES.name, what)
    })?;
    decode_change(&row, &value)
}

/// The slots of `account` that a block above `number` has changed, with their values before that
/// change. Stops once `limit` of the slots had a value.
pub(crate) fn slots_before(
    view: &RowView,
    account: &AccountKey,
    number: u64,
    limit: usize,
) -> Result<BTreeMap<B256, Option<StateValue>>, StateError> {
    let mut start = RowKey::from_slice(&account.slots_prefix());
    let end = prefix_end(&start);
    let mut slots = BTreeMap::new();
    let mut set = 0;
    loop {
        if set >= limit {
            return Ok(slots);
        }
        let range = KeyRange { start: &start, end: end.as_deref() };
        let row = view.rows(CHANGES, range, 1).next().transpose()?;
        let Some((row, value)) = row else { return Ok(slots) };
        let (key, block) = decode_change_key(&row)?;
        let BackendKey::Slot(_, slot) = key else {
            return Err(StateError::corrupt(CHANGES.name, format!("{key} among slots")));
        };
        // Reads two rows of each slot, however many changes it has.
        start = if block <= number {
            change_key(&key, number.saturating_add(1))
        } else {
            let before = decode_change(&row, &value)?;
            set += usize::from(before.is_some());
            slots.insert(slot, before);
            changes_end(&key)
        };
    }
}

/// First block of the range that block `number` belongs to; `None` if its history was not kept.
fn range_start(view: &RowView, number: u64) -> Result<Option<u64>, StateError> {
    let row = view.lookup(CHANGED_KEYS, &record_key(number, 0))?;
    row.map(|row| Ok(head_of(number, &row)?.first)).transpose()
}

/// The keys that the blocks `from..to` have changed, as far as they were kept, in order.
pub(crate) fn blocks(view: &RowView, from: u64, to: u64) -> ChangedBlocks<'_> {
    let (start, end) = (record_key(from, 0), record_key(to, 0));
    ChangedBlocks(view.rows(CHANGED_KEYS, KeyRange::new(&start, &end), 1))
}

/// The changed keys of one block.
#[derive(Debug)]
pub(crate) struct BlockKeys {
    pub(crate) number: u64,
    /// First block of its range.
    pub(crate) first: u64,
    pub(crate) keys: Vec<BackendKey>,
    /// Number of rows of [`CHANGED_KEYS`].
    pub(crate) pieces: u32,
}

/// Reads blocks from rows of [`CHANGED_KEYS`].
pub(crate) struct ChangedBlocks<'a>(MergedScan<'a>);

impl ChangedBlocks<'_> {
    fn step(&mut self) -> Result<Option<BlockKeys>, StateError> {
        let Some((key, row)) = self.0.next().transpose()? else { return Ok(None) };
        let number = record_id(CHANGED_KEYS, &key)?;
        if key[..] != record_key(number, 0) {
            return Err(bad(number, "its first piece is missing"));
        }
        let head = head_of(number, &row)?;
        let mut block = BlockKeys { number, first: head.first, keys: Vec::new(), pieces: 1 };
        decode_keys(number, &row[HEAD..], &mut block.keys)?;
        while block.keys.len() < head.count {
            let next = self.0.next().transpose()?;
            let next = next.filter(|(key, _)| key[..] == record_key(number, block.pieces));
            let (_, row) = next.ok_or_else(|| bad(number, "a piece is missing"))?;
            decode_keys(number, &row, &mut block.keys)?;
            block.pieces += 1;
        }
        if block.keys.len() > head.count || !block.keys.is_sorted_by(|a, b| a < b) {
            return Err(bad(number, "its keys are not as many as it says, or not in order"));
        }
        Ok(Some(block))
    }
}

impl Iterator for ChangedBlocks<'_> {
    type Item = Result<BlockKeys, StateError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step().transpose()
    }
}

struct KeyListHead {
    first: u64,
    count: usize,
}

/// Reads the start of the first piece of block `number`.
fn head_of(number: u64, row: &[u8]) -> Result<KeyListHead, StateError> {
    let head = row.split_first_chunk::<8>().and_then(|(first, rest)| {
        let (count, _) = rest.split_first_chunk::<4>()?;
        let (first, count) = (u64::from_be_bytes(*first), u32::from_be_bytes(*count) as usize);
        (1..=number).contains(&first).then_some(KeyListHead { first, count })
    });
    head.ok_or_else(|| bad(number, "its head does not decode"))
}

fn decode_keys(
    number: u64,
    mut piece: &[u8],
    keys: &mut Vec<BackendKey>,
) -> Result<(), StateError> {
    let cut = || bad(number, "a key does not decode");
    let mut account = None;
    while let Some(&tag) = piece.first() {
        let len = match tag {
            SAME_ACCOUNT => 33,
            tag => BackendKey::encoded_len(tag).ok_or_else(cut)?,
        };
        let (key, rest) = piece.split_at_checked(len).ok_or_else(cut)?;
        let key = match (tag, account) {
            (SAME_ACCOUNT, Some(account)) => BackendKey::Slot(account, B256::from_slice(&key[1..])),
            _ => BackendKey::decode(key).ok_or_else(cut)?,
        };
        if let BackendKey::Slot(of, _) = key {
            account = Some(of);
        }
        keys.push(key);
        piece = rest;
    }
    Ok(())
}

fn bad(number: u64, what: &str) -> StateError {
    StateError::corrupt(CHANGED_KEYS.name, format!("block {number}: {what}"))
}
