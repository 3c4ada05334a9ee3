//! Keyed reads of one state.

use crate::{Account, StateError, StateKey, StateValue, decode_slot};
use alloc::{boxed::Box, format, vec::Vec};
use alloy_primitives::{Address, B256, U256};

/// Reads the state of one block. A reader keeps showing this block whatever is committed meanwhile.
pub trait StateReader: Send + Sync {
    /// The value of `key`, `None` if absent.
    fn get(&self, key: &StateKey) -> Result<Option<StateValue>, StateError>;

    /// All slots of `address` that are set, in slot order.
    ///
    /// # Errors
    /// On a partial state [`StateError::MissingWitness`], as the set is not known; in a store of
    /// hashed keys [`StateError::HashedKeys`].
    fn slots_of(&self, address: &Address) -> Result<Vec<(B256, StateValue)>, StateError>;

    /// Slots of `address` that are set, at most `limit`; fewer only if there are no more. It does
    /// not read a large storage to its end: a caller may ask for one slot to learn whether there
    /// are any.
    ///
    /// # Errors
    /// As [`slots_of`](Self::slots_of).
    fn some_slots(
        &self,
        address: &Address,
        limit: usize,
    ) -> Result<Vec<(B256, StateValue)>, StateError> {
        let mut slots = self.slots_of(address)?;
        slots.truncate(limit);
        Ok(slots)
    }

    /// The account at `address`, decoded.
    fn account(&self, address: &Address) -> Result<Option<Account>, StateError> {
        let key = StateKey::Account(*address);
        self.get(&key)?
            .map(|bytes| {
                Account::decode(&bytes).ok_or_else(|| {
                    StateError::corrupt("state", format!("{key} is not a canonical account"))
                })
            })
            .transpose()
    }

    /// The value of a slot, zero if absent.
    fn slot(&self, address: &Address, slot: &B256) -> Result<U256, StateError> {
        let key = StateKey::Slot(*address, *slot);
        self.get(&key)?.map_or(Ok(U256::ZERO), |bytes| {
            decode_slot(&bytes).ok_or_else(|| {
                StateError::corrupt("state", format!("{key} is not a canonical slot value"))
            })
        })
    }
}

impl<T: StateReader + ?Sized> StateReader for &T {
    fn get(&self, key: &StateKey) -> Result<Option<StateValue>, StateError> {
        (**self).get(key)
    }

    fn slots_of(&self, address: &Address) -> Result<Vec<(B256, StateValue)>, StateError> {
        (**self).slots_of(address)
    }

    fn some_slots(
        &self,
        address: &Address,
        limit: usize,
    ) -> Result<Vec<(B256, StateValue)>, StateError> {
        (**self).some_slots(address, limit)
    }
}

impl<T: StateReader + ?Sized> StateReader for Box<T> {
    fn get(&self, key: &StateKey) -> Result<Option<StateValue>, StateError> {
        (**self).get(key)
    }

    fn slots_of(&self, address: &Address) -> Result<Vec<(B256, StateValue)>, StateError> {
        (**self).slots_of(address)
    }

    fn some_slots(
        &self,
        address: &Address,
        limit: usize,
    ) -> Result<Vec<(B256, StateValue)>, StateError> {
        (**self).some_slots(address, limit)
    }
}
