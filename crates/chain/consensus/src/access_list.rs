//! Rules of block access lists (BAL, EIP-7928), and of a list that came with its block.

use crate::ConsensusError;
use alloy_eip7928::{
    AccountChanges, BlockAccessList, constants::ITEM_COST, total_bal_items,
    validate_block_access_list,
};
use alloy_primitives::keccak256;
use retrie_chainspec::primitives::SealedBlock;

/// Decodes the access list that came with `block` (EIP-7928).
///
/// The list must be the one that the header commits to, and well-formed: accounts, slots and block
/// access indices strictly ascend, no index lies beyond the block, no slot is both read and
/// written, and there are no more items than the gas limit allows. Only execution can show whether
/// its contents are right.
///
/// # Errors
/// [`ConsensusError`], which is a verdict about the block: [`ConsensusError::AccessListMismatch`]
/// and [`ConsensusError::UnexpectedAccessList`] if list and header do not belong together,
/// [`ConsensusError::MalformedAccessList`] if no execution can produce what the header commits to,
/// [`ConsensusError::AccessListItems`] if the list is too long.
pub fn validate_access_list(
    block: &SealedBlock,
    rlp: &[u8],
) -> Result<BlockAccessList, ConsensusError> {
    let expected = block.header().block_access_list_hash;
    let expected = expected.ok_or(ConsensusError::UnexpectedAccessList)?;
    let got = keccak256(rlp);
    if got != expected {
        return Err(ConsensusError::AccessListMismatch { got, expected });
    }
    let malformed = |reason: String| ConsensusError::MalformedAccessList { reason };
    let list: BlockAccessList =
        alloy_rlp::decode_exact(rlp).map_err(|error| malformed(error.to_string()))?;
    validate_block_access_list(&list, block.body().transactions.len())
        .map_err(|error| malformed(error.to_string()))?;
    validate_items(&list, block.header().gas_limit)?;
    Ok(list)
}

/// Checks the number of items of a list, its accounts and their slots, against the `gas_limit` of
/// its block (EIP-7928): there may be one item per [`ITEM_COST`] gas, which is less than the cost
/// of a cold access.
pub(crate) fn validate_items(
    list: &[AccountChanges],
    gas_limit: u64,
) -> Result<(), ConsensusError> {
    let (items, limit) = (total_bal_items(list), gas_limit / ITEM_COST as u64);
    if items > limit {
        return Err(ConsensusError::AccessListItems { items, limit, gas_limit });
    }
    Ok(())
}
