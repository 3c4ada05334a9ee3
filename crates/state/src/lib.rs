//! The contract between an execution client and an authenticated state store, and the framework
//! that serves it for every backend.
//!
//! ```text
//!   client                          this crate                            storage-* crates
//!   ------                          ----------                            ----------------
//!   begin(parent) ----------------> StateSession
//!   reader().get(key) ------------> StateProvider - read ---------------> Backend over NodeRead
//!   finish(delta) ----------------> Proposal <----- apply --------------- Backend over NodeWrite
//!   check root, txn = begin_write
//!   commit(proposals, txn) -------> journal + undo rows in the chain's own transaction
//!   txn.commit()
//!   AfterCommit::run() -----------> overlay in memory, background fold into the tables
//! ```
//!
//! # Vocabulary
//!
//! * **State key, value**: an account or a storage slot, and opaque bytes. [`StateKey`],
//!   [`StateValue`].
//! * **Delta**: what one block changes, sorted, with previous and next values. [`StateDelta`].
//! * **Batch**: the deltas of consecutive blocks and their sum. A backend whose root depends on the
//!   state alone applies the sum at once. [`DeltaBatch`].
//! * **State id**: names a state: the durable tip, a block, a proposal. [`StateId`].
//! * **State provider**: one state, to read and to prove from. [`StateProvider`].
//! * **Session**: the work on one block on top of any parent, durable or not. [`StateSession`].
//! * **Prefetch**: threads read keys before the block asks for them. [`PrefetchHandle`].
//! * **Proposal**: root and writes of one block, in memory. [`Proposal`].
//! * **Durable**: committed, with the chain's own rows, in one transaction of the [`KvStore`].
//! * **Retention**: how many durable blocks can be reverted, read and extended below the tip.
//! * **Flat history**: what each block changed. The framework reads old states of any backend with
//!   it. [`FlatHistory`], [`StateStore::flat_history`].
//! * **History**: the states of all old blocks with their proofs, where a backend itself keeps
//!   them. [`StateHistory`], [`StateStore::history`].
//! * **Backend**: a plain algorithm over a key-value view. [`Backend`]; the rules are in its docs.
//! * **Extension**: an optional ability of a backend, as a trait. [`BackendExtensions`] lists them.
//! * **Cache**: the decoded structure of one block's state in memory. It belongs to that block.
//!   Caches of older blocks may be [compacted](CompactedCache).
//! * **Diff layer**: the rows that one block writes, in memory.
//! * **Generation**: the rows of consecutive commits, in the journal and in memory. A background
//!   thread *folds* (writes) a full generation into the tables.
//! * **Job**: background work of a backend, named by the digest of its inputs. [`BackgroundJob`].
//!
//! # Assumptions
//!
//! The [`KvStore`] commits atomically and durably, and its snapshots do not change. One process
//! writes. Backends are pure (see [`Backend`]).
//!
//! Without the feature `std` this crate has only the contract's types and errors, for verifiers.

#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc;

pub mod descriptor;
mod types;

pub use types::{
    Account, BackendIdentity, BlockRef, DeltaBatch, DeltaBatchBuilder, DeltaBuilder, EncodedKey,
    HashId, ProofError, StateChange, StateDelta, StateError, StateKey, StateProof, StateReader,
    StateValue, StoreError, ValueVersion, blake2b, decode_slot, encode_slot, wire,
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
        AccountNodes, AccountProofs, AnyBackend, AnyCache, ApplyContext, ApplyOutput, Backend,
        BackendExtensions, BackendProfile, BackendStats, BackgroundJob, BulkSink, CacheCompaction,
        ChunkAnswer, ChunkId, ChunkServer, CompactedCache, JobContext, JobFiles, JobHandle,
        JobOutput, JobRunner, KeyRange, Maintenance, NodeRead, NodeWrite, OpenedChunk,
        PartialState, PartialTree, Prefetcher, ProofHole, ProofShards, ProvenanceQueries, RowScan,
        RowTable, ScanDirection, StateChunks, StateHistory, TableRow, compare_rows, flat,
        is_out_of_descriptors, open_with_retry, prefix_end,
    },
    durable::{
        CounterSnapshot, DurableTip, EntrySorter, FlatHistory, KvRead, KvSnapshot, KvStore, KvTxn,
        KvWrite, MemoryStore, NodeCounters, Proposal, TableCounts, TableNamespace,
    },
    store::{
        AfterCommit, PrefetchHandle, PrefetchObserver, RootTask, StateCheck, StateCheckSink,
        StateId, StateProvider, StateSession, StateStore, StoreGauges, StoreOptions, StoreStats,
        StoreWatch,
    },
};

#[cfg(feature = "benchkit")]
pub mod benchkit;
#[cfg(feature = "testkit")]
pub mod testkit;
