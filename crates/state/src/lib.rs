//! The contract between an execution client and an authenticated state store, and the framework
//! that serves it for every backend.
//!
//! ```text
//!   client                          this crate                            storage-* crates
//!   ------                          ----------                            ----------------
//!   begin(parent) ----------------> Session
//!   reader().get(key) ------------> StateAt ------- read ---------------> Backend over NodeRead
//!   finish(delta) ----------------> Proposal <----- apply --------------- Backend over NodeWrite
//!   check root, txn = begin_write
//!   commit(proposals, txn) -------> journal + undo rows in the chain's own transaction
//!   txn.commit()
//!   AfterCommit::run() -----------> overlay in memory, background fold into the tables
//! ```
//!
//! # Vocabulary
//!
//! * **State key, value**: an account or a storage slot, and opaque bytes. [`StateKey`], [`Value`].
//! * **Delta**: what one block changes, sorted, with previous and next values. [`StateDelta`].
//! * **Run**: what consecutive blocks change, and the sum of it, by which a backend whose root the
//!   state alone determines applies them at once. [`Run`].
//! * **Session**: the life of one block on top of any parent, durable or not. [`Session`].
//! * **Proposal**: root and writes of one block, in memory. [`Proposal`].
//! * **Durable**: committed, with the chain's own rows, in one transaction of the [`KvStore`].
//! * **Retention**: how many durable blocks can be reverted, read and extended below the tip.
//! * **Flat history**: what each block changed, by which the framework reads old states of any
//!   backend. [`FlatHistory`], [`StateStore::flat_history`].
//! * **History**: the states of all blocks, however old, where a backend itself keeps them, with
//!   their proofs. [`History`], [`StateStore::history`].
//! * **Backend**: a plain algorithm over a key-value view. [`Backend`]; the rules are in its docs.
//! * **Cache**: the decoded structure of one block's state in memory. It belongs to that block.
//! * **Job**: background work of a backend, named by the digest of its inputs. [`Job`].
//!
//! # Assumptions
//!
//! The [`KvStore`] commits atomically and durably, and its snapshots do not move. One process
//! writes. Backends are pure (see [`Backend`]).
//!
//! Without the feature `std` this crate is the contract's types and errors alone, for verifiers.

#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc;

pub mod descriptor;
mod types;

pub use types::{
    Account, BlockRef, Change, DeltaBuilder, EncodedKey, HashId, Identity, ProofError, Run,
    RunBuilder, StateDelta, StateError, StateKey, StateProof, StateReader, StoreError, Value,
    Version, blake2b, decode_slot, encode_slot, wire,
};

#[cfg(feature = "std")]
mod backend;
#[cfg(feature = "std")]
mod durable;
#[cfg(feature = "std")]
mod store;

#[cfg(feature = "std")]
pub use crate::{
    backend::{
        AccountNodes, AccountProofs, AnyBackend, AnyCache, Applied, ApplyContext, Backend,
        BackendStats, BulkSink, Capabilities, ChunkAnswer, ChunkId, ChunkServer, Chunks, Direction,
        History, Job, JobContext, JobHandle, JobOutput, Jobs, KeyRange, NodeRead, NodeWrite,
        Opened, PartialState, PartialTree, ProofHole, ProofShards, Provenance, Row, Rows, Table,
        Thinned, compare_rows, flat, is_out_of_descriptors, open_patiently, prefix_end,
    },
    durable::{
        Counters, Counts, EntrySorter, FlatHistory, KvRead, KvStore, KvTxn, KvWrite, MemoryStore,
        Namespace, Proposal, Snapshot, TableCounts, Tip,
    },
    store::{
        AfterCommit, At, OnRead, ReadAhead, Session, StateAt, StateCheck, StateCheckSink,
        StateStore, StoreGauges, StoreOptions, StoreStats, StoreWatch,
    },
};

#[cfg(feature = "benchkit")]
pub mod benchkit;
#[cfg(feature = "testkit")]
pub mod testkit;
