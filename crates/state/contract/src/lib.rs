//! The contract between an execution client and an authenticated state store: what the author of a
//! store reads.
//!
//! ```text
//!   client            retrie-state-store                    this crate           storage-* crates
//!   ------            ------------------                    ----------           ----------------
//!   one delta  -----> rows of the parent's state, journal,  NodeRead, NodeWrite
//!   per block         undo, forks, crashes            ----> Backend::apply ----> an algorithm
//!              <----- root, reads, proofs             <---- Backend::read, prove
//! ```
//!
//! # Example
//!
//! What a block changes, as a backend gets it. A whole backend is in
//! `examples/smallest_backend.rs`.
//!
//! ```
//! use alloy_primitives::{Address, B256, U256};
//! use retrie_state::{Account, DeltaBuilder, StateKey, encode_slot};
//!
//! let address = Address::repeat_byte(0x11);
//! let account = Account { balance: U256::from(5), ..Account::default() };
//! let mut block = DeltaBuilder::new();
//! block.change(StateKey::Slot(address, B256::ZERO), None, encode_slot(U256::from(7)));
//! block.change(StateKey::Account(address), None, Some(account.encode()));
//!
//! let delta = block.build();
//! assert_eq!(delta.changes()[0].key, StateKey::Account(address)); // sorted
//! assert_eq!(delta.slots_of(&address).len(), 1);
//! ```
//!
//! # Vocabulary
//!
//! * **State key, value**: an account or a storage slot, and opaque bytes. [`StateKey`],
//!   [`StateValue`].
//! * **Backend key**: the bytes under which a backend keeps a value, plain or hashed.
//!   [`BackendKey`], [`KeyForm`].
//! * **Delta**: what one block changes, sorted, with previous and next values. [`StateDelta`].
//! * **Code**: the bytes that a contract executes, by keccak-256. An account's value holds the hash.
//!   The client keeps codes; a backend gets them if its root depends on them.
//!   [`StateDelta::codes`].
//! * **Batch**: the deltas of consecutive blocks and their sum. A backend whose root depends on the
//!   state alone applies the sum at once. [`DeltaBatch`].
//! * **Backend**: a plain algorithm over a key-value view. `Backend`; the rules are in its docs.
//! * **Framework**: the crate `retrie-state-store`, which serves this contract for every backend.
//! * **Extension**: an optional ability of a backend, as a trait. `BackendExtensions` lists them.
//! * **Cache**: the decoded structure of one block's state in memory. It belongs to that block.
//!   Caches of older blocks may be compacted.
//! * **Job**: background work of a backend, named by the digest of its inputs. `BackgroundJob`.
//! * **Descriptor**: a backend's name, flags and constructors. [`descriptor`].
//!
//! Without the feature `std` this crate has only types and errors, for verifiers.

#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc;

pub mod descriptor;
mod types;

pub use types::{
    Account, AccountKey, BackendChange, BackendDelta, BackendIdentity, BackendKey, BlockRef,
    DeltaBatch, DeltaBatchBuilder, DeltaBuilder, EncodedKey, HashId, KeyForm, ProofError,
    StateChange, StateDelta, StateError, StateKey, StateProof, StateReader, StateValue,
    StateWitness, StoreError, ValueVersion, WitnessError, blake2b, decode_slot, encode_slot, wire,
};

#[cfg(feature = "std")]
mod backend;

#[cfg(feature = "std")]
pub use crate::backend::{
    AccountNodes, AccountPostValues, AccountProofs, AnyBackend, AnyCache, ApplyContext,
    ApplyOutput, Backend, BackendExtensions, BackendProfile, BackendStats, BackgroundJob, BulkSink,
    BulkSorter, CacheCompaction, CacheLookups, ChunkAnswer, ChunkId, ChunkPlace, ChunkServer,
    CodePart, CodeProofs, CompactedCache, JobContext, JobFiles, JobHandle, JobOutput, JobRunner,
    KeyRange, LookupCounter, Maintenance, NodeAudit, NodeRead, NodeUse, NodeWrite, OpenedChunk,
    PartialState, PartialTree, Prefetcher, ProofHole, ProofShards, ProvenanceQueries, RangeAnswer,
    RangeChanges, RangeFormat, RangeServer, RowScan, RowTable, ScanDirection, SortedRecords,
    StateChunks, StateHistory, StateRanges, StateTrie, TableRow, TrieLeaf, WitnessAudit,
    WitnessMaker, WitnessRequest, WitnessSupport, compare_rows, flat, lower_thread_priority,
    open_with_retry, prefix_end,
};
