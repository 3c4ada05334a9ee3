//! The answer of `state_getLogs` in the form `tables`.

use crate::StateProofResponse;
use alloc::{string::String, vec::Vec};
use alloy_primitives::{Bytes, U64};
use alloy_rpc_types_eth::Log;
use retrie_log_tables::{EntryRange, TableProof, TableSpan, decode_entries, encode_entries};

/// The answer of `state_getLogs(filter, "tables", block)`: what `eth_getLogs` answers, and what shows
/// by index tables (EIP-8304) that no log of the range is missing. Do not trust it before it is
/// [verified](crate::verify_log_tables).
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LogTablesResponse {
    /// Version of this form of answers, [`VERSION`](Self::VERSION).
    pub version: u32,
    /// Name of this form, [`FORM`](Self::FORM).
    pub form: String,
    /// The logs, in the order of the chain.
    pub logs: Vec<Log>,
    /// RLP of the header of the block whose state has the roots of the tables.
    pub header: Bytes,
    /// The roots in the storage of the index contract, a slot for each table in their order. Left out
    /// on a chain without that contract: the verifier must then know the roots.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub state: Option<StateProofResponse>,
    /// Tables whose blocks cover the range, in order; after them the table of the block behind the
    /// range, if the hash of the last block is needed and no other table has it.
    pub tables: Vec<TableSlice>,
    /// The blocks that may have a matching log, in order.
    pub blocks: Vec<HeaderWithPaths>,
}

impl LogTablesResponse {
    /// The version of this form of answers.
    pub const VERSION: u32 = 2;
    /// The name of this form of answers.
    pub const FORM: &'static str = "tables";
}

/// Entries of an index table, and their proof.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub struct TableSlice {
    /// First block of the table.
    pub first_block: U64,
    /// Number of blocks of the table.
    pub size: U64,
    /// Number of entries of the table.
    pub entries: U64,
    /// Conditions of the filter of which all entries are shown: 0 for addresses, or if the filter has
    /// no condition; 1 to 4 for topics.
    pub shows: Vec<u8>,
    /// The entries that are shown.
    pub runs: Vec<RangeBytes>,
    /// The nodes of the table's tree beside these entries, 32 bytes each, from left to right.
    pub nodes: Bytes,
}

/// Consecutive entries of an index table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RangeBytes {
    /// Index of the first one.
    pub start: U64,
    /// Each entry as the number of bytes that it shares with the one before, and its other bytes.
    pub entries: Bytes,
}

/// A block that may have a matching log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct HeaderWithPaths {
    /// RLP of the header.
    pub header: Bytes,
    /// Nodes of the trie of receipts, from the root to each receipt that may have a matching log.
    pub receipts: Vec<Bytes>,
}

impl TableSlice {
    /// The slice of a table that this proof shows, with all entries of some conditions.
    pub fn of(span: TableSpan, shows: Vec<u8>, proof: &TableProof) -> Self {
        let run = |run: &EntryRange| RangeBytes {
            start: U64::from(run.start),
            entries: encode_entries(&run.entries).into(),
        };
        let nodes = proof.nodes.iter().flat_map(|node| node.0);
        Self {
            first_block: U64::from(span.first()),
            size: U64::from(span.size()),
            entries: U64::from(proof.count),
            shows,
            runs: proof.runs.iter().map(run).collect(),
            nodes: nodes.collect::<Vec<u8>>().into(),
        }
    }

    /// The blocks of the table, and the proof; `None` if there is no such table, or the bytes are no
    /// entries and nodes.
    pub(super) fn open(&self) -> Option<(TableSpan, TableProof)> {
        let span = TableSpan::new(self.first_block.to(), self.size.to())?;
        let run = |run: &RangeBytes| {
            Some(EntryRange { start: run.start.to(), entries: decode_entries(&run.entries)? })
        };
        let runs = self.runs.iter().map(run).collect::<Option<_>>()?;
        let (nodes, rest) = self.nodes.as_chunks::<32>();
        let nodes = nodes.iter().map(|node| node.into()).collect();
        rest.is_empty().then_some((span, TableProof { count: self.entries.to(), runs, nodes }))
    }
}
