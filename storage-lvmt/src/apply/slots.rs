//! Slots for new keys.

use crate::{
    hash,
    params::LvmtParams,
    record::{EntryPath, KEY_SLOTS, NAME, SLOTS, slot_key},
    state::ApplyBase,
    state_array::StateArray,
};
use alloy_primitives::Bytes;
use hashbrown::HashMap;
use retrie_state::{BackendKey, NodeRead, NodeWrite, StateError};

/// The slots of the root AMT during a block. How many slots of each entry are occupied is in
/// memory, so allocating one reads no row. Only the first new key after opening reads them all.
pub(super) struct RootSlots<'a> {
    parent: &'a ApplyBase,
    /// Occupied slots of the entries in which the block has allocated one.
    changed: HashMap<u16, u8>,
}

impl<'a> RootSlots<'a> {
    pub(super) fn new(parent: &'a ApplyBase) -> Self {
        Self { parent, changed: HashMap::new() }
    }

    /// Occupies the lowest free slot of `entry`; `None` if the entry is full. At the first call no
    /// row of the root AMT's slots in `view` may be the block's own.
    fn occupy(
        &mut self,
        params: &LvmtParams,
        view: &dyn NodeRead,
        entry: u16,
    ) -> Result<Option<u8>, StateError> {
        let parent = self.parent.occupied(params, view)?;
        let occupied = self.changed.get(&entry).copied();
        let slot = occupied.unwrap_or_else(|| parent.get(entry.into())) + 1;
        if !KEY_SLOTS.contains(&slot) {
            return Ok(None);
        }
        self.changed.insert(entry, slot);
        Ok(Some(slot))
    }

    /// The occupied slots after the block, if they are in memory.
    pub(super) fn finish(self) -> Option<StateArray<u8>> {
        let changed = self.changed.into_iter();
        let mut changed: Vec<(u32, u8)> = changed.map(|(at, slot)| (at.into(), slot)).collect();
        changed.sort_unstable();
        self.parent.occupied.get().map(|occupied| occupied.child(changed))
    }
}

/// The first vacant slot on the path of a key. Slots are never freed, so this is always the lowest
/// free slot of the highest entry that has one. Absence proofs rest on this.
pub(super) fn allocate(
    params: &LvmtParams,
    view: &mut dyn NodeWrite,
    root: &mut RootSlots<'_>,
    key: &BackendKey,
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
        let slot = match level {
            0 => root.occupy(params, view.as_read(), entry as u16)?,
            _ => first_free(view.as_read(), &way)?,
        };
        if let Some(slot) = slot {
            let row = Some(Bytes::copy_from_slice(encoded));
            view.replace(SLOTS, &slot_key(&way, slot), None, row)?;
            return Ok((way, slot));
        }
    }
    unreachable!("levels end with the hash")
}

/// The lowest free slot of the entry at the path `way`; `None` if the entry is full. Below the root
/// AMT nearly all entries are empty up to some 10^9 keys, so that one read finds a slot; a range
/// read is several times as expensive.
fn first_free(view: &dyn NodeRead, way: &[u16]) -> Result<Option<u8>, StateError> {
    for slot in KEY_SLOTS {
        if view.get(SLOTS, &slot_key(way, slot))?.is_none() {
            return Ok(Some(slot));
        }
    }
    Ok(None)
}
