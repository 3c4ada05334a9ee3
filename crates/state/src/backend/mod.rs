//! What a storage crate implements: [`Backend`], over a view of keyed rows.
//!
//! ```text
//!  Backend --NodeRead, NodeWrite--> rows of one state     (view)
//!          --flat-----------------> values of all keys    (flat), if it holds no values itself
//!          --JobRunner------------> work that outlives a block, and its files
//!  Backend::history() and others -> optional extensions   (extensions)
//!  AnyBackend                       a backend with its cache type erased (erased)
//! ```

mod chunks;
mod compare;
mod erased;
mod extensions;
mod files;
pub mod flat;
mod jobs;
mod view;

pub use chunks::{ChunkAnswer, ChunkId, ChunkServer, OpenedChunk, StateChunks};
pub use compare::compare_rows;
pub use erased::{AnyBackend, AnyCache};
pub use extensions::{
    AccountNodes, AccountProofs, PartialState, PartialTree, Prefetcher, ProofHole, ProofShards,
    ProvenanceQueries, StateHistory,
};
pub use files::{is_out_of_descriptors, open_with_retry};
pub use jobs::{BackgroundJob, JobContext, JobHandle, JobOutput, JobRunner};
pub(crate) use view::check_file_name;
pub use view::{
    BulkSink, KeyRange, NodeRead, NodeWrite, RowScan, RowTable, ScanDirection, TableRow, prefix_end,
};

use crate::{BackendIdentity, ProofError, StateDelta, StateError, StateKey, StateValue};
use alloy_primitives::{Address, B256, Bytes};
use std::path::Path;

/// What a backend can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendCapabilities {
    /// Whether the state is authenticated at all: a root and proofs.
    pub proofs: bool,
    /// Whether absence can be proven.
    pub absence_proofs: bool,
    /// Whether the root is a function of the logical state alone, not of its history.
    pub state_determined_root: bool,
    /// Whether the root is the one that Ethereum headers carry.
    pub ethereum_root: bool,
}

/// What `apply` gets beside the view.
#[derive(Debug)]
pub struct ApplyContext<'a> {
    /// Number of the block that is applied.
    pub number: u64,
    /// Root of its parent ([`B256::ZERO`] for the first block).
    pub parent_root: B256,
    /// Background work.
    pub jobs: &'a JobRunner,
}

/// What `apply` returns.
#[derive(Clone)]
pub struct ApplyOutput<C> {
    /// Root of the new state.
    pub root: B256,
    /// Decoded structure of the new state.
    pub cache: C,
}

impl<C> core::fmt::Debug for ApplyOutput<C> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ApplyOutput").field("root", &self.root).finish_non_exhaustive()
    }
}

/// The part of an older block's cache that stays in memory ([`Backend::compact_cache`]).
#[derive(Clone)]
pub struct CompactedCache<C> {
    /// A cache of the same block.
    pub cache: C,
    /// About how many bytes it takes, without what it shares with the caches of neighbouring
    /// blocks.
    pub bytes: u64,
}

impl<C> core::fmt::Debug for CompactedCache<C> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("CompactedCache").field("bytes", &self.bytes).finish_non_exhaustive()
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
    pub fn count(view: &dyn NodeRead, tables: &[RowTable]) -> Result<Self, StateError> {
        let count = |table: &RowTable| {
            let rows = view.scan(*table, KeyRange::ALL, ScanDirection::Forward)?;
            Ok((table.name, rows.map(|row| row.map(|_| 1u64)).sum::<Result<u64, _>>()?))
        };
        let tables = tables.iter().map(count).collect::<Result<_, StateError>>()?;
        Ok(Self { tables, ..Self::default() })
    }

    /// Rows of a table that has been counted; 0 if it has not.
    pub fn rows(&self, table: RowTable) -> u64 {
        self.tables.iter().find(|(name, _)| *name == table.name).map_or(0, |(_, rows)| *rows)
    }
}

/// A state store's algorithm: plain code over a key-value view.
///
/// A backend never opens a transaction and does not handle forks, undo, crashes or the journal: the
/// framework ([`StateStore`](crate::StateStore)) gives it a view of the parent's state, takes its
/// writes, and does the rest for every backend alike. A backend must keep these rules (the
/// `testkit` checks them):
///
/// 1. **Purity.** `apply` depends on nothing but the view, the parent's cache, the block number and
///    the delta: never on time, thread scheduling, hash-map order or earlier calls. The exceptions
///    are rows on which no root, value or proof depends: background work may add and remove them at
///    any block (clean-up).
/// 2. **Caches belong to a block.** [`Cache`](Self::Cache) is the decoded in-memory structure of
///    one block's state. `open` rebuilds it from the view alone; `apply` returns the child's cache
///    and leaves the parent's unchanged.
/// 3. **Persisted inputs.** If the root depends on more than the logical state, the view holds all
///    that it depends on.
/// 4. **Jobs publish at blocks.** The output of background work enters the state only at the block
///    that the backend's own rules name, never when a thread happens to finish (except for the rows
///    of rule 1). The cache holds the handle of a job under way. The view holds what is needed to
///    start the job again, and the first `apply` after an opening does so.
/// 5. **Files are immutable.** A file is whole and fsynced before the block that names it is
///    finished ([`JobRunner::write_file`]). A cache that reads a file keeps the file open, or its
///    content in memory, as readers may outlive the file.
pub trait Backend: Send + Sync + 'static {
    /// The decoded in-memory structure of one block's state; `()` for backends that need none.
    ///
    /// It also holds the [handles](JobHandle) of jobs under way at that block: they live as long as
    /// a proposal or the durable tip holds the cache.
    type Cache: Send + Sync + 'static;

    /// Name, format version, hash function and parameters.
    fn identity(&self) -> &BackendIdentity;

    /// What it can do.
    fn capabilities(&self) -> BackendCapabilities;

    /// Its tables, including shared ones (the [flat state](crate::flat)).
    fn tables(&self) -> Vec<RowTable>;

    /// Root of the empty state.
    fn empty_root(&self) -> B256;

    /// Rebuilds the cache of the state that `view` shows, which may be empty; `dir` has the files
    /// that the state names. It starts no jobs: readers of old blocks open states too.
    fn open(&self, view: &dyn NodeRead, dir: Option<&Path>) -> Result<Self::Cache, StateError>;

    /// How many caches of durable blocks, at and below the tip, the framework keeps beside the
    /// caches of proposals, so that reads and proofs below the tip need not open one. A backend
    /// whose cache shares most of its content with the parent's cache names a larger number.
    fn retained_caches(&self) -> usize {
        8
    }

    /// Compacts a cache that is older than [`retained_caches`](Self::retained_caches), so that
    /// proofs of its block take no longer than proofs of the tip. The framework keeps it as long as
    /// the block can be read, and as far as all compacted caches fit into
    /// [`compacted_cache_bytes`](Self::compacted_cache_bytes). It works wherever the full cache
    /// does, though a block on top of it, in a deep reorganisation, may take longer. It holds no
    /// job. `None` if [`open`](Self::open) is as good.
    fn compact_cache(&self, cache: &Self::Cache) -> Option<CompactedCache<Self::Cache>> {
        let _ = cache;
        None
    }

    /// Memory limit in bytes for all [compacted](Self::compact_cache) caches; shared parts count
    /// once.
    fn compacted_cache_bytes(&self) -> u64 {
        0
    }

    /// Names of files that the jobs under way in the state that `view` shows may have finished
    /// already, though no block names them yet. The framework keeps these files at a reopening.
    /// Their names must contain the digest of the job's inputs. A job that finds such a file checks
    /// that it is complete before it uses it.
    fn pending_files(&self, view: &dyn NodeRead) -> Result<Vec<String>, StateError> {
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
    ) -> Result<ApplyOutput<Self::Cache>, StateError>;

    /// Whether [`apply`](Self::apply) of the sum of consecutive deltas, under the number of the
    /// last block, has the same effect as applying the blocks one by one: the same root, values,
    /// proofs and later blocks. This is so if the root depends on the state alone, and the backend
    /// keeps nothing of the states between.
    fn applies_batches(&self) -> bool {
        self.capabilities().state_determined_root
            && self.history().is_none()
            && self.provenance().is_none()
    }

    /// Does the backend's maintenance beside the blocks. It removes rows that no state from block
    /// `first_retained` on can see: rows that only older states needed, or that a background job
    /// has moved. It may also write rows in advance that a later block will publish, and that no
    /// state reads before that block.
    ///
    /// Every commit calls it once. `view` and `cache` are those of the new durable tip. The writes
    /// join the commit's journal but have no undo, so they must not change what any retained state
    /// reads or proves, nor the root of a later block. It publishes and retires no files. It writes
    /// about `budget` rows at most; the rest waits for the next commit. If it fails, none of its
    /// writes is kept, and the commit goes on, unless the error comes from the store underneath
    /// ([`StateError::Store`]).
    fn maintain(
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
    ) -> Result<Option<StateValue>, StateError> {
        let _ = cache;
        flat::get(view, key)
    }

    /// The slots of `address` that are set, in slot order, at most `limit`. It reads no more than
    /// `limit` requires: a caller asks for one slot to learn whether an account has storage.
    fn slots_of(
        &self,
        view: &dyn NodeRead,
        cache: &Self::Cache,
        address: &Address,
        limit: usize,
    ) -> Result<Vec<(B256, StateValue)>, StateError> {
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
    ) -> Result<Vec<(StateKey, StateValue)>, StateError> {
        let _ = cache;
        flat::entries(view, start, limit)
    }

    /// Loads a whole state, sorted by key, as block `number`; returns its root, which is the one
    /// that [`apply`](Self::apply) of the same entries on the empty state gives.
    fn bulk_load(
        &self,
        number: u64,
        entries: &mut dyn Iterator<Item = Result<(StateKey, StateValue), StateError>>,
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
    ) -> Result<Vec<Option<StateValue>>, ProofError>;

    /// Counts its content.
    fn stats(&self, view: &dyn NodeRead, cache: &Self::Cache) -> Result<BackendStats, StateError>;

    /// Whether it holds only canonical accounts and slots, and slots only below accounts, rather
    /// than any bytes under any key.
    fn ethereum_state_only(&self) -> bool {
        self.capabilities().ethereum_root
    }

    /// The extension that prepares roots ahead of the delta, if the backend has it. A backend that would
    /// prefetch no more than [`read`](Self::read) of the same keys does has none.
    fn prefetcher(&self) -> Option<&dyn Prefetcher<Self::Cache>> {
        None
    }

    /// The extension that reads and proves the state of any old block, if the backend has it.
    fn history(&self) -> Option<&dyn StateHistory<Self::Cache>> {
        None
    }

    /// Checks the backend's own rows against each other, against `root`, the recorded root of this
    /// state, and, where they depend on the values alone, against the rows of `rebuilt`. `rebuilt`
    /// is the same state, loaded from its values; it is given if the root is
    /// [state-determined](BackendCapabilities::state_determined_root), and then the caller has
    /// already compared its root. Below the tip (`is_tip` is false) the backend need not check
    /// again what all states share. Faults go to `report`; an error ends the check.
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

    /// How large its caches may become, in bytes, without the rows that the framework bounds. A
    /// limit on the process's memory must leave room for them.
    fn cache_bytes(&self) -> u64 {
        0
    }

    /// The extension for nodes that keep only a part of what proofs need, if the backend has it.
    fn proof_shards(&self) -> Option<&dyn ProofShards<Self::Cache>> {
        None
    }

    /// The extension that shows and proves the values of keys over a range of blocks, if the
    /// backend has it.
    fn provenance(&self) -> Option<&dyn ProvenanceQueries<Self::Cache>> {
        None
    }

    /// The extension that proves accounts in the form of EIP-1186, if the backend has it.
    fn account_proofs(&self) -> Option<&dyn AccountProofs<Self::Cache>> {
        None
    }

    /// The extension that serves a whole state in chunks that prove themselves, if the backend has
    /// it.
    fn chunks(&self) -> Option<&dyn StateChunks<Self::Cache>> {
        None
    }

    /// The extension that opens a partial state from the nodes of a witness, if the backend has it.
    fn partial_state(&self) -> Option<&dyn PartialState> {
        None
    }
}
