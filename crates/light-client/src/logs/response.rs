//! The answer of `state_getLogs`.

use alloc::vec::Vec;
use alloy_primitives::Bytes;
use alloy_rpc_types_eth::Log;

/// The answer of `state_getLogs(filter)`: what `eth_getLogs` answers, and what shows that no log of
/// the range is missing. Do not trust it before it is [verified](crate::verify_logs).
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LogsResponse {
    /// Version of this form of answers, [`VERSION`](Self::VERSION).
    pub version: u32,
    /// The logs, in the order of the chain.
    pub logs: Vec<Log>,
    /// Every block of the range, in order.
    pub blocks: Vec<HeaderWithReceipts>,
}

impl LogsResponse {
    /// The version of this form of answers.
    pub const VERSION: u32 = 1;
}

/// A block of the range of a [`LogsResponse`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct HeaderWithReceipts {
    /// RLP of the header.
    pub header: Bytes,
    /// RLP of the list of all receipts of the block, each without its bloom, as EIP-7642 has them.
    /// Only there if the bloom of the header matches the filter.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub receipts: Option<Bytes>,
}
