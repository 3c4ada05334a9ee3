//! Typed errors of the contract.

use crate::BlockRef;
use alloc::{borrow::Cow, boxed::Box, format, string::String};
use alloy_primitives::B256;
use core::ops::RangeInclusive;

/// Why a state operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The parent is neither durable within the retention depth nor a live proposal.
    #[error(
        "state of block {hash} is not known: it is neither a live proposal nor one of the durable \
         blocks still retained; import its ancestors first"
    )]
    UnknownBlock {
        /// Hash asked for.
        hash: B256,
    },
    /// The block asked for lies below the undo window.
    #[error(
        "block {number} lies below the retention window, which starts at block {first} (depth \
         {retention})"
    )]
    BeyondRetention {
        /// Block asked for.
        number: u64,
        /// Oldest block that can still be reached.
        first: u64,
        /// Configured depth in blocks.
        retention: u64,
    },
    /// The history does not have the state of the block asked for.
    #[error("the history has no state of block {number}: it has {}", blocks(kept))]
    NotInHistory {
        /// Block asked for.
        number: u64,
        /// The blocks it has; `None` while the state is empty.
        kept: Option<RangeInclusive<u64>>,
    },
    /// The range of blocks asked for is empty.
    #[error("there is no block from {from} to {to}: the first must not be above the last")]
    NoBlocks {
        /// First block asked for.
        from: u64,
        /// Last block asked for.
        to: u64,
    },
    /// The block asked for lies before the flat history.
    #[error(
        "block {number} lies before the history of states that is kept, which begins at block \
         {first}"
    )]
    BeyondHistory {
        /// Block asked for.
        number: u64,
        /// First block that can be asked for.
        first: u64,
    },
    /// The block to revert to lies above the tip.
    #[error("cannot revert to block {number}: it lies above the durable tip {tip}")]
    AboveTip {
        /// Block asked for.
        number: u64,
        /// The durable tip.
        tip: BlockRef,
    },
    /// The proposals given to commit do not extend the durable tip one after the other.
    #[error("block {number} cannot be committed: it does not extend the durable tip {tip}")]
    NotOnTip {
        /// Number of the first proposal that does not fit.
        number: u64,
        /// The durable tip, or the proposal before it.
        tip: BlockRef,
    },
    /// A proposal given to commit has no block hash.
    #[error(
        "proposal of block {number} was never sealed with a block hash, so it cannot be committed"
    )]
    Unsealed {
        /// Its number.
        number: u64,
    },
    /// A commit failed half-way; memory and disk may disagree.
    #[error(
        "the state store is poisoned by a failed commit; reopen the datadir (nothing committed is lost)"
    )]
    Poisoned,
    /// The state already holds blocks where an empty one is needed.
    #[error("the state is not empty (tip {tip}); initialise a fresh datadir")]
    NotEmpty {
        /// Its tip.
        tip: BlockRef,
    },
    /// The persisted content contradicts itself.
    #[error("{table}: {what}; restore the datadir or import again")]
    Corrupt {
        /// Table or file.
        table: String,
        /// What is wrong, with the key.
        what: String,
    },
    /// A node that is needed is not part of a partial state.
    #[error("the partial state lacks {what}; the witness is incomplete")]
    MissingWitness {
        /// Which node or value.
        what: String,
    },
    /// The state has only the hashes of keys.
    #[error("{what}: this datadir has the hashes of keys alone (keys: hashed)")]
    HashedKeys {
        /// What cannot be said.
        what: String,
    },
    /// The backend makes no block witness, at all or of this block.
    #[error("backend {backend} has no witness of this block: {why}")]
    NoWitness {
        /// Backend name.
        backend: &'static str,
        /// Why not.
        why: &'static str,
    },
    /// The backend does not have this extension.
    #[error("backend {backend} does not support {what}")]
    Unsupported {
        /// Backend name.
        backend: &'static str,
        /// The extension.
        what: &'static str,
    },
    /// A proof needs parts that this node does not keep.
    #[error(
        "this node keeps proof shard {kept}, and {what} lies in shard {needed}; ask a node that keeps that one"
    )]
    OutsideShard {
        /// The part of the proof that is needed.
        what: String,
        /// The shard that holds the part.
        needed: String,
        /// The shard that this node keeps.
        kept: String,
    },
    /// A counter of the backend's format has reached its largest value.
    #[error("{what} has reached {limit}, the largest number that backend {backend} can hold")]
    Exhausted {
        /// Backend name.
        backend: &'static str,
        /// What was counted, with the key.
        what: String,
        /// The largest value.
        limit: u64,
    },
    /// A background job failed.
    #[error(
        "background job {job} failed: {reason}; no block that needs it can be added until it succeeds, \
         all that is stored can still be read, and it runs again when the block comes again"
    )]
    Job {
        /// Job name.
        job: String,
        /// The job's error.
        reason: String,
    },
    /// The store underneath failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn blocks(kept: &Option<RangeInclusive<u64>>) -> Cow<'static, str> {
    match kept {
        None => "none".into(),
        Some(kept) => format!("blocks {} to {}", kept.start(), kept.end()).into(),
    }
}

impl StateError {
    /// The error for persisted content of `table` that cannot be right.
    pub fn corrupt(table: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Corrupt { table: table.into(), what: what.into() }
    }
}

/// A failure of the durable key-value store or of a state file.
#[derive(Debug, thiserror::Error)]
#[error("{action} failed: {source}")]
pub struct StoreError {
    /// What was attempted, naming table or file.
    pub action: String,
    /// The cause.
    pub source: Box<dyn core::error::Error + Send + Sync>,
}

impl StoreError {
    /// Wraps `source`, saying what was attempted.
    pub fn new(
        action: impl Into<String>,
        source: impl Into<Box<dyn core::error::Error + Send + Sync>>,
    ) -> Self {
        Self { action: action.into(), source: source.into() }
    }
}

/// Why a proof was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProofError {
    /// The proof was made by another backend, version, hash function or parameter set.
    #[error("the proof is of another kind: {what}")]
    WrongKind {
        /// Which field differs.
        what: &'static str,
    },
    /// The bytes do not parse canonically.
    #[error("the proof is malformed: {what}")]
    Malformed {
        /// Which part.
        what: &'static str,
    },
    /// The proof does not lead to the root.
    #[error("the proof does not match the root")]
    RootMismatch,
    /// A needed part is missing.
    #[error("the proof lacks a part needed for {what}")]
    Missing {
        /// For what.
        what: &'static str,
    },
    /// The proof has a part that the asked keys do not need.
    #[error("the proof holds parts that the asked keys do not need")]
    Unused,
}
