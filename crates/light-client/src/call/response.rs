//! The answer of `state_call`.

use alloc::{collections::BTreeMap, string::String, vec::Vec};
use alloy_primitives::{Address, B256, Bytes, U64};
use retrie_state::{BlockRef, KeyForm, StateKey, StateProof};

/// The answer of `state_call(request, block)`: what a call returns on the state after a block, and
/// all that it read there. Do not trust it before it is verified.
///
/// The proof covers the [keys](Self::keys) of `reads`, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub struct CallResponse {
    /// Backend name.
    pub backend: String,
    /// Version of its proofs.
    pub version: u32,
    /// Name of the hash function.
    pub hash: String,
    /// Digest of the backend's parameters; zero if it has none.
    pub params: B256,
    /// The form of the keys that the proof is about; not in the JSON of plain ones.
    #[cfg_attr(
        feature = "serde",
        serde(
            with = "crate::response::key_form",
            default,
            skip_serializing_if = "KeyForm::is_plain"
        )
    )]
    pub keys: KeyForm,
    /// Number of the block.
    pub block: U64,
    /// Hash of the block.
    pub block_hash: B256,
    /// The root that the proof leads to.
    pub root: B256,
    /// Output: what the call returns, or the data of its revert; empty if it halted.
    pub output: Bytes,
    /// 1 if the call succeeded, 0 if it reverted or halted.
    pub status: U64,
    /// Gas that the call used, after refunds.
    pub gas_used: U64,
    /// Gas limit that it was executed with: that of the request, or the node's.
    pub gas: U64,
    /// The accounts and slots that the execution read, in ascending order.
    pub reads: Vec<AccountReads>,
    /// The codes that it read, by ascending hash.
    pub codes: Vec<Bytes>,
    /// RLP of headers: the block's own is the last one. Others are there if BLOCKHASH needs them.
    pub headers: Vec<Bytes>,
    /// The backend's proof bytes.
    pub proof: Bytes,
}

/// An account that an execution read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct AccountReads {
    /// Its address.
    pub address: Address,
    /// Its slots that were read, in ascending order.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Vec::is_empty"))]
    pub slots: Vec<B256>,
}

impl AccountReads {
    /// The accounts of `keys` and their slots, in ascending order.
    pub fn of<'a>(keys: impl IntoIterator<Item = &'a StateKey>) -> Vec<Self> {
        let mut accounts = BTreeMap::<Address, Vec<B256>>::new();
        for key in keys {
            let slots = accounts.entry(*key.address()).or_default();
            if let StateKey::Slot(_, slot) = key {
                slots.push(*slot);
            }
        }
        let sorted = |(address, mut slots): (_, Vec<B256>)| {
            slots.sort_unstable();
            Self { address, slots }
        };
        accounts.into_iter().map(sorted).collect()
    }

    /// The keys of `reads`: each account, then its slots.
    pub fn keys(reads: &[Self]) -> Vec<StateKey> {
        let of = |Self { address, slots }: &Self| {
            let slots = slots.iter().map(|slot| StateKey::Slot(*address, *slot));
            [StateKey::Account(*address)].into_iter().chain(slots).collect::<Vec<_>>()
        };
        reads.iter().flat_map(of).collect()
    }
}

impl CallResponse {
    /// The proof in its envelope.
    pub fn to_proof(&self) -> StateProof {
        StateProof {
            backend: self.backend.clone(),
            version: self.version,
            hash: self.hash.clone(),
            params: self.params,
            keys: self.keys,
            block: BlockRef::new(self.block.to(), self.block_hash),
            as_of: None,
            root: self.root,
            bytes: self.proof.clone(),
        }
    }
}
