//! Block witnesses: their typed envelope, and why one is refused.

use crate::{AccountKey, BackendIdentity, BackendKey, BlockRef, KeyForm, ProofError};
use alloc::string::String;
use alloy_primitives::{B256, Bytes};

/// The witness of a block, with all a verifier needs to choose how to open it: the part of the
/// state before the block that shows what the block reads, and from which the root after it follows.
///
/// It does not show that `root` belongs to `parent`: a header or a checkpoint does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateWitness {
    /// Backend name.
    pub backend: String,
    /// Version of the backend's proofs and witnesses.
    pub version: u32,
    /// Name of the hash function.
    pub hash: String,
    /// Digest of the backend's parameters.
    pub params: B256,
    /// The form of its keys.
    pub keys: KeyForm,
    /// The block's parent, whose state is shown.
    pub parent: BlockRef,
    /// Root of the parent's state.
    pub root: B256,
    /// The backend's own bytes.
    pub bytes: Bytes,
}

impl StateWitness {
    /// Wraps the witness `bytes` of a backend whose keys have this form.
    pub fn of(
        identity: &BackendIdentity,
        keys: KeyForm,
        parent: BlockRef,
        root: B256,
        bytes: Bytes,
    ) -> Self {
        Self {
            backend: identity.name.into(),
            version: identity.version,
            hash: identity.hash.name().into(),
            params: identity.params,
            keys,
            parent,
            root,
            bytes,
        }
    }
}

/// Why a block witness was refused, or does not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WitnessError {
    /// Stores of this kind have no witnesses.
    #[error("there are no block witnesses of this store: {why}")]
    Unsupported {
        /// Why not.
        why: &'static str,
    },
    /// The bytes do not parse canonically, or do not lead to the root of the parent.
    #[error("the witness is refused: {0}")]
    Refused(#[from] ProofError),
    /// The witness neither shows the value of a key, nor that it is absent.
    #[error("the witness does not show {key}; make it with this key among the reads")]
    Unproven {
        /// The key.
        key: BackendKey,
    },
    /// The witness cannot show which slots of an account are set.
    #[error("the witness does not show which slots of {account} are set")]
    Unlisted {
        /// The account.
        account: AccountKey,
    },
    /// A part that the next root needs is missing.
    #[error("the witness lacks {what}, which the next root needs; make it for this very delta")]
    Incomplete {
        /// The part.
        what: String,
    },
    /// The delta starts from another value than the witness shows.
    #[error("the delta changes {key} from a value that the state before the block does not have")]
    OtherValue {
        /// The key.
        key: BackendKey,
    },
    /// No block has this delta, whatever the state.
    #[error("the delta cannot be applied: {what}")]
    InvalidDelta {
        /// What is wrong, with the key.
        what: String,
    },
}
