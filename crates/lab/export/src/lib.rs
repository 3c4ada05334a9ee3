//! Exports chain data and race results as Parquet files, for analysts.
//!
//! ```text
//!  datadir (a snapshot) -- ChainSource --.
//!                                        +--> BlockData --> rows --> row groups --> file
//!  bundles ------------- BundleSource --'    block, receipts,  of each table, of a chunk
//!                                            state changes
//!  reports of races ------------------------------> rows of `results`, `result_blocks`
//! ```
//!
//! # Vocabulary
//!
//! * **Table** ([`ExportTable`]): the kind of rows in a file. Names of tables, columns and files,
//!   and types of columns, are those of [cryo](https://github.com/paradigmxyz/cryo) if it has them.
//! * **Chunk**: the blocks in one file of each table. A chunk of a chain begins and ends at
//!   multiples of the chunk size; a chunk of bundles has a fixed number of them, with any gaps.
//! * **Source** ([`BlockSource`]): yields blocks, from a datadir or from bundles.
//! * **Stamp**: the description of a file's content in its footer: chain, blocks, and a digest of
//!   their hashes. By the stamp a resumed export knows which files it has already written.
//! * **Changes**: the net changes of the state by a block, from its execution. They belong to the
//!   block, not to a transaction.
//!
//! # Guarantees
//!
//! * A file appears under its name complete and synced, or not at all. An existing file is kept if
//!   it holds exactly these blocks; it counts as complete only if its checksum is right.
//! * Memory holds one row group per table, not a chunk.
//! * Every block whose changes are exported is executed, and its outcome must match its header.
//!
//! # Modules
//!
//! [`BlockExport`] plans and writes chunks; `tables` has the columns; `column` and `file` write
//! Parquet.

mod column;
mod error;
mod export;
mod file;
mod source;
mod tables;

pub use error::{BlockSourceError, ExportError, ExportFileError};
pub use export::{BlockExport, ExportOutcome};
pub use source::{
    BlockChanges, BlockData, BlockNeeds, BlockNumbers, BlockSource, BundleSource, ChainSource,
};
pub use tables::{ExportTable, UnknownTable, results::export_reports};
