//! Why an answer was refused.

use alloc::string::String;
use alloy_primitives::B256;
use retrie_state::{ProofError, StateKey};

/// Why an answer or a proof was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LightClientError {
    /// No verifier here checks such proofs.
    #[error(
        "there is no verifier for proofs of backend {backend}, version {version}, hash function \
         {hash}: ask another node, or take a newer light client"
    )]
    UnknownKind {
        /// Backend named by the proof.
        backend: String,
        /// Its version.
        version: u32,
        /// Its hash function.
        hash: String,
    },
    /// The proof belongs to parameters that are not pinned.
    #[error(
        "the proof is made under the {backend} parameters {digest}, which are not among those \
         pinned: give the verifier's parameters of this digest if you trust them"
    )]
    UnknownParams {
        /// Backend named by the proof.
        backend: String,
        /// Digest of the parameters.
        digest: B256,
    },
    /// The header is not the trusted one, or none.
    #[error("the header of block hash {hash} is refused: {fault}")]
    Header {
        /// The trusted hash.
        hash: B256,
        /// What is wrong.
        fault: HeaderFault,
    },
    /// The proof says that it belongs to another block than the trusted one.
    #[error("the proof is of block {proof}, the trusted root of block {trusted}")]
    OtherBlock {
        /// The trusted block, number or hash.
        trusted: String,
        /// The proof's.
        proof: String,
    },
    /// The proof is said to be of a block that is later than the one whose root it leads to.
    #[error("a proof under the root of block {proven} says nothing of the later block {asked}")]
    LaterBlock {
        /// The later block.
        asked: u64,
        /// The block whose root the proof leads to.
        proven: u64,
    },
    /// The proof leads to another root than the trusted one.
    #[error(
        "the proof leads to root {proof}, but the trusted root is {trusted}; if the backend's roots \
         are not in the headers of the chain, pin a checkpoint instead of a header"
    )]
    OtherRoot {
        /// The trusted root.
        trusted: B256,
        /// The proof's.
        proof: B256,
    },
    /// The verifier of the backend refuses the proof.
    #[error(transparent)]
    Proof(#[from] ProofError),
    /// The proof is good, but shows another value than the answer states.
    #[error("the answer states another value of {key} than its proof shows")]
    Claim {
        /// Of which key.
        key: StateKey,
    },
    /// The proof is good, but what it shows is no account, or no slot.
    #[error("the proven value of {key} is not in the canonical encoding")]
    Value {
        /// Of which key.
        key: StateKey,
    },
    /// Code of another hash.
    #[error("the code has hash {got}, the account names {expected}")]
    Code {
        /// Code hash of the account.
        expected: B256,
        /// That of the code.
        got: B256,
    },
}

impl LightClientError {
    /// The class of the error in one word, the same in every verifier of these formats:
    /// `docs/formats/proofs.md`.
    pub const fn class(&self) -> &'static str {
        match self {
            Self::UnknownKind { .. }
            | Self::UnknownParams { .. }
            | Self::Proof(ProofError::WrongKind { .. }) => "kind",
            Self::Header { .. } => "header",
            Self::OtherBlock { .. } | Self::LaterBlock { .. } => "block",
            Self::OtherRoot { .. } | Self::Proof(ProofError::RootMismatch) => "root",
            Self::Proof(ProofError::Missing { .. }) => "missing",
            Self::Proof(ProofError::Unused) => "unused",
            // `Malformed`, and what the contract may add.
            Self::Proof(_) => "malformed",
            Self::Claim { .. } => "claim",
            Self::Value { .. } => "value",
            Self::Code { .. } => "code",
        }
    }
}

/// What is wrong with the bytes of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderFault {
    /// Their keccak-256 is not the trusted hash.
    #[error("its bytes have hash {0}")]
    OtherHash(B256),
    /// They are not the RLP of a header.
    #[error("its bytes are no RLP of a header")]
    Malformed,
}
