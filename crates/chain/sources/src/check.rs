//! Strict decoding, and checks of a block against the commitments in its own header.

use alloy_consensus::{
    ReceiptEnvelope,
    proofs::{calculate_receipt_root, calculate_transaction_root, calculate_withdrawals_root},
};
use alloy_primitives::{B256, U256};
use alloy_rlp::{Decodable, Encodable};
use retrie_chainspec::primitives::{Block, Header};

use crate::error::SourceErrorKind;

/// Decodes RLP that must fill its buffer and be the canonical encoding of the decoded value.
///
/// The decoder alone is more lenient (for one, it does not check the length of the string around a
/// typed transaction), and hashes and roots are computed from a new encoding. `scratch` is reused
/// memory.
pub(crate) fn decode_strictly<T: Decodable + Encodable>(
    bytes: &[u8],
    what: &'static str,
    scratch: &mut Vec<u8>,
) -> Result<T, SourceErrorKind> {
    let value: T =
        alloy_rlp::decode_exact(bytes).map_err(|error| SourceErrorKind::Rlp { what, error })?;
    scratch.clear();
    value.encode(scratch);
    if scratch != bytes {
        let error = alloy_rlp::Error::Custom("not the canonical encoding");
        return Err(SourceErrorKind::Rlp { what, error });
    }
    Ok(value)
}

/// Compares two hashes. The error names the hash.
pub(crate) fn same_hash(
    what: &'static str,
    expected: B256,
    got: B256,
) -> Result<(), SourceErrorKind> {
    if expected == got {
        Ok(())
    } else {
        Err(SourceErrorKind::HashMismatch { what, expected, got })
    }
}

/// Compares two numbers. The error names the number.
pub(crate) const fn same_number(
    what: &'static str,
    expected: u64,
    got: u64,
) -> Result<(), SourceErrorKind> {
    if expected == got {
        Ok(())
    } else {
        Err(SourceErrorKind::NumberMismatch { what, expected, got })
    }
}

/// Checks `transactionsRoot` and `withdrawalsRoot` (EIP-4895) of the header against the body.
pub(crate) fn transactions_and_withdrawals(block: &Block) -> Result<(), SourceErrorKind> {
    same_hash(
        "transactionsRoot of the body",
        block.header.transactions_root,
        calculate_transaction_root(&block.body.transactions),
    )?;
    match (block.header.withdrawals_root, &block.body.withdrawals) {
        (None, None) => Ok(()),
        (Some(expected), Some(withdrawals)) => same_hash(
            "withdrawalsRoot of the body",
            expected,
            calculate_withdrawals_root(withdrawals),
        ),
        (Some(_), None) => {
            Err(SourceErrorKind::Format("the header commits to withdrawals, the body has none"))
        }
        (None, Some(_)) => Err(SourceErrorKind::Format(
            "the body has withdrawals, the header does not commit to them",
        )),
    }
}

/// Checks `ommersHash` of the header against the body.
pub(crate) fn ommers(block: &Block) -> Result<(), SourceErrorKind> {
    same_hash(
        "ommersHash of the body",
        block.header.ommers_hash,
        block.body.calculate_ommers_root(),
    )
}

/// Checks transactions, withdrawals, ommers and, if they are given, receipts against the header.
pub(crate) fn whole_body(
    block: &Block,
    receipts: Option<&[ReceiptEnvelope]>,
) -> Result<(), SourceErrorKind> {
    transactions_and_withdrawals(block)?;
    ommers(block)?;
    receipts.map_or(Ok(()), |list| receipts_root(&block.header, list))
}

/// Checks `receiptsRoot` of the header.
pub(crate) fn receipts_root(
    header: &Header,
    receipts: &[ReceiptEnvelope],
) -> Result<(), SourceErrorKind> {
    let root = calculate_receipt_root(receipts);
    same_hash("receiptsRoot of the receipts", header.receipts_root, root)
}

/// The total difficulty in an entry: 32 bytes, little-endian.
pub(crate) fn total_difficulty_entry(
    parent: Option<U256>,
    header: &Header,
    data: &[u8],
) -> Result<U256, SourceErrorKind> {
    let bytes: [u8; 32] = data.try_into().map_err(|_| {
        SourceErrorKind::Format("a total difficulty entry must have 32 bytes: damaged")
    })?;
    let got = U256::from_le_bytes(bytes);
    next_total_difficulty(parent, header, got)?;
    Ok(got)
}

/// Compares the total difficulty of a block with that of its parent. If the parent is in another
/// file, every sum of at least the block's own difficulty passes.
pub(crate) fn next_total_difficulty(
    parent: Option<U256>,
    header: &Header,
    got: U256,
) -> Result<(), SourceErrorKind> {
    let parent = match parent {
        Some(parent) => parent,
        None if header.number == 0 => U256::ZERO,
        None => got.saturating_sub(header.difficulty),
    };
    match parent.checked_add(header.difficulty) {
        Some(expected) if expected == got => Ok(()),
        expected => {
            Err(SourceErrorKind::TotalDifficulty { expected: expected.unwrap_or(U256::MAX), got })
        }
    }
}
