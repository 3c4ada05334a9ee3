//! The light client: what a node says of the state, checked against a root that is trusted.
//!
//! ```text
//!  node                                     here
//!  ----                                     ----
//!  state_getProof --> StateProofResponse -> Verifier -- by format --> verifier of the storage crate
//!  eth_getProof ----> EthProofResponse ---> ^  ^                      (crates/backends lists them)
//!  state_getProvenance                      |  '-- parameters, pinned by their digest
//!               '---> ProvenanceResponse ---'
//!                                           ^
//!             header, checkpoint or root: TrustedRoot
//!                                           |
//!                                           v
//!                     Verified: accounts and slots, present or absent, and what that rests on
//! ```
//!
//! # Vocabulary
//!
//! * **Proof**: bytes that lead from the values of some keys to a root, in an envelope that names
//!   block, root and the kind of the proof. [`StateProof`].
//! * **Kind**: backend, version of its proofs, hash function, digest of its parameters.
//! * **Trusted root**: a root that the caller believes in, and why: [`TrustedRoot`].
//! * **Answer**: a proof with the values that the node says it proves. [`StateProofResponse`].
//! * **Provenance**: what a key was over a range of blocks, proven under one root. An answer of that:
//!   [`ProvenanceResponse`].
//!
//! # Assumptions
//!
//! The hash function of the kind is collision resistant; for parameters with a secret also what the
//! verifier of their backend assumes of them. Everything that comes from the node may be forged, the
//! envelope included. Which block is the head of the chain is not this crate's business: whoever gives
//! the trusted root knows.
//!
//! Pure, without `std`, I/O or clock. Formats: `docs/formats/proofs.md`. An independent verifier in
//! TypeScript lies beside this one in `ts/`; both run the proofs of `vectors/`, valid and forged.

#![no_std]

extern crate alloc;

mod error;
mod header;
mod provenance;
mod response;
mod trust;
mod verified;
mod verifier;

pub use error::{HeaderFault, LightClientError};
pub use provenance::{ProvenanceResponse, VersionClaim, VersionValue};
pub use response::{AccountClaim, EthProofResponse, EthSlotProof, SlotClaim, StateProofResponse};
pub use retrie_backends::{ParamsFacts, ProofFormat, ProofVerifier};
pub use retrie_state::{Account, BlockRef, ProofError, StateKey, StateProof, Value, Version};
pub use trust::{ParamsTrust, RootTrust, Trust, TrustedRoot};
pub use verified::{Shown, Verified, VerifiedProvenance};
pub use verifier::{Verifier, verify_code};
