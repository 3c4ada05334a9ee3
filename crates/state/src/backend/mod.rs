//! What a storage crate implements: [`Backend`], over a view of keyed rows.
//!
//! ```text
//!  Backend --NodeRead, NodeWrite--> rows of one state     (view)
//!          --flat-----------------> values of all keys    (flat), where it holds none itself
//!          --Jobs-----------------> work that outlives a block, and its files
//!  Backend::history() and others -> what only some can do (faculties)
//!  AnyBackend                       the same for the framework, whatever its cache (erased)
//! ```

mod chunks;
mod compare;
mod erased;
mod faculties;
mod files;
pub mod flat;
mod jobs;
mod view;

pub use chunks::{ChunkAnswer, ChunkId, ChunkServer, Chunks, Opened};
pub use compare::compare_rows;
pub use erased::{AnyBackend, AnyCache};
pub use faculties::{
    AccountNodes, AccountProofs, History, PartialState, PartialTree, ProofHole, ProofShards,
    Provenance,
};
pub use files::{is_out_of_descriptors, open_patiently};
pub use jobs::{Job, JobContext, JobHandle, JobOutput, Jobs};
pub(crate) use view::check_file_name;
pub use view::{BulkSink, Direction, KeyRange, NodeRead, NodeWrite, Row, Rows, Table, prefix_end};

use crate::{Identity, ProofError, StateDelta, StateError, StateKey, Value};
use alloy_primitives::{Address, B256, Bytes};
use std::path::Path;

/// What a backend can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Whether the state is authenticated at all: a root and proofs.
    pub proofs: bool,
    /// Whether absence can be proven.
    pub absence_proofs: bool,
    /// Whether the root is a function of the logical state alone, not of its history.
    pub state_determined_root: bool,
    /// Whether the root is the one that Ethereum headers carry.
    pub ethereum_root: bool,
}

/// What `apply` is told beside the view.
#[derive(Debug)]
pub struct ApplyContext<'a> {
    /// Number of the block that is applied.
    pub number: u64,
    /// Root of its parent ([`B256::ZERO`] for the first block).
    pub parent_root: B256,
    /// Background work.
    pub jobs: &'a Jobs,
}

/// What `apply` returns.
#[derive(Clone)]
pub struct Applied<C> {
    /// Root of the new state.
    pub root: B256,
    /// Decoded structure of the new state.
    pub cache: C,
}

impl<C> core::fmt::Debug for Applied<C> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Applied").field("root", &self.root).finish_non_exhaustive()
    }
}

/// What is kept of the structure of an older block ([`Backend::thinned`]).
#[derive(Clone)]
pub struct Thinned<C> {
    /// A structure of the same block.
    pub cache: C,
    /// About how many bytes it takes beside what it shares with those of its neighbours.
    pub bytes: u64,
}

impl<C> core::fmt::Debug for Thinned<C> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Thinned").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// Counts of a backend's content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackendStats {
    /// Rows of each table, by name.
    pub tables: Vec<(&'static str, u64)>,
    /// Keys that have a value.
    pub live_keys: u64,
    /// Keys kept although deleted (tombstones), where a backend needs them.
    pub dead_keys: u64,
}

impl BackendStats {
    /// Counts the rows of these tables, and no keys yet.
    ///
    /// # Errors
    /// If a row cannot be read.
    pub fn count(view: &dyn NodeRead, tables: &[Table]) -> Result<Self, StateError> {
        let count = |table: &Table| {
            let rows = view.scan(*table, KeyRange::ALL, Direction::Forward)?;
            Ok((table.name, rows.map(|row| row.map(|_| 1u64)).sum::<Result<u64, _>>()?))
        };
        let tables = tables.iter().map(count).collect::<Result<_, StateError>>()?;
        Ok(Self { tables, ..Self::default() })
    }

    /// Rows of a table that has been counted; 0 if it has not.
    pub fn rows(&self, table: Table) -> u64 {
        self.tables.iter().find(|(name, _)| *name == table.name).map_or(0, |(_, rows)| *rows)
    }
}

/// A state store's algorithm: plain code over a key-value view.
///
/// A backend never opens a transaction, never thinks about forks, undo, crashes or the journal: the
/// framework ([`StateStore`](crate::StateStore)) gives it a view of the parent's state, takes its
/// writes, and does the rest for every backend alike. What a backend must keep (the
/// `testkit` tries hard to catch it failing):
///
/// 1. **Purity.** `apply` depends on the view, the parent's cache, the block number and the delta
///    alone: never on time, thread scheduling, hash-map order or earlier calls. Rows on which no
///    root, value or proof depends may come and go when work in the background allows (clean-up).
/// 2. **Caches belong to a block.** [`Cache`](Self::Cache) is the decoded in-memory structure of
///    one block's state. `open` rebuilds it from the view alone; `apply` returns the child's cache
///    and leaves the parent's as it was.
/// 3. **Persisted shape.** If the root depends on more than the logical state, whatever it depends
///    on is in the view.
/// 4. **Jobs publish at blocks.** The outcome of background work enters the state only at the block
///    that the backend's own rules name, never when a thread happens to finish, but for such rows. The handle of a job
///    under way lives in the cache, and what is needed to start it again in the view: the first `apply`
///    after an opening does so.
/// 5. **Files are immutable.** A file is whole and fsynced before the block that names it is
///    finished ([`Jobs::write_file`]); a cache that reads a file keeps it open, or its content, as
///    readers may outlive it.
pub trait Backend: Send + Sync + 'static {
    /// The decoded in-memory structure of one block's state; `()` for backends that need none.
    ///
    /// It also holds the [handles](JobHandle) of jobs under way at that block: they live as long as
    /// a proposal or the durable tip holds the cache.
    type Cache: Send + Sync + 'static;

    /// Name, format version, hash function and parameters.
    fn identity(&self) -> &Identity;

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// Its tables, those of shared parts (the [flat state](crate::flat)) included.
    fn tables(&self) -> Vec<Table>;

    /// Root of the empty state.
    fn empty_root(&self) -> B256;

    /// Rebuilds the in-memory structure of the state that `view` shows, which may be empty; `dir`
    /// has the files that it names. It starts no work: readers of old blocks open states too.
    fn open(&self, view: &dyn NodeRead, dir: Option<&Path>) -> Result<Self::Cache, StateError>;

    /// How many structures of durable blocks at and below the tip are worth keeping, beside those of
    /// proposals. More are kept where a structure shares most of what it holds with its parent's, so
    /// that reads and proofs below the tip need not open one.
    fn caches_kept(&self) -> usize {
        8
    }

    /// What is kept of a structure that is older than [`caches_kept`](Self::caches_kept), so that proofs
    /// of its block take no longer than those of the tip: as long as the block can be read, and as far
    /// as all of them fit into [`thinned_bytes`](Self::thinned_bytes). It serves wherever the whole one
    /// does, though a block on it, in a deep reorganisation, may take longer. It holds no job. `None` if
    /// [`open`](Self::open) is as good.
    fn thinned(&self, cache: &Self::Cache) -> Option<Thinned<Self::Cache>> {
        let _ = cache;
        None
    }

    /// Bytes for [thinned](Self::thinned) structures, those that they share not counted twice.
    fn thinned_bytes(&self) -> u64 {
        0
    }

    /// Files that jobs under way in the state that `view` shows may have finished already, though
    /// no block names them yet. They outlive a reopening. Their names must tell what they are made
    /// of, by the digest of the inputs, and a job that takes one over first checks that it is whole.
    fn files_under_way(&self, view: &dyn NodeRead) -> Result<Vec<String>, StateError> {
        let _ = view;
        Ok(Vec::new())
    }

    /// Applies one block's delta. The view reads its own writes.
    fn apply(
        &self,
        context: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        cache: &Self::Cache,
        delta: &StateDelta,
    ) -> Result<Applied<Self::Cache>, StateError>;

    /// Whether [`apply`](Self::apply) of the sum of what consecutive blocks change, as the last of
    /// them, is as good as applying them one by one: the same root, the same values, the same proofs
    /// and the same future. So it is where the root follows from the state alone, and nothing is kept
    /// of the states between.
    fn applies_runs(&self) -> bool {
        self.capabilities().state_determined_root
            && self.history().is_none()
            && self.provenance().is_none()
    }

    /// Told that `keys` will probably be in the delta, by any number of threads at once. Their values
    /// have been read of this state, or are left to others: what the root needs beside them may be
    /// fetched into caches. Must not change anything.
    fn hint(&self, view: &dyn NodeRead, cache: &Self::Cache, keys: &[StateKey]) {
        let _ = (view, cache, keys);
    }

    /// Whether [`hint`](Self::hint) fetches more than [`read`](Self::read) of the same keys does. Only
    /// then is it told of keys that have just been read.
    fn heeds_reads(&self) -> bool {
        false
    }

    /// Told what the block that is executed on this state has written since it was last told, by one
    /// thread at a time for each block: what [`apply`](Self::apply) would make of it may be made now.
    /// It may not be all that the block writes, later writes may replace it, and there may be no such
    /// block in the end, or another one: [`apply`](Self::apply) does the same with or without. Must not
    /// change anything.
    fn foretell(&self, view: &dyn NodeRead, cache: &Self::Cache, writes: &StateDelta) {
        let _ = (view, cache, writes);
    }

    /// Whether [`foretell`](Self::foretell) does anything. Only then is it called.
    fn heeds_writes(&self) -> bool {
        false
    }

    /// Removes rows that no state from block `first_retained` on can see: what older states alone
    /// needed, or what work in the background has put elsewhere. It may also write rows ahead that a later
    /// block will publish, and no state reads before. `view` shows the state of the new
    /// durable tip, with `cache`. What is written here joins the commit's journal but has no undo, so
    /// it must not change what any retained state reads, proves, or grows into. It publishes and
    /// retires no files. About `budget` rows
    /// are to be written at most; the rest waits for the next commit. Every commit calls it once. If it
    /// fails, nothing of it is written; the commit comes about all the same, unless the error is of the
    /// store underneath ([`StateError::Store`]).
    fn settle(
        &self,
        view: &mut dyn NodeWrite,
        cache: &Self::Cache,
        first_retained: u64,
        budget: usize,
    ) -> Result<(), StateError> {
        let _ = (view, cache, first_retained, budget);
        Ok(())
    }

    /// The value of `key`; from the [flat state](flat), if the backend keeps that.
    fn read(
        &self,
        view: &dyn NodeRead,
        cache: &Self::Cache,
        key: &StateKey,
    ) -> Result<Option<Value>, StateError> {
        let _ = cache;
        flat::get(view, key)
    }

    /// The slots of `address` that are set, in slot order, at most `limit`. It reads no more than it
    /// needs: who asks whether an account has storage at all asks for one.
    fn slots_of(
        &self,
        view: &dyn NodeRead,
        cache: &Self::Cache,
        address: &Address,
        limit: usize,
    ) -> Result<Vec<(B256, Value)>, StateError> {
        let _ = cache;
        flat::slots_of(view, address, limit)
    }

    /// All entries in key order from `start` on, at most `limit`. Serves migration and
    /// verification.
    fn entries(
        &self,
        view: &dyn NodeRead,
        cache: &Self::Cache,
        start: Option<&StateKey>,
        limit: usize,
    ) -> Result<Vec<(StateKey, Value)>, StateError> {
        let _ = cache;
        flat::entries(view, start, limit)
    }

    /// Loads a whole state, sorted by key, as block `number`; returns its root, which is the one
    /// that [`apply`](Self::apply) of the same entries on the empty state gives.
    fn bulk_load(
        &self,
        number: u64,
        entries: &mut dyn Iterator<Item = Result<(StateKey, Value), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError>;

    /// Proof bytes for the values of `keys`, in the order given; a key may come twice.
    fn prove(
        &self,
        view: &dyn NodeRead,
        cache: &Self::Cache,
        keys: &[StateKey],
    ) -> Result<Bytes, StateError>;

    /// The pure verifier of this backend's proofs: the value of each key under `root`.
    fn verify(
        &self,
        root: B256,
        keys: &[StateKey],
        proof: &[u8],
    ) -> Result<Vec<Option<Value>>, ProofError>;

    /// Counts its content.
    fn stats(&self, view: &dyn NodeRead, cache: &Self::Cache) -> Result<BackendStats, StateError>;

    /// Whether it holds canonical accounts and slots alone, and slots only below accounts, rather
    /// than any bytes under any key.
    fn ethereum_state_only(&self) -> bool {
        self.capabilities().ethereum_root
    }

    /// The faculty to read and prove the state of any old block, where it exists.
    fn history(&self) -> Option<&dyn History<Self::Cache>> {
        None
    }

    /// Checks the backend's own rows against each other, against `root`, the one recorded of this
    /// state, and, where they follow from the values, against those of `rebuilt`: the same state,
    /// loaded from nothing but its values (given if the root is
    /// [state-determined](Capabilities::state_determined_root); that the root fits the values has
    /// then been checked). Below the tip (`is_tip` is false) what this state shares with all others need not be
    /// checked again. What is wrong goes to `report`; an error ends the check.
    fn check(
        &self,
        view: &dyn NodeRead,
        cache: &Self::Cache,
        root: B256,
        is_tip: bool,
        rebuilt: Option<&dyn NodeRead>,
        report: &mut dyn FnMut(StateError),
    ) -> Result<(), StateError> {
        let _ = (view, cache, root, is_tip, rebuilt, report);
        Ok(())
    }

    /// How large its caches may become, in bytes: what it holds beside the rows that the framework
    /// bounds. Whoever caps memory has to leave room for it.
    fn cache_bytes(&self) -> u64 {
        0
    }

    /// The faculty to keep a part only of what proofs need, where it exists.
    fn proof_shards(&self) -> Option<&dyn ProofShards<Self::Cache>> {
        None
    }

    /// The faculty to show and prove what keys were over a range of blocks, where it exists.
    fn provenance(&self) -> Option<&dyn Provenance<Self::Cache>> {
        None
    }

    /// The faculty to prove accounts in the form of EIP-1186, where it exists.
    fn account_proofs(&self) -> Option<&dyn AccountProofs<Self::Cache>> {
        None
    }

    /// The faculty to hand a whole state out in parts that prove themselves, where it exists.
    fn chunks(&self) -> Option<&dyn Chunks<Self::Cache>> {
        None
    }

    /// The faculty to open a state from the few nodes of a witness, where it exists.
    fn partial_state(&self) -> Option<&dyn PartialState> {
        None
    }
}
