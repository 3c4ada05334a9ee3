//! Why an import or a replay stopped. Every message names block or file and the cause.

use alloy_primitives::{B256, U256};
use retrie_consensus::ConsensusError;
use retrie_db::DbError;
use retrie_execution::ExecutionError;
use retrie_sources::{Bundle, RpcError, SourceError};
use retrie_state::{BlockRef, StateError, StateKey, StoreError};
use std::path::PathBuf;

/// Why the pipeline stopped. Blocks before the one named are kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// A block file or bundle cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A block breaks a rule of its header or body, or its outcome is not what its header says.
    #[error("block {number} ({hash}) is invalid: {source}")]
    InvalidBlock {
        /// Number.
        number: u64,
        /// Hash.
        hash: B256,
        /// The rule.
        source: Box<ConsensusError>,
    },
    /// A signature from which no sender can be recovered.
    #[error("block {number}: transaction {index} has an invalid signature")]
    InvalidSignature {
        /// Block number.
        number: u64,
        /// Index of the transaction.
        index: usize,
    },
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
    /// The first block of the chain is another one.
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
    /// The files do not hold all blocks asked for.
    #[error("the files end at block {last}, before block {to}; what they hold is imported")]
    FilesEnd {
        /// Highest block of the files that was asked for.
        last: u64,
        /// Last block asked for.
        to: u64,
    },
    /// The files hold no block asked for.
    #[error("no block in the files lies within blocks {from} to {to}")]
    NothingInRange {
        /// First block asked for.
        from: u64,
        /// Last block asked for.
        to: u64,
    },
    /// A state that shows what the user of a dev chain changed of it, and no root has.
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
    /// The state root computed is not the header's.
    #[error("block {number} ({hash}): {source}")]
    StateRoot {
        /// Block number.
        number: u64,
        /// Block hash.
        hash: B256,
        /// The two roots.
        source: Box<RootMismatch>,
    },
    /// A backend whose roots are not Ethereum's was asked to check the header's.
    #[error("backend {backend} does not compute Ethereum's state roots, so it cannot check them")]
    NoHeaderRoot {
        /// Backend name.
        backend: &'static str,
    },
    /// A witness bundle lists no pre-state, and none can be found.
    #[error(
        "the bundle has no pre-state, and no backend opens its witness: give a bundle with `pre`"
    )]
    MissingPreState,
    /// An RPC node gave no usable answer.
    #[error(transparent)]
    Rpc(#[from] RpcError),
    /// What a node says of a block and its state does not fit together.
    #[error(
        "block {number} as {endpoint} tells it (eth_getBalance, eth_getTransactionCount, \
         eth_getCode, eth_getStorageAt at its parent) was refused: {source}"
    )]
    FromNode {
        /// Scheme and host of the node.
        endpoint: String,
        /// Block number.
        number: u64,
        /// What does not fit.
        source: Box<Self>,
    },
    /// The node says one thing and proves another.
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
    /// A bundle does not do what its header says.
    #[error("it does not replay: {failure}")]
    Replay {
        /// The checks that failed, naming the block.
        failure: String,
    },
    /// The genesis has no state before it.
    #[error("block 0 is the genesis: it has no transactions and no parent")]
    GenesisBundle,
    /// A bundle cannot be replayed.
    #[error("{}: {source}", file.display())]
    Bundle {
        /// The bundle.
        file: PathBuf,
        /// What failed, naming the block.
        source: Box<Self>,
    },
    /// A block could not be executed or stored for a reason that is not its own.
    #[error("block {number} ({hash}): {source}")]
    Block {
        /// Block number.
        number: u64,
        /// Block hash.
        hash: B256,
        /// What failed.
        source: Box<Self>,
    },
    /// Valid blocks could not be made durable. Those before them are.
    #[error("blocks {first} to {last} could not be committed: {source}")]
    Commit {
        /// Number of the first block of the batch.
        first: u64,
        /// Number of the last.
        last: u64,
        /// What failed.
        source: Box<Self>,
    },
    /// Two states of one datadir disagree about the tip.
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
    /// A chain cannot begin, or go back, where it was asked to.
    #[error(transparent)]
    Anchor(#[from] AnchorError),
    /// A chain cannot be moved to the backend it was asked to.
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
    /// A directory or thread could not be made.
    #[error("{action} failed: {source}")]
    Io {
        /// What was attempted.
        action: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The check of a datadir cannot write what it needs to compare states. It says nothing of them.
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
    /// A thread of the pipeline died.
    #[error("the pipeline's {thread} thread stopped unexpectedly; see the log")]
    Thread {
        /// Its name.
        thread: &'static str,
    },
}

/// Why a chain cannot begin where it was asked to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AnchorError {
    /// No header, and the dump is not of genesis.
    #[error(
        "the dump has the state root {root}, which is not that of genesis, and comes without the \
         header of its block"
    )]
    NoHeader {
        /// Root of the dump.
        root: B256,
    },
    /// The last header is not the one that was asked for.
    #[error("the last header is block {number} ({got}), not {expected}")]
    OtherHash {
        /// Its number.
        number: u64,
        /// Its hash.
        got: B256,
        /// The hash asked for.
        expected: B256,
    },
    /// A header that does not follow from the one before it.
    #[error(
        "header {number} ({hash}) is not the child of the one before it, {parent}: the file must \
         hold a run of ancestors and end with the block of the dump"
    )]
    Unlinked {
        /// Its number.
        number: u64,
        /// Its hash.
        hash: B256,
        /// The header before it.
        parent: BlockRef,
    },
    /// A proof-of-work block without its total difficulty.
    #[error(
        "block {number} is of proof of work, and its total difficulty, by which branches are chosen, \
         is not given"
    )]
    NoTotalDifficulty {
        /// Its number.
        number: u64,
    },
    /// A total difficulty that the difficulties of the headers exceed, or, from genesis on, miss.
    #[error("the total difficulty {total} does not fit the difficulties of the headers")]
    TotalDifficulty {
        /// What was given.
        total: U256,
    },
    /// The dump is of another state.
    #[error(
        "the dump has the state root {dump}, block {number} ({hash}) has {header}: it is the state \
         of another block"
    )]
    OtherState {
        /// Root of the dump.
        dump: B256,
        /// Block number.
        number: u64,
        /// Block hash.
        hash: B256,
        /// Root in the header.
        header: B256,
    },
    /// The datadir has a chain.
    #[error(
        "the datadir {} already holds a chain, up to block {tip}: a state is loaded into an empty \
         datadir only", datadir.display()
    )]
    NotEmpty {
        /// The datadir.
        datadir: PathBuf,
        /// Its tip.
        tip: BlockRef,
    },
    /// A state that came in chunks has another root than it should.
    #[error("the state of block {block} has the root {got}, not {expected}, which is trusted")]
    OtherRoot {
        /// The block.
        block: BlockRef,
        /// What it has.
        got: B256,
        /// What is trusted.
        expected: B256,
    },
    /// A root that cannot be had from values alone.
    #[error(
        "the root of backend {backend} depends on all that happened, not on the state alone: a \
         chain with its roots in the headers cannot begin with a dump, \
         import its blocks"
    )]
    HistoryRoot {
        /// Name of the backend.
        backend: &'static str,
    },
    /// It was told to stop.
    #[error("stopped; nothing was written, run the same command again")]
    Stopped,
    /// A block below the first state.
    #[error(
        "the datadir was started from the state after block {anchor}: block {number} is none that it \
         can import or go back to"
    )]
    Below {
        /// The block.
        number: u64,
        /// Number of the block it was started from.
        anchor: u64,
    },
}

/// Why a chain cannot be moved to another backend.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// There is no chain.
    #[error("the datadir {} holds no blocks", datadir.display())]
    Nothing {
        /// The datadir.
        datadir: PathBuf,
    },
    /// The block to end with is not there, or below the first state of the chain.
    #[error("the chain cannot end with block {number}: it has blocks {first} to {tip}")]
    NoLast {
        /// The block asked for.
        number: u64,
        /// The block with whose state the chain began.
        first: u64,
        /// Its last block.
        tip: BlockRef,
    },
    /// More of the chain is in the new datadir already.
    #[error(
        "the datadir {} is at block {tip} already, above {last}, with which it should end: delete the \
         folder and begin again", datadir.display()
    )]
    PastLast {
        /// The new datadir.
        datadir: PathBuf,
        /// Its tip.
        tip: BlockRef,
        /// The block to end with.
        last: BlockRef,
    },
    /// Headers carry roots that the new backend does not compute.
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
        /// The hash that this backend gives it.
        other: B256,
    },
    /// Blocks to be executed again lack bodies.
    #[error(
        "blocks {first} to {last} have no bodies any more, so the chain cannot be executed again; \
         without its history it can be moved"
    )]
    NoBodies {
        /// The first block that would be executed.
        first: u64,
        /// The last without a body.
        last: u64,
    },
    /// The state before the first block is gone.
    #[error(
        "the chain began with the state after block {number}, which is not kept any more ({source}), \
         so it cannot be executed again; without its history it can be moved"
    )]
    NoFirstState {
        /// The block.
        number: u64,
        /// Why its state cannot be had.
        source: Box<StateError>,
    },
    /// The folder was begun in another way.
    #[error(
        "the datadir {} was begun otherwise: {found}; give that command again, or delete the folder",
        datadir.display()
    )]
    OtherMigration {
        /// The new datadir.
        datadir: PathBuf,
        /// What is noted there.
        found: String,
    },
    /// The states of the new datadir have been begun with another referee, or with none.
    #[error(
        "the referee of the datadir {} is {found}, not {given}: it goes on with its own, or is deleted \
         and begun again", datadir.display()
    )]
    OtherReferee {
        /// The new datadir.
        datadir: PathBuf,
        /// Name of its referee, or `none`.
        found: String,
        /// Name of the one that was asked for, or `none`.
        given: String,
    },
    /// What is in the new datadir is no part of the chain.
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

/// Two state roots that should be one.
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

impl PipelineError {
    pub(crate) fn invalid(
        block: &retrie_chainspec::primitives::SealedBlock,
        source: ConsensusError,
    ) -> Self {
        Self::InvalidBlock {
            number: block.header().number,
            hash: block.hash(),
            source: Box::new(source),
        }
    }

    pub(crate) fn in_bundle(self, bundle: &Bundle) -> Self {
        let source = Box::new(self.in_block(bundle.number, bundle.hash));
        Self::Bundle { file: bundle.file.clone(), source }
    }

    /// Names the block, unless the error does so already.
    pub fn in_block(self, number: u64, hash: B256) -> Self {
        match self {
            Self::State(_)
            | Self::Store(_)
            | Self::Db(_)
            | Self::Io { .. }
            | Self::MissingPreState => Self::Block { number, hash, source: Box::new(self) },
            named => named,
        }
    }

    /// The block that it is about: the first one that could not be imported or replayed. `None` where the
    /// error knows of none.
    pub fn block_number(&self) -> Option<u64> {
        match self {
            Self::InvalidBlock { number, .. }
            | Self::InvalidSignature { number, .. }
            | Self::UnknownParent { number, .. }
            | Self::StateRoot { number, .. }
            | Self::FromNode { number, .. }
            | Self::Block { number, .. }
            | Self::Commit { first: number, .. }
            | Self::NothingInRange { from: number, .. } => Some(*number),
            Self::ForeignGenesis { .. } | Self::GenesisBundle => Some(0),
            Self::FilesEnd { last, .. } => last.checked_add(1),
            Self::Bundle { source, .. } => source.block_number(),
            Self::Execution(error) => error.block_number(),
            _ => None,
        }
    }

    /// Whether it may only say that something else has failed before: no verdict about a block, and
    /// nothing that its file says.
    pub(crate) fn may_follow(&self) -> bool {
        matches!(self, Self::Block { .. } | Self::Execution(_)) && !self.is_invalid_block()
    }

    /// Whether a body, or what is read from bodies, is not kept.
    pub const fn is_pruned(&self) -> bool {
        matches!(self, Self::Db(DbError::Pruned { .. }))
    }

    /// Whether the error is a verdict about a block, independent of this machine.
    pub fn is_invalid_block(&self) -> bool {
        match self {
            Self::InvalidBlock { source, .. } => !source.is_local(),
            Self::InvalidSignature { .. } | Self::StateRoot { .. } => true,
            Self::Execution(error) => error.is_invalid_block(),
            _ => false,
        }
    }
}
