//! Verified values.

use crate::{LightClientError, TrustBasis};
use alloc::vec::Vec;
use alloy_primitives::{Address, B256, U256};
use core::ops::RangeInclusive;
use retrie_state::{Account, StateKey, StateValue, decode_slot};

/// The values that a proof shows under a trusted root.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "this is what was proven; what the answer says besides was not"]
pub struct VerifiedState {
    /// The requested keys with their values, in the order of the request.
    pub shown: Vec<ProvenValue>,
    /// The block whose state this is, if it is older than the block of the root.
    pub as_of: Option<u64>,
    /// The basis of trust.
    pub trust: TrustBasis,
}

/// The versions of a key over a range of blocks, as a proof shows them under a trusted root.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "this is what was proven; what the answer says besides was not"]
pub struct VerifiedProvenance {
    /// The key.
    pub key: StateKey,
    /// The range of blocks.
    pub blocks: RangeInclusive<u64>,
    /// The version in force at the first block of the range, if the key was ever set, and all
    /// versions set in later blocks of the range; each with the block that set it, newest first.
    /// The list is complete.
    pub versions: Vec<(u64, ProvenValue)>,
    /// The basis of trust.
    pub trust: TrustBasis,
}

/// A key with its proven value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProvenValue {
    /// An account.
    Account {
        /// Its address.
        address: Address,
        /// The account; `None` if there is none.
        account: Option<Account>,
    },
    /// A storage slot.
    Slot {
        /// Address of the account.
        address: Address,
        /// The slot.
        slot: B256,
        /// Its value; zero if it is not set.
        value: U256,
    },
}

impl ProvenValue {
    /// Decodes the `value` of `key`.
    pub(crate) fn of(key: &StateKey, value: Option<StateValue>) -> Result<Self, LightClientError> {
        let malformed = || LightClientError::Value { key: *key };
        Ok(match *key {
            StateKey::Account(address) => {
                let decode = |value: StateValue| Account::decode(&value).ok_or_else(malformed);
                Self::Account { address, account: value.map(decode).transpose()? }
            }
            StateKey::Slot(address, slot) => {
                let decode = |value: StateValue| decode_slot(&value).ok_or_else(malformed);
                let value = value.map(decode).transpose()?.unwrap_or_default();
                Self::Slot { address, slot, value }
            }
        })
    }
}

impl VerifiedState {
    /// The account at `address`; `Some(None)` if the proof shows that there is none, `None` if it
    /// was not requested.
    pub fn account(&self, address: &Address) -> Option<Option<Account>> {
        self.shown.iter().find_map(|shown| match shown {
            ProvenValue::Account { address: other, account } if other == address => Some(*account),
            _ => None,
        })
    }

    /// The value of a slot; `None` if it was not requested.
    pub fn slot(&self, address: &Address, slot: &B256) -> Option<U256> {
        self.shown.iter().find_map(|shown| match shown {
            ProvenValue::Slot { address: of, slot: at, value } if (of, at) == (address, slot) => {
                Some(*value)
            }
            _ => None,
        })
    }
}
