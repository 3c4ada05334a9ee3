//! Strict decoding, and checks of a block against the commitments in its own header.

use alloy_consensus::proofs::{calculate_transaction_root, calculate_withdrawals_root};
use alloy_primitives::B256;
use alloy_rlp::{Decodable, Encodable};
use retrie_chainspec::primitives::Block;

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
