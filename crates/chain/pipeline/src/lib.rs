//! Import and replay: real blocks run through the EVM, and their writes go to a state backend.
//!
//! ```text
//!  sources --read--> prepare (all cores) --> BlockImporter --> root --> commit (grouped) --> MDBX
//!                    hash, checks, senders    execute         propose  chain rows, journal, roots:
//!                                             check           check    one transaction
//! ```
//!
//! # Example
//!
//! Blocks of a made chain go into a new datadir, whose states are in the backend `raw`.
//!
//! ```
//! use retrie_db::{OpenOptions, StateRootMode};
//! use retrie_pipeline::{
//!     BlockImporter, ChainOptions, ChainStore, ImportOptions,
//!     testkit::{TestChain, TestRules},
//! };
//! use retrie_state_store::StoreOptions;
//! use retrie_telemetry::Metrics;
//! use std::sync::Arc;
//!
//! let mut made = TestChain::new(TestRules::Prague, Arc::new(retrie_storage_mpt::Mpt::new()));
//! let genesis = made.genesis();
//! let tip = *made.branch(genesis, 8, 12, 0).last().expect("eight blocks");
//!
//! let folder = tempfile::tempdir()?;
//! let chain = ChainStore::open(ChainOptions {
//!     spec: made.spec.clone(),
//!     backend: Arc::new(retrie_storage_raw::Raw),
//!     referee: None,
//!     root_mode: StateRootMode::Shadow,
//!     datadir: folder.path().into(),
//!     db: OpenOptions::default(),
//!     store: StoreOptions::default(),
//! })?;
//! std::thread::scope(|scope| {
//!     let mut importer = BlockImporter::new(&chain, ImportOptions::default(), Metrics::new()?, scope)?;
//!     for block in made.path(genesis, tip) {
//!         importer.import(block)?;
//!     }
//!     importer.flush()?;
//!     assert_eq!((importer.head().number, importer.head().hash), (8, tip));
//!     Ok::<(), Box<dyn std::error::Error>>(())
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Vocabulary
//!
//! * **Chain store**: an open datadir with the chain's tables and its states. [`ChainStore`].
//! * **Store set**: the backend's own state store and, if there is one, the referee's. Both change
//!   together. [`StoreSet`]; one state in each of them is named by a [`StoreSetId`].
//! * **Referee**: a backend with Ethereum's roots that runs beside the own backend on the same
//!   deltas.
//! * **Executed block**: a block that was verified or built here, with receipts, codes and
//!   proposals. [`ExecutedBlock`].
//! * **Block tree**: the verified blocks above the durable tip, and which of them are canonical.
//!   [`BlockTree`].
//! * **Ahead**: a block is ahead while it is executed but its state root is not checked yet.
//! * **Block batch**: consecutive blocks that are verified with one state root.
//!   [`BlockTree::extend_by_batch`].
//! * **Anchor**: the block that a chain begins with if it is started from a state, not from
//!   genesis. [`ChainAnchor`].
//! * **Bundle**: one block with the state that it touches, to be [replayed](replay) on a fresh
//!   store.
//!
//! # Entry points
//!
//! * [`import()`]: block files into a chain, until the end, an error or a stop signal.
//! * [`BlockImporter`]: one block at a time.
//! * [`BlockBuilder`]: transactions in, a new block out.
//! * [`dump_state`]: the state of a datadir into a file, from which another chain can begin.
//! * [`JoiningReferee`]: a referee that joins a chain that has begun without it.
//! * [`ChainMigration`]: the chain of a datadir into another datadir, on another backend.
//! * [`replay`]: bundles on a fresh store, measured.
//! * [`stateless`]: a block on its witness alone, and what is wrong with a witness.
//! * [`verify`]: checks a whole datadir.
//!
//! # Assumptions
//!
//! This crate knows no trie: a backend is a [`Backend`](retrie_state::Backend). Header roots are
//! compared only if one backend says that its roots are Ethereum's. Blocks come from anyone and are
//! checked; the datadir is trusted, except by [`verify`].

mod anchor;
mod anchor_error;
mod block;
mod build;
mod chain;
mod dump;
mod entries;
mod error;
mod import;
mod importer;
mod joining;
mod lookahead;
mod migrate;
mod outcome;
mod patch;
mod preimages;
mod recover;
pub mod replay;
pub mod report;
mod root_kind;
mod state_backends;
pub mod stateless;
mod store_set;
mod stored_context;
mod stream;
#[cfg(feature = "testkit")]
pub mod testkit;
mod tree;
mod unwind;
pub mod verify;

pub use anchor::{AnchorHistory, ChainAnchor, ChunkedState, LoadedState};
pub use anchor_error::AnchorError;
pub use block::{BlockWithReceipts, ExecutedBlock};
pub use build::{BlockAttributes, BlockBuilder, BuildOverrides, BuildParent};
pub use chain::{ChainOptions, ChainStore, WriteCheck, genesis_delta, native_spec};
pub use dump::{DumpProgress, dump_state, open_state};
pub use entries::PagedEntries;
pub use error::{
    BlockRangeError, BundleError, ChainSetupError, InvalidBlockError, MigrateError, PipelineError,
    PreimageError, RootMismatch,
};
pub use import::{ImportOutcome, chain_replay_result, import, import_below};
pub use importer::{BlockImporter, BlockStatus, ImportEnd, ImportOptions, RootCheckMode};
pub use joining::{JoinProgress, JoinStep, JoiningReferee};
pub use migrate::{ChainMigration, MigrationOutcome, MigrationStep, UnfinishedMigration};
pub use outcome::validate_outcome;
pub use patch::StatePatch;
pub use preimages::{
    ExportedPreimages, ImportedPreimages, MissingPreimages, export_preimages, import_preimages,
    missing_preimages,
};
pub use recover::recover_senders;
pub use root_kind::RootKind;
pub use store_set::{ProposalSet, RootSet, SessionSet, StoreSet, StoreSetId, state_folder};
pub use stored_context::StoredContext;
pub use stream::{BlockStream, PreparedBlock, prepare};
pub use tree::{
    AheadOutcome, BlockQueue, BlockTree, CanonicalHead, CommitLimits, DriverStep, HeadChange,
    ImportTimes, PREFETCH_BLOCKS, TreeDriver, TreeOwner,
};
