//! The contract between an execution client and an authenticated state store, and the framework
//! that serves it for every backend.
//!
//! ```text
//!   client                          this crate                            storage-* crates
//!   ------                          ----------                            ----------------
//!   begin(parent) ----------------> Session
//!   reader().get(key) ------------> StateView ----- read ---------------> Backend over NodeRead
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
//! * **Session**: the life of one block on top of any parent, durable or not. [`Session`].
//! * **Proposal**: root and writes of one block, in memory. [`Proposal`].
//! * **Durable**: committed, with the chain's own rows, in one transaction of the [`KvStore`].
//! * **Retention**: how many durable blocks can be reverted, read and extended below the tip.
//! * **Flat history**: what each block changed, by which the framework reads old states of any
//!   backend. [`Changes`], [`StateStore::past`].
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

mod delta;
mod error;
mod key;
mod proof;
mod provenance;
mod reader;
mod value;

pub use delta::{Change, DeltaBuilder, StateDelta};
pub use error::{ProofError, StateError, StoreError};
pub use key::{EncodedKey, StateKey};
pub use proof::{BlockRef, HashId, Identity, StateProof};
pub use provenance::Version;
pub use reader::StateReader;
pub use value::{Account, Value, decode_slot, encode_slot};

#[cfg(feature = "std")]
mod framework {
    pub use crate::{
        backend::{
            AccountNodes, AccountProofs, Applied, ApplyContext, Backend, BackendStats, Cache,
            Capabilities, PartialState, PartialTree, ProofShards,
        },
        changes::Changes,
        check::{StateCheck, StateCheckSink, compare_rows},
        commit::AfterCommit,
        counters::{Counters, Counts, TableCounts},
        history::{History, PastState},
        jobs::{Job, JobContext, JobHandle, JobOutput, Jobs},
        memory::MemoryStore,
        namespace::Namespace,
        node::{
            BulkSink, Direction, KeyRange, KvRead, KvStore, KvTxn, KvWrite, NodeRead, NodeWrite,
            Row, Rows, Snapshot, Table, prefix_end,
        },
        past::HistoricalView,
        proposal::Proposal,
        provenance::Provenance,
        session::{Session, StateView},
        spill::EntrySorter,
        store::{At, Sight, StateStore, StoreOptions, StoreStats, StoreWatch, Tip},
    };
}
#[cfg(feature = "std")]
pub use framework::*;

#[cfg(feature = "std")]
mod backend;
#[cfg(feature = "std")]
mod changes;
#[cfg(feature = "std")]
mod check;
#[cfg(feature = "std")]
mod commit;
#[cfg(feature = "std")]
mod counters;
#[cfg(feature = "std")]
pub mod flat;
#[cfg(feature = "std")]
mod history;
#[cfg(feature = "std")]
mod jobs;
#[cfg(feature = "std")]
mod journal;
#[cfg(feature = "std")]
mod memory;
#[cfg(feature = "std")]
mod namespace;
#[cfg(feature = "std")]
mod node;
#[cfg(feature = "std")]
mod overlay;
#[cfg(feature = "std")]
mod past;
#[cfg(feature = "std")]
mod proposal;
#[cfg(feature = "std")]
mod scan;
#[cfg(feature = "std")]
mod session;
#[cfg(feature = "std")]
mod shared;
#[cfg(feature = "std")]
mod spill;
#[cfg(feature = "std")]
mod store;
#[cfg(feature = "std")]
mod undo;

#[cfg(feature = "benchkit")]
pub mod benchkit;
#[cfg(feature = "testkit")]
pub mod testkit;
