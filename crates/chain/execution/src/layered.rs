//! A state with deltas above it, in memory: for blocks whose roots are not computed yet, batches of
//! blocks with one root, simulated blocks, and changes of a dev chain.

use crate::{BlockHashes, CodeReader};
use alloy_primitives::{Address, B256, Bytes, map::HashMap};
use retrie_log_tables::TableSpan;
use retrie_state::{DeltaBuilder, StateDelta, StateError, StateKey, StateReader, StateValue};
use std::{collections::BTreeMap, fmt, sync::Arc};

/// A state with deltas above it, in memory. A read searches the deltas one by one, the newest
/// first, so there should be few of them.
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

    /// Adds a block's delta and its new codes on top.
    pub fn push_delta(
        &mut self,
        delta: Arc<StateDelta>,
        codes: impl IntoIterator<Item = (B256, Bytes)>,
    ) {
        self.deltas.push(delta);
        self.codes.extend(codes);
    }

    /// The state below.
    pub const fn below(&self) -> &S {
        &self.below
    }

    /// Changes of the slots of `address` in all deltas.
    fn slots(&self, address: &Address) -> SlotChanges<'_> {
        let last_wipe = self.deltas.iter().rposition(|delta| delta.is_wiped(address));
        let mut next = BTreeMap::new();
        for change in
            self.deltas[last_wipe.unwrap_or(0)..].iter().flat_map(|of| of.slots_of(address))
        {
            if let StateKey::Slot(_, slot) = change.key {
                next.insert(slot, change.next.as_ref());
            }
        }
        SlotChanges { next, is_wiped: last_wipe.is_some() }
    }
}

impl<S: StateReader> StateReader for LayeredState<S> {
    fn get(&self, key: &StateKey) -> Result<Option<StateValue>, StateError> {
        for delta in self.deltas.iter().rev() {
            match (delta.change(key), key) {
                (Some(change), _) => return Ok(change.next.clone()),
                (None, StateKey::Slot(address, _)) if delta.is_wiped(address) => return Ok(None),
                (None, _) => {}
            }
        }
        self.below.get(key)
    }

    fn slots_of(&self, address: &Address) -> Result<Vec<(B256, StateValue)>, StateError> {
        self.slots(address).over(&self.below, address, usize::MAX)
    }

    fn some_slots(
        &self,
        address: &Address,
        limit: usize,
    ) -> Result<Vec<(B256, StateValue)>, StateError> {
        self.slots(address).over(&self.below, address, limit)
    }
}

/// A state with the sum of the changes of a batch of blocks above it. A read searches one more map,
/// however many blocks the batch has.
#[derive(Debug)]
pub struct BatchState<'a, S> {
    below: S,
    sum: &'a DeltaBuilder,
}

impl<'a, S> BatchState<'a, S> {
    /// The state `below` the first block of the batch, with the `sum` of the changes so far.
    pub const fn new(below: S, sum: &'a DeltaBuilder) -> Self {
        Self { below, sum }
    }

    fn slots(&self, address: &Address) -> SlotChanges<'_> {
        let next = self.sum.next_slots(address).collect();
        SlotChanges { next, is_wiped: self.sum.is_wiped(address) }
    }
}

impl<S: StateReader> StateReader for BatchState<'_, S> {
    fn get(&self, key: &StateKey) -> Result<Option<StateValue>, StateError> {
        match self.sum.next(key) {
            Some(next) => Ok(next.cloned()),
            None => self.below.get(key),
        }
    }

    fn slots_of(&self, address: &Address) -> Result<Vec<(B256, StateValue)>, StateError> {
        self.slots(address).over(&self.below, address, usize::MAX)
    }

    fn some_slots(
        &self,
        address: &Address,
        limit: usize,
    ) -> Result<Vec<(B256, StateValue)>, StateError> {
        self.slots(address).over(&self.below, address, limit)
    }
}

/// The last change of each changed slot of one account.
struct SlotChanges<'a> {
    next: BTreeMap<B256, Option<&'a StateValue>>,
    /// Whether all other slots are absent.
    is_wiped: bool,
}

impl SlotChanges<'_> {
    /// The slots of `address`, at most `limit`, in a state whose slots were those of `below`.
    fn over(
        self,
        below: &impl StateReader,
        address: &Address,
        limit: usize,
    ) -> Result<Vec<(B256, StateValue)>, StateError> {
        let mut slots = BTreeMap::new();
        if !self.is_wiped {
            // The changes can remove or replace at most as many of the slots below as they are.
            slots.extend(below.some_slots(address, limit.saturating_add(self.next.len()))?);
        }
        for (slot, next) in self.next {
            match next {
                Some(value) => slots.insert(slot, value.clone()),
                None => slots.remove(&slot),
            };
        }
        Ok(slots.into_iter().take(limit).collect())
    }
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

    fn table_root(&self, span: TableSpan) -> Result<Option<B256>, StateError> {
        self.below.table_root(span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct MockStorage(BTreeMap<B256, StateValue>);

    impl StateReader for MockStorage {
        fn get(&self, key: &StateKey) -> Result<Option<StateValue>, StateError> {
            Ok(match key {
                StateKey::Slot(_, slot) => self.0.get(slot).cloned(),
                StateKey::Account(_) => None,
            })
        }

        fn slots_of(&self, _: &Address) -> Result<Vec<(B256, StateValue)>, StateError> {
            Ok(self.0.clone().into_iter().collect())
        }
    }

    /// The newest delta wins over a wipe below it and over the state below, in single reads and in
    /// listings of any length; the same holds for the sum of the deltas.
    #[test]
    fn newest_delta_wins_in_reads_and_listings() {
        let address = Address::repeat_byte(1);
        let slot = B256::with_last_byte;
        let value = |n: u8| StateValue::copy_from_slice(&[n]);
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
        let below = || MockStorage((1..=3).map(|n| (slot(n), value(n))).collect());
        let mut state = LayeredState::new(below());
        let wipe = [(1, Some(1), None), (2, Some(2), None), (3, Some(3), None)];
        let mut sum = DeltaBuilder::new();
        let mut lay = |state: &mut LayeredState<MockStorage>, delta: Arc<StateDelta>| {
            sum.add(&delta);
            state.push_delta(delta, []);
        };
        lay(&mut state, delta(&wipe, true));
        assert_eq!(state.some_slots(&address, 1).unwrap(), []);
        lay(&mut state, delta(&[(2, None, Some(9)), (7, None, Some(7))], false));
        lay(&mut state, delta(&[(7, Some(7), None), (8, None, Some(8))], false));
        let expected = [(slot(2), value(9)), (slot(8), value(8))];
        let in_run = BatchState::new(below(), &sum);
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
