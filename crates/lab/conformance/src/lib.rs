//! Runs Ethereum's public test suites against this client. A test harness: no other crate links it.
//!
//! ```text
//!  NAME.tar.zst or NAME/ --> files --> cases --> blockchain    --> pipeline's importer, mpt, MDBX
//!  (checked, in memory)                          state         --> execution, mpt in memory
//!                                                basics        --> consensus, chainspec, tries, RLP
//!                                                precompiles   --> the EVM's
//!                                                p2p           --> one import
//!                                                engine        --> Engine API, live tree, mpt, MDBX
//!                                                witness       --> Engine API, execution on witnesses
//!                                                pbt           --> pbt in memory, migration files
//!                              exceptions.toml --> counts: passed, failed, expected failures
//! ```
//!
//! # Vocabulary
//!
//! * **Suite** ([`TestSuite`]): an archive of the conformance data, or a file of the **pack**, the
//!   data of EIP-8297 and EIP-8347. Its [`SuiteGate`] tells whether it is run.
//! * **Case**: a member of a JSON file, or a line, named `FILE: MEMBER`.
//! * **Exception** ([`ExceptionList`]): a case that is known to fail, with the reason. If it
//!   passes, this is a failure.
//!
//! A file that cannot be read or understood is a failure with its name; no case is ever skipped
//! silently.

mod archive;
mod basics;
mod blockchain;
mod engine;
mod exceptions;
mod format;
mod p2p;
mod pack;
mod pbt;
mod precompiles;
mod runner;
mod seal;
mod state;
mod suite;
mod witness;
mod worker;

pub use archive::{ArchiveError, TestFile, names, read};
pub use exceptions::{ExceptionList, ExceptionsError};
pub use format::TestVerdict;
pub use runner::{CaseFailure, SuiteReport, SuiteRunner};
pub use seal::Ethash;
pub use suite::{SUITES, SuiteGate, TestSuite, find};
pub use worker::TestBackend;
