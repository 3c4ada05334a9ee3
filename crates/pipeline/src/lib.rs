//! Import and replay: real blocks through the EVM onto a state backend.
//!
//! ```text
//!  sources --read--> prepare (all cores) --> Importer --> root --> commit (batched) --> MDBX
//!                    hash, checks, senders    execute      propose  chain rows, journal, roots:
//!                                             check        check    one transaction
//! ```
//!
//! * [`Chain`]: an open datadir: the chain's tables and its states.
//! * [`States`]: a backend's state, and perhaps a referee's, which move together.
//! * [`ExecutedBlock`]: a block that was verified or built, with all that it leaves.
//! * [`Anchor`]: where a chain begins that is started from a state, not from genesis.
//! * [`dump_state`]: the state of a datadir into a file, from which another chain can begin.
//! * [`Migration`]: the chain of a datadir into another one, on another backend.
//! * [`import`]: block files into a chain, until the end, an error or a stop signal.
//! * [`replay`]: bundles on a fresh store, measured.
//!
//! This crate knows no trie: backends come in as [`Backend`](retrie_state::Backend)s, and header
//! roots are compared only where one of them says its root is Ethereum's.

mod anchor;
mod block;
mod build;
mod chain;
mod dump;
mod entries;
mod error;
mod import;
mod importer;
mod lookahead;
mod migrate;
mod outcome;
mod patch;
mod recover;
pub mod replay;
pub mod report;
mod states;
mod stream;
#[cfg(feature = "testkit")]
pub mod testkit;
mod tree;
mod unwind;
pub mod verify;

pub use anchor::{Anchor, ChunkedState, LoadedState};
pub use block::{BlockWithReceipts, ExecutedBlock};
pub use build::{BlockAttributes, BlockBuilder, BuildParent, Liberties};
pub use chain::{Chain, ChainOptions, WriteCheck, genesis_delta, native_spec};
pub use dump::{Dumped, dump_state};
pub use error::{AnchorError, MigrateError, PipelineError, RootMismatch};
pub use import::{ImportOutcome, chain_replay_result, import, import_below};
pub use importer::{CheckRoots, End, ImportOptions, Imported, Importer};
pub use migrate::{Begun, Migrated, Migration, MigrationStep};
pub use outcome::validate_outcome;
pub use patch::StatePatch;
pub use recover::recover_senders;
pub use states::{Proposals, Roots, States, StatesAt, StatesSession, state_folder};
pub use stream::{BlockStream, PreparedBlock, prepare};
pub use tree::{BatchLimits, COMING, Head, HeadChange, ImportTimes, Settled, Tree};
