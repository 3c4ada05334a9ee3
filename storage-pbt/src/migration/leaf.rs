//! Leaves of the tree: keys of a length that fits their zone, and values.

use super::{FilePlace, MigrationError};
use crate::{
    hash::MAX_KEY_LEN,
    key::{
        BASIC_DATA, CODE_HASH, CODE_ZONE, DELEGATION, FIRST_SLOT, HEADER_SLOTS, HEADER_ZONE,
        STORAGE_ZONE, Stem,
    },
    leaf::delegation_target,
};
use alloy_primitives::{Address, B256, KECCAK256_EMPTY, hex};
use std::{cmp::Ordering, fmt};

/// Length in bytes of a key of a header, or of a chunk of code.
const SHORT_KEY_LEN: usize = 34;

/// The key of a leaf, on the stack.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TreeKey {
    bytes: [u8; MAX_KEY_LEN],
    len: u8,
}

impl TreeKey {
    /// The key at the sub-index `sub` of `stem`.
    pub fn new(stem: &Stem, sub: u8) -> Self {
        let (bytes, len) = stem.key(sub);
        Self { bytes, len: len as u8 }
    }

    /// A key from its bytes; `None` if there are too many.
    pub(super) fn from_slice(bytes: &[u8]) -> Option<Self> {
        let mut all = [0; MAX_KEY_LEN];
        all.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self { bytes: all, len: bytes.len() as u8 })
    }

    /// A key of EIP-8297 from the record at `place`.
    ///
    /// # Errors
    /// [`ReservedZone`](MigrationError::ReservedZone), [`KeyLength`](MigrationError::KeyLength),
    /// [`SubIndex`](MigrationError::SubIndex).
    pub(super) fn parse(bytes: &[u8], place: FilePlace) -> Result<Self, MigrationError> {
        let zone = bytes.first().copied().unwrap_or_default();
        let expected = match zone {
            HEADER_ZONE | CODE_ZONE => SHORT_KEY_LEN,
            STORAGE_ZONE => MAX_KEY_LEN,
            zone => return Err(MigrationError::ReservedZone { place, zone }),
        };
        let len = bytes.len();
        match Self::from_slice(bytes).filter(|_| len == expected) {
            Some(key) if key.zone() == HEADER_ZONE && !is_header_index(key.sub()) => {
                Err(MigrationError::SubIndex { place, key })
            }
            Some(key) => Ok(key),
            None => Err(MigrationError::KeyLength { place, zone, len, expected }),
        }
    }

    /// The first byte.
    pub const fn zone(&self) -> u8 {
        self.bytes[0]
    }

    /// All bytes but the last one.
    pub fn stem(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len).saturating_sub(1)]
    }

    /// The last byte, the sub-index.
    pub fn sub(&self) -> u8 {
        self.as_ref().last().copied().unwrap_or_default()
    }

    /// The hash behind the zone: of the account, or of the group of chunks.
    pub fn path(&self) -> B256 {
        B256::from_slice(&self.bytes[1..33])
    }

    /// The hash behind [`path`](Self::path) in the storage zone: of the group of slots.
    pub fn group(&self) -> B256 {
        B256::from_slice(&self.bytes[33..65])
    }
}

/// Whether leaves of a header may be at this sub-index.
pub(super) const fn is_header_index(sub: u8) -> bool {
    matches!(sub, BASIC_DATA | CODE_HASH | DELEGATION)
        || sub >= FIRST_SLOT && sub < FIRST_SLOT + HEADER_SLOTS
}

impl AsRef<[u8]> for TreeKey {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl Ord for TreeKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_ref().cmp(other.as_ref())
    }
}

impl PartialOrd for TreeKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for TreeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "leaf {}", hex::encode_prefixed(self.as_ref()))
    }
}

impl fmt::Debug for TreeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A leaf of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeLeaf {
    /// The key.
    pub key: TreeKey,
    /// The value, which is not zero.
    pub value: B256,
}

/// The leaves of one header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HeaderLeaves {
    /// H of the account's name.
    pub(super) path: B256,
    basic: Option<B256>,
    code_hash: Option<B256>,
    delegation: Option<B256>,
    /// Slots and values, in order.
    pub(super) slots: Vec<(u8, B256)>,
}

/// What a header says of its account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeaderAccount {
    pub(super) nonce: u64,
    pub(super) balance: u128,
    pub(super) code: HeaderCode,
}

/// The code of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderCode {
    /// None.
    Empty,
    /// A code, by its keccak-256 and its size in bytes.
    Code { hash: B256, size: u32 },
    /// A delegation (EIP-7702) to this address.
    Delegation(Address),
}

/// Size in bytes of the indicator of a delegation.
pub(super) const INDICATOR_LEN: u32 = 23;

impl HeaderLeaves {
    /// The header of the account with this path, without leaves.
    pub(super) fn new(path: B256) -> Self {
        Self { path, ..Self::default() }
    }

    /// Adds a leaf, and returns whether it is a slot. Leaves come in order.
    pub(super) fn push(&mut self, leaf: &TreeLeaf) -> bool {
        let value = Some(leaf.value);
        match leaf.key.sub() {
            BASIC_DATA => self.basic = value,
            CODE_HASH => self.code_hash = value,
            DELEGATION => self.delegation = value,
            sub => {
                self.slots.push((sub.saturating_sub(FIRST_SLOT), leaf.value));
                return true;
            }
        }
        false
    }

    /// The account.
    ///
    /// # Errors
    /// If no account has such leaves: there is a variant for each reason.
    pub(super) fn account(&self) -> Result<HeaderAccount, MigrationError> {
        let account = self.path;
        let basic = self.basic.unwrap_or_default();
        let [version, reserved @ ..] = [basic[0], basic[1], basic[2], basic[3]];
        if version != 0 {
            return Err(MigrationError::Version { account, version });
        }
        if reserved != [0; 3] {
            return Err(MigrationError::ReservedBytes { account });
        }
        let number = |from: usize, to: usize| {
            basic[from..to].iter().fold(0_u128, |sum, byte| sum << 8 | u128::from(*byte))
        };
        let size = number(4, 8) as u32;
        let code = match (self.code_hash, self.delegation) {
            (None, None) if self.basic.is_none() => {
                return Err(MigrationError::NoAccount { account });
            }
            (None, None) => return Err(MigrationError::NoCodeLeaf { account }),
            (Some(_), Some(_)) => return Err(MigrationError::TwoCodeLeaves { account }),
            (Some(KECCAK256_EMPTY), None) => HeaderCode::Empty,
            (Some(hash), None) => HeaderCode::Code { hash, size },
            (None, Some(value)) => {
                let target = delegation_target(&value);
                HeaderCode::Delegation(target.ok_or(MigrationError::BadDelegation { account })?)
            }
        };
        let is_right = match code {
            HeaderCode::Empty => size == 0,
            HeaderCode::Code { .. } => size > 0,
            HeaderCode::Delegation(_) => size == INDICATOR_LEN,
        };
        if !is_right {
            return Err(MigrationError::CodeSize { account, size });
        }
        Ok(HeaderAccount { nonce: number(8, 16) as u64, balance: number(16, 32), code })
    }
}

impl HeaderAccount {
    /// The leaves of the account in the header with this path: its basic data, unless they are zero,
    /// and its code hash or delegation.
    pub(super) fn leaves(&self, path: &B256) -> impl Iterator<Item = TreeLeaf> + use<> {
        let (size, sub, value) = match self.code {
            HeaderCode::Empty => (0, CODE_HASH, KECCAK256_EMPTY),
            HeaderCode::Code { hash, size } => (size, CODE_HASH, hash),
            HeaderCode::Delegation(target) => {
                let mut value = B256::ZERO;
                value[..3].copy_from_slice(&[0xef, 0x01, 0x00]);
                value[3..23].copy_from_slice(&target[..]);
                (INDICATOR_LEN, DELEGATION, value)
            }
        };
        let mut basic = B256::ZERO;
        basic[4..8].copy_from_slice(&size.to_be_bytes());
        basic[8..16].copy_from_slice(&self.nonce.to_be_bytes());
        basic[16..].copy_from_slice(&self.balance.to_be_bytes());
        let stem = Stem::short(HEADER_ZONE, path);
        let leaf = move |(sub, value)| TreeLeaf { key: TreeKey::new(&stem, sub), value };
        let leaves = [(BASIC_DATA, basic), (sub, value)].into_iter();
        leaves.filter(|(_, value)| !value.is_zero()).map(leaf)
    }

    /// Whether it has no nonce, balance and code (EIP-161).
    pub(super) const fn is_empty(&self) -> bool {
        self.nonce == 0 && self.balance == 0 && matches!(self.code, HeaderCode::Empty)
    }
}
