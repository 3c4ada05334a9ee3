//! What a proof has shown.

use crate::{LightClientError, Trust};
use alloc::vec::Vec;
use alloy_primitives::{Address, B256, U256};
use core::ops::RangeInclusive;
use retrie_state::{Account, StateKey, Value, decode_slot};

/// What a proof shows under a trusted root.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "this is what was proven; what the answer says besides was not"]
pub struct Verified {
    /// The asked keys with what they hold, in the order asked.
    pub shown: Vec<Shown>,
    /// The block whose state this is, if that is an older one than the block of the root.
    pub as_of: Option<u64>,
    /// What that rests on.
    pub trust: Trust,
}

/// What a proof shows of a key over a range of blocks, under a trusted root.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "this is what was proven; what the answer says besides was not"]
pub struct VerifiedProvenance {
    /// The key.
    pub key: StateKey,
    /// The range of blocks.
    pub blocks: RangeInclusive<u64>,
    /// What the key was set to in the range but at its first block, and what it held at that if it
    /// had ever been set; each with the block that set it, newest first. These are all.
    pub versions: Vec<(u64, Shown)>,
    /// What that rests on.
    pub trust: Trust,
}

/// A key and what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
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

impl Shown {
    /// What `value` says of `key`.
    pub(crate) fn of(key: &StateKey, value: Option<Value>) -> Result<Self, LightClientError> {
        let malformed = || LightClientError::Value { key: *key };
        Ok(match *key {
            StateKey::Account(address) => {
                let decode = |value: Value| Account::decode(&value).ok_or_else(malformed);
                Self::Account { address, account: value.map(decode).transpose()? }
            }
            StateKey::Slot(address, slot) => {
                let decode = |value: Value| decode_slot(&value).ok_or_else(malformed);
                let value = value.map(decode).transpose()?.unwrap_or_default();
                Self::Slot { address, slot, value }
            }
        })
    }
}

impl Verified {
    /// The account at `address`, `Some(None)` if it is proven that there is none; `None` if it was
    /// not asked for.
    pub fn account(&self, address: &Address) -> Option<Option<Account>> {
        self.shown.iter().find_map(|shown| match shown {
            Shown::Account { address: other, account } if other == address => Some(*account),
            _ => None,
        })
    }

    /// The value of a slot; `None` if it was not asked for.
    pub fn slot(&self, address: &Address, slot: &B256) -> Option<U256> {
        self.shown.iter().find_map(|shown| match shown {
            Shown::Slot { address: of, slot: at, value } if (of, at) == (address, slot) => {
                Some(*value)
            }
            _ => None,
        })
    }
}
