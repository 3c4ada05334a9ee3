//! Optional extensions: what only some backends can do.
//!
//! An extension works on caches of its own backend, which it gets as [`AnyCache`];
//! [`AnyCache::get`] gives such a cache its type.

use super::{AnyCache, NodeRead, NodeWrite, StateChunks, StateRanges, WitnessSupport};
use crate::{
    AccountKey, BackendDelta, BackendKey, ProofError, StateDelta, StateError, StateReader,
    StateValue, ValueVersion,
};
use alloy_primitives::{B256, Bytes};
use std::{fmt, ops::RangeInclusive, sync::Arc};

#[cfg(doc)]
use super::Backend;

/// The extensions of a backend. `Default` is none.
#[derive(Clone, Copy, Default)]
pub struct BackendExtensions<'a> {
    /// Prepares roots ahead of the delta. A backend that would prefetch no more than
    /// [`read`](Backend::read) of the same keys does has none.
    pub prefetcher: Option<&'a dyn Prefetcher>,
    /// Removes and writes rows beside the blocks.
    pub maintenance: Option<&'a dyn Maintenance>,
    /// Compacts the caches of older blocks.
    pub cache_compaction: Option<&'a dyn CacheCompaction>,
    /// Names the files of unfinished jobs.
    pub job_files: Option<&'a dyn JobFiles>,
    /// Reads and proves the state of any old block.
    pub history: Option<&'a dyn StateHistory>,
    /// Shows and proves the values of keys over a range of blocks.
    pub provenance: Option<&'a dyn ProvenanceQueries>,
    /// Keeps only a part of what proofs need.
    pub proof_shards: Option<&'a dyn ProofShards>,
    /// Proves accounts in the form of EIP-1186.
    pub account_proofs: Option<&'a dyn AccountProofs>,
    /// Proves parts of contract codes beside values.
    pub code_proofs: Option<&'a dyn CodeProofs>,
    /// Serves a whole state in chunks that prove themselves.
    pub chunks: Option<&'a dyn StateChunks>,
    /// Serves the leaves and nodes of Ethereum's tries.
    pub ranges: Option<&'a dyn StateRanges>,
    /// Opens a partial state from the nodes of a witness.
    pub partial_state: Option<&'a dyn PartialState>,
    /// Makes block witnesses, or says why it makes none.
    pub witnesses: WitnessSupport<'a>,
}

impl fmt::Debug for BackendExtensions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackendExtensions").finish_non_exhaustive()
    }
}

/// A part of a contract code: its chunks with these numbers, in ascending order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodePart {
    /// The whole code, for the prover; a verifier takes from it the chunks alone.
    pub code: Bytes,
    /// Numbers of chunks.
    pub chunks: Vec<u32>,
}

/// Optional extension of a backend whose root commits to contract codes in chunks, not only to their
/// hashes: one proof shows values and parts of codes.
pub trait CodeProofs: Send + Sync {
    /// Bytes of code in one chunk.
    fn chunk_bytes(&self) -> usize;

    /// One proof of the values of `keys` and of `codes`, which accounts of this state have.
    ///
    /// # Errors
    /// [`StateError::Corrupt`] also if a chunk is absent, as a chunk of zeros is, and only a chunk of
    /// another code, which is not at hand, could show that.
    fn prove_with_codes(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        keys: &[BackendKey],
        codes: &[CodePart],
    ) -> Result<Bytes, StateError>;

    /// The values of `keys` under `root`, if `proof` shows these and `codes`.
    ///
    /// # Errors
    /// As [`verify`](super::Backend::verify); also if the tree has other chunks.
    fn verify_with_codes(
        &self,
        root: B256,
        keys: &[BackendKey],
        codes: &[CodePart],
        proof: &[u8],
    ) -> Result<Vec<Option<StateValue>>, ProofError>;
}

/// Optional extension of a backend with work beside the blocks.
pub trait Maintenance: Send + Sync {
    /// Does the backend's maintenance. It removes rows that no state from block `first_retained` on
    /// can see: rows that only older states needed, or that a background job has moved. It may also
    /// write rows in advance that a later block will publish, and that no state reads before that
    /// block.
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
        cache: &AnyCache,
        first_retained: u64,
        budget: usize,
    ) -> Result<(), StateError>;
}

/// Optional extension of a backend that can make the caches of older blocks small.
pub trait CacheCompaction: Send + Sync {
    /// How many caches of durable blocks, at and below the tip, the framework keeps whole beside
    /// the caches of proposals (8 without this extension), so that reads and proofs below the tip
    /// need not open one. A backend whose cache shares most of its content with the parent's cache
    /// names a larger number.
    fn retained_caches(&self) -> usize;

    /// Compacts a cache that is older than [`retained_caches`](Self::retained_caches), so that
    /// proofs of its block take no longer than proofs of the tip. The framework keeps it as long as
    /// the block can be read, and as far as all compacted caches fit into
    /// [`compacted_cache_bytes`](Self::compacted_cache_bytes). It works wherever the full cache
    /// does, though a block on top of it, in a deep reorganisation, may take longer. It holds no
    /// job. `None` if [`open`](Backend::open) is as good.
    fn compact_cache(&self, cache: &AnyCache) -> Option<CompactedCache>;

    /// Memory limit in bytes for all [compacted](Self::compact_cache) caches; shared parts count
    /// once.
    fn compacted_cache_bytes(&self) -> u64;
}

/// The part of an older block's cache that stays in memory ([`CacheCompaction`]).
#[derive(Clone, Debug)]
pub struct CompactedCache {
    /// A cache of the same block.
    pub cache: AnyCache,
    /// About how many bytes it takes, without what it shares with the caches of neighbouring
    /// blocks.
    pub bytes: u64,
}

/// Optional extension of a backend whose jobs write files.
pub trait JobFiles: Send + Sync {
    /// Names of files that the jobs under way in the state that `view` shows may have finished
    /// already, though no block names them yet. The framework keeps these files at a reopening.
    /// Their names must contain the digest of the job's inputs. A job that finds such a file checks
    /// that it is complete before it uses it.
    fn pending_files(&self, view: &dyn NodeRead) -> Result<Vec<String>, StateError>;
}

/// Optional extension of a backend that prepares a block's root before the block's delta is there: it
/// prefetches what the root needs beside values, and computes parts of the root.
///
/// Its methods work on the state of the block's parent and change nothing but caches.
/// [`apply`](Backend::apply) has the same result with and without them, so they report no errors.
pub trait Prefetcher: Send + Sync {
    /// Loads into the caches what the root needs if the block writes `keys`. The caller has read the
    /// values of `keys` in this state, or does not need them. Any number of threads may call it at
    /// once.
    fn prefetch(&self, view: &dyn NodeRead, cache: &AnyCache, keys: &[BackendKey]);

    /// Prepares parts of the root from `writes`, which the block has made since the last call. One
    /// thread at a time calls it for each block. The writes may be incomplete, later writes may
    /// replace them, and the block may never be applied.
    fn prepare_root(&self, view: &dyn NodeRead, cache: &AnyCache, writes: &BackendDelta) {
        let _ = (view, cache, writes);
    }

    /// Whether [`prepare_root`](Self::prepare_root) does anything. Only then is it called.
    fn prepares_root(&self) -> bool {
        false
    }
}

/// Optional extension of a backend that keeps the state of every block.
///
/// Its methods work on the view of a later block, usually the durable tip. Rows that lead to old
/// states belong to the block that wrote them, like all rows: a revert removes them, and a view
/// shows the history of its own chain.
pub trait StateHistory: Send + Sync {
    /// Numbers of the blocks whose state `view` has, including its own block; `None` on the empty
    /// state.
    fn kept(&self, view: &dyn NodeRead) -> Result<Option<RangeInclusive<u64>>, StateError>;

    /// Whether the backend forgets old blocks as new ones come, so that the first
    /// [kept](Self::kept) block moves. If it returns false, earlier openings may still have
    /// forgotten some.
    fn prunes(&self) -> bool {
        false
    }

    /// Whether old states are proven under the root of the view that they are opened from, instead
    /// of under their own root. [`ProvenanceQueries`], which such a backend also has, verifies
    /// these proofs.
    fn proven_by_view(&self) -> bool {
        false
    }

    /// Root and cache of the state of block `number`, which must be [kept](Self::kept). `cache` is
    /// the cache of `view`. The root is also that of `view` if old states are [proven by
    /// it](Self::proven_by_view). With the returned cache and the same `view`,
    /// [`read`](crate::Backend::read), [`slots_of`](crate::Backend::slots_of),
    /// [`entries`](crate::Backend::entries) and [`prove`](crate::Backend::prove) answer for that
    /// block.
    fn open_at(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        number: u64,
    ) -> Result<(B256, AnyCache), StateError>;
}

/// Optional extension of a backend that shows, under one root, the values of keys over a range of
/// older blocks (provenance queries, COLE 6.2).
///
/// The *versions* of a key in a range of blocks are the values set after the range's first block,
/// and the value in force at the first block, if the key ever had one up to there; newest first.
/// Each [change](crate::StateChange) of a block sets a version. The range `n..=n` gives the state
/// after block n.
pub trait ProvenanceQueries: Send + Sync {
    /// The versions of each of `keys` in `blocks`, and the proof of all of them together. The
    /// proof leads to the root of the state that `view` and `cache` show.
    fn versions(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        keys: &[BackendKey],
        blocks: RangeInclusive<u64>,
    ) -> Result<(Vec<Vec<ValueVersion>>, Bytes), StateError>;

    /// The pure verifier: the versions of each of `keys` in `blocks` under `root`. `root` must
    /// belong to a block at or after the end of the range.
    fn verify_versions(
        &self,
        root: B256,
        keys: &[BackendKey],
        blocks: RangeInclusive<u64>,
        proof: &[u8],
    ) -> Result<Vec<Vec<ValueVersion>>, ProofError>;
}

/// Optional extension: proofs whose parts come from many nodes. Each node has the whole state but
/// keeps only one shard of the data that proofs need (LVMT 3.3). [`Backend::prove`] gives only
/// complete proofs, and fails with [`StateError::OutsideShard`] if this node lacks a part.
pub trait ProofShards: Send + Sync {
    /// The shard that this node keeps, as on the command line.
    fn shard(&self) -> String;

    /// As much of the proof of `keys` as this node has. Parts for the same keys in the same state
    /// fit together.
    fn prove_part(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        keys: &[BackendKey],
    ) -> Result<Bytes, StateError>;

    /// What the given parts of the proof of `keys`, in any order, still lack together; empty if the
    /// proof is complete.
    ///
    /// # Errors
    /// A [`ProofError`] if they are not canonical, or do not belong together.
    fn holes(&self, keys: &[BackendKey], parts: &[Bytes]) -> Result<Vec<ProofHole>, ProofError>;

    /// Whether a node that keeps `shard` (a name as of [`shard`](Self::shard)) should be able to
    /// fill `hole`. It may still lack the part if it has kept that shard for a short time only.
    fn fills(&self, shard: &str, hole: &ProofHole) -> bool;

    /// Checks one `part` of the proof of `keys` from another node, against the state that `view`
    /// and `cache` show, and against `own`, this node's result of [`prove_part`](Self::prove_part).
    /// An accepted part is, byte for byte, what an honest node with these holes gives.
    ///
    /// It costs about as much as [`verify`](crate::Backend::verify). If the combined parts do not
    /// verify, it shows which node's part is wrong.
    ///
    /// # Errors
    /// [`StateError`] if the state cannot be read; within, a [`ProofError`] if the part is wrong.
    fn check_part(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        keys: &[BackendKey],
        own: &Bytes,
        part: &Bytes,
    ) -> Result<Result<(), ProofError>, StateError>;

    /// Combines the parts of one proof, given in any order.
    ///
    /// # Errors
    /// [`ProofError::Missing`] if the proof is incomplete, [`ProofError::Malformed`] if the parts
    /// do not belong together.
    fn combine(&self, parts: &[Bytes]) -> Result<Bytes, ProofError>;
}

/// An item that a part of a proof lacks. The backend defines what it is and which shard has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProofHole {
    /// Its kind, for messages.
    pub what: &'static str,
    /// Its number within this kind.
    pub number: u64,
}

impl fmt::Display for ProofHole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.what, self.number)
    }
}

/// Optional extension of backends with Ethereum's root: proofs of single accounts for
/// `eth_getProof` (EIP-1186).
pub trait AccountProofs: Send + Sync {
    /// The trie nodes that prove `account` and its `slots`, both in the form of the store,, present or absent.
    fn account_nodes(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        account: &AccountKey,
        slots: &[B256],
    ) -> Result<AccountNodes, StateError>;

    /// The trie nodes that branches may merge with when the keys `removed` are removed together.
    /// Computing the root after the removal needs them beside the proofs of the removed keys.
    fn merge_nodes(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        removed: &[BackendKey],
    ) -> Result<Vec<Bytes>, StateError>;
}

/// The trie nodes of an EIP-1186 proof, in RLP, each list from its root down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountNodes {
    /// Root of the account's storage trie; the empty trie's root if there is no account.
    pub storage_root: B256,
    /// From the state root to the account, or to the node that proves its absence.
    pub account: Vec<Bytes>,
    /// For each slot, in the order asked for, from the storage root to the slot, or to the node
    /// that proves its absence; no nodes if the storage is empty.
    pub storage: Vec<Vec<Bytes>>,
}

/// Optional extension: opens a partial state from the nodes of a witness (MPT family).
pub trait PartialState: Send + Sync {
    /// The part of the state under `root` that `nodes` (any order, duplicates allowed) show.
    fn open_witness(&self, root: B256, nodes: &[Bytes])
    -> Result<Arc<dyn PartialTree>, StateError>;

    /// As [`open_witness`](Self::open_witness), to check the witness itself: what is read from the
    /// state, and computed from it, is noted node by node.
    fn audit_witness(&self, root: B256, nodes: &[Bytes]) -> Result<WitnessAudit, StateError>;
}

/// A witness that was opened to be checked.
#[derive(Clone)]
pub struct WitnessAudit {
    /// Its state.
    pub tree: Arc<dyn PartialTree>,
    /// What became of its nodes, in `tree` and in all states that follow from it.
    pub nodes: Arc<dyn NodeAudit>,
}

impl fmt::Debug for WitnessAudit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WitnessAudit").field("root", &self.tree.root()).finish_non_exhaustive()
    }
}

/// Notes which nodes of a witness are used.
pub trait NodeAudit: Send + Sync {
    /// The use of each node so far, in the order in which the nodes were given. Equal nodes have
    /// equal uses.
    fn uses(&self) -> Vec<NodeUse>;
}

/// What became of a node of a witness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeUse {
    /// Something was read from it, or a root was computed from it; or it is the root.
    Read,
    /// The root leads to it, and it was not needed.
    Unread,
    /// Neither the root nor any node that the root leads to names it.
    Unlinked,
    /// It is not a node of such a state.
    Malformed,
}

/// A partial state in memory. Reads outside it fail with [`StateError::MissingWitness`].
pub trait PartialTree: StateReader {
    /// Its root.
    fn root(&self) -> B256;

    /// The state after `delta`; `self` does not change.
    fn apply(&self, delta: &StateDelta) -> Result<Arc<dyn PartialTree>, StateError>;
}
