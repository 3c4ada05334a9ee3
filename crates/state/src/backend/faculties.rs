//! What some backends can do beside: their optional faculties.
//!
//! `C` is the backend's [`Cache`](Backend::Cache), the structure of the state that is asked.

use super::NodeRead;
use crate::{ProofError, StateDelta, StateError, StateKey, StateReader, Version};
use alloy_primitives::{Address, B256, Bytes};
use std::{fmt, ops::RangeInclusive, sync::Arc};

#[cfg(doc)]
use super::Backend;

/// The optional faculty of a backend that keeps the state of every block.
///
/// All of it works on the view of a later block, the durable tip as a rule. Rows by which old
/// states are found belong to the block that wrote them, like all rows: a revert takes them back,
/// and a view shows the history of its own chain.
pub trait History<C: ?Sized>: Send + Sync {
    /// Numbers of the blocks whose state `view` has, that of `view` itself included; `None` on the
    /// empty state.
    fn kept(&self, view: &dyn NodeRead) -> Result<Option<RangeInclusive<u64>>, StateError>;

    /// Whether old blocks are forgotten as new ones come, so that the first one that is
    /// [`kept`](Self::kept) moves. If it says no now, some may still have been forgotten before.
    fn prunes(&self) -> bool {
        false
    }

    /// Whether old states are proven under the root of the view that they are opened from, instead
    /// of under their own. The verifier of such proofs is that of
    /// [`Provenance`], which a backend then has.
    fn proven_by_view(&self) -> bool {
        false
    }

    /// Root and in-memory structure of the state of block `number`, which is one of
    /// [`kept`](Self::kept); `cache` is that of `view`, and so is the root, if old states are
    /// [proven by it](Self::proven_by_view). With this structure and the same `view`,
    /// [`read`](crate::Backend::read), [`slots_of`](crate::Backend::slots_of),
    /// [`entries`](crate::Backend::entries) and [`prove`](crate::Backend::prove) answer for that
    /// block.
    fn open_at(
        &self,
        view: &dyn NodeRead,
        cache: &C,
        number: u64,
    ) -> Result<(B256, Arc<C>), StateError>;
}

/// The optional faculty of a backend to show, under one root, what keys were over a range of
/// older blocks (COLE 6.2).
///
/// The *versions* of a key in a range of blocks are those set at its blocks but the first, and
/// the one in force at the first, if the key ever had a value up to there; newest first. Each
/// [change](crate::Change) of a block sets one. The range `n..=n` gives the state after block n.
pub trait Provenance<C: ?Sized>: Send + Sync {
    /// The versions of each of `keys` in `blocks`, and the proof of all of them together. The
    /// proof leads to the root of the state that `view` and `cache` show.
    fn versions(
        &self,
        view: &dyn NodeRead,
        cache: &C,
        keys: &[StateKey],
        blocks: RangeInclusive<u64>,
    ) -> Result<(Vec<Vec<Version>>, Bytes), StateError>;

    /// The pure verifier: the versions of each of `keys` in `blocks` under `root`, which must be
    /// that of a block not before the end of the range.
    fn verify_versions(
        &self,
        root: B256,
        keys: &[StateKey],
        blocks: RangeInclusive<u64>,
        proof: &[u8],
    ) -> Result<Vec<Vec<Version>>, ProofError>;
}

/// Proofs whose parts are spread over many nodes, each of which has the whole state but keeps the
/// means to prove a part of it (LVMT 3.3). [`Backend::prove`] gives whole proofs alone, and
/// [`StateError::OutsideShard`] where this node cannot.
pub trait ProofShards<C: ?Sized>: Send + Sync {
    /// What this node keeps, as on the command line.
    fn shard(&self) -> String;

    /// As much of the proof of `keys` as this node has; the same keys in the same state give parts
    /// that fit together.
    fn prove_part(
        &self,
        view: &dyn NodeRead,
        cache: &C,
        keys: &[StateKey],
    ) -> Result<Bytes, StateError>;

    /// What the parts of the proof of `keys` lack together, given in any order; nothing if they make
    /// a whole.
    ///
    /// # Errors
    /// A [`ProofError`] if they are not canonical, or do not belong together.
    fn holes(&self, keys: &[StateKey], parts: &[Bytes]) -> Result<Vec<ProofHole>, ProofError>;

    /// Whether a node that keeps `shard`, as [`shard`](Self::shard) names it, is to fill `hole`. It
    /// may still lack it, if it has kept that shard for a short time only.
    fn fills(&self, shard: &str, hole: &ProofHole) -> bool;

    /// Checks by itself a part of the proof of `keys` that another node gave, against the state
    /// that `view` and `cache` show, and `own`, the part that [`prove_part`](Self::prove_part) gave
    /// for it. What is accepted has no byte that could be another one: it is what an honest node
    /// with these holes gives.
    ///
    /// Costs about as much as [`verify`](crate::Backend::verify); where parts make a whole, that is
    /// cheaper, and this tells whose part is wrong.
    ///
    /// # Errors
    /// [`StateError`] if the state cannot be read; within, a [`ProofError`] if the part is wrong.
    fn check_part(
        &self,
        view: &dyn NodeRead,
        cache: &C,
        keys: &[StateKey],
        own: &Bytes,
        part: &Bytes,
    ) -> Result<Result<(), ProofError>, StateError>;

    /// Puts the parts of one proof together, given in any order.
    ///
    /// # Errors
    /// [`ProofError::Missing`] if they do not make a whole, [`ProofError::Malformed`] if they do
    /// not belong together.
    fn combine(&self, parts: &[Bytes]) -> Result<Bytes, ProofError>;
}

/// Something that a part of a proof lacks. What it is, and who fills it, its backend knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProofHole {
    /// Its kind, in words.
    pub what: &'static str,
    /// Which one of this kind.
    pub number: u64,
}

impl fmt::Display for ProofHole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.what, self.number)
    }
}

/// Proofs of single accounts as `eth_getProof` gives them (EIP-1186), from backends with Ethereum's
/// root.
pub trait AccountProofs<C: ?Sized>: Send + Sync {
    /// The trie nodes that prove the account at `address` and its `slots`, present or absent.
    fn account_nodes(
        &self,
        view: &dyn NodeRead,
        cache: &C,
        address: &Address,
        slots: &[B256],
    ) -> Result<AccountNodes, StateError>;

    /// The trie nodes that branches may merge with when the keys `removed` are removed together:
    /// what computing the root after a removal needs beyond the proofs of what is removed.
    fn merge_nodes(
        &self,
        view: &dyn NodeRead,
        cache: &C,
        removed: &[StateKey],
    ) -> Result<Vec<Bytes>, StateError>;
}

/// The trie nodes of an EIP-1186 proof, in RLP, each list from its root down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountNodes {
    /// Root of the account's storage trie, that of the empty trie if there is no account.
    pub storage_root: B256,
    /// From the state root to the account, or to where the way ends.
    pub account: Vec<Bytes>,
    /// For each slot, in the order asked for, from the storage root to the slot, or to where the
    /// way ends; none if the storage is empty.
    pub storage: Vec<Vec<Bytes>>,
}

/// Opens a partial state from the nodes of a witness (MPT family).
pub trait PartialState: Send + Sync {
    /// The state under `root` as far as `nodes` (any order, duplicates allowed) show it.
    fn open_witness(&self, root: B256, nodes: &[Bytes])
    -> Result<Arc<dyn PartialTree>, StateError>;
}

/// A partial state in memory. Reads outside of it fail with [`StateError::MissingWitness`].
pub trait PartialTree: StateReader {
    /// Its root.
    fn root(&self) -> B256;

    /// The state after `delta`, applied as one batch; this one stays as it was.
    fn apply(&self, delta: &StateDelta) -> Result<Arc<dyn PartialTree>, StateError>;
}
