//! The hash function of a trie, for its nodes and its keys.

use alloy_primitives::{B256, b256, keccak256};
use alloy_trie::EMPTY_ROOT_HASH;
use blake2::{Blake2b256, Digest};
use retrie_state::{AccountKey, HashId};

/// Hash function of nodes and keys. Ethereum uses keccak-256; BLAKE2b-256 is for comparing the trie
/// with stores that use BLAKE2b.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrieHash {
    /// keccak-256, as in Ethereum.
    #[default]
    Keccak256,
    /// BLAKE2b with 32 bytes of output (RFC 7693).
    Blake2b256,
}

impl TrieHash {
    /// The digest of `bytes`.
    pub fn hash(self, bytes: impl AsRef<[u8]>) -> B256 {
        match self {
            Self::Keccak256 => keccak256(bytes),
            Self::Blake2b256 => B256::from(<[u8; 32]>::from(Blake2b256::digest(bytes))),
        }
    }

    /// The path of `account` in the account trie: its hash, which a hashed key is already.
    pub fn account_path(self, account: &AccountKey) -> B256 {
        if account.is_hashed() { B256::from_slice(account) } else { self.hash(account) }
    }

    /// The path of `slot` in the storage trie of `account`.
    pub fn slot_path(self, account: &AccountKey, slot: &B256) -> B256 {
        if account.is_hashed() { *slot } else { self.hash(slot) }
    }

    /// Root of the trie without keys: the digest of the RLP of the empty string.
    pub const fn empty_root(self) -> B256 {
        match self {
            Self::Keccak256 => EMPTY_ROOT_HASH,
            Self::Blake2b256 => {
                b256!("45b0cfc220ceec5b7c1c62c4d4193d38e4eba48e8815729ce75f9c0ab0e4c1c0")
            }
        }
    }

    /// Its id in identities and proof envelopes.
    pub const fn id(self) -> HashId {
        match self {
            Self::Keccak256 => HashId::Keccak256,
            Self::Blake2b256 => HashId::Blake2b256,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::hex;

    #[test]
    fn digests_are_those_of_the_standards() {
        // FIPS 202's keccak with the original padding, and BLAKE2b-256 (reference test vector).
        let abc = hex!("4e03657aea45a94fc7d47ba826c8d667c0d1e6e33a64a036ec44f58fa12d6c45");
        assert_eq!(TrieHash::Keccak256.hash(b"abc"), abc);
        let abc = hex!("bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319");
        assert_eq!(TrieHash::Blake2b256.hash(b"abc"), abc);
        for hash in [TrieHash::Keccak256, TrieHash::Blake2b256] {
            assert_eq!(hash.empty_root(), hash.hash([0x80]));
        }
    }
}
