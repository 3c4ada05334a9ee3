//! Why an import or a replay stopped. Every message names the block or file, and the cause.

use crate::{AnchorError, ImportedPreimages, MissingPreimages, RootKind};
use alloy_primitives::B256;
use retrie_chainspec::primitives::SealedHeader;
use retrie_consensus::ConsensusError;
use retrie_db::{DbError, ReadError, StorageError};
use retrie_execution::{CodeTraceError, ExecutionError};
use retrie_sources::{Bundle, RpcError, SourceError};
use retrie_state::{AccountKey, BlockRef, ProofError, StateError, StateKey, StoreError};
use std::path::PathBuf;

/// Why the pipeline stopped. Blocks before the named one are kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// A block file or bundle cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// An RPC node gave no usable answer.
    #[error(transparent)]
    Rpc(#[from] RpcError),
    /// A verdict about a block.
    #[error(transparent)]
    Invalid(#[from] InvalidBlockError),
    /// Chain, datadir and backends do not fit together.
    #[error(transparent)]
    Setup(#[from] ChainSetupError),
    /// The files do not hold the requested blocks.
    #[error(transparent)]
    Range(#[from] BlockRangeError),
    /// A bundle cannot be made or replayed.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// The parent is not known.
    #[error(
        "block {number} ({hash}) has the unknown parent {parent}; the last block known is {head}: \
         import the blocks in between first"
    )]
    UnknownParent {
        /// Block number.
        number: u64,
        /// Block hash.
        hash: B256,
        /// Hash of its parent.
        parent: B256,
        /// Number of the head.
        head: u64,
    },
    /// A proof of a value that the user of a dev chain has changed: no block has a root with it
    /// yet.
    #[error(
        "{what} was changed by hand, by a tool of the dev chain, after block {number} ({hash}): its root \
         does not show that, the root of the block after it does (evm_mine seals one)"
    )]
    ChangedByHand {
        /// What was changed.
        what: String,
        /// The block's number.
        number: u64,
        /// Its hash.
        hash: B256,
    },
    /// A block could not be executed or stored, but this is not the block's fault.
    #[error("block {number} ({hash}): {source}")]
    Block {
        /// Block number.
        number: u64,
        /// Block hash.
        hash: B256,
        /// What failed.
        source: Box<Self>,
    },
    /// Valid blocks could not be made durable. The blocks before them are durable.
    #[error("blocks {first} to {last} could not be committed: {source}")]
    Commit {
        /// Number of the first block of the commit.
        first: u64,
        /// Number of the last.
        last: u64,
        /// What failed.
        source: Box<Self>,
    },
    /// Preimages cannot be imported or exported.
    #[error(transparent)]
    Preimages(#[from] PreimageError),
    /// A chain cannot begin with, or go back to, the requested block.
    #[error(transparent)]
    Anchor(#[from] AnchorError),
    /// A chain cannot be moved to the requested backend.
    #[error(transparent)]
    Migrate(#[from] MigrateError),
    /// Execution failed, or a transaction is invalid.
    #[error(transparent)]
    Execution(#[from] ExecutionError),
    /// The state store failed.
    #[error(transparent)]
    State(#[from] StateError),
    /// The key-value store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The chain's tables failed.
    #[error(transparent)]
    Db(#[from] DbError),
    /// A directory or thread could not be created.
    #[error("{action} failed: {source}")]
    Io {
        /// What was attempted.
        action: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The check of a datadir cannot write its scratch data. This says nothing about the datadir.
    #[error(
        "the check could not be done, as its scratch folder {} failed: {source}; give it room, or \
         another folder",
        folder.display()
    )]
    Check {
        /// The folder.
        folder: PathBuf,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A thread of the pipeline has panicked.
    #[error("the pipeline's {thread} thread stopped unexpectedly; see the log")]
    Thread {
        /// Its name.
        thread: &'static str,
    },
}

/// Why a block is refused: it breaks a rule, a signature is wrong, or its state root is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidBlockError {
    /// A block breaks a rule of its header or body, or its outcome is not what its header says.
    #[error("block {number} ({hash}) is invalid: {source}")]
    Rule {
        /// Number.
        number: u64,
        /// Hash.
        hash: B256,
        /// The rule.
        source: Box<ConsensusError>,
    },
    /// A signature from which no sender can be recovered.
    #[error("block {number}: transaction {index} has an invalid signature")]
    Signature {
        /// Block number.
        number: u64,
        /// Index of the transaction.
        index: usize,
    },
    /// The computed state root is not the header's.
    #[error("block {number} ({hash}): {source}")]
    StateRoot {
        /// Block number.
        number: u64,
        /// Block hash.
        hash: B256,
        /// The two roots.
        source: Box<RootMismatch>,
    },
}

/// Names the referee after the backend.
fn with_referee(referee: Option<&str>) -> String {
    referee.map_or_else(String::new, |referee| format!(" with the referee {referee}"))
}

fn time_text(time: Option<u64>) -> String {
    time.map_or_else(|| "none".to_owned(), |time| time.to_string())
}

/// Why a chain, its datadir, its blocks and its backends do not fit together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChainSetupError {
    /// The first block of the source is not the chain's genesis.
    #[error("block 0 of the source is {got}, but chain {chain} starts with {expected}")]
    ForeignGenesis {
        /// Hash in the source.
        got: B256,
        /// Hash of the chain's genesis.
        expected: B256,
        /// Chain name.
        chain: String,
    },
    /// The datadir holds another chain.
    #[error("the datadir starts with block {found}, but chain {chain} with {expected}")]
    OtherChain {
        /// Genesis hash of the datadir.
        found: B256,
        /// Chain name.
        chain: String,
        /// Hash of the chain's genesis.
        expected: B256,
    },
    /// A backend without Ethereum's roots cannot check header roots.
    #[error("backend {backend} does not compute Ethereum's state roots, so it cannot check them")]
    NoHeaderRoot {
        /// Backend name.
        backend: &'static str,
    },
    /// The stores check only some of the header roots of a chain that switches to the binary tree.
    #[error(
        "the headers of chain {chain} carry the root of the {} {} time {time} (binaryTrieTime), \
         which {own}{}{} cannot check",
        kind.tree(),
        if *kind == RootKind::Merkle { "before" } else { "from" },
        if *is_shadow { " (--state-root shadow)" } else { "" },
        with_referee(*referee)
    )]
    UncheckedRoots {
        /// Chain name.
        chain: String,
        /// The time of the switch.
        time: u64,
        /// The kind of root that no store computes.
        kind: RootKind,
        /// The backend.
        own: &'static str,
        /// Whether its roots are not compared with those of headers.
        is_shadow: bool,
        /// The referee.
        referee: Option<&'static str>,
    },
    /// The genesis header carries the binary tree's root, and it cannot be computed.
    #[error(
        "block 0 of chain {chain} carries the root of the partitioned binary tree, which {own}{} does \
         not compute",
        with_referee(*referee)
    )]
    NoBinaryGenesis {
        /// Chain name.
        chain: String,
        /// The backend.
        own: &'static str,
        /// The referee.
        referee: Option<&'static str>,
    },
    /// The binary tree of the headers is one over plain keys.
    #[error(
        "backend {backend} cannot compute the header roots of the partitioned binary tree from \
         hashed keys"
    )]
    HashedBinaryTree {
        /// Backend name.
        backend: &'static str,
    },
    /// Another binary tree time, where the datadir already has blocks that one of the two decides.
    #[error(
        "the datadir {} was made for the binaryTrieTime {}, and the chain has {} now, but block \
         {tip} at time {tip_time} is past the earlier one: its headers already have the other roots",
        datadir.display(),
        time_text(*kept),
        time_text(*given)
    )]
    BinaryTreeTime {
        /// The datadir.
        datadir: PathBuf,
        /// The time that its blocks were checked by.
        kept: Option<u64>,
        /// The chain's time now.
        given: Option<u64>,
        /// Tip of the datadir.
        tip: BlockRef,
        /// Its timestamp.
        tip_time: u64,
    },
    /// Preimages are for hashed keys.
    #[error(
        "{}: preimages are kept for hashed keys, and this datadir has plain ones, which need none",
        datadir.display()
    )]
    PlainPreimages {
        /// The datadir.
        datadir: PathBuf,
    },
    /// A referee that has not joined the chain yet is the only one that can check a block.
    #[error(
        "the state root of block {number} is of the {}, which only the referee {referee} computes, and \
         that has not joined the chain yet",
        kind.tree()
    )]
    RefereeJoining {
        /// Number of the block.
        number: u64,
        /// The kind of its root.
        kind: RootKind,
        /// Name of the referee.
        referee: &'static str,
    },
    /// The two states of one datadir have different tips.
    #[error(
        "the referee's state is at block {referee}, the backend's at block {backend}: the datadir \
         was used without the referee"
    )]
    RefereeBehind {
        /// Tip of the referee.
        referee: String,
        /// Tip of the backend.
        backend: String,
    },
}

/// Why preimages of hashed keys were not imported or exported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PreimageError {
    /// The datadir does not hash its keys.
    #[error("the keys of {} are plain: it needs no preimages", datadir.display())]
    PlainKeys {
        /// The datadir.
        datadir: PathBuf,
    },
    /// A file cannot be read any further.
    #[error(
        "{source}; what came before is kept: {} accounts and {} slots, of which {} were new",
        before.accounts, before.slots, before.new
    )]
    File {
        /// The file, the place, and what is wrong there.
        source: Box<SourceError>,
        /// What was read before.
        before: ImportedPreimages,
    },
    /// Preimages of the state are not known.
    #[error(
        "the preimages of {missing} after block {block} are not known, so they cannot be exported"
    )]
    Missing {
        /// The block.
        block: BlockRef,
        /// How many there are.
        missing: MissingPreimages,
    },
    /// The format has 32 bits for the number of slots.
    #[error("{account} has more slots than a preimage file can have, 2^32 - 1")]
    TooManySlots {
        /// The account.
        account: AccountKey,
    },
    /// The caller stopped it.
    #[error("it was stopped; what was committed is kept")]
    Stopped,
}

/// Why block files do not serve a range of blocks.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlockRangeError {
    /// The files do not hold all requested blocks.
    #[error("the files end at block {last}, before block {to}; what they hold is imported")]
    FilesEnd {
        /// Highest block of the files in the requested range.
        last: u64,
        /// Last requested block.
        to: u64,
    },
    /// The files hold no requested block.
    #[error("no block in the files lies within blocks {from} to {to}")]
    NothingInRange {
        /// First requested block.
        from: u64,
        /// Last requested block.
        to: u64,
    },
}

/// Why a bundle cannot be made or replayed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BundleError {
    /// A witness bundle lists no pre-state, and none can be found.
    #[error(
        "the bundle has no pre-state, and no backend opens its witness: give a bundle with `pre`"
    )]
    MissingPreState,
    /// The genesis block has no state before it.
    #[error("block 0 is the genesis: it has no transactions and no parent")]
    Genesis,
    /// A node's answers about a block and its state contradict each other.
    #[error(
        "block {number} from {endpoint} (eth_getBalance, eth_getTransactionCount, \
         eth_getCode, eth_getStorageAt at its parent) was refused: {source}"
    )]
    FromNode {
        /// Scheme and host of the node.
        endpoint: String,
        /// Block number.
        number: u64,
        /// The contradiction.
        source: Box<PipelineError>,
    },
    /// A value from the node differs from the node's own proof.
    #[error("{key} is not what the node's own eth_getProof says of it under state root {root}")]
    NotProved {
        /// The account or slot.
        key: StateKey,
        /// State root of the parent block.
        root: B256,
    },
    /// The node's proofs do not show the state.
    #[error("the node's eth_getProof does not lead to the state: {source}")]
    Proof {
        /// What is missing.
        source: Box<StateError>,
    },
    /// It is not known which codes the block executes.
    #[error("tracing the codes that the block executes: {0}")]
    CodeTrace(Box<CodeTraceError>),
    /// A store's proof of what a block reads does not verify.
    #[error(
        "{backend} does not show what the block reads: {}",
        source.as_ref().map_or_else(|| "other values".to_owned(), ToString::to_string)
    )]
    WrongWitness {
        /// Name of the backend.
        backend: &'static str,
        /// Why the verifier refuses it; `None` if it shows other values.
        source: Option<ProofError>,
    },
    /// Replaying a bundle gives something else than its header says.
    #[error("it does not replay: {failure}")]
    Replay {
        /// The checks that failed, naming the block.
        failure: String,
    },
    /// A bundle cannot be replayed.
    #[error("{}: {source}", file.display())]
    File {
        /// The bundle.
        file: PathBuf,
        /// What failed, naming the block.
        source: Box<PipelineError>,
    },
}

/// Why a chain cannot be moved to another backend.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// Hashed keys whose preimages are not stored cannot become plain.
    #[error(
        "the preimages of {missing} after block {block} are not known, so its keys cannot become plain"
    )]
    NoPreimages {
        /// The block whose state would be moved.
        block: BlockRef,
        /// How many there are.
        missing: MissingPreimages,
    },
    /// The old datadir has no blocks.
    #[error("the datadir {} holds no blocks", datadir.display())]
    Nothing {
        /// The datadir.
        datadir: PathBuf,
    },
    /// The last block of the new chain is not in the old chain, or below its first state.
    #[error("the chain cannot end with block {number}: it has blocks {first} to {tip}")]
    NoLast {
        /// The requested block.
        number: u64,
        /// The block with whose state the chain began.
        first: u64,
        /// Its last block.
        tip: BlockRef,
    },
    /// The new datadir already has more of the chain than requested.
    #[error(
        "the datadir {} is at block {tip} already, above {last}, with which it should end: delete the \
         folder and begin again", datadir.display()
    )]
    PastLast {
        /// The new datadir.
        datadir: PathBuf,
        /// Its tip.
        tip: BlockRef,
        /// The requested last block.
        last: BlockRef,
    },
    /// The headers have roots that the new backend does not compute.
    #[error(
        "the chain's headers carry the roots of the backend that it was made on, from its genesis \
         {genesis} on; on backend {backend} its genesis would be {other}: such a chain can be moved \
         only to a backend with the same roots, as a native chain"
    )]
    OtherGenesis {
        /// Hash of the first block.
        genesis: B256,
        /// Name of the new backend.
        backend: &'static str,
        /// The genesis hash with this backend's root.
        other: B256,
    },
    /// Blocks that have to be executed again have no bodies.
    #[error(
        "blocks {first} to {last} have no bodies any more, so the chain cannot be executed again; \
         without its history it can be moved"
    )]
    NoBodies {
        /// The first block that would be executed.
        first: u64,
        /// The last block without a body.
        last: u64,
    },
    /// The state that the chain began with is no longer kept.
    #[error(
        "the chain began with the state after block {number}, which is not kept any more ({source}), \
         so it cannot be executed again; without its history it can be moved"
    )]
    NoFirstState {
        /// The block.
        number: u64,
        /// Why its state is not available.
        source: Box<StateError>,
    },
    /// The new datadir holds an unfinished migration of another kind.
    #[error(
        "the datadir {} was begun by another command ({found}): run that one again, or delete the \
         folder",
        datadir.display()
    )]
    OtherMigration {
        /// The new datadir.
        datadir: PathBuf,
        /// The note in the new datadir.
        found: String,
    },
    /// The migration was begun with another referee, or without one.
    #[error(
        "the referee of the datadir {} is {found}, not {given}: run the command with that one, or \
         delete the folder and begin again", datadir.display()
    )]
    OtherReferee {
        /// The new datadir.
        datadir: PathBuf,
        /// Name of its referee, or `none`.
        found: String,
        /// Name of the requested one, or `none`.
        given: String,
    },
    /// The new datadir holds blocks that are not in the old chain.
    #[error(
        "the datadir {} is at block {tip}, which the chain that is being moved does not have any \
         more, and cannot be taken back: delete the folder and begin again", datadir.display()
    )]
    Diverged {
        /// The new datadir.
        datadir: PathBuf,
        /// Its tip.
        tip: BlockRef,
    },
}

/// A computed state root that differs from the header's.
#[derive(Debug, thiserror::Error)]
#[error("state root is {got} by backend {backend}, the header says {expected}")]
pub struct RootMismatch {
    /// Root in the header.
    pub expected: B256,
    /// Root computed.
    pub got: B256,
    /// Name of the backend that computed it.
    pub backend: &'static str,
}

impl From<ReadError> for PipelineError {
    fn from(error: ReadError) -> Self {
        Self::Db(error.into())
    }
}

impl From<StorageError> for PipelineError {
    fn from(error: StorageError) -> Self {
        Self::Db(error.into())
    }
}

impl PipelineError {
    /// Whether the state of a block is not kept, or no longer.
    pub fn lacks_state(&self) -> bool {
        match self {
            Self::State(error) => matches!(
                error,
                StateError::UnknownBlock { .. }
                    | StateError::BeyondRetention { .. }
                    | StateError::NotInHistory { .. }
                    | StateError::BeyondHistory { .. }
            ),
            Self::Block { source, .. } => source.lacks_state(),
            _ => false,
        }
    }

    pub(crate) fn in_bundle(self, bundle: &Bundle) -> Self {
        let source = Box::new(self.in_block(bundle.number, bundle.hash));
        BundleError::File { file: bundle.file.clone(), source }.into()
    }

    /// Names the block, unless the error does so already.
    pub fn in_block(self, number: u64, hash: B256) -> Self {
        match self {
            Self::State(_)
            | Self::Store(_)
            | Self::Db(_)
            | Self::Io { .. }
            | Self::Bundle(BundleError::MissingPreState) => {
                Self::Block { number, hash, source: Box::new(self) }
            }
            named => named,
        }
    }

    /// The block that the error is about: the first one that could not be imported or replayed.
    /// `None` if the error does not name a block.
    pub fn block_number(&self) -> Option<u64> {
        match self {
            Self::UnknownParent { number, .. }
            | Self::Block { number, .. }
            | Self::Commit { first: number, .. } => Some(*number),
            Self::Invalid(error) => Some(error.block_number()),
            Self::Setup(ChainSetupError::ForeignGenesis { .. }) => Some(0),
            Self::Range(error) => error.block_number(),
            Self::Bundle(error) => error.block_number(),
            Self::Execution(error) => error.block_number(),
            _ => None,
        }
    }

    /// Whether the error may only follow from an earlier failure: it is neither a verdict about a
    /// block, nor about the content of its file.
    pub(crate) fn may_follow(&self) -> bool {
        matches!(self, Self::Block { .. } | Self::Execution(_)) && !self.is_invalid_block()
    }

    /// Whether the error says that a body, or data read from bodies, was pruned.
    pub const fn is_pruned(&self) -> bool {
        matches!(self, Self::Db(DbError::Pruned(_)))
    }

    /// Whether the error is a verdict about a block, independent of this machine.
    pub fn is_invalid_block(&self) -> bool {
        match self {
            Self::Invalid(error) => error.is_invalid_block(),
            Self::Execution(error) => error.is_invalid_block(),
            _ => false,
        }
    }
}

impl InvalidBlockError {
    /// The verdict that the block of `header` breaks a rule.
    pub fn rule(header: &SealedHeader, source: ConsensusError) -> Self {
        Self::Rule { number: header.number, hash: header.hash(), source: Box::new(source) }
    }

    const fn block_number(&self) -> u64 {
        match self {
            Self::Rule { number, .. }
            | Self::Signature { number, .. }
            | Self::StateRoot { number, .. } => *number,
        }
    }

    /// Whether the verdict is independent of this machine, e.g. of its clock.
    pub fn is_invalid_block(&self) -> bool {
        match self {
            Self::Rule { source, .. } => !source.is_local(),
            Self::Signature { .. } | Self::StateRoot { .. } => true,
        }
    }
}

impl BlockRangeError {
    /// The first block that is missing.
    const fn block_number(&self) -> Option<u64> {
        match self {
            Self::FilesEnd { last, .. } => last.checked_add(1),
            Self::NothingInRange { from, .. } => Some(*from),
        }
    }
}

impl BundleError {
    fn block_number(&self) -> Option<u64> {
        match self {
            Self::Genesis => Some(0),
            Self::FromNode { number, .. } => Some(*number),
            Self::File { source, .. } => source.block_number(),
            _ => None,
        }
    }
}
