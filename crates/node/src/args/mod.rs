//! Groups of flags, each under a heading of `--help`: those of a node alone (`node`), and those that
//! several commands share, a file for each.

mod backend;
mod chain;
mod database;
mod http;
mod index;
mod log_tables;
mod logging;
mod node;
mod number;
mod otlp;
mod prune;
mod state;
mod stream;

pub use backend::{
    BackendArgs, HashChoice, PinArgs, backend_of, check_names, make, referee, root_backend,
    witness_opener,
};
pub use chain::{ChainArgs, DEFAULT_CHAIN, open_to_read};
pub use database::{DbArgs, parse_sync};
pub use http::HttpArgs;
pub use logging::VerbosityArgs;
pub use number::parse_count;
pub use otlp::TracingArgs;
pub use prune::PruneArgs;
pub use state::{DEFAULT_RETENTION, KeyFormChoice, StateArgs, fold_bytes_of};

pub(crate) use index::IndexArgs;
pub(crate) use log_tables::LogTablesArgs;
pub(crate) use node::{
    AuthArgs, BuilderArgs, DevArgs, EngineArgs, FollowArgs, LogArgs, NetworkArgs, SyncArgs,
    SyncModeChoice, TxPoolArgs, parse_duration, parse_interval,
};
pub(crate) use stream::StreamArgs;
