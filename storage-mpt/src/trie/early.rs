//! Subtries that are updated before the batch is complete. The subtrie below a slot depends only on
//! the items below it, so a state root task that knows these items can update it early.
//!
//! This cannot make a root wrong: the update takes an early subtrie only if the batch's items below
//! that slot are exactly the items that the subtrie was updated with.

use super::{
    LeafUpdate, Trie, child_slot, loaded,
    node::{NodeEncoder, NodeLink},
    resolved,
    source::{NodeSource, UpdateRecorder},
    update::{SlotOutcome, TrieUpdate},
};
use alloy_trie::Nibbles;
use parking_lot::Mutex;
use retrie_state::StateError;
use std::collections::HashMap;

/// Depth of the slots in nibbles. There are 4,096 of them: little work is left above, and two items
/// of a block rarely share a slot.
pub(super) const DEPTH: usize = 3;
/// How often a slot is updated again when its items change. A slot that changes more often is left
/// to the final update.
const MAX_UPDATES: u8 = 4;

/// Subtries of one trie that were updated early.
#[derive(Debug)]
pub struct EarlySubtries<R: UpdateRecorder> {
    slots: HashMap<Nibbles, EarlySlot<R>>,
}

#[derive(Debug)]
struct EarlySlot<R: UpdateRecorder> {
    /// All items so far, sorted by key.
    items: Vec<LeafUpdate<R::Stamp>>,
    times: u8,
    done: Mutex<Option<EarlyOutcome<R>>>,
}

/// The outcome of a slot, its recorder, and the encoder with the hashed nodes.
pub(super) type EarlyOutcome<R> = (SlotOutcome<<R as UpdateRecorder>::Stamp>, (R, NodeEncoder));

impl<R: UpdateRecorder> Default for EarlySubtries<R> {
    fn default() -> Self {
        Self { slots: HashMap::new() }
    }
}

impl<R: UpdateRecorder> Default for EarlySlot<R> {
    fn default() -> Self {
        Self { items: Vec::new(), times: 0, done: Mutex::default() }
    }
}

impl<R: UpdateRecorder> EarlySubtries<R> {
    /// Updates the slots of `trie` that `items` lie below. Items must be sorted by key; an item
    /// replaces an earlier one of the same key.
    ///
    /// # Errors
    /// Errors of `source`.
    pub fn update(
        &mut self,
        trie: &Trie<R::Stamp>,
        source: &impl NodeSource<Stamp = R::Stamp>,
        items: &[LeafUpdate<R::Stamp>],
        recorder: &R,
    ) -> Result<(), StateError> {
        let slot_of = |item: &LeafUpdate<R::Stamp>| Nibbles::unpack(&item.key[..2]).slice(..DEPTH);
        for items in items.chunk_by(|a, b| slot_of(a) == slot_of(b)) {
            let path = slot_of(&items[0]);
            let slot = self.slots.entry(path).or_default();
            if !merge(&mut slot.items, items) || slot.times > MAX_UPDATES {
                continue;
            }
            slot.times += 1;
            *slot.done.get_mut() = None;
            if slot.times > MAX_UPDATES {
                continue;
            }
            if let Some(link) = trie.at_slot(source, &path)? {
                let mut update = TrieUpdate::new(source, recorder, trie.with, None);
                let outcome = update.slot(link.as_ref(), &path, &slot.items)?;
                *slot.done.get_mut() = Some((outcome, update.into_parts()));
            }
        }
        Ok(())
    }

    /// Takes the result of updating `slot` with exactly `items`, if there is one.
    pub(super) fn take(
        &self,
        slot: &Nibbles,
        items: &[LeafUpdate<R::Stamp>],
    ) -> Option<EarlyOutcome<R>> {
        if slot.len() != DEPTH {
            return None;
        }
        let known = self.slots.get(slot).filter(|known| known.items == items)?;
        known.done.lock().take()
    }
}

/// Merges `new` into `items`, both sorted by key. Returns whether `items` changed.
fn merge<S: PartialEq + Clone>(items: &mut Vec<LeafUpdate<S>>, new: &[LeafUpdate<S>]) -> bool {
    let mut is_changed = false;
    for item in new {
        match items.binary_search_by(|known| known.key.cmp(&item.key)) {
            Ok(at) if items[at] == *item => continue,
            Ok(at) => items[at] = item.clone(),
            Err(at) => items.insert(at, item.clone()),
        }
        is_changed = true;
    }
    is_changed
}

impl<S: super::RowStamp> Trie<S> {
    /// What hangs at the slot `at`; `None` if the trie has no such slot, because no branch is above
    /// it.
    fn at_slot(
        &self,
        source: &impl NodeSource<Stamp = S>,
        at: &Nibbles,
    ) -> Result<Option<Option<NodeLink<S>>>, StateError> {
        let (mut slot, mut link) = (Nibbles::new(), self.root.clone());
        while slot.len() < at.len() {
            let Some(above) = link else { return Ok(None) };
            let NodeLink::Branch(above) = resolved(source, &slot, above)? else { return Ok(None) };
            if above.has_extension() {
                return Ok(None);
            }
            let branch = loaded(source, &slot, &above)?;
            let nibble = at.get_unchecked(slot.len());
            link = branch.children[usize::from(nibble)].clone();
            slot = child_slot(&slot, nibble);
        }
        Ok(Some(link))
    }
}
