//! Blocks and receipts in the JSON of `eth_getBlockByNumber` and `eth_getBlockReceipts`, for crates
//! that show them without a server.

use crate::convert;
use retrie_chainspec::{
    ChainSpec,
    primitives::{Receipt, RecoveredBlock},
};
use serde::Serialize;

/// A block with its transactions in full.
pub fn block(block: &RecoveredBlock) -> impl Serialize + use<> {
    convert::block(block, true)
}

/// The receipts of a block, in order. Before Byzantium they have a status in place of a state root,
/// which takes another execution of the block.
pub fn receipts(
    spec: &ChainSpec,
    block: &RecoveredBlock,
    receipts: &[Receipt],
) -> impl Serialize + use<> {
    convert::receipts(spec, block, receipts, None)
}
