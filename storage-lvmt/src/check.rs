//! The check of all rows for `db verify`: rows against each other, and up to the root.
//!
//! Records name slots, and slots name keys. Every commitment is recomputed from versions. Every
//! live tuple must hash to its leaf, every group to its leaf one level above, every block's tree to
//! its leaf of the range, and the commitment and the range to the root.

use crate::{
    amt,
    apply::root_of,
    entries, hash,
    merkle::{GROUP, MerkleGroup, group_size, levels},
    params::LvmtParams,
    point::G1Point,
    record::{
        AMTS, BLOCKS, BlockRow, EntryPath, KEY_SLOTS, KEYS, KeyRecord, LvmtMeta, META, RANGE,
        SLOTS, SubAmt, TREES, TuplePosition, check_path, corrupt, group_key, range_key,
        read_amt_key, read_slot_key, slot_key,
    },
    second_level::{CHUNKS, LevelArray, StoredLevel},
    state::LvmtState,
};
use alloy_primitives::B256;
use retrie_state::{BackendKey, KeyRange, NodeRead, RowTable, ScanDirection, StateError};
use std::fmt::Display;

/// Checks the state that `view` shows, whose recorded root is `root`.
pub(crate) fn check(
    params: &LvmtParams,
    view: &dyn NodeRead,
    state: &LvmtState,
    root: B256,
    report: &mut dyn FnMut(StateError),
) -> Result<(), StateError> {
    let meta = LvmtMeta::get(view)?;
    let range_top = state.apply_base(params, view)?.range.top();
    let mut check = RowCheck { params, view, meta, report, leaves: 0 };
    if root_of(&meta, &range_top) != root {
        check.bad(META, "the commitment and the range do not give the recorded root");
    }
    check.keys()?;
    check.slots()?;
    check.amts(state)?;
    check.trees()?;
    check.groups(RANGE, "the range", meta.blocks, Some(range_top), &|level, group| {
        range_key(level, group).to_vec()
    })?;
    if check.leaves != meta.leaves {
        check.bad(META, format!("{} leaves are kept, {} counted", check.leaves, meta.leaves));
    }
    Ok(())
}

struct RowCheck<'a> {
    params: &'a LvmtParams,
    view: &'a dyn NodeRead,
    meta: LvmtMeta,
    report: &'a mut dyn FnMut(StateError),
    /// The number of leaves kept.
    leaves: u64,
}

impl RowCheck<'_> {
    fn bad(&mut self, table: RowTable, what: impl Into<String>) {
        (self.report)(corrupt(table, what));
    }

    fn keys(&mut self) -> Result<(), StateError> {
        let (mut keys, mut dead) = (0, 0);
        for row in self.view.scan(KEYS, KeyRange::ALL, ScanDirection::Forward)? {
            let (encoded, row) = row?;
            let Some(key) = BackendKey::decode(&encoded) else {
                self.bad(KEYS, format!("row {encoded} is not a state key"));
                continue;
            };
            let record = match KeyRecord::decode(&key, &row) {
                Ok(record) => record,
                Err(fault) => {
                    (self.report)(fault);
                    continue;
                }
            };
            keys += 1;
            dead += u64::from(record.value.is_none());
            let location = hash::location(&encoded);
            let entry = |level| hash::entry_of(&location, self.params.height(), level);
            let leads = |(level, at): (usize, &u16)| entry(level) == Some((*at).into());
            if !record.way.iter().enumerate().all(leads) {
                self.bad(KEYS, format!("{key} does not belong to entry {}", record.way));
            }
            let slot = self.view.get(SLOTS, &slot_key(&record.way, record.slot))?;
            if slot.is_none_or(|slot| slot != encoded) {
                let what =
                    format!("slot {} of entry {} does not name {key}", record.slot, record.way);
                self.bad(SLOTS, what);
            }
            let value = record.value.as_ref().map(|value| &value[..]);
            let tuple =
                hash::key_tuple(record.level(), record.slot, record.version, &encoded, value);
            self.leaf(record.position, tuple, &key)?;
        }
        if (keys, dead) != (self.meta.keys, self.meta.dead) {
            let LvmtMeta { keys: all, dead: gone, .. } = self.meta;
            self.bad(META, format!("{keys} keys ({dead} without value), {all} ({gone}) counted"));
        }
        Ok(())
    }

    /// Checks that every slot names a key whose record names the slot.
    fn slots(&mut self) -> Result<(), StateError> {
        for row in self.view.scan(SLOTS, KeyRange::ALL, ScanDirection::Forward)? {
            let (at, row) = row?;
            let Some((way, slot)) = read_slot_key(&at) else {
                self.bad(SLOTS, format!("row {at} names no slot"));
                continue;
            };
            // Absence proofs rest on this.
            if slot > 1 && self.view.get(SLOTS, &slot_key(&way, slot - 1))?.is_none() {
                self.bad(
                    SLOTS,
                    format!("slot {slot} of entry {way} is occupied, the one before free"),
                );
            }
            match entries::occupant(self.view, &row) {
                Ok((_, record)) if (&record.way, record.slot) == (&way, slot) => {}
                Ok((key, _)) => self.bad(SLOTS, format!("{key} is not in slot {slot} of {way}")),
                Err(fault) => (self.report)(fault),
            }
        }
        Ok(())
    }

    fn amts(&mut self, state: &LvmtState) -> Result<(), StateError> {
        let stored = match StoredLevel::read(self.view, self.params.height()) {
            Ok(stored) => stored.into_amts(self.params),
            Err(fault) => {
                (self.report)(fault);
                return Ok(());
            }
        };
        let second = LevelArray::new(stored);
        self.commitment(&EntryPath::root(), self.meta.commitment, &second)?;
        let mut amts = 0;
        for entry in 0..1u32 << self.params.height() {
            // The height is at most 16, so an entry has at most 16 bits.
            let (entry, way) = (entry as u16, EntryPath::new(&[entry as u16]));
            let amt = second.get(entry.into());
            if amt.version > 0 {
                amts += 1;
                self.amt(state, CHUNKS, &way, amt, &second)?;
            }
        }
        for row in self.view.scan(AMTS, KeyRange::ALL, ScanDirection::Forward)? {
            let (at, row) = row?;
            let Some(way) = read_amt_key(&at) else {
                self.bad(AMTS, format!("row {at} names no AMT"));
                continue;
            };
            let amt = match SubAmt::decode(&way, &row) {
                Ok(amt) => amt,
                Err(fault) => {
                    (self.report)(fault);
                    continue;
                }
            };
            amts += 1;
            if let Err(fault) = check_path(self.params.height(), &way, AMTS) {
                (self.report)(fault);
                continue;
            }
            self.amt(state, AMTS, &way, amt, &second)?;
        }
        if amts != self.meta.amts {
            self.bad(META, format!("{amts} AMTs, {} counted", self.meta.amts));
        }
        Ok(())
    }

    /// Checks the sub-AMT at the path `way`, whose row is in `table`.
    fn amt(
        &mut self,
        state: &LvmtState,
        table: RowTable,
        way: &EntryPath,
        amt: SubAmt,
        second: &LevelArray,
    ) -> Result<(), StateError> {
        if self.view.get(SLOTS, &slot_key(way, *KEY_SLOTS.end()))?.is_none() {
            self.bad(table, format!("there is an AMT below entry {way}, which is not full"));
        }
        if state.amt(self.params, self.view, way)? != amt {
            self.bad(table, format!("AMT {way} differs from the one in memory"));
        }
        self.commitment(way, amt.commitment, second)?;
        let tuple = hash::amt_tuple(way, amt.version, &amt.commitment.to_bytes());
        self.leaf(amt.position, tuple, way)
    }

    fn commitment(
        &mut self,
        way: &EntryPath,
        commitment: G1Point,
        second: &LevelArray,
    ) -> Result<(), StateError> {
        let entries = entries::entries_of(self.params.height(), self.view, second, way, &|| Ok(()));
        // A wrong slot was reported above.
        let Ok(entries) = entries else { return Ok(()) };
        if amt::commit(self.params, &entries) != commitment {
            self.bad(AMTS, format!("the commitment of AMT {way} does not fit its versions"));
        }
        Ok(())
    }

    /// Checks that the tuple of `of` is the leaf at `position`, if the tree of that block is kept.
    fn leaf(
        &mut self,
        position: TuplePosition,
        tuple: B256,
        of: &dyn Display,
    ) -> Result<(), StateError> {
        let TuplePosition { block, leaf } = position;
        let Some(row) = self.view.get(BLOCKS, &block.to_be_bytes())? else {
            self.bad(BLOCKS, format!("block {block}, which has the tuple of {of}, has no row"));
            return Ok(());
        };
        let Ok(row) = BlockRow::decode(block, &row) else { return Ok(()) };
        if row.kept == 0 {
            // The tree belongs to another shard.
            return Ok(());
        }
        let group = leaf / GROUP as u32;
        let found = self.view.get(TREES, &group_key(block, 0, group))?.and_then(|bytes| {
            let group =
                MerkleGroup::decode(&bytes, group_size(row.leaves.into(), 0, group.into()))?;
            group.leaf((leaf % GROUP as u32) as u8)
        });
        if found != Some(tuple) {
            self.bad(TREES, format!("leaf {leaf} of block {block} is not the tuple of {of}"));
        }
        Ok(())
    }

    fn trees(&mut self) -> Result<(), StateError> {
        for row in self.view.scan(BLOCKS, KeyRange::ALL, ScanDirection::Forward)? {
            let (key, row) = row?;
            let Ok(block) = key[..].try_into().map(u64::from_be_bytes) else {
                self.bad(BLOCKS, format!("row {key} is not a block number"));
                continue;
            };
            let row = match BlockRow::decode(block, &row) {
                Ok(row) => row,
                Err(fault) => {
                    (self.report)(fault);
                    continue;
                }
            };
            self.leaves += u64::from(row.kept);
            let what = format!("block {block}");
            let groups = |level, group| group_key(block, level, group as u32).to_vec();
            let kept = self.groups(TREES, &what, row.leaves.into(), Some(row.top), &groups)?;
            if kept != u64::from(row.kept) {
                self.bad(BLOCKS, format!("{what} keeps {kept} leaves, not {}", row.kept));
            }
            let Some(ordinal) = block.checked_sub(self.meta.first) else {
                self.bad(BLOCKS, format!("{what} comes before the first one"));
                continue;
            };
            let leaf = hash::block(block, row.leaves, &row.top);
            let (group, at) = (ordinal / GROUP as u64, (ordinal % GROUP as u64) as u8);
            let found = self.view.get(RANGE, &range_key(0, group))?.and_then(|bytes| {
                MerkleGroup::decode(&bytes, group_size(self.meta.blocks, 0, group))?.leaf(at)
            });
            if found != Some(leaf) {
                self.bad(RANGE, format!("the leaf of {what} does not fit its tree"));
            }
        }
        Ok(())
    }

    /// Checks that all groups of a tree hash to their leaves one level above. Returns the number of
    /// kept leaves.
    fn groups(
        &mut self,
        table: RowTable,
        what: &str,
        leaves: u64,
        top: Option<B256>,
        key: &dyn Fn(u8, u64) -> Vec<u8>,
    ) -> Result<u64, StateError> {
        let read = |level: u8, number: u64| -> Result<Option<MerkleGroup>, StateError> {
            let size = group_size(leaves, level, number);
            let row = self.view.get(table, &key(level, number))?;
            let Some(row) = row else { return Ok(None) };
            MerkleGroup::decode(&row, size).map(Some).ok_or_else(|| {
                corrupt(table, format!("group {number} of level {level} of {what} is malformed"))
            })
        };
        let (mut kept, mut faults) = (0, Vec::new());
        let last = levels(leaves).checked_sub(1);
        for level in 0..levels(leaves) {
            let mut number = 0;
            while group_size(leaves, level, number) > 0 {
                let group = match read(level, number) {
                    Ok(group) => group,
                    Err(fault) => {
                        faults.push(fault);
                        number += 1;
                        continue;
                    }
                };
                if let Some(group) = group {
                    if level == 0 {
                        kept += u64::from(group.kept().count_ones());
                    }
                    let above = if Some(level) == last {
                        top
                    } else {
                        let above = read(level + 1, number / GROUP as u64).ok().flatten();
                        above.and_then(|above| above.leaf((number % GROUP as u64) as u8))
                    };
                    if above.is_some_and(|above| above != group.top()) {
                        let what = format!(
                            "group {number} of level {level} of {what} does not hash to the one above"
                        );
                        faults.push(corrupt(table, what));
                    }
                }
                number += 1;
            }
        }
        faults.into_iter().for_each(|fault| (self.report)(fault));
        Ok(kept)
    }
}
