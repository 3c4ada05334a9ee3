//! The index contract, whose storage has the roots of tables.

use crate::TableSpan;
use alloy_primitives::{Address, B256, Bytes, address, bytes};

/// Address of the index contract. The EIP has none yet; this is the one that geth uses meanwhile.
pub const INDEX_CONTRACT: Address = address!("0x0000000000000000000000000000000000008304");

/// The code of the index contract.
pub static INDEX_CONTRACT_CODE: Bytes = bytes!(
    "0x3373fffffffffffffffffffffffffffffffffffffffe1460605760403603605c576020358060801c605c57"
    "6104008160048104430304828202925f35818106605c5704908103196103ff10605c570601548015605c575f52"
    "60205ff35b5f5ffd5b604035602035610400818102915f350406015500"
);

/// Input of the call by which the system stores a root: first block, size, root.
pub fn set_input(span: TableSpan, root: B256) -> Bytes {
    let word = |number: u64| B256::left_padding_from(&number.to_be_bytes());
    [word(span.first()), word(span.size()), root].concat().into()
}
