//! Flags shared by several commands. Each group has a file here and a heading in `--help`.

mod backend;
mod chain;
mod database;
mod http;
mod logging;
mod number;
mod prune;
mod state;

pub(crate) use backend::{
    BackendArgs, HashChoice, PinArgs, backend_of, check_names, make, referee, root_backend,
    witness_opener,
};
pub(crate) use chain::{ChainArgs, DEFAULT_CHAIN, open_to_read};
pub(crate) use database::{DbArgs, parse_sync};
pub(crate) use http::HttpArgs;
pub(crate) use logging::VerbosityArgs;
pub(crate) use number::parse_count;
pub(crate) use prune::PruneArgs;
pub(crate) use state::{DEFAULT_RETENTION, StateArgs, fold_bytes_of};
