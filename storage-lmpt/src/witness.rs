//! Block witnesses: the nodes that a block reads, of all three tries, and those of the delta trie on
//! the paths of its changes.
//!
//! # Soundness
//!
//! As that of [proofs](crate::verify): a newer layer is left only if its nodes show that it has no leaf
//! of the key. A block within a generation changes the delta trie alone, by insertions: a deleted key
//! leaves a tombstone. So the next root follows.
//!
//! No root says when a generation ends: it depends on the store's parameters, the number of blocks, and
//! the number of keys of the delta trie. A boundary moves the layers on and publishes a merge of whole
//! tries, so that it has no witness, and the verifier takes each block for one within a generation.
//! For a boundary it computes another root than that of the block. So it accepts no false value, but it
//! cannot tell a store that keeps its boundaries from one that does not.

use crate::{
    LmptParams,
    descriptor::NAME,
    hash, layer, leaf,
    snapshot::{SnapshotView, rows},
    state::LmptState,
};
use alloy_primitives::{B256, Bytes};
use retrie_state::{
    BackendDelta, BackendKey, NodeRead, ProofError, StateError, StateValue, WitnessError,
    WitnessRequest,
    descriptor::{OpenedWitness, WitnessResult, check_previous},
    wire::WireReader,
};
use retrie_storage_mpt::{
    LeafUpdate, MemorySource,
    block_witness::{PartialTrie, put_nodes},
};
use std::collections::BTreeSet;

/// First byte of a witness.
const VERSION: u8 = 1;

/// The witness of `block` in the state of `view` and `state`.
pub(crate) fn make(
    params: &LmptParams,
    view: &dyn NodeRead,
    state: &LmptState,
    block: WitnessRequest<'_>,
) -> Result<Bytes, StateError> {
    let none = |why| StateError::NoWitness { backend: NAME, why };
    let meta = state.meta.as_ref();
    let meta = meta.ok_or_else(|| none("the first block makes a whole snapshot"))?;
    if params.is_boundary(block.number.saturating_sub(meta.delta_from), meta.delta_keys) {
        return Err(none("it is a boundary, which publishes the merge of whole tries"));
    }
    let layers = state.layers(view)?;
    let source = SnapshotView(view);
    let mut parts: [BTreeSet<Bytes>; 3] = Default::default();
    let mut way = Vec::new();
    for key in block.keys() {
        let path = layer::path_of(&key);
        let mut found = layers.delta.prove(&MemorySource, &path, &mut way)?.is_some();
        parts[0].extend(way.drain(..));
        if !found {
            found = layers.intermediate.prove(&MemorySource, &path, &mut way)?.is_some();
            parts[1].extend(way.drain(..));
        }
        if !found {
            meta.snapshot.prove(&rows(&source), &path, &mut way)?;
            parts[2].extend(way.drain(..));
        }
    }
    let mut out = vec![VERSION];
    let roots = [meta.delta, meta.intermediate, meta.snapshot.hash()];
    roots.iter().for_each(|root| out.extend_from_slice(root.as_slice()));
    parts.iter().for_each(|part| put_nodes(&mut out, part));
    Ok(out.into())
}

/// Opens the witness `bytes` of the state of `root`.
pub(crate) fn open(root: B256, bytes: &[u8]) -> WitnessResult {
    Ok(Box::new(read(root, bytes)?))
}

fn read(root: B256, bytes: &[u8]) -> Result<LmptWitness, ProofError> {
    let mut reader = WireReader::new(bytes);
    if reader.u8()? != VERSION {
        return Err(ProofError::Malformed { what: "version" });
    }
    let roots = [reader.hash()?, reader.hash()?, reader.hash()?];
    if hash::root(&roots) != root {
        return Err(ProofError::RootMismatch);
    }
    let [delta, intermediate, snapshot] = roots;
    let layers = [
        PartialTrie::read(delta, &mut reader)?,
        PartialTrie::read(intermediate, &mut reader)?,
        PartialTrie::read(snapshot, &mut reader)?,
    ];
    reader.finish()?;
    Ok(LmptWitness { layers })
}

/// An opened witness: delta, intermediate trie, snapshot.
#[derive(Debug)]
struct LmptWitness {
    layers: [PartialTrie; 3],
}

/// The refusal of a node or a leaf that no trie of a store has.
const BAD_NODE: WitnessError = WitnessError::Refused(ProofError::Malformed { what: "trie node" });

impl OpenedWitness for LmptWitness {
    fn value(&self, key: &BackendKey) -> Result<Option<StateValue>, WitnessError> {
        let path = layer::path_of(key);
        for layer in &self.layers {
            let found = layer.get(&path).map_err(|error| match error {
                StateError::MissingWitness { .. } => WitnessError::Unproven { key: *key },
                _ => BAD_NODE,
            })?;
            if let Some(found) = found {
                let value = leaf::decode(&found).ok_or(BAD_NODE)?;
                return Ok(value.map(StateValue::copy_from_slice));
            }
        }
        Ok(None)
    }

    fn apply(&self, _: u64, delta: &BackendDelta) -> Result<B256, WitnessError> {
        check_previous(self, delta)?;
        let changed = delta.changes().iter().filter(|change| change.previous != change.next);
        let mut items: Vec<LeafUpdate> = changed
            .map(|change| {
                let value = leaf::encode(change.next.as_ref());
                LeafUpdate::new(layer::path_of(&change.key), Some(value))
            })
            .collect();
        items.sort_unstable_by_key(|item| item.key);
        let [delta, intermediate, snapshot] = &self.layers;
        let delta = delta.root_after(&items).map_err(|error| match error {
            StateError::MissingWitness { what } => WitnessError::Incomplete { what },
            _ => BAD_NODE,
        })?;
        Ok(hash::root(&[delta, intermediate.root(), snapshot.root()]))
    }
}
