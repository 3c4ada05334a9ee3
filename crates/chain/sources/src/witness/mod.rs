//! Execution witnesses of Ethereum's tries: what a node needs to execute a block without a state.
//!
//! [`ExecutionWitness`] is the canonical form (execution-apis, `debug_executionWitness`);
//! [`WitnessAnswer`] is what some client answered, in whatever form, for those who compare.
//!
//! | list | entries | order |
//! |---|---|---|
//! | `state` | RLP of the trie nodes that execution and the root after it need | by bytes |
//! | `codes` | codes that were read from the state before the block, none of them empty | by bytes |
//! | `headers` | RLP of headers from the oldest that BLOCKHASH reads to the parent | by number |
//! | `keys` | addresses (20 bytes) and slots (32 bytes) that are read or written; may be left out | by bytes |
//!
//! Each entry is there once.

mod answer;
mod block;
mod json;

pub use answer::{AnswerEntry, AnswerList, ListForm, WitnessAnswer};
pub use block::{enclosed_block, read_block};
pub use json::WitnessJson;

use alloy_primitives::Bytes;
use alloy_rlp::{BufMut, Encodable};
use serde::{Deserialize, Serialize};

/// The member that only the file of another kind of witness has, that of a store: its version.
pub const STATE_WITNESS_MEMBER: &str = "witnessVersion";

/// The witness of a block, in canonical order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutionWitness {
    /// RLP of trie nodes, account trie and storage tries mixed, ascending.
    pub state: Vec<Bytes>,
    /// Contract codes, ascending.
    pub codes: Vec<Bytes>,
    /// Addresses and slots, ascending. Left out of the JSON if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<Bytes>,
    /// RLP of headers, ascending by number; the last one is the parent's.
    pub headers: Vec<Bytes>,
}

/// A witness with its block, as `retrie witness make` writes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BlockWithWitness {
    /// RLP of the block.
    pub block: Bytes,
    /// Its witness.
    #[serde(flatten)]
    pub witness: ExecutionWitness,
}

/// The RLP of geth's `stateless.Witness`, as `engine_newPayloadWithWitness` has it: `[headers, codes,
/// state, keys]`, where each header is a list of its own and `keys` is empty.
impl Encodable for ExecutionWitness {
    fn encode(&self, out: &mut dyn BufMut) {
        let headers = self.headers.iter().map(|header| header.len()).sum();
        alloy_rlp::Header { list: true, payload_length: self.payload_length() }.encode(out);
        alloy_rlp::Header { list: true, payload_length: headers }.encode(out);
        for header in &self.headers {
            out.put_slice(header);
        }
        self.codes.encode(out);
        self.state.encode(out);
        out.put_u8(alloy_rlp::EMPTY_LIST_CODE);
    }

    fn length(&self) -> usize {
        let payload_length = self.payload_length();
        alloy_rlp::length_of_length(payload_length) + payload_length
    }
}

impl ExecutionWitness {
    fn payload_length(&self) -> usize {
        let headers: usize = self.headers.iter().map(|header| header.len()).sum();
        let headers = alloy_rlp::length_of_length(headers) + headers;
        headers + self.codes.length() + self.state.length() + 1
    }
}
