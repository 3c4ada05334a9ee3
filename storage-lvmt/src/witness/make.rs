//! Makes witnesses.

use super::{PartialAmts, bytes::WitnessBytes};
use crate::{
    apply::root_of,
    merkle::{self, MerkleGroup, RangePeaks},
    params::LvmtParams,
    proof,
    record::{RANGE, corrupt, range_key},
    shard::ProofShard,
    state::LvmtState,
    verify::ShownEntries,
};
use alloy_primitives::{B256, Bytes};
use retrie_state::{NodeRead, StateError, WitnessRequest};

/// The witness of `block` in the state of `view` and `state`.
pub(crate) fn make(
    params: &LvmtParams,
    shard: ProofShard,
    view: &dyn NodeRead,
    state: &LvmtState,
    block: WitnessRequest<'_>,
) -> Result<Bytes, StateError> {
    let keys = block.keys();
    let proof = proof::prove(params, shard, view, state, &keys)?;
    let peaks = peaks(view, state.meta.blocks)?;
    let root = root_of(&state.meta, &peaks.top());
    let shown = ShownEntries::read(params.height(), root, &keys, &proof);
    let shown = shown
        .map_err(|error| corrupt(RANGE, format!("a proof from these rows is refused: {error}")))?;
    let writes = PartialAmts::of(&shown).writes(block.delta).map_err(|error| {
        StateError::corrupt("delta", format!("it does not fit the state: {error}"))
    })?;
    let entries = writes.entries().into_iter();
    let increments: Vec<_> = entries.map(|entry| (entry, *params.increment(entry, 0))).collect();
    let half = (!increments.is_empty()).then(|| params.half_power());
    let peaks = peaks.hashes().to_vec();
    Ok(WitnessBytes { keys, proof: &proof, increments, half, peaks }.encode().into())
}

/// The peaks of the range over so many blocks: those before the last leaf are what its proof has.
fn peaks(view: &dyn NodeRead, blocks: u64) -> Result<RangePeaks, StateError> {
    let lost = || corrupt(RANGE, "a hash on the path of the last block is missing");
    let read = |level: u8, group: u64, size: u8| {
        let row = view.get(RANGE, &range_key(level, group))?;
        Ok(row.and_then(|row| MerkleGroup::decode(&row, size)))
    };
    let Some(last) = blocks.checked_sub(1) else {
        return RangePeaks::new(0, Vec::new()).ok_or_else(lost);
    };
    let before: Vec<B256> = merkle::prove(blocks, &[last], read)?.ok_or_else(lost)?;
    let (group, at) = (last / merkle::GROUP as u64, (last % merkle::GROUP as u64) as u8);
    let leaf = read(0, group, at + 1)?.and_then(|group| group.leaf(at)).ok_or_else(lost)?;
    let mut peaks = RangePeaks::new(last, before).ok_or_else(lost)?;
    peaks.push(leaf);
    Ok(peaks)
}
