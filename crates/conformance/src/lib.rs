//! The public test suites of Ethereum, run against this client. A test harness: nothing links it.
//!
//! ```text
//!  NAME.tar.zst or NAME/ --> files --> cases --> blockchain    --> pipeline's importer, mpt, MDBX
//!  (checked, in memory)                          state         --> execution, mpt in memory
//!                                                basics        --> consensus, chainspec, tries, RLP
//!                                                precompiles   --> the EVM's
//!                                                p2p           --> one import
//!                                                engine        --> Engine API, live tree, mpt, MDBX
//!                              exceptions.toml --> counts: passed, failed, expected failures
//! ```
//!
//! * **suite** ([`Suite`]): an archive of the conformance data. Its [`Gate`] says whether it is run.
//! * **case**: a member of a JSON file, named `FILE: MEMBER`.
//! * **exception** ([`Exceptions`]): a case that is known to fail, with the reason. One that passes is
//!   a failure.
//!
//! Whatever cannot be read or understood is a failure that names its file, never a case less.

mod archive;
mod basics;
mod blockchain;
mod engine;
mod exceptions;
mod format;
mod p2p;
mod precompiles;
mod runner;
mod seal;
mod state;
mod suite;
mod worker;

pub use archive::{ArchiveError, TestFile, names, read};
pub use exceptions::{Exceptions, ExceptionsError};
pub use format::Verdict;
pub use runner::{Failure, Report, Runner};
pub use seal::Ethash;
pub use suite::{Gate, SUITES, Suite, find};
pub use worker::Backend;
