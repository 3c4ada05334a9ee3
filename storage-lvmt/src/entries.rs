//! The entries of AMTs, read from rows.

use crate::{
    amt,
    params::LvmtParams,
    point::G1Point,
    record::{
        AMTS, KEYS, KeyRecord, RowKey, SLOTS, SubAmt, amts_below, check_path, corrupt,
        read_amt_key, read_slot_key, slots_of_amt,
    },
    second_level::LevelArray,
};
use alloy_primitives::B256;
use retrie_state::{BackendKey, KeyRange, NodeRead, ScanDirection, StateError, prefix_end};
use std::ops::Range;

/// The six versions of an entry: of its sub-AMT, then of its keys.
pub(crate) type EntryVersions = [u64; 6];

/// Entries that are not zero, in order.
pub(crate) type EntryList = Vec<(u32, EntryVersions)>;

/// A callback of long work, called every few milliseconds. Its error ends the work.
pub(crate) type PausePoint<'a> = &'a dyn Fn() -> Result<(), StateError>;

/// The entries of the AMT at the path `way` that are not zero, in order, in a state with this
/// second level.
pub(crate) fn entries_of(
    height: u8,
    view: &dyn NodeRead,
    second: &LevelArray,
    way: &[u16],
    pause: PausePoint<'_>,
) -> Result<EntryList, StateError> {
    match way {
        [] => root_entries(height, view, second, 0..1 << height, pause),
        _ => sub_entries(height, view, way, 0..1 << height, pause),
    }
}

/// The entries of the root AMT that are in `range` and not zero, in order, in a state with this
/// second level.
pub(crate) fn root_entries(
    height: u8,
    view: &dyn NodeRead,
    second: &LevelArray,
    range: Range<u32>,
    pause: PausePoint<'_>,
) -> Result<EntryList, StateError> {
    let mut entries = EntryList::new();
    read_slots(height, view, &[], range.clone(), &mut entries, pause)?;
    for entry in range {
        let version = second.get(entry).version;
        if version > 0 {
            versions_of(&mut entries, entry)[0] = version;
        }
    }
    Ok(entries)
}

/// The entries of the sub-AMT at the path `way` that are in `range` and not zero, in order.
pub(crate) fn sub_entries(
    height: u8,
    view: &dyn NodeRead,
    way: &[u16],
    range: Range<u32>,
    pause: PausePoint<'_>,
) -> Result<EntryList, StateError> {
    let mut entries = EntryList::new();
    read_slots(height, view, way, range.clone(), &mut entries, pause)?;
    let (start, end) = bounds(height, amts_below(way), range);
    let rows = KeyRange { start: &start, end: end.as_deref() };
    for row in view.scan(AMTS, rows, ScanDirection::Forward)? {
        let (key, row) = row?;
        let below =
            read_amt_key(&key).ok_or_else(|| corrupt(AMTS, format!("row {key} names no AMT")))?;
        check_path(height, &below, AMTS)?;
        if let Some((entry, _)) = below.split_last() {
            versions_of(&mut entries, entry.into())[0] = SubAmt::decode(&below, &row)?.version;
        }
    }
    Ok(entries)
}

/// Reads the versions of the keys in the entries `range` of the AMT at the path `way`.
fn read_slots(
    height: u8,
    view: &dyn NodeRead,
    way: &[u16],
    range: Range<u32>,
    entries: &mut EntryList,
    pause: PausePoint<'_>,
) -> Result<(), StateError> {
    let (start, end) = bounds(height, slots_of_amt(way), range);
    let rows = KeyRange { start: &start, end: end.as_deref() };
    for (n, row) in view.scan(SLOTS, rows, ScanDirection::Forward)?.enumerate() {
        if n % 1024 == 0 {
            pause()?;
        }
        let (key, row) = row?;
        let (way, slot) = read_slot_key(&key)
            .ok_or_else(|| corrupt(SLOTS, format!("row {key} names no slot")))?;
        check_path(height, &way, SLOTS)?;
        let Some((entry, _)) = way.split_last() else { continue };
        let record = occupant(view, &row)?.1;
        versions_of(entries, entry.into())[usize::from(slot)] = record.version;
    }
    Ok(())
}

/// The first key of the entries `range` in a table whose rows of this AMT begin with `of_amt`, and
/// the first key beyond them.
fn bounds(height: u8, of_amt: RowKey, range: Range<u32>) -> (Vec<u8>, Option<Vec<u8>>) {
    let is_whole = range == (0..1 << height);
    let entry = |entry: u32| {
        let entry = u16::try_from(entry).ok().filter(|_| !is_whole)?;
        Some([&of_amt[..], &entry.to_be_bytes()].concat())
    };
    let start = entry(range.start).unwrap_or_else(|| of_amt.to_vec());
    (start, entry(range.end).or_else(|| prefix_end(&of_amt)))
}

/// The versions of `entry` in the ascending list; zeros if it is new.
fn versions_of(entries: &mut EntryList, entry: u32) -> &mut EntryVersions {
    let at = match entries.binary_search_by_key(&entry, |(entry, _)| *entry) {
        Ok(at) => at,
        Err(at) => {
            entries.insert(at, (entry, EntryVersions::default()));
            at
        }
    };
    &mut entries[at].1
}

/// The key that a row of [`SLOTS`] contains, and the key's record.
pub(crate) fn occupant(
    view: &dyn NodeRead,
    row: &[u8],
) -> Result<(BackendKey, KeyRecord), StateError> {
    let key = BackendKey::decode(row).ok_or_else(|| {
        corrupt(
            SLOTS,
            format!(
                "a row holds {}, which is no state key",
                B256::right_padding_from(&row[..row.len().min(32)])
            ),
        )
    })?;
    let record = view
        .get(KEYS, &key.encode())?
        .ok_or_else(|| corrupt(KEYS, format!("the record of {key} is missing")))?;
    Ok((key, KeyRecord::decode(&key, &record)?))
}

/// For each entry of the root AMT, how many of its slots keys occupy, in a state with this second
/// level.
///
/// # Errors
/// If a slot is occupied and the one before it is free.
pub(crate) fn root_occupancy(
    height: u8,
    view: &dyn NodeRead,
    second: &LevelArray,
) -> Result<Vec<u8>, StateError> {
    // An entry with a sub-AMT is full. In a state of a million keys nearly all entries have one, so
    // hardly a row is read.
    let is_full = |entry: u32| second.get(entry).version > 0;
    let mut occupied = vec![amt::SLOTS as u8 - 1; 1 << height];
    let (mut entry, len) = (0, 1u32 << height);
    while entry < len {
        if is_full(entry) {
            entry += 1;
            continue;
        }
        let first = entry;
        while entry < len && !is_full(entry) {
            occupied[entry as usize] = 0;
            entry += 1;
        }
        let (start, end) = bounds(height, slots_of_amt(&[]), first..entry);
        let rows = KeyRange { start: &start, end: end.as_deref() };
        for row in view.scan(SLOTS, rows, ScanDirection::Forward)? {
            let (key, _) = row?;
            let (way, slot) = read_slot_key(&key)
                .ok_or_else(|| corrupt(SLOTS, format!("row {key} names no slot")))?;
            check_path(height, &way, SLOTS)?;
            let Some((entry, _)) = way.split_last() else { continue };
            let occupied = &mut occupied[usize::from(entry)];
            if slot != *occupied + 1 {
                let what = format!("slot {slot} of entry {way} is occupied, the one before free");
                return Err(corrupt(SLOTS, what));
            }
            *occupied = slot;
        }
    }
    Ok(occupied)
}

/// The entries below one node of an AMT at a time, for openings.
#[derive(Default)]
pub(crate) struct NodeEntries {
    /// The first entry below the node that was read last, and the entries below it.
    last: Option<(u32, EntryList)>,
}

impl NodeEntries {
    /// The quotients above `entry` at the depths from `depth` to the lowest, root side first. Calls
    /// `read` for the entries below the node at `depth` above `entry`, unless the last call was for
    /// the same node.
    pub(crate) fn open(
        &mut self,
        params: &LvmtParams,
        depth: u8,
        entry: u32,
        read: impl FnOnce(Range<u32>) -> Result<EntryList, StateError>,
    ) -> Result<Vec<G1Point>, StateError> {
        let below = params.height() - depth;
        let first = entry >> below << below;
        let (_, entries) = match self.last.take() {
            Some(last) if last.0 == first => self.last.insert(last),
            _ => self.last.insert((first, read(first..first + (1 << below))?)),
        };
        Ok(amt::open_sparse(params, entries, entry, depth))
    }
}
