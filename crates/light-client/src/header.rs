//! Reads fields of a header (yellow paper 4.3).

use crate::error::HeaderFault;
use alloy_primitives::{B256, keccak256};
use alloy_rlp::{Decodable, Header};

/// Number and state root of a header, if its RLP has this hash.
///
/// The hash binds all fields. These two have had the same position since Frontier; later forks
/// append fields after them.
pub(crate) fn number_and_root(hash: &B256, rlp: &[u8]) -> Result<(u64, B256), HeaderFault> {
    read(hash, rlp, |mut fields| {
        // Parent, ommers, beneficiary.
        skip(&mut fields, 3)?;
        let root = B256::decode(&mut fields)?;
        // Transactions, receipts, bloom, difficulty.
        skip(&mut fields, 4)?;
        Ok((u64::decode(&mut fields)?, root))
    })
}

/// What `take` reads from the fields of a header, if its RLP has this hash.
pub(crate) fn read<T>(
    hash: &B256,
    mut rlp: &[u8],
    take: impl FnOnce(&[u8]) -> alloy_rlp::Result<T>,
) -> Result<T, HeaderFault> {
    let got = keccak256(rlp);
    if got != *hash {
        return Err(HeaderFault::OtherHash(got));
    }
    let fields = Header::decode_bytes(&mut rlp, true).ok().filter(|_| rlp.is_empty());
    fields.and_then(|fields| take(fields).ok()).ok_or(HeaderFault::Malformed)
}

/// Passes over `count` fields that are no lists.
pub(crate) fn skip(fields: &mut &[u8], count: usize) -> alloy_rlp::Result<()> {
    for _ in 0..count {
        Header::decode_bytes(fields, false)?;
    }
    Ok(())
}
