//! The database of the client: one MDBX environment per datadir. It holds the chain (headers,
//! bodies, receipts, code, roots) and the rows of the state backend, which change together in one
//! transaction or not at all.
//!
//! ```text
//!   pipeline / engine / rpc                       retrie-state (framework)
//!        | ChainRead, WriteTxn::insert_*               | KvStore, KvRead, KvWrite
//!        v                                             v
//!   +-------------------------  DatabaseEnv  -------------------------+
//!   |  ReadTxn (snapshot, many threads)      WriteTxn (one at a time) |
//!   |  chain tables                          tables "State<name>"     |
//!   +-----------------------  MDBX: <datadir>/db  --------------------+
//! ```
//!
//! # Vocabulary
//!
//! * *Database* ([`DatabaseEnv`]): an open datadir.
//! * *Datadir*: a directory with `lock` (held by the one writing process, with its process id) and
//!   `db/` (MDBX's own files). State files of backends lie beside them and are not part of this
//!   crate.
//! * *Snapshot* ([`ReadTxn`]): the state of the database after the last commit before the snapshot
//!   was opened. A long-lived snapshot keeps MDBX from reusing pages, so the file grows: keep
//!   snapshots short.
//! * *Block id*: number and *ordinal* (position among the stored blocks of that number). It is a
//!   short key for all rows of a block; the tables are listed in [`tables`].
//! * *Canonical chain*: the blocks on the path from the first stored block to the [tip]. Only
//!   canonical blocks have their transactions in the lookup table. Any other stored block is a
//!   *side block*.
//! * *Log index*: in which blocks addresses and topics occur in logs. A background thread builds it
//!   ([`DatabaseEnv::index_logs`]), and [`ReadTxn::log_candidates`] searches it.
//! * *Address index*: which transactions an account takes part in. A background thread builds it
//!   ([`DatabaseEnv::index_addresses`]), and [`ReadTxn::account_transactions`] searches it.
//! * *Metadata*: which chain, backend and formats a datadir holds ([`DatadirMetadata`]). It is
//!   written once, and openings that contradict it fail. The chain's rules are stored beside it
//!   ([`ReadTxn::spec`]).
//! * *Retention* ([`RetentionSetting`]): how many blocks can be reverted.
//! * *History kept* ([`HistoryKept`]): which bodies, receipts and lookup rows of old blocks are not
//!   pruned.
//!
//! [tip]: ChainRead::tip
//!
//! # Concurrency
//!
//! | who | works on | rule |
//! |---|---|---|
//! | any number of threads | [`ReadTxn`] | never waits for a writer; threads that share one use several MDBX transactions of the same snapshot |
//! | the thread that holds the [`WriteTxn`] | all tables | [`DatabaseEnv::begin_write`] serves threads strictly in order of arrival |
//! | other processes | read-only | see the last commit; they need not hold the lock file |
//!
//! # Assumptions
//!
//! Pages have 4096 bytes, fixed when a datadir is created. A key has at most
//! [`DatabaseEnv::max_key_len`] bytes: MDBX aborts the process on longer keys, so this crate
//! refuses them. Nothing read from disk is trusted: every row carries a checksum over table, key
//! and value, and a row that does not match or does not parse is a [`CorruptRow`].

mod addresses;
mod chain;
mod checksum;
mod codecs;
mod disk_sync;
mod env;
mod error;
mod history_kept;
mod index_tables;
mod kv;
mod lock;
mod logs;
mod notes;
mod pieces;
mod raw;
mod snapshot;
mod spec;
mod stats;
pub mod tables;
mod verify;
mod writer;

pub use addresses::{
    AccountTransactions, AddressBounds, BlockParticipants, ContractCreation, StoredCreation,
    TransactionParticipants,
};
pub use chain::{
    CanonicalHeaders, ChainRead, DatadirMetadata, KeyPreimage, NewBlock, SCHEMA_VERSION,
    StateRootMode, StoredBlock, StoredKeyForm, StoredTransaction,
};
pub use env::{DatabaseEnv, OpenOptions, RetentionSetting, SyncMode};
pub(crate) use error::Result;
pub use error::{
    BlockError, CorruptRow, DbError, MetadataError, OpenError, PrunedBody, ReadError, StorageError,
    TableError,
};
pub use history_kept::{ACCESS_LIST_DISTANCE, HistoryKept, KeptBlocks};
pub use index_tables::{StoredTable, add_to_table};
pub use logs::{LogBounds, LogCandidates, LogQuery};
pub use snapshot::ReadTxn;
pub use stats::{DbStats, TableStats};
pub use verify::CheckedTable;
pub use writer::WriteTxn;
