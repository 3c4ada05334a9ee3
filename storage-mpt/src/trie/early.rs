//! Parts of an update that are done before its batch is whole: what is below a slot is a matter of the
//! items below it alone, so whoever knows some of them early can have it ready.
//!
//! Nothing of it is taken on trust: the update takes what was made of a slot only if all of the batch's
//! items below that slot are those it was made of.

use super::{
    Item, Trie, child_slot, loaded,
    node::{Encoder, Link},
    resolved,
    source::{NodeSource, Recorder},
    update::{Outcome, Update},
};
use alloy_trie::Nibbles;
use parking_lot::Mutex;
use retrie_state::StateError;
use std::collections::HashMap;

/// Nibbles above the slots: what is left above 4,096 of them is little, and two items of a block are
/// seldom below the same one.
pub(super) const DEPTH: usize = 3;
/// How often a slot is done again, as items come or change. One that always changes is left to the
/// update.
const MOST_OFTEN: u8 = 4;

/// Slots of one trie that were updated early.
#[derive(Debug)]
pub struct Early<R: Recorder> {
    slots: HashMap<Nibbles, Slot<R>>,
}

#[derive(Debug)]
struct Slot<R: Recorder> {
    /// All that came so far, sorted by key.
    items: Vec<Item<R::Stamp>>,
    times: u8,
    done: Mutex<Option<Done<R>>>,
}

/// What became of a slot, what was recorded, and the nodes that were noted.
pub(super) type Done<R> = (Outcome<<R as Recorder>::Stamp>, (R, Encoder));

impl<R: Recorder> Default for Early<R> {
    fn default() -> Self {
        Self { slots: HashMap::new() }
    }
}

impl<R: Recorder> Default for Slot<R> {
    fn default() -> Self {
        Self { items: Vec::new(), times: 0, done: Mutex::default() }
    }
}

impl<R: Recorder> Early<R> {
    /// Updates the slots of `trie` that `items` lie below. Items must be sorted by key; one that came
    /// before is replaced.
    ///
    /// # Errors
    /// Those of `source`.
    pub fn update(
        &mut self,
        trie: &Trie<R::Stamp>,
        source: &impl NodeSource<Stamp = R::Stamp>,
        items: &[Item<R::Stamp>],
        recorder: &R,
    ) -> Result<(), StateError> {
        let slot_of = |item: &Item<R::Stamp>| Nibbles::unpack(&item.key[..2]).slice(..DEPTH);
        for items in items.chunk_by(|a, b| slot_of(a) == slot_of(b)) {
            let path = slot_of(&items[0]);
            let slot = self.slots.entry(path).or_default();
            if !merge(&mut slot.items, items) || slot.times > MOST_OFTEN {
                continue;
            }
            slot.times += 1;
            *slot.done.get_mut() = None;
            if slot.times > MOST_OFTEN {
                continue;
            }
            if let Some(link) = trie.at_slot(source, &path)? {
                let mut update = Update::new(source, recorder, trie.with, None);
                let outcome = update.slot(link.as_ref(), &path, &slot.items)?;
                *slot.done.get_mut() = Some((outcome, update.into_parts()));
            }
        }
        Ok(())
    }

    /// What was made of exactly `items` at `slot`. It is there once.
    pub(super) fn take(&self, slot: &Nibbles, items: &[Item<R::Stamp>]) -> Option<Done<R>> {
        if slot.len() != DEPTH {
            return None;
        }
        let known = self.slots.get(slot).filter(|known| known.items == items)?;
        known.done.lock().take()
    }
}

/// Puts `new` among `items`, both sorted by key: whether that changes anything.
fn merge<S: PartialEq + Clone>(items: &mut Vec<Item<S>>, new: &[Item<S>]) -> bool {
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

impl<S: super::Stamp> Trie<S> {
    /// What hangs at the slot `at`; `None` if the trie has no such slot, as there is no branch above.
    fn at_slot(
        &self,
        source: &impl NodeSource<Stamp = S>,
        at: &Nibbles,
    ) -> Result<Option<Option<Link<S>>>, StateError> {
        let (mut slot, mut link) = (Nibbles::new(), self.root.clone());
        while slot.len() < at.len() {
            let Some(above) = link else { return Ok(None) };
            let Link::Branch(above) = resolved(source, &slot, above)? else { return Ok(None) };
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
