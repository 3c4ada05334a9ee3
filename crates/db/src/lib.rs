//! The durable half of the client: one MDBX environment per datadir, holding the chain (headers,
//! bodies, receipts, code, roots) and the rows of the state backend, which change together in one
//! transaction or not at all.
//!
//! ```text
//!   pipeline / engine / rpc                       retrie-state (framework)
//!        | ChainRead, WriteTxn::insert_*               | KvStore, KvRead, KvWrite
//!        v                                             v
//!   +-----------------------------  Db  ------------------------------+
//!   |  ReadTxn (snapshot, many threads)      WriteTxn (one at a time) |
//!   |  chain tables                          tables "State<name>"     |
//!   +-----------------------  MDBX: <datadir>/db  --------------------+
//! ```
//!
//! # Vocabulary
//!
//! * *Datadir*: a folder with `lock` (held by the one writing process, with its process id) and
//!   `db/` (MDBX's own files). State files of backends live beside them and are not ours.
//! * *Snapshot* ([`ReadTxn`]): what the last commit before its opening left, for as long as it
//!   lives. A long-lived one keeps MDBX from reusing pages, so the file grows: keep them short.
//! * *Block id*: number and *ordinal* (position among the stored blocks of that number). It is the
//!   key of everything that belongs to a block, and short; the tables are listed in [`tables`].
//! * *Canonical chain*: the blocks on the path from the first stored block to the [tip]. Only
//!   they have their transactions in the lookup table. Any other stored block is a *side block*.
//! * *Index of logs*: in which blocks addresses and topics occur in logs, kept in the background
//!   ([`Db::index_logs`]) and asked by [`ReadTxn::log_candidates`].
//! * *Metadata*: which chain, backend and formats a datadir holds ([`Metadata`]). It is written
//!   once; what contradicts it is refused. The chain's rules are kept beside it
//!   ([`ReadTxn::spec`]).
//!
//! [tip]: ChainRead::tip
//!
//! # Concurrency
//!
//! | who | works on | rule |
//! |---|---|---|
//! | any number of threads | [`ReadTxn`] | never waits for a writer; threads that share one use several MDBX transactions of the same snapshot |
//! | the thread that holds the [`WriteTxn`] | all tables | [`Db::begin_write`] serves threads strictly in the order they came |
//! | other processes | read-only | see the last commit; they need not hold the lock file |
//!
//! # Assumptions
//!
//! Pages have 4096 bytes, fixed when a datadir is created. A key has at most
//! [`Db::max_key_len`] bytes: MDBX aborts the process on longer ones, so they are refused before.
//! Nothing read from disk is trusted: every row carries a checksum over table, key and value, and a
//! row that does not pass, or does not parse, is [`DbError::Corrupt`].

mod chain;
mod checksum;
mod codecs;
mod env;
mod error;
mod kept;
mod kv;
mod lock;
mod logs;
mod notes;
mod pieces;
mod raw;
mod snapshot;
mod spec;
mod stats;
mod sync;
pub mod tables;
mod verify;
mod writer;

pub use chain::{
    CanonicalHeaders, ChainRead, Metadata, NewBlock, SCHEMA_VERSION, StateRootMode, StoredBlock,
    StoredTransaction,
};
pub use env::{Db, OpenOptions, Retention, SyncMode};
pub use error::{DbError, Result};
pub use kept::{Kept, KeptBlocks};
pub use logs::{LogBounds, LogCandidates, LogQuery};
pub use snapshot::ReadTxn;
pub use stats::{DbStats, TableStats};
pub use verify::CheckedTable;
pub use writer::WriteTxn;
