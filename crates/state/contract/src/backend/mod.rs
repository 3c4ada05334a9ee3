//! What a storage crate implements: [`Backend`], over a view of keyed rows.
//!
//! ```text
//!  Backend --NodeRead, NodeWrite--> rows of one state     (view)
//!          --flat-----------------> values of all keys    (flat), if it holds no values itself
//!          --JobRunner------------> work that outlives a block, and its files
//!  Backend::extensions() ---------> what only some backends can do        (extensions)
//!  AnyBackend, AnyCache             a backend with its cache type erased  (erased)
//! ```

mod chunks;
mod compare;
mod erased;
mod extensions;
mod files;
pub mod flat;
mod jobs;
mod lookups;
mod ranges;
mod view;
mod witness;

pub use chunks::{ChunkAnswer, ChunkId, ChunkServer, OpenedChunk, StateChunks};
pub use compare::compare_rows;
pub use erased::{AnyBackend, AnyCache};
pub use extensions::{
    AccountNodes, AccountProofs, BackendExtensions, CacheCompaction, CodePart, CodeProofs,
    CompactedCache, JobFiles, Maintenance, NodeAudit, NodeUse, PartialState, PartialTree,
    Prefetcher, ProofHole, ProofShards, ProvenanceQueries, StateHistory, WitnessAudit,
};
pub use files::open_with_retry;
pub use jobs::{BackgroundJob, JobContext, JobHandle, JobOutput, JobRunner, lower_thread_priority};
pub use lookups::{CacheLookups, LookupCounter};
pub use ranges::{
    AccountPostValues, ChunkPlace, RangeAnswer, RangeChanges, RangeFormat, RangeServer,
    StateRanges, StateTrie, TrieLeaf,
};
pub use view::{
    BulkSink, BulkSorter, KeyRange, NodeRead, NodeWrite, RowScan, RowTable, ScanDirection,
    SortedRecords, TableRow, prefix_end,
};
pub use witness::{WitnessMaker, WitnessRequest, WitnessSupport};

use crate::{
    AccountKey, BackendDelta, BackendIdentity, BackendKey, ProofError, StateError, StateValue,
};
use alloy_primitives::{B256, Bytes};
use std::path::Path;

/// The constant facts of a backend. `Default` is a backend without tables, root and proofs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackendProfile {
    /// Its tables, including shared ones (the [flat state](crate::flat)).
    pub tables: &'static [RowTable],
    /// Root of the empty state.
    pub empty_root: B256,
    /// Whether the state is authenticated at all: a root and proofs.
    pub proofs: bool,
    /// Whether absence can be proven.
    pub absence_proofs: bool,
    /// Whether the root is a function of the logical state alone, not of its history.
    pub state_determined_root: bool,
    /// Whether the root is that of Ethereum's Merkle Patricia trie, which headers carry.
    pub ethereum_root: bool,
    /// Whether its root, over plain keys, is the one of the partitioned binary tree (EIP-8297),
    /// which headers carry from a chain's `binaryTrieTime` on.
    pub binary_root: bool,
    /// Whether it holds only canonical accounts and slots, and slots only below accounts, rather
    /// than any bytes under any key. Balances may have to be below 2^128, as Ethereum's are.
    pub ethereum_state_only: bool,
    /// Whether its root depends on the codes of accounts. Such a backend gets them with deltas
    /// ([`StateDelta::codes`](crate::StateDelta::codes)) and bulk loads ([`BulkSink::code`]).
    pub needs_codes: bool,
    /// How large its caches may become, in bytes, without the rows that the framework bounds. A
    /// limit on the process's memory must leave room for them.
    pub cache_bytes: u64,
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
/// framework (`StateStore` of `retrie-state-store`) gives it a view of the parent's state, takes its
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
/// 5. **Files are immutable.** A file gets its name when it is whole and fsynced, and the directory
///    is fsynced before the block that names it is finished. So jobs write under a temporary name,
///    which no block names, and rename the file. A cache that reads a file keeps the file open, or
///    its content in memory, as readers may outlive the file.
pub trait Backend: Send + Sync + 'static {
    /// The decoded in-memory structure of one block's state; `()` for backends that need none.
    ///
    /// It also holds the [handles](JobHandle) of jobs under way at that block: they live as long as
    /// a proposal or the durable tip holds the cache.
    type Cache: Send + Sync + 'static;

    /// Name, format version, hash function and parameters.
    fn identity(&self) -> &BackendIdentity;

    /// Its tables, its empty root, and what it can do.
    fn profile(&self) -> BackendProfile;

    /// Rebuilds the cache of the state that `view` shows, which may be empty; `dir` has the files
    /// that the state names. It starts no jobs: readers of old blocks open states too.
    fn open(&self, view: &dyn NodeRead, dir: Option<&Path>) -> Result<Self::Cache, StateError>;

    /// Applies one block's delta. The view reads its own writes.
    fn apply(
        &self,
        context: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        cache: &Self::Cache,
        delta: &BackendDelta,
    ) -> Result<ApplyOutput<Self::Cache>, StateError>;

    /// The value of `key`; from the [flat state](flat), if the backend keeps that.
    fn read(
        &self,
        view: &dyn NodeRead,
        cache: &Self::Cache,
        key: &BackendKey,
    ) -> Result<Option<StateValue>, StateError> {
        let _ = cache;
        flat::get(view, key)
    }

    /// The slots of `account` that are set, in slot order, at most `limit`. It reads no more than
    /// `limit` requires: a caller asks for one slot to learn whether an account has storage.
    fn slots_of(
        &self,
        view: &dyn NodeRead,
        cache: &Self::Cache,
        account: &AccountKey,
        limit: usize,
    ) -> Result<Vec<(B256, StateValue)>, StateError> {
        let _ = cache;
        flat::slots_of(view, account, limit)
    }

    /// All entries in key order from `start` on, at most `limit`. Serves migration and
    /// verification.
    fn entries(
        &self,
        view: &dyn NodeRead,
        cache: &Self::Cache,
        start: Option<&BackendKey>,
        limit: usize,
    ) -> Result<Vec<(BackendKey, StateValue)>, StateError> {
        let _ = cache;
        flat::entries(view, start, limit)
    }

    /// Loads a whole state, sorted by key, as block `number`; returns its root, which is the one
    /// that [`apply`](Self::apply) of the same entries on the empty state gives.
    fn bulk_load(
        &self,
        number: u64,
        entries: &mut dyn Iterator<Item = Result<(BackendKey, StateValue), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError>;

    /// Proof bytes for the values of `keys`, in the order given; a key may come twice. Without
    /// this method and [`verify`](Self::verify) a backend has no proofs.
    fn prove(
        &self,
        view: &dyn NodeRead,
        cache: &Self::Cache,
        keys: &[BackendKey],
    ) -> Result<Bytes, StateError> {
        let _ = (view, cache, keys);
        Err(StateError::Unsupported { backend: self.identity().name, what: "proofs" })
    }

    /// The pure verifier of this backend's proofs: the value of each key under `root`.
    fn verify(
        &self,
        root: B256,
        keys: &[BackendKey],
        proof: &[u8],
    ) -> Result<Vec<Option<StateValue>>, ProofError> {
        let _ = (root, keys, proof);
        Err(ProofError::WrongKind { what: "this backend has no proofs" })
    }

    /// Counts its content; by default the rows of its tables, where each row of the [flat
    /// state](flat) is a live key.
    fn stats(&self, view: &dyn NodeRead, cache: &Self::Cache) -> Result<BackendStats, StateError> {
        let _ = cache;
        let stats = BackendStats::count(view, self.profile().tables)?;
        Ok(BackendStats { live_keys: stats.rows(flat::TABLE), ..stats })
    }

    /// Checks the backend's own rows against each other, against `root`, the recorded root of this
    /// state, and, where they depend on the values alone, against the rows of `rebuilt`. `rebuilt`
    /// is the same state, loaded from its values; it is given if the root is
    /// [state-determined](BackendProfile::state_determined_root), and then the caller has already
    /// compared its root. Below the tip (`is_tip` is false) the backend need not check again what
    /// all states share. Faults go to `report`; an error ends the check.
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

    /// Lookups in its caches since it was made, on all states; none if it has no caches. Only work
    /// of blocks and reads of values has to be counted, not proofs.
    fn cache_lookups(&self) -> CacheLookups {
        CacheLookups::default()
    }

    /// What it can do beyond these methods; nothing by default.
    fn extensions(&self) -> BackendExtensions<'_> {
        BackendExtensions::default()
    }
}
