//! The headers of an answer to `GetBlockHeaders`.

use super::{ChainError, ChainView, ENOUGH, MAX_ITEMS};
use crate::eth::GetBlockHeaders;
use alloy_eips::BlockHashOrNumber;
use alloy_primitives::B256;
use alloy_rlp::Encodable;
use retrie_chainspec::primitives::Header;

/// Maximum number of side-chain blocks that are stepped over in a request that skips blocks.
const MAX_SIDE_STEPS: u64 = 100;

/// The headers of the answer, in the order of the request.
pub(super) fn answer(view: &dyn ChainView, from: &GetBlockHeaders) -> Vec<Header> {
    let mut found = Vec::new();
    if let Err(error) = collect(view, from, &mut found) {
        tracing::warn!(%error, "headers for a peer end early");
    }
    found
}

fn collect(
    view: &dyn ChainView,
    from: &GetBlockHeaders,
    found: &mut Vec<Header>,
) -> Result<(), ChainError> {
    let limit = usize::try_from(from.limit).unwrap_or(usize::MAX).min(MAX_ITEMS);
    let mut next = match from.start {
        BlockHashOrNumber::Hash(hash) => Some(hash),
        BlockHashOrNumber::Number(number) => view.canonical_hash(number)?,
    };
    let mut bytes = 0;
    let mut side_steps = MAX_SIDE_STEPS;
    while let Some(hash) = next
        && found.len() < limit
        && bytes < ENOUGH
    {
        let Some(header) = view.header(&hash)? else { return Ok(()) };
        let is_last = found.len() + 1 == limit;
        next = match is_last {
            true => None,
            false if from.reverse => below(view, &hash, &header, from.skip, &mut side_steps)?,
            false => above(view, &hash, &header, from.skip)?,
        };
        bytes += header.length();
        found.push(header);
    }
    Ok(())
}

/// The block `skip + 1` above a block, if both are canonical.
fn above(
    view: &dyn ChainView,
    hash: &B256,
    header: &Header,
    skip: u64,
) -> Result<Option<B256>, ChainError> {
    if view.canonical_hash(header.number)? != Some(*hash) {
        return Ok(None);
    }
    match skip.checked_add(1).and_then(|step| header.number.checked_add(step)) {
        Some(number) => view.canonical_hash(number),
        None => Ok(None),
    }
}

/// The ancestor that is `skip + 1` blocks below.
fn below(
    view: &dyn ChainView,
    hash: &B256,
    header: &Header,
    skip: u64,
    side_steps: &mut u64,
) -> Result<Option<B256>, ChainError> {
    let target = skip.checked_add(1).and_then(|step| header.number.checked_sub(step));
    let Some(target) = target else { return Ok(None) };
    if skip == 0 {
        return Ok(Some(header.parent_hash));
    }
    let (mut hash, mut number, mut parent) = (*hash, header.number, header.parent_hash);
    while number > target {
        if view.canonical_hash(number)? == Some(hash) {
            // All ancestors of a canonical block are canonical.
            return view.canonical_hash(target);
        }
        let Some(left) = side_steps.checked_sub(1) else { return Ok(None) };
        *side_steps = left;
        if number == target + 1 {
            return Ok(Some(parent));
        }
        let Some(header) = view.header(&parent)? else { return Ok(None) };
        (hash, number, parent) = (parent, header.number, header.parent_hash);
    }
    Ok(Some(hash))
}
