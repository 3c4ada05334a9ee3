//! The answer of `state_getProvenance`: the values of a key over a range of blocks, and their
//! proof.

use crate::{AccountClaim, LightClientError, ProvenValue};
use alloc::{string::String, vec::Vec};
use alloy_primitives::{Address, B256, Bytes, U64, U256};
use core::ops::RangeInclusive;
use retrie_state::{BlockRef, KeyForm, StateKey, StateProof, ValueVersion};

/// The answer of `state_getProvenance(address, slot, from, to)`: the versions of an account or of a
/// slot in a range of blocks, and their proof. Do not trust it before it is
/// [verified](crate::StateVerifier::verify_provenance).
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub struct ProvenanceResponse {
    /// Backend name.
    pub backend: String,
    /// Version of its proofs.
    pub version: u32,
    /// Name of the hash function.
    pub hash: String,
    /// Digest of the backend's parameters.
    pub params: B256,
    /// The form of the keys that it is about; not in the JSON of plain ones.
    #[cfg_attr(
        feature = "serde",
        serde(
            with = "crate::response::key_form",
            default,
            skip_serializing_if = "KeyForm::is_plain"
        )
    )]
    pub keys: KeyForm,
    /// Number of the block whose root the proof leads to.
    pub block: U64,
    /// Hash of that block.
    pub block_hash: B256,
    /// The root.
    pub root: B256,
    /// Address of the account.
    pub address: Address,
    /// The slot; `null` if the account itself was asked for.
    pub slot: Option<B256>,
    /// First block of the range.
    pub from: U64,
    /// Last block of the range.
    pub to: U64,
    /// The version in force at the first block of the range, if the key was ever set, and all
    /// versions set in later blocks of the range; newest first.
    pub versions: Vec<VersionClaim>,
    /// The backend's proof bytes.
    pub proof: Bytes,
}

/// A version as the answer states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct VersionClaim {
    /// The block that set the value.
    pub block: U64,
    /// The value.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub value: VersionValue,
}

/// The value of a version, as the answer states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub enum VersionValue {
    /// An account; `null` if it was deleted.
    Account(Option<AccountClaim>),
    /// The value of a slot; zero if it was deleted.
    Value(U256),
}

impl From<ProvenValue> for VersionValue {
    fn from(shown: ProvenValue) -> Self {
        match shown {
            ProvenValue::Account { account, .. } => Self::Account(account.map(AccountClaim::from)),
            ProvenValue::Slot { value, .. } => Self::Value(value),
        }
    }
}

impl ProvenanceResponse {
    /// The answer that states these `versions` of `key` in `blocks`, newest first, with their
    /// proof.
    ///
    /// # Errors
    /// [`LightClientError::Value`] if a version is not in the canonical encoding.
    pub fn new(
        proof: StateProof,
        key: StateKey,
        blocks: RangeInclusive<u64>,
        versions: Vec<ValueVersion>,
    ) -> Result<Self, LightClientError> {
        let StateProof { backend, version, hash, params, keys, block, root, bytes, .. } = proof;
        let claim = |ValueVersion { block, value }| {
            let value = ProvenValue::of(&key, value)?.into();
            Ok::<_, LightClientError>(VersionClaim { block: U64::from(block), value })
        };
        Ok(Self {
            backend,
            version,
            hash,
            params,
            keys,
            block: U64::from(block.number),
            block_hash: block.hash,
            root,
            address: *key.address(),
            slot: match key {
                StateKey::Account(_) => None,
                StateKey::Slot(_, slot) => Some(slot),
            },
            from: U64::from(*blocks.start()),
            to: U64::from(*blocks.end()),
            versions: versions.into_iter().map(claim).collect::<Result<_, _>>()?,
            proof: bytes,
        })
    }

    /// The key that this answer is about.
    pub fn key(&self) -> StateKey {
        match self.slot {
            None => StateKey::Account(self.address),
            Some(slot) => StateKey::Slot(self.address, slot),
        }
    }

    /// The range of blocks that this answer is about.
    pub fn blocks(&self) -> RangeInclusive<u64> {
        self.from.to()..=self.to.to()
    }

    /// The proof in its envelope, as of the last block of the range.
    pub fn to_proof(&self) -> StateProof {
        StateProof {
            backend: self.backend.clone(),
            version: self.version,
            hash: self.hash.clone(),
            params: self.params,
            keys: self.keys,
            block: BlockRef::new(self.block.to(), self.block_hash),
            as_of: Some(self.to.to()),
            root: self.root,
            bytes: self.proof.clone(),
        }
    }
}
