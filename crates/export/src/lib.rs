//! Chain data and results of races as Parquet files, for analysts.
//!
//! ```text
//!  datadir (a snapshot) -- ChainSource --.
//!                                        +--> BlockData --> rows of each table --> row groups --> file
//!  bundles ------------- BundleSource --'    block, receipts,                     of a chunk     of a chunk
//!                                            changes of the state
//!  reports of races --------------------------------------> rows of `results`, `result_blocks`
//! ```
//!
//! # Vocabulary
//!
//! * **table** ([`Table`]): what the rows of a file are about. Names of tables, columns and files, and
//!   types of columns, are those of [cryo](https://github.com/paradigmxyz/cryo) where it has them.
//! * **chunk**: the blocks of one file of each table. Of a chain a chunk begins and ends at multiples of
//!   the chunk size; of bundles it is so many of them, whatever lies between.
//! * **source** ([`BlockSource`]): where blocks come from.
//! * **stamp**: what the footer of a file says of its content: chain, blocks, and a digest of their
//!   hashes. By it an export that goes on knows what it need not write again.
//! * **changes**: what a block has done to the state, net, as its execution says. They belong to the
//!   block and to no transaction.
//!
//! # What it promises
//!
//! * A file appears under its name whole and synced, or not at all. What is there already is kept if it
//!   holds exactly these blocks, and is never taken for whole without its checksum.
//! * Memory holds a row group of each table, not a chunk.
//! * Every block whose changes are asked for is executed, and its outcome must be what its header says.
//!
//! # Where things are
//!
//! [`Export`] plans chunks and drives; `tables` has the columns; `column` and `file` know Parquet.

mod column;
mod error;
mod export;
mod file;
mod source;
mod tables;

pub use error::ExportError;
pub use export::{Export, Exported};
pub use source::{BlockData, BlockSource, Blocks, BundleSource, ChainSource, Changes, Needs};
pub use tables::{Table, UnknownTable, results::export_reports};
