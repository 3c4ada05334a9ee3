//! The state that blocks of real accesses meet: what a key holds before each block.

use alloy_primitives::{B256, Bytes};
use retrie_state::{Account, StateKey, StateValue};
use std::collections::{BTreeMap, BTreeSet};

/// The accesses of one block, its keys in order.
#[derive(Clone, Debug, Default)]
pub(in crate::state) struct BlockAccesses {
    /// Number of the block.
    pub(in crate::state) number: u64,
    /// The keys that the block reads, those that it writes among them.
    pub(in crate::state) touches: Vec<KeyTouch>,
    /// Codes that accounts may have, by keccak-256.
    pub(in crate::state) codes: BTreeMap<B256, Bytes>,
}

/// A key that a block reads, and its values before and after the block.
#[derive(Clone, Debug)]
pub(in crate::state) struct KeyTouch {
    pub(in crate::state) key: StateKey,
    pub(in crate::state) before: Option<StateValue>,
    pub(in crate::state) after: Option<StateValue>,
}

/// Follows blocks in order, which need not be consecutive. A key has the value that was first
/// observed, then those that the blocks write.
#[derive(Debug, Default)]
pub(in crate::state) struct AccessModel {
    /// The first observed value of each key.
    base: BTreeMap<StateKey, Option<StateValue>>,
    /// The state after the blocks so far.
    now: BTreeMap<StateKey, StateValue>,
    /// Accounts that a block has removed.
    removed: BTreeSet<StateKey>,
}

impl AccessModel {
    /// The value of a key after the blocks so far; `None` if no block has accessed it.
    pub(in crate::state) fn get(&self, key: &StateKey) -> Option<Option<StateValue>> {
        self.base.contains_key(key).then(|| self.now.get(key).cloned())
    }

    /// Applies a block with the values `pre` before it, and `writes`. Returns its keys in order.
    pub(in crate::state) fn push(
        &mut self,
        pre: BTreeMap<StateKey, Option<StateValue>>,
        mut writes: BTreeMap<StateKey, Option<StateValue>>,
    ) -> Vec<KeyTouch> {
        // Accounts come before slots.
        for (key, value) in &pre {
            self.see(*key, value.clone());
        }
        for key in writes.keys() {
            self.see(*key, None);
        }
        self.reconcile_accounts(&pre, &mut writes);
        let mut keys: BTreeSet<_> = pre.into_keys().collect();
        keys.extend(writes.keys());
        let touches = keys.into_iter().map(|key| {
            let before = self.now.get(&key).cloned();
            let after = writes.remove(&key).unwrap_or_else(|| before.clone());
            match &after {
                Some(value) => self.now.insert(key, value.clone()),
                None => self.now.remove(&key),
            };
            KeyTouch { key, before, after }
        });
        let touches: Vec<_> = touches.collect();
        let gone = touches.iter().filter(|touch| touch.before.is_some() && touch.after.is_none());
        self.removed.extend(gone.map(|touch| touch.key));
        touches
    }

    /// Records the first value of a key. A slot exists only if its account existed at that time and
    /// was not removed before.
    fn see(&mut self, key: StateKey, value: Option<StateValue>) {
        if self.base.contains_key(&key) {
            return;
        }
        let value = value.filter(|_| match key {
            StateKey::Account(_) => true,
            StateKey::Slot(address, _) => {
                let account = StateKey::Account(address);
                let was_there = self.base.get(&account).is_some_and(Option::is_some);
                was_there && !self.removed.contains(&account)
            }
        });
        if let Some(value) = &value {
            self.now.insert(key, value.clone());
        }
        self.base.insert(key, value);
    }

    /// Keeps slots and accounts consistent: removing an account removes its slots. An account that
    /// was created in a gap between two blocks is created when one of its slots is first written.
    fn reconcile_accounts(
        &self,
        pre: &BTreeMap<StateKey, Option<StateValue>>,
        writes: &mut BTreeMap<StateKey, Option<StateValue>>,
    ) {
        let written: Vec<_> = writes.iter().map(|(key, value)| (*key, value.is_some())).collect();
        for (key, is_set) in written {
            let account = StateKey::Account(*key.address());
            match (key, is_set) {
                (StateKey::Account(address), false) => {
                    let all = StateKey::Slot(address, B256::ZERO)
                        ..=StateKey::Slot(address, B256::repeat_byte(0xff));
                    for (slot, _) in self.now.range(all) {
                        writes.insert(*slot, None);
                    }
                    writes.retain(|slot, value| {
                        slot.address() != &address || *slot == account || value.is_none()
                    });
                }
                (StateKey::Slot(..), true)
                    if !writes.contains_key(&account) && !self.now.contains_key(&account) =>
                {
                    let known = pre.get(&account).cloned().flatten();
                    let unknown = || Account { nonce: 1, ..Account::default() }.encode();
                    writes.insert(account, Some(known.unwrap_or_else(unknown)));
                }
                _ => {}
            }
        }
    }
}
