//! Trusted roots, and the basis of trust in a verified answer.

use crate::{LightClientError, header};
use alloc::{
    format,
    string::{String, ToString},
    vec,
    vec::Vec,
};
use alloy_primitives::{B256, Bytes};
use core::fmt;
use retrie_state::{BlockRef, StateProof};

/// A root that the caller trusts, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrustedRoot {
    /// The root is the `stateRoot` of this header, whose hash is trusted. For `mpt`, `mpt-archive`
    /// and `prefix`, and for private chains whose headers contain the backend's root.
    Header {
        /// keccak-256 of the header.
        hash: B256,
        /// RLP of the header, from any source.
        rlp: Bytes,
    },
    /// The root of this block was pinned out of band: for roots that no header contains.
    Checkpoint {
        /// Number of the block.
        number: u64,
        /// Root of its state.
        root: B256,
    },
    /// This root, of an unknown block.
    Root(B256),
}

/// Why the root is trusted, as far as this crate checked it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RootTrust {
    /// The root is in the header of this block, whose hash the caller gave.
    Header {
        /// The block.
        block: BlockRef,
    },
    /// The caller pinned the root for the block with this number.
    Checkpoint {
        /// Number of the block.
        number: u64,
    },
    /// The caller gave the root.
    Root,
}

/// Public parameters that a proof was checked with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamsTrust {
    /// Their digest, which the caller pinned.
    pub digest: B256,
    /// Whether the parameters have a secret, which must stay unknown.
    pub has_secret: bool,
    /// Whether the secret is public, so that anyone could have forged the proof.
    pub insecure: bool,
}

/// The basis of trust in a verified answer. Displays as sentences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrustBasis {
    /// The root.
    pub root: B256,
    /// Why the root is trusted.
    pub reason: RootTrust,
    /// The parameters of the backend, if it has any.
    pub params: Option<ParamsTrust>,
}

impl TrustedRoot {
    /// The root, and why it is trusted.
    ///
    /// # Errors
    /// [`LightClientError::Header`] if the header does not have the trusted hash.
    pub(crate) fn open(&self) -> Result<(B256, RootTrust), LightClientError> {
        Ok(match self {
            Self::Header { hash, rlp } => {
                let (number, root) = header::number_and_root(hash, rlp)
                    .map_err(|fault| LightClientError::Header { hash: *hash, fault })?;
                (root, RootTrust::Header { block: BlockRef::new(number, *hash) })
            }
            Self::Checkpoint { number, root } => (*root, RootTrust::Checkpoint { number: *number }),
            Self::Root(root) => (*root, RootTrust::Root),
        })
    }
}

impl RootTrust {
    /// Fails if the envelope of `proof` names another block.
    pub(crate) fn check_block(&self, proof: &StateProof) -> Result<(), LightClientError> {
        let (trusted, of_proof) = match self {
            Self::Header { block } if *block != proof.block => {
                (block.to_string(), proof.block.to_string())
            }
            Self::Checkpoint { number } if *number != proof.block.number => {
                (number.to_string(), proof.block.number.to_string())
            }
            _ => return Ok(()),
        };
        Err(LightClientError::OtherBlock { trusted, proof: of_proof })
    }
}

impl TrustBasis {
    /// The basis of trust, one sentence per reason.
    pub fn sentences(&self) -> Vec<String> {
        let mut sentences = vec![self.reason_with(&self.root)];
        if let Some(ParamsTrust { digest, has_secret, insecure }) = self.params {
            sentences.push(if !has_secret {
                format!(
                    "the parameters {digest} were pinned: they must be the parameters of the store"
                )
            } else if insecure {
                format!(
                    "the parameters {digest} are INSECURE development parameters: everybody knows \
                     their secret and can forge proofs"
                )
            } else {
                format!(
                    "the parameters were pinned by digest {digest}: anyone who knows their secret \
                     can forge proofs"
                )
            });
        }
        sentences
    }

    fn reason_with(&self, root: &B256) -> String {
        match self.reason {
            RootTrust::Header { block } => format!(
                "root {root} is the stateRoot of block {}, in the header of the trusted hash {}",
                block.number, block.hash
            ),
            RootTrust::Checkpoint { number } => format!(
                "root {root} was pinned by hand for block {number}: no header was checked, and \
                 consensus does not secure it"
            ),
            RootTrust::Root => format!(
                "root {root} was given by hand: no header was checked, and which block it belongs \
                 to is the node's word"
            ),
        }
    }
}

impl fmt::Display for TrustBasis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentences().join("; "))
    }
}
