//! Keys of the state: what the client reads and writes, and the bytes under which backends keep it.

use crate::wire::WireReader;
use alloc::vec::Vec;
use alloy_primitives::{Address, B256, hex, keccak256};
use core::fmt;

/// A key of the logical state.
///
/// Accounts and slots are separate domains: no account key equals a slot key, in any encoding. The
/// order is the order of deltas: all accounts by name, then all slots by account and slot.
///
/// The client names accounts by address, as here by default. A backend gets a [`BackendKey`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StateKey<A = Address> {
    /// An account: value is an encoded [`Account`](crate::Account).
    Account(A),
    /// A storage slot of an account: value is an encoded [slot](crate::encode_slot).
    Slot(A, B256),
}

/// A [`StateKey`] as a backend gets it: plain or [hashed](KeyForm), all in one form.
pub type BackendKey = StateKey<AccountKey>;

impl<A> StateKey<A> {
    /// The account that this key is, or that its slot belongs to.
    pub const fn account(&self) -> &A {
        match self {
            Self::Account(account) | Self::Slot(account, _) => account,
        }
    }
}

impl StateKey {
    /// The address of the account this key belongs to.
    pub const fn address(&self) -> &Address {
        self.account()
    }

    /// Canonical bytes, those of the plain [`BackendKey`].
    pub fn encode(&self) -> EncodedKey {
        KeyForm::Plain.key(self).encode()
    }
}

impl BackendKey {
    /// Length in bytes of the longest [encoding](Self::encode).
    pub const MAX_ENCODED_LEN: usize = 1 + 32 + 32;

    /// Canonical bytes: a tag, the account and, for a slot, the slot. The tag is 0 for an account
    /// and 1 for a slot with the address (20 bytes), 4 and 5 with the hash of the address (32).
    ///
    /// The order of the encodings is the order of keys of one form.
    pub fn encode(&self) -> EncodedKey {
        let account = self.account();
        let mut bytes = [0; Self::MAX_ENCODED_LEN];
        bytes[0] = account.tag();
        let mut len = 1 + account.len();
        bytes[1..len].copy_from_slice(account);
        if let Self::Slot(_, slot) = self {
            bytes[0] += 1;
            bytes[len..len + 32].copy_from_slice(slot.as_slice());
            len += 32;
        }
        EncodedKey { bytes, len }
    }

    /// Length of the encoding that begins with `tag`; `None` if none does.
    pub const fn encoded_len(tag: u8) -> Option<usize> {
        match tag {
            0 => Some(1 + 20),
            1 => Some(1 + 20 + 32),
            4 => Some(1 + 32),
            5 => Some(1 + 32 + 32),
            _ => None,
        }
    }

    /// Reads a key of a known form and kind from the front of `reader`: the account, and for a slot
    /// the slot. `None` if there are too few bytes.
    pub fn read_untagged(
        reader: &mut WireReader<'_>,
        form: KeyForm,
        is_slot: bool,
    ) -> Option<Self> {
        let len = if form == KeyForm::Hashed { 32 } else { 20 };
        let account = AccountKey::from_slice(reader.take(len).ok()?)?;
        Some(match is_slot {
            true => Self::Slot(account, B256::from(*reader.array::<32>().ok()?)),
            false => Self::Account(account),
        })
    }

    /// Reads the canonical bytes of a key from the front of `reader`; `None` if there is no key.
    pub fn read(reader: &mut WireReader<'_>) -> Option<Self> {
        let len = Self::encoded_len(*reader.rest().first()?)?;
        Self::decode(reader.take(len).ok()?)
    }

    /// Reads [`encode`](Self::encode)'s bytes back; `None` if they are not canonical.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = WireReader::new(bytes);
        let (form, is_slot) = match reader.u8().ok()? {
            0 => (KeyForm::Plain, false),
            1 => (KeyForm::Plain, true),
            4 => (KeyForm::Hashed, false),
            5 => (KeyForm::Hashed, true),
            _ => return None,
        };
        let key = Self::read_untagged(&mut reader, form, is_slot)?;
        reader.is_empty().then_some(key)
    }

    /// The form of the key.
    pub const fn form(&self) -> KeyForm {
        if self.account().is_hashed { KeyForm::Hashed } else { KeyForm::Plain }
    }

    /// The key as the client names it; `None` if it is hashed.
    pub fn plain(&self) -> Option<StateKey> {
        let address = self.account().address()?;
        Some(match self {
            Self::Account(_) => StateKey::Account(address),
            Self::Slot(_, slot) => StateKey::Slot(address, *slot),
        })
    }
}

impl From<StateKey> for BackendKey {
    fn from(key: StateKey) -> Self {
        KeyForm::Plain.key(&key)
    }
}

impl<A: fmt::Debug> fmt::Debug for StateKey<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Account(account) => write!(f, "account {account:?}"),
            Self::Slot(account, slot) => write!(f, "slot {slot} of {account:?}"),
        }
    }
}

impl<A: fmt::Display> fmt::Display for StateKey<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Account(account) => write!(f, "account {account}"),
            Self::Slot(account, slot) => write!(f, "slot {slot} of {account}"),
        }
    }
}

/// How backends name an account: by its address, or by the keccak-256 of the address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccountKey {
    bytes: [u8; 32],
    is_hashed: bool,
}

impl AccountKey {
    /// The smallest name.
    pub const MIN: Self = Self { bytes: [0; 32], is_hashed: false };

    /// The account whose address has this keccak-256.
    pub const fn hashed(hash: B256) -> Self {
        Self { bytes: hash.0, is_hashed: true }
    }

    /// From 20 bytes of an address, or 32 of a hash; `None` for other lengths.
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        match bytes.len() {
            20 => Some(Address::from_slice(bytes).into()),
            32 => Some(Self::hashed(B256::from_slice(bytes))),
            _ => None,
        }
    }

    /// Whether it is a hash; then slots of the account are hashed as well.
    pub const fn is_hashed(&self) -> bool {
        self.is_hashed
    }

    /// The address; `None` if this is a hash.
    pub fn address(&self) -> Option<Address> {
        (!self.is_hashed).then(|| Address::from_slice(self))
    }

    /// The first byte of the account's [encoded key](BackendKey::encode); keys of its slots have
    /// the next one.
    const fn tag(&self) -> u8 {
        if self.is_hashed { 4 } else { 0 }
    }

    /// What the [encoded keys](BackendKey::encode) of all its slots begin with.
    pub fn slots_prefix(&self) -> Vec<u8> {
        let mut prefix = Vec::with_capacity(33);
        prefix.push(self.tag() + 1);
        prefix.extend_from_slice(self);
        prefix
    }
}

/// Its 20 or 32 bytes.
impl core::ops::Deref for AccountKey {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        if self.is_hashed { &self.bytes } else { &self.bytes[..20] }
    }
}

impl AsRef<[u8]> for AccountKey {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Address> for AccountKey {
    fn from(address: Address) -> Self {
        let mut bytes = [0; 32];
        bytes[..20].copy_from_slice(address.as_slice());
        Self { bytes, is_hashed: false }
    }
}

impl fmt::Display for AccountKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address() {
            Some(address) => fmt::Display::fmt(&address, f),
            None => write!(f, "the address with hash {}", hex::encode_prefixed(&**self)),
        }
    }
}

impl fmt::Debug for AccountKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The form of the keys that the backend of a store gets. A store has one form for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KeyForm {
    /// Addresses and slots.
    #[default]
    Plain,
    /// The keccak-256 of each: all that a state from `snap` has, as in Ethereum's trie.
    Hashed,
}

impl KeyForm {
    /// Its name in datadirs, proofs and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Hashed => "hashed",
        }
    }

    /// Whether keys are plain.
    pub const fn is_plain(&self) -> bool {
        matches!(self, Self::Plain)
    }

    /// The form of `keys`, which is one for all; plain if there are none.
    pub fn of(keys: &[BackendKey]) -> Self {
        keys.first().map_or(Self::Plain, BackendKey::form)
    }

    /// The form with this [name](Self::name).
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Plain, Self::Hashed].into_iter().find(|form| form.name() == name)
    }

    /// The name of the account at `address`.
    pub fn account(self, address: &Address) -> AccountKey {
        match self {
            Self::Plain => (*address).into(),
            Self::Hashed => AccountKey::hashed(keccak256(address)),
        }
    }

    /// The name of `slot`.
    pub fn slot(self, slot: &B256) -> B256 {
        match self {
            Self::Plain => *slot,
            Self::Hashed => keccak256(slot),
        }
    }

    /// `key` in this form.
    pub fn key(self, key: &StateKey) -> BackendKey {
        match key {
            StateKey::Account(address) => BackendKey::Account(self.account(address)),
            StateKey::Slot(address, slot) => {
                BackendKey::Slot(self.account(address), self.slot(slot))
            }
        }
    }

    /// `keys` in this form, in the same order.
    pub fn keys(self, keys: &[StateKey]) -> Vec<BackendKey> {
        keys.iter().map(|key| self.key(key)).collect()
    }
}

/// The canonical bytes of a [`StateKey`], on the stack.
#[derive(Clone, Copy, Debug)]
pub struct EncodedKey {
    bytes: [u8; BackendKey::MAX_ENCODED_LEN],
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_both_forms_come_back_from_their_bytes_in_order() {
        let plain: Vec<StateKey> = (0..40u8)
            .flat_map(|n| {
                let address = Address::repeat_byte(n * 5);
                [StateKey::Account(address), StateKey::Slot(address, B256::repeat_byte(n))]
            })
            .collect();
        for form in [KeyForm::Plain, KeyForm::Hashed] {
            let mut keys = form.keys(&plain);
            keys.sort_unstable();
            let encoded: Vec<_> = keys.iter().map(|key| key.encode().to_vec()).collect();
            assert!(encoded.is_sorted());
            for (key, bytes) in keys.iter().zip(&encoded) {
                assert_eq!(BackendKey::decode(bytes), Some(*key));
                assert_eq!(BackendKey::encoded_len(bytes[0]), Some(bytes.len()));
                assert_eq!(key.plain().is_some(), form == KeyForm::Plain);
                let mut reader = WireReader::new(bytes);
                assert_eq!(BackendKey::read(&mut reader), Some(*key));
                assert!(reader.is_empty());
                let slots = key.account().slots_prefix();
                assert_eq!(bytes.starts_with(&slots), matches!(key, BackendKey::Slot(..)));
                for wrong in [&bytes[1..], &bytes[..bytes.len() - 1], &[bytes, &[0][..]].concat()] {
                    assert_eq!(BackendKey::decode(wrong), None);
                }
            }
        }
        assert_eq!(BackendKey::decode(&[2; 65]), None);
        assert_eq!(BackendKey::decode(&[]), None);
    }
}
