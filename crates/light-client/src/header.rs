//! Reads number and state root of a header (yellow paper 4.3).

use crate::error::HeaderFault;
use alloy_primitives::{B256, keccak256};
use alloy_rlp::{Decodable, Header};

/// Number and state root of a header, if its RLP has this hash.
///
/// The hash binds all fields. These two have had the same position since Frontier; later forks
/// append fields after them.
pub(crate) fn number_and_root(hash: &B256, rlp: &[u8]) -> Result<(u64, B256), HeaderFault> {
    let got = keccak256(rlp);
    if got != *hash {
        return Err(HeaderFault::OtherHash(got));
    }
    read(rlp).map_err(|_| HeaderFault::Malformed)
}

fn read(mut rlp: &[u8]) -> alloy_rlp::Result<(u64, B256)> {
    let mut fields = Header::decode_bytes(&mut rlp, true)?;
    if !rlp.is_empty() {
        return Err(alloy_rlp::Error::UnexpectedLength);
    }
    // Parent, ommers, beneficiary.
    skip(&mut fields, 3)?;
    let root = B256::decode(&mut fields)?;
    // Transactions, receipts, bloom, difficulty.
    skip(&mut fields, 4)?;
    let number = u64::decode(&mut fields)?;
    Ok((number, root))
}

fn skip(fields: &mut &[u8], count: usize) -> alloy_rlp::Result<()> {
    for _ in 0..count {
        Header::decode_bytes(fields, false)?;
    }
    Ok(())
}
