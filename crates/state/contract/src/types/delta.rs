//! What one block changes: the only data that flows from the client into a backend.

use crate::{AccountKey, KeyForm, StateKey, StateValue};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};
use alloy_primitives::{Address, B256, Bytes};
use core::ops::RangeInclusive;

/// One changed key of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateChange<A = Address> {
    /// The key.
    pub key: StateKey<A>,
    /// Value before the block; `None` if absent.
    pub previous: Option<StateValue>,
    /// Value after the block; `None` if absent.
    pub next: Option<StateValue>,
}

/// A [`StateChange`] as a backend gets it.
pub type BackendChange = StateChange<AccountKey>;

/// The net effect of one block on the state, complete with rewards, withdrawals and system calls.
///
/// [`DeltaBuilder`] keeps these invariants: sorted by key, one entry a key, and no entry whose
/// `previous` equals its `next`, except slots of a [wiped](Self::wiped) account that were set again
/// to the value they had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateDelta<A = Address> {
    changes: Vec<StateChange<A>>,
    wiped: Vec<A>,
    codes: BTreeMap<B256, Bytes>,
}

/// A [`StateDelta`] as a backend gets it, with keys in the form of its store.
pub type BackendDelta = StateDelta<AccountKey>;

impl<A> Default for StateDelta<A> {
    fn default() -> Self {
        Self { changes: Vec::new(), wiped: Vec::new(), codes: BTreeMap::new() }
    }
}

impl<A: Copy + Ord> StateDelta<A> {
    /// The changes in key order.
    pub fn changes(&self) -> &[StateChange<A>] {
        &self.changes
    }

    /// The change of `key`, if it changes.
    pub fn change(&self, key: &StateKey<A>) -> Option<&StateChange<A>> {
        let at = self.changes.binary_search_by(|change| change.key.cmp(key)).ok()?;
        self.changes.get(at)
    }

    /// The changes of slots of `account`, in slot order.
    pub fn slots_of(&self, account: &A) -> &[StateChange<A>] {
        let first = StateKey::Slot(*account, B256::ZERO);
        let from = self.changes.partition_point(|change| change.key < first);
        let rest = self.changes.get(from..).unwrap_or_default();
        let count = rest.partition_point(|change| change.key.account() == account);
        rest.get(..count).unwrap_or_default()
    }

    /// Accounts, in order, whose whole storage was wiped by SELFDESTRUCT before slots (if any) were
    /// written again in the same block. Each known slot also has its own [`StateChange`]: on a full
    /// state these are all slots, on a partial state (a witness) this list decides. Either way the
    /// changes include each slot that is set after the block.
    pub fn wiped(&self) -> &[A] {
        &self.wiped
    }

    /// Whether the storage of `account` was [wiped](Self::wiped).
    pub fn is_wiped(&self, account: &A) -> bool {
        self.wiped.binary_search(account).is_ok()
    }

    /// The codes, by keccak-256, that accounts have after the block and had not before it: at least
    /// those that no account of the parent's state had. There may be more of them, such as the code
    /// of an account that is gone again.
    pub const fn codes(&self) -> &BTreeMap<B256, Bytes> {
        &self.codes
    }

    /// The code of this keccak-256, if it is among [`codes`](Self::codes).
    pub fn code(&self, hash: &B256) -> Option<&Bytes> {
        self.codes.get(hash)
    }

    /// Whether the block changed nothing.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.wiped.is_empty()
    }

    /// This delta followed by `later`, as one delta. The previous values of `later` must be the
    /// values after this delta.
    #[must_use]
    pub fn then(&self, later: &Self) -> Self {
        let mut both = DeltaBuilder::new();
        both.add(self);
        both.add(later);
        both.build()
    }

    /// Number of changed keys.
    pub fn len(&self) -> usize {
        self.changes.len()
    }
}

/// Collects changes in any order into a [`StateDelta`].
#[derive(Clone, Debug)]
pub struct DeltaBuilder<A = Address> {
    changes: BTreeMap<StateKey<A>, (Option<StateValue>, Option<StateValue>)>,
    wiped: BTreeSet<A>,
    codes: BTreeMap<B256, Bytes>,
}

impl<A> Default for DeltaBuilder<A> {
    fn default() -> Self {
        Self { changes: BTreeMap::new(), wiped: BTreeSet::new(), codes: BTreeMap::new() }
    }
}

impl<A: Copy + Ord> DeltaBuilder<A> {
    /// An empty builder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records that `key` went from `previous` to `next`. A second record of the same key keeps the
    /// first `previous` and takes the new `next`.
    pub fn change(
        &mut self,
        key: StateKey<A>,
        previous: Option<StateValue>,
        next: Option<StateValue>,
    ) {
        match self.changes.entry(key) {
            alloc::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert((previous, next));
            }
            alloc::collections::btree_map::Entry::Occupied(mut entry) => entry.get_mut().1 = next,
        }
    }

    /// Marks the storage of `account` as wiped. The caller also records each known slot.
    pub fn wipe(&mut self, account: A) {
        self.wiped.insert(account);
    }

    /// Adds a code that an account has after the block, under its keccak-256; see
    /// [`StateDelta::codes`].
    pub fn add_code(&mut self, hash: B256, code: Bytes) {
        self.codes.insert(hash, code);
    }

    /// Adds all changes and codes of `delta` on top. It need not list all slots of an account that it wipes.
    pub fn add(&mut self, delta: &StateDelta<A>) {
        for account in &delta.wiped {
            let slots = self.changes.range_mut(Self::slots_of(account));
            slots.for_each(|(_, (_, next))| *next = None);
        }
        for StateChange { key, previous, next } in &delta.changes {
            self.change(*key, previous.clone(), next.clone());
        }
        self.wiped.extend(&delta.wiped);
        self.add_codes(&delta.codes);
    }

    /// Adds codes, as [`add_code`](Self::add_code) does.
    pub fn add_codes(&mut self, codes: &BTreeMap<B256, Bytes>) {
        self.codes.extend(codes.iter().map(|(hash, code)| (*hash, code.clone())));
    }

    /// The keys of all slots of `account`.
    fn slots_of(account: &A) -> RangeInclusive<StateKey<A>> {
        let slot = |slot| StateKey::Slot(*account, slot);
        slot(B256::ZERO)..=slot(B256::repeat_byte(0xff))
    }

    /// Number of keys recorded.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// Whether no key is recorded.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// The newest value of `key`, if it is recorded or was wiped; the inner `None` means that it is
    /// absent.
    pub fn next(&self, key: &StateKey<A>) -> Option<Option<&StateValue>> {
        match (self.changes.get(key), key) {
            (Some((_, next)), _) => Some(next.as_ref()),
            (None, StateKey::Slot(account, _)) if self.is_wiped(account) => Some(None),
            (None, _) => None,
        }
    }

    /// Whether slots of `account` that are not recorded are absent.
    pub fn is_wiped(&self, account: &A) -> bool {
        self.wiped.contains(account)
    }

    /// The newest values of the recorded slots of `account`, in slot order.
    pub fn next_slots(&self, account: &A) -> impl Iterator<Item = (B256, Option<&StateValue>)> {
        let slots = self.changes.range(Self::slots_of(account));
        slots.filter_map(|(key, (_, next))| match key {
            StateKey::Slot(_, slot) => Some((*slot, next.as_ref())),
            StateKey::Account(_) => None,
        })
    }

    /// Builds the delta: sorted, unique, without no-ops.
    pub fn build(self) -> StateDelta<A> {
        // A slot that was wiped and set again to its old value must survive the wipe.
        let is_rewritten = |key: &StateKey<A>, next: &Option<StateValue>| match key {
            StateKey::Slot(account, _) => next.is_some() && self.wiped.contains(account),
            StateKey::Account(_) => false,
        };
        let changes = self
            .changes
            .into_iter()
            .filter(|(key, (previous, next))| previous != next || is_rewritten(key, next))
            .map(|(key, (previous, next))| StateChange { key, previous, next })
            .collect();
        StateDelta { changes, wiped: self.wiped.into_iter().collect(), codes: self.codes }
    }
}

impl KeyForm {
    /// `delta` with keys in this form. In the hashed form changes of a wiped account may lack slots
    /// whose removal the caller could not name.
    pub fn delta(self, delta: &StateDelta) -> BackendDelta {
        // Slots follow each other by account.
        let mut last: Option<(Address, AccountKey)> = None;
        let mut account = |address: &Address| match last {
            Some((of, account)) if of == *address => account,
            _ => last.insert((*address, self.account(address))).1,
        };
        let mut key = |key: &StateKey| match key {
            StateKey::Account(address) => StateKey::Account(account(address)),
            StateKey::Slot(address, slot) => StateKey::Slot(account(address), self.slot(slot)),
        };
        let change = |StateChange { key: of, previous, next }: &StateChange| StateChange {
            key: key(of),
            previous: previous.clone(),
            next: next.clone(),
        };
        let mut changes: Vec<_> = delta.changes.iter().map(change).collect();
        let mut wiped: Vec<_> = delta.wiped.iter().map(|of| self.account(of)).collect();
        if self == Self::Hashed {
            changes.sort_unstable_by_key(|change| change.key);
            wiped.sort_unstable();
        }
        StateDelta { changes, wiped, codes: delta.codes.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::bytes;

    #[test]
    fn a_slot_set_again_to_its_old_value_survives_the_wipe_of_its_account() {
        let a = Address::repeat_byte(1);
        let slot = |n| StateKey::Slot(a, B256::with_last_byte(n));
        let mut builder = DeltaBuilder::new();
        builder.wipe(a);
        builder.change(slot(1), Some(bytes!("01")), Some(bytes!("01")));
        builder.change(slot(2), Some(bytes!("02")), None);
        builder.change(slot(3), None, None);
        let delta = builder.build();
        let keys: Vec<_> = delta.changes().iter().map(|change| change.key).collect();
        assert_eq!(keys, [slot(1), slot(2)]);
        assert_eq!(delta.wiped(), [a]);
    }

    #[test]
    fn changes_are_found_by_key_and_by_account() {
        let [a, b, c] = [1, 2, 3].map(Address::repeat_byte);
        let slot = |address, n| StateKey::Slot(address, B256::repeat_byte(n));
        let mut builder = DeltaBuilder::new();
        let keys = [StateKey::Account(a), StateKey::Account(b), slot(a, 0xff), slot(c, 0)];
        for key in keys.into_iter().chain([slot(a, 7)]) {
            builder.change(key, None, Some(bytes!("01")));
        }
        let delta = builder.build();
        for key in keys {
            assert_eq!(delta.change(&key).map(|change| change.key), Some(key));
        }
        assert_eq!(delta.change(&slot(a, 8)), None);
        assert_eq!(delta.change(&StateKey::Account(c)), None);
        let slots = |address| delta.slots_of(&address).iter().map(|change| change.key);
        assert!(slots(a).eq([slot(a, 7), slot(a, 0xff)]));
        assert!(slots(b).eq([]));
        assert!(slots(c).eq([slot(c, 0)]));
    }

    #[test]
    fn one_delta_after_another_is_their_net_effect() {
        let a = Address::repeat_byte(1);
        let slot = |n| StateKey::Slot(a, B256::with_last_byte(n));
        let delta = |changes: &[(u8, Option<StateValue>, Option<StateValue>)]| {
            let mut builder = DeltaBuilder::new();
            for (n, previous, next) in changes {
                builder.change(slot(*n), previous.clone(), next.clone());
            }
            builder.build()
        };
        let (one, two) = (Some(bytes!("01")), Some(bytes!("02")));
        let first = delta(&[(1, None, one.clone()), (2, one.clone(), two.clone())]);
        let second = delta(&[(1, one.clone(), None), (2, two, None), (3, None, one.clone())]);
        assert_eq!(first.then(&second), delta(&[(2, one.clone(), None), (3, None, one)]));
    }

    #[test]
    fn codes_survive_every_way_to_make_a_delta_of_deltas() {
        let [one, two, three] = [1, 2, 3].map(B256::repeat_byte);
        let delta = |codes: &[(B256, Bytes)]| {
            let mut builder = DeltaBuilder::<Address>::new();
            codes.iter().for_each(|(hash, code)| builder.add_code(*hash, code.clone()));
            builder.build()
        };
        let first = delta(&[(one, bytes!("01")), (two, bytes!("02"))]);
        let second = delta(&[(two, bytes!("02")), (three, bytes!(""))]);
        assert_eq!(first.code(&one), Some(&bytes!("01")));
        assert_eq!(first.code(&three), None);
        assert!(first.is_empty());
        assert_eq!(first.len(), 0);

        let all = delta(&[(one, bytes!("01")), (two, bytes!("02")), (three, bytes!(""))]);
        assert_eq!(first.then(&second), all);
        let mut builder = DeltaBuilder::new();
        builder.add(&first);
        builder.add_codes(second.codes());
        assert_eq!(builder.build(), all);
        for form in [KeyForm::Plain, KeyForm::Hashed] {
            assert_eq!(form.delta(&all).codes(), all.codes());
        }
        let mut batch = crate::DeltaBatchBuilder::new(first.into());
        batch.push(second.into());
        assert_eq!(batch.build().sum().codes(), all.codes());
    }

    #[test]
    fn builder_sorts_merges_and_drops_noops() {
        let (a, b) = (Address::repeat_byte(1), Address::repeat_byte(2));
        let mut builder = DeltaBuilder::new();
        builder.change(StateKey::Slot(a, B256::ZERO), None, Some(bytes!("01")));
        builder.change(StateKey::Account(b), None, Some(bytes!("02")));
        builder.change(StateKey::Account(a), Some(bytes!("03")), Some(bytes!("04")));
        builder.change(StateKey::Account(a), Some(bytes!("04")), Some(bytes!("03")));
        builder.change(StateKey::Account(b), Some(bytes!("02")), Some(bytes!("05")));
        let delta = builder.build();
        assert_eq!(
            delta.changes(),
            [
                StateChange { key: StateKey::Account(b), previous: None, next: Some(bytes!("05")) },
                StateChange {
                    key: StateKey::Slot(a, B256::ZERO),
                    previous: None,
                    next: Some(bytes!("01"))
                },
            ]
        );
    }
}
