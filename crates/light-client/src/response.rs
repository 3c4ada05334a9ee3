//! Answers of nodes: the stated values and their proof. With the feature `serde` also their JSON.

use alloc::{string::String, vec::Vec};
use alloy_primitives::{Address, B256, Bytes, U64, U256};
use retrie_state::{Account, BlockRef, KeyForm, StateKey, StateProof};

/// The answer of `state_getProof(address, slots, block)`: an account, some of its slots, and the
/// proof of both. Do not trust it before it is [verified](crate::StateVerifier).
///
/// The proof covers these keys, in this order: the account, then `storage` in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub struct StateProofResponse {
    /// Backend name.
    pub backend: String,
    /// Version of its proofs.
    pub version: u32,
    /// Name of the hash function.
    pub hash: String,
    /// Digest of the backend's parameters; zero if it has none.
    pub params: B256,
    /// The form of the keys that it is about; not in the JSON of plain ones.
    #[cfg_attr(
        feature = "serde",
        serde(with = "key_form", default, skip_serializing_if = "KeyForm::is_plain")
    )]
    pub keys: KeyForm,
    /// Number of the block.
    pub block: U64,
    /// Hash of the block.
    pub block_hash: B256,
    /// Number of the block whose state is shown, if it is older than `block`. The proof always
    /// leads to the root of `block`.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub as_of: Option<U64>,
    /// The root that the proof leads to.
    pub root: B256,
    /// Address of the account.
    pub address: Address,
    /// The account; `null` if there is none.
    pub account: Option<AccountClaim>,
    /// The requested slots, in the order of the request.
    pub storage: Vec<SlotClaim>,
    /// The backend's proof bytes.
    pub proof: Bytes,
}

/// An account as the answer states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub struct AccountClaim {
    /// Nonce.
    pub nonce: U64,
    /// Balance in wei.
    pub balance: U256,
    /// keccak-256 of the code.
    pub code_hash: B256,
}

impl From<Account> for AccountClaim {
    fn from(account: Account) -> Self {
        let Account { nonce, balance, code_hash } = account;
        Self { nonce: U64::from(nonce), balance, code_hash }
    }
}

impl From<AccountClaim> for Account {
    fn from(claim: AccountClaim) -> Self {
        let AccountClaim { nonce, balance, code_hash } = claim;
        Self { nonce: nonce.to(), balance, code_hash }
    }
}

/// A slot as the answer states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SlotClaim {
    /// The slot.
    pub key: B256,
    /// Its value; zero if it is not set.
    pub value: U256,
}

impl StateProofResponse {
    /// The answer that states `account` and `storage` (slots with their values). `proof` must cover
    /// the [`keys_of`](Self::keys_of) `address` and these slots.
    pub fn new(
        proof: StateProof,
        address: Address,
        account: Option<Account>,
        storage: impl IntoIterator<Item = (B256, U256)>,
    ) -> Self {
        let StateProof { backend, version, hash, params, keys, block, as_of, root, bytes } = proof;
        let claim = |(key, value)| SlotClaim { key, value };
        Self {
            backend,
            version,
            hash,
            params,
            keys,
            block: U64::from(block.number),
            block_hash: block.hash,
            as_of: as_of.map(U64::from),
            root,
            address,
            account: account.map(AccountClaim::from),
            storage: storage.into_iter().map(claim).collect(),
            proof: bytes,
        }
    }

    /// The keys that the proof of an answer covers: the account, then the slots.
    pub fn keys_of(address: Address, slots: impl IntoIterator<Item = B256>) -> Vec<StateKey> {
        let slots = slots.into_iter().map(|slot| StateKey::Slot(address, slot));
        [StateKey::Account(address)].into_iter().chain(slots).collect()
    }

    /// The keys that this answer is about.
    pub fn keys(&self) -> Vec<StateKey> {
        Self::keys_of(self.address, self.storage.iter().map(|slot| slot.key))
    }

    /// The proof in its envelope.
    pub fn to_proof(&self) -> StateProof {
        StateProof {
            backend: self.backend.clone(),
            version: self.version,
            hash: self.hash.clone(),
            params: self.params,
            keys: self.keys,
            block: BlockRef::new(self.block.to(), self.block_hash),
            as_of: self.as_of.map(|number| number.to()),
            root: self.root,
            bytes: self.proof.clone(),
        }
    }
}

/// The answer of `eth_getProof` (EIP-1186): an account, some of its slots, and their proofs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub struct EthProofResponse {
    /// Address of the account.
    pub address: Address,
    /// Balance in wei.
    pub balance: U256,
    /// keccak-256 of the code.
    pub code_hash: B256,
    /// Nonce.
    pub nonce: U64,
    /// Root of the account's storage trie.
    pub storage_hash: B256,
    /// Trie nodes from the state root down.
    pub account_proof: Vec<Bytes>,
    /// The requested slots.
    pub storage_proof: Vec<EthSlotProof>,
}

/// A slot of an [`EthProofResponse`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct EthSlotProof {
    /// The slot; nodes write it as a quantity or as 32 bytes.
    pub key: U256,
    /// Its value; zero if it is not set.
    pub value: U256,
    /// Trie nodes from the storage root down.
    pub proof: Vec<Bytes>,
}

/// The form of keys in JSON, by its name.
#[cfg(feature = "serde")]
pub(crate) mod key_form {
    use alloc::{format, string::String};
    use retrie_state::KeyForm;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(form: &KeyForm, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(form.name())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<KeyForm, D::Error> {
        let name = String::deserialize(from)?;
        KeyForm::from_name(&name)
            .ok_or_else(|| D::Error::custom(format!("`{name}` is no form of keys")))
    }
}
