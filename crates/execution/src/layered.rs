//! A state and deltas above it, in memory: blocks whose roots are not known yet, runs of blocks with
//! one root, blocks that are simulated, changes of a dev chain.

use crate::{BlockHashes, CodeReader};
use alloy_primitives::{Address, B256, Bytes, map::HashMap};
use retrie_state::{DeltaBuilder, StateDelta, StateError, StateKey, StateReader, Value};
use std::{collections::BTreeMap, fmt, sync::Arc};

/// A state and deltas above it, in memory. A read asks the deltas one by one, the newest first, so
/// there should be few of them.
pub struct LayeredState<S> {
    below: S,
    /// The oldest first.
    deltas: Vec<Arc<StateDelta>>,
    codes: HashMap<B256, Bytes>,
}

impl<S> fmt::Debug for LayeredState<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayeredState").field("deltas", &self.deltas.len()).finish_non_exhaustive()
    }
}

impl<S> LayeredState<S> {
    /// The state below, unchanged.
    pub fn new(below: S) -> Self {
        Self { below, deltas: Vec::new(), codes: HashMap::default() }
    }

    /// Lays a block's delta and its new codes above.
    pub fn lay(&mut self, delta: Arc<StateDelta>, codes: impl IntoIterator<Item = (B256, Bytes)>) {
        self.deltas.push(delta);
        self.codes.extend(codes);
    }

    /// The state below.
    pub const fn below(&self) -> &S {
        &self.below
    }

    /// What the deltas say of slots of `address`, the oldest first.
    fn slots(&self, address: &Address) -> impl Iterator<Item = (B256, Option<&Value>)> {
        let changes = self.deltas.iter().flat_map(move |delta| delta.slots_of(address));
        changes.filter_map(|change| match &change.key {
            StateKey::Slot(_, slot) => Some((*slot, change.next.as_ref())),
            StateKey::Account(_) => None,
        })
    }
}

impl<S: StateReader> StateReader for LayeredState<S> {
    fn get(&self, key: &StateKey) -> Result<Option<Value>, StateError> {
        match self.deltas.iter().rev().find_map(|delta| delta.change(key)) {
            Some(change) => Ok(change.next.clone()),
            None => self.below.get(key),
        }
    }

    fn slots_of(&self, address: &Address) -> Result<Vec<(B256, Value)>, StateError> {
        let below = self.below.slots_of(address)?;
        Ok(laid_over(below, self.slots(address)).into_iter().collect())
    }

    fn some_slots(
        &self,
        address: &Address,
        limit: usize,
    ) -> Result<Vec<(B256, Value)>, StateError> {
        // At most the changed ones of the slots below are gone, or known with another value.
        let changed = self.slots(address).count();
        let below = self.below.some_slots(address, limit.saturating_add(changed))?;
        Ok(laid_over(below, self.slots(address)).into_iter().take(limit).collect())
    }
}

/// A state and the sum of what a run of blocks has changed so far: however many they are, a read asks
/// one thing more.
#[derive(Debug)]
pub struct StateInRun<'a, S> {
    below: S,
    sum: &'a DeltaBuilder,
}

impl<'a, S> StateInRun<'a, S> {
    /// The state `below` the first block of the run, and what it has come to.
    pub const fn new(below: S, sum: &'a DeltaBuilder) -> Self {
        Self { below, sum }
    }
}

impl<S: StateReader> StateReader for StateInRun<'_, S> {
    fn get(&self, key: &StateKey) -> Result<Option<Value>, StateError> {
        match self.sum.next(key) {
            Some(next) => Ok(next.cloned()),
            None => self.below.get(key),
        }
    }

    fn slots_of(&self, address: &Address) -> Result<Vec<(B256, Value)>, StateError> {
        let below = self.below.slots_of(address)?;
        Ok(laid_over(below, self.sum.next_slots(address)).into_iter().collect())
    }

    fn some_slots(
        &self,
        address: &Address,
        limit: usize,
    ) -> Result<Vec<(B256, Value)>, StateError> {
        let changed = self.sum.next_slots(address).count();
        let below = self.below.some_slots(address, limit.saturating_add(changed))?;
        Ok(laid_over(below, self.sum.next_slots(address)).into_iter().take(limit).collect())
    }
}

/// `slots` of an account with what has become of some of them since. Slots that were wiped are among
/// these one by one.
fn laid_over<'v>(
    slots: Vec<(B256, Value)>,
    changed: impl Iterator<Item = (B256, Option<&'v Value>)>,
) -> BTreeMap<B256, Value> {
    let mut slots: BTreeMap<B256, Value> = slots.into_iter().collect();
    for (slot, next) in changed {
        match next {
            Some(value) => slots.insert(slot, value.clone()),
            None => slots.remove(&slot),
        };
    }
    slots
}

impl<S: CodeReader> CodeReader for LayeredState<S> {
    fn code(&self, hash: &B256) -> Result<Option<Bytes>, StateError> {
        match self.codes.get(hash) {
            Some(code) => Ok(Some(code.clone())),
            None => self.below.code(hash),
        }
    }
}

impl<S: BlockHashes> BlockHashes for LayeredState<S> {
    fn block_hash(&self, number: u64) -> Result<Option<B256>, StateError> {
        self.below.block_hash(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Slots(BTreeMap<B256, Value>);

    impl StateReader for Slots {
        fn get(&self, key: &StateKey) -> Result<Option<Value>, StateError> {
            Ok(match key {
                StateKey::Slot(_, slot) => self.0.get(slot).cloned(),
                StateKey::Account(_) => None,
            })
        }

        fn slots_of(&self, _: &Address) -> Result<Vec<(B256, Value)>, StateError> {
            Ok(self.0.clone().into_iter().collect())
        }
    }

    /// A wiped storage, one set again above the wipe, and what lies below: the newest layer wins,
    /// in single reads and in listings of any length; and so it does in the sum of the layers.
    #[test]
    fn newest_delta_wins_in_reads_and_listings() {
        let address = Address::repeat_byte(1);
        let slot = B256::with_last_byte;
        let value = |n: u8| Value::copy_from_slice(&[n]);
        let delta = |changes: &[(u8, Option<u8>, Option<u8>)], wipes: bool| {
            let mut builder = DeltaBuilder::new();
            for (n, previous, next) in changes {
                let key = StateKey::Slot(address, slot(*n));
                builder.change(key, previous.map(value), next.map(value));
            }
            if wipes {
                builder.wipe(address);
            }
            Arc::new(builder.build())
        };
        let below = || Slots((1..=3).map(|n| (slot(n), value(n))).collect());
        let mut state = LayeredState::new(below());
        let wipe = [(1, Some(1), None), (2, Some(2), None), (3, Some(3), None)];
        let mut sum = DeltaBuilder::new();
        let mut lay = |state: &mut LayeredState<Slots>, delta: Arc<StateDelta>| {
            sum.add(&delta);
            state.lay(delta, []);
        };
        lay(&mut state, delta(&wipe, true));
        assert_eq!(state.some_slots(&address, 1).unwrap(), []);
        lay(&mut state, delta(&[(2, None, Some(9)), (7, None, Some(7))], false));
        lay(&mut state, delta(&[(7, Some(7), None), (8, None, Some(8))], false));
        let expected = [(slot(2), value(9)), (slot(8), value(8))];
        let in_run = StateInRun::new(below(), &sum);
        for state in [&state as &dyn StateReader, &in_run] {
            assert_eq!(state.slots_of(&address).unwrap(), expected);
            for limit in 0..4 {
                let some = state.some_slots(&address, limit).unwrap();
                assert_eq!(some, expected[..limit.min(2)]);
            }
            for n in 0..10 {
                let listed = expected.iter().find(|(at, _)| *at == slot(n));
                let got = state.get(&StateKey::Slot(address, slot(n))).unwrap();
                assert_eq!(got, listed.map(|(_, value)| value.clone()), "slot {n}");
            }
        }
    }
}
