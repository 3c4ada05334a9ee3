//! Index tables of EIP-8304: where addresses and topics of logs, and hashes of transactions and
//! blocks, occur in a range of blocks, sorted, so that a short proof shows all places of one of them.
//!
//! ```text
//!  blocks, receipts --> TableBuilder --> IndexTable --> root --> index contract --> state root
//!                                            |
//!                                            '--> TableProof: runs of entries, hashes beside them
//!  TableProof --> root, to be compared; complete(key): every entry of a key
//! ```
//!
//! # Vocabulary
//!
//! * **Entry** ([`IndexEntry`]): a type, a content (address, topic or hash) and a position, in the
//!   binary form that is hashed and that gives the order.
//! * **Key** ([`EntryKey`]): type and content, which begin an entry.
//! * **Span** ([`TableSpan`]): the blocks of a table; one of five sizes.
//! * **Run** ([`EntryRange`]): consecutive entries of a table in a proof.
//!
//! # Completeness
//!
//! Entries are in order, so the entries of a key are consecutive. A run that has the entry before
//! and the entry behind them, or reaches the end of the table there, has all of them.
//!
//! Pure, without `std`. Formats: `docs/formats/log-tables.md`.

#![no_std]

extern crate alloc;

mod contract;
mod entry;
mod merkle;
mod proof;
mod span;
mod table;

pub use contract::{INDEX_CONTRACT, INDEX_CONTRACT_CODE, set_input};
pub use entry::{EntryKey, EntryKind, EntryPosition, IndexEntry, decode_entries, encode_entries};
pub use merkle::{NodeLevels, empty_subtree};
pub use proof::{EntryRange, KeyEntries, TableProof, TableProofError, merge_ranges};
pub use span::{TABLE_SIZES, TABLES_PER_LEVEL, TableSpan};
pub use table::{IndexTable, TableBuilder, TableReader};
