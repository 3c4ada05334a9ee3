//! A prover over any source, honest or not.

use crate::{
    SLOTS,
    proof::{
        asked_keys::AskedKeys,
        wire::{
            CompressedPoint, EntryProof, LvmtProof, ProvenAmt, ProvenPosition, ProvenTuple,
            SlotOccupant, TreeProof,
        },
    },
};
use alloy_primitives::B256;
use retrie_state::{BackendKey, KeyForm, StateError, StateValue};

/// The source of a proof: one state.
pub(super) trait ProofSource {
    /// Height of the AMTs, commitment of the root AMT, first block, number of blocks.
    fn state(&self) -> (u8, CompressedPoint, u64, u64);
    /// The level and slot that a key has, if it ever had a value.
    fn find(&mut self, key: &BackendKey) -> Result<Option<(u8, u8)>, StateError>;
    /// The versions of the entry at the path `way`.
    fn versions(&mut self, way: &[u16]) -> Result<[u64; SLOTS], StateError>;
    /// The key in an occupied slot (1 to 5), its value and the position of its tuple.
    fn occupant(
        &mut self,
        way: &[u16],
        slot: u8,
    ) -> Result<(BackendKey, Option<StateValue>, ProvenPosition), StateError>;
    /// The sub-AMT at the path `way`.
    fn amt(&mut self, way: &[u16]) -> Result<ProvenAmt, StateError>;
    /// The quotients above the entry at the path `way`, root first; `None` leaves a hole.
    fn quotients(&mut self, way: &[u16]) -> Result<Option<Vec<CompressedPoint>>, StateError>;
    /// The multi-proof of leaves (by position, ascending) of a block's tree.
    fn tree(&mut self, block: u64, shown: &[u64]) -> Result<TreeProof, StateError>;
    /// The multi-proof of blocks (by number minus the first one, ascending) in the range.
    fn range(&mut self, shown: &[u64]) -> Result<Vec<B256>, StateError>;
}

/// The proof of `keys`, with holes where `source` leaves them.
pub(super) fn assemble(
    keys: &[BackendKey],
    source: &mut dyn ProofSource,
) -> Result<LvmtProof, StateError> {
    let (height, commitment, first, blocks) = source.state();
    let asked = AskedKeys::new(keys, height);
    let mut slots = Vec::with_capacity(asked.len());
    for number in 0..asked.len() {
        slots.push(source.find(asked.key(number))?);
    }
    let mut entries = Vec::new();
    let mut pending: Vec<_> = (0..asked.len()).collect();
    for level in 0.. {
        if pending.is_empty() {
            break;
        }
        let mut deeper = Vec::new();
        for run in asked.by_entry(&pending, level) {
            // No key has a slot at a level that its hash does not reach.
            let way = asked.path(run[0], level).unwrap_or_default();
            let versions = source.versions(&way)?;
            let quotients = source.quotients(&way)?;
            let mut entry =
                EntryProof { versions, quotients, tuples: Default::default(), amt: None };
            // A key without a slot is absent here; then all occupants are shown.
            let full = run.iter().any(|number| slots[*number].is_none());
            let here = |slot| Some((level as u8, slot));
            for slot in 1..=entry.occupied() as u8 {
                let asked = run.iter().position(|number| slots[*number] == here(slot));
                if asked.is_none() && !full {
                    continue;
                }
                let (key, value, place) = source.occupant(&way, slot)?;
                let occupant = asked
                    .map_or(SlotOccupant::Other(key), |number| SlotOccupant::Asked(number as u32));
                entry.tuples[usize::from(slot) - 1] = Some(ProvenTuple { occupant, value, place });
            }
            if entry.versions[0] > 0 {
                let before = deeper.len();
                let ends = |number: &usize| slots[*number].is_some_and(|(at, _)| at == level as u8);
                deeper.extend(run.iter().copied().filter(|number| !ends(number)));
                if deeper.len() > before {
                    entry.amt = Some(source.amt(&way)?);
                }
            }
            entries.push(entry);
        }
        pending = deeper;
    }
    let mut proof = LvmtProof {
        form: KeyForm::Plain,
        height,
        commitment,
        first,
        blocks,
        entries,
        trees: Vec::new(),
        range: Vec::new(),
    };
    let mut shown = Vec::new();
    for (block, positions) in proof.positions() {
        proof.trees.push(source.tree(block, &positions)?);
        shown.push(block - first);
    }
    proof.range = source.range(&shown)?;
    Ok(proof)
}
