//! Keys of the tree (EIP-8297): a zone, hashes, and a sub-index.

use crate::hash::{MAX_KEY_LEN, TreeHash};
use alloy_primitives::B256;
use retrie_state::AccountKey;

/// The zone of account headers.
pub const HEADER_ZONE: u8 = 0x00;
/// The zone of code.
pub const CODE_ZONE: u8 = 0x01;
/// The zone of storage that is not in a header.
pub const STORAGE_ZONE: u8 = 0xff;

/// Sub-index of an account's basic data.
pub const BASIC_DATA: u8 = 0;
/// Sub-index of the hash of an account's code.
pub const CODE_HASH: u8 = 1;
/// Sub-index of the address that an account delegates to (EIP-7702).
pub const DELEGATION: u8 = 2;
/// Sub-index of slot 0 in a header.
pub const FIRST_SLOT: u8 = 64;
/// Number of slots in a header.
pub const HEADER_SLOTS: u8 = 64;
/// Number of leaves that a stem has room for.
pub const STEM_LEAVES: usize = 256;

/// The name of an account as a key of 32 bytes: twelve zero bytes and the address. A hashed name is
/// taken as it is, so with hashed keys the tree is another one, of the same shape.
pub fn account_word(account: &AccountKey) -> B256 {
    B256::left_padding_from(account)
}

/// H of the account's name: its place among headers, and among storages.
pub fn account_path(hash: TreeHash, account: &AccountKey) -> B256 {
    hash.hash(&account_word(account)[..])
}

/// H of a word and a number: the place of a group of code chunks (the code's hash, the group) or of
/// slots (the account's name, the slots' number without its last byte).
pub fn group_path(hash: TreeHash, word: &B256, group: &B256) -> B256 {
    let mut bytes = [0; 64];
    bytes[..32].copy_from_slice(&word[..]);
    bytes[32..].copy_from_slice(&group[..]);
    hash.hash(&bytes)
}

/// Where a slot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotPlace {
    /// In the header, at this sub-index.
    Header(u8),
    /// In the storage zone.
    Storage {
        /// The slot's number without its last byte.
        group: B256,
        /// That byte.
        sub: u8,
    },
}

impl SlotPlace {
    /// The place of `slot`.
    pub fn of(slot: &B256) -> Self {
        let sub = slot[31];
        if slot[..31].iter().all(|byte| *byte == 0) && sub < HEADER_SLOTS {
            return Self::Header(FIRST_SLOT + sub);
        }
        let mut group = B256::ZERO;
        group[1..].copy_from_slice(&slot[..31]);
        Self::Storage { group, sub }
    }
}

/// The slot at a sub-index of a group.
pub fn slot_of_group(group: &B256, sub: u8) -> B256 {
    let mut slot = B256::ZERO;
    slot[..31].copy_from_slice(&group[1..]);
    slot[31] = sub;
    slot
}

/// All bytes of a key but the sub-index, which is written behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stem {
    bytes: [u8; MAX_KEY_LEN],
    len: u8,
}

impl Stem {
    /// A stem of the header or code zone.
    pub fn short(zone: u8, path: &B256) -> Self {
        let mut bytes = [0; MAX_KEY_LEN];
        bytes[0] = zone;
        bytes[1..33].copy_from_slice(&path[..]);
        Self { bytes, len: 33 }
    }

    /// A stem of the storage zone: the path of the account, and of the group.
    pub fn storage(account: &B256, group: &B256) -> Self {
        let mut stem = Self::short(STORAGE_ZONE, account);
        stem.bytes[33..65].copy_from_slice(&group[..]);
        stem.len = 65;
        stem
    }

    /// The number of its bits.
    pub fn bits(&self) -> usize {
        usize::from(self.len) * 8
    }

    /// Its bytes, and the sub-index `sub`.
    pub fn key(&self, sub: u8) -> ([u8; MAX_KEY_LEN], usize) {
        let mut bytes = self.bytes;
        let len = usize::from(self.len);
        bytes[len] = sub;
        (bytes, len + 1)
    }

    /// The hash of the leaf at `sub`.
    pub fn leaf(&self, hash: TreeHash, sub: u8, value: &B256) -> B256 {
        let (key, len) = self.key(sub);
        hash.leaf(&key[..len], value)
    }
}

impl AsRef<[u8]> for Stem {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}
