//! Logical state keys: what the client reads and writes, before any backend maps them.

use crate::wire::WireReader;
use alloc::vec::Vec;
use alloy_primitives::{Address, B256};
use core::fmt;

/// A key of the logical state.
///
/// Accounts and slots are separate domains: no account key equals a slot key, in any encoding. The
/// order is the order of deltas: all accounts by address, then all slots by address and slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StateKey {
    /// An account: value is an encoded [`Account`](crate::Account).
    Account(Address),
    /// A storage slot of an account: value is an encoded [slot](crate::encode_slot).
    Slot(Address, B256),
}

impl StateKey {
    /// Length in bytes of the longest [encoding](Self::encode).
    pub const MAX_ENCODED_LEN: usize = 1 + 20 + 32;

    /// The address of the account this key belongs to.
    pub const fn address(&self) -> &Address {
        match self {
            Self::Account(address) | Self::Slot(address, _) => address,
        }
    }

    /// Canonical bytes: `0x00 || address` (21 bytes) or `0x01 || address || slot` (53 bytes).
    ///
    /// The order of the encodings is the order of the keys.
    pub fn encode(&self) -> EncodedKey {
        let mut bytes = [0u8; Self::MAX_ENCODED_LEN];
        let len = match self {
            Self::Account(address) => {
                bytes[1..21].copy_from_slice(address.as_slice());
                21
            }
            Self::Slot(address, slot) => {
                bytes[0] = 1;
                bytes[1..21].copy_from_slice(address.as_slice());
                bytes[21..53].copy_from_slice(slot.as_slice());
                53
            }
        };
        EncodedKey { bytes, len }
    }

    /// Reads the canonical bytes of a key from the front of `reader`; `None` if there is no key.
    pub fn read(reader: &mut WireReader<'_>) -> Option<Self> {
        let len = match reader.rest().first()? {
            0 => 21,
            _ => Self::MAX_ENCODED_LEN,
        };
        Self::decode(reader.take(len).ok()?)
    }

    /// Reads [`encode`](Self::encode)'s bytes back; `None` if they are not canonical.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        match (bytes.first()?, bytes.len()) {
            (0, 21) => Some(Self::Account(Address::from_slice(&bytes[1..]))),
            (1, 53) => {
                Some(Self::Slot(Address::from_slice(&bytes[1..21]), B256::from_slice(&bytes[21..])))
            }
            _ => None,
        }
    }
}

impl fmt::Debug for StateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for StateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Account(address) => write!(f, "account {address}"),
            Self::Slot(address, slot) => write!(f, "slot {slot} of {address}"),
        }
    }
}

/// The canonical bytes of a [`StateKey`], on the stack.
#[derive(Clone, Copy, Debug)]
pub struct EncodedKey {
    bytes: [u8; StateKey::MAX_ENCODED_LEN],
    len: usize,
}

impl core::ops::Deref for EncodedKey {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl EncodedKey {
    /// The bytes on the heap.
    pub fn to_vec(self) -> Vec<u8> {
        self[..].to_vec()
    }
}
