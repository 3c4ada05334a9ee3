//! The light client: checks a node's answers about the state against a trusted root.
//!
//! ```text
//!  node                                     this crate
//!  ----                                     ----------
//!  state_getProof --> StateProofResponse -> StateVerifier -- by format --> verifier of the storage
//!  eth_getProof ----> EthProofResponse ---> ^  ^                   crate (crates/backends has all)
//!  state_getProvenance                      |  '-- parameters, pinned by their digest
//!               '---> ProvenanceResponse ---'
//!                                           ^
//!             header, checkpoint or root: TrustedRoot
//!                                           |
//!                                           v
//!        VerifiedState: accounts and slots, present or absent, and the basis of trust (TrustBasis)
//! ```
//!
//! # Example
//!
//! A node proves an account; the client checks the proof against a root that it trusts.
//!
//! ```
//! use alloy_primitives::{Address, B256};
//! use retrie_light_client::{Account, BlockRef, StateKey, StateVerifier, TrustedRoot};
//! # use retrie_state_store::{KvStore, MemoryStore, StateId, StateStore, StoreOptions};
//! # use std::sync::Arc;
//! # let (address, other) = (Address::repeat_byte(0x11), Address::repeat_byte(0x22));
//! # let rows = Arc::new(MemoryStore::new());
//! # let mpt = Arc::new(retrie_storage_mpt::Mpt::new());
//! # let store = StateStore::open(mpt, rows.clone(), StoreOptions::default())?;
//! # let account = Account { nonce: 1, ..Account::default() };
//! # let mut txn = rows.begin_write()?;
//! # let mut entries = [Ok((StateKey::Account(address), account.encode()))].into_iter();
//! # let block = BlockRef { number: 7, hash: B256::repeat_byte(7) };
//! # let (root, after) = store.bulk_load(block, &mut entries, &mut *txn)?;
//! # txn.commit()?;
//! # after.run()?;
//! let keys = [address, other].map(StateKey::Account);
//! let proof = store.at(StateId::Tip)?.prove(&keys)?; // at the node: `state_getProof`
//!
//! let state = StateVerifier::new().verify(&proof, &keys, &TrustedRoot::Root(root))?;
//! assert_eq!(state.account(&address), Some(Some(account)));
//! assert_eq!(state.account(&other), Some(None)); // proven to be absent
//! let wrong = TrustedRoot::Root(B256::repeat_byte(1));
//! assert!(StateVerifier::new().verify(&proof, &keys, &wrong).is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Vocabulary
//!
//! * **Proof** ([`StateProof`]): bytes that lead from the values of some keys to a root, in an
//!   envelope that names block, root and the kind of the proof.
//! * **Kind** of a proof: backend, version of its proofs, hash function, digest of its parameters.
//! * **Trusted root** ([`TrustedRoot`]): a root that the caller trusts, and the reason.
//! * **Answer** ([`StateProofResponse`]): a proof with the values that the node claims it proves.
//! * **Provenance** ([`ProvenanceResponse`]): the values of a key over a range of blocks, proven
//!   under one root.
//! * **Complete logs** (`LogsResponse`, feature `logs`): the logs of a range of blocks for a filter,
//!   with the headers and receipts that show that none is missing; or with parts of index tables
//!   (`LogTablesResponse`, EIP-8304), whose roots are in the state.
//!
//! # Assumptions
//!
//! The hash function of the kind is collision resistant. For parameters with a secret, the
//! assumptions of their backend's verifier hold. Everything from the node may be forged, the
//! envelope included. This crate does not find the head of the chain: the caller gives the trusted
//! root.
//!
//! Pure, without `std`, I/O or clock. Formats: `docs/formats/proofs.md`. An independent TypeScript
//! verifier is in `ts/`; both run the proofs of `vectors/`, valid and forged.

#![no_std]

extern crate alloc;

mod call;
mod error;
mod header;
#[cfg(feature = "logs")]
mod logs;
mod provenance;
mod response;
mod trust;
mod verified;
mod verifier;

pub use call::{AccountReads, CallResponse};
#[cfg(feature = "calls")]
pub use call::{TrustedBlock, VerifiedCall};
#[cfg(feature = "logs")]
pub use error::TableFault;
pub use error::{HeaderFault, LightClientError, LogsFault};
#[cfg(feature = "logs")]
pub use logs::{
    CompleteLogs, HeaderWithPaths, HeaderWithReceipts, LogTablesResponse, LogsResponse, RangeBytes,
    TableSlice, TableTrust, TabledLogs, VerifiedLog, verify_log_tables, verify_logs,
};
pub use provenance::{ProvenanceResponse, VersionClaim, VersionValue};
pub use response::{AccountClaim, EthProofResponse, EthSlotProof, SlotClaim, StateProofResponse};
pub use retrie_backends::{ParamsFacts, ProofFormat, ProofVerifier};
#[cfg(feature = "logs")]
pub use retrie_log_tables::{TableProofError, TableSpan};
pub use retrie_state::{
    Account, BlockRef, KeyForm, ProofError, StateKey, StateProof, StateValue, ValueVersion,
};
pub use trust::{ParamsTrust, RootTrust, TrustBasis, TrustedRoot};
pub use verified::{ProvenValue, VerifiedProvenance, VerifiedState};
pub use verifier::{StateVerifier, verify_code};
