//! Making proofs: from each layer, the nodes on the paths to the keys that no newer layer has a
//! leaf of.

use crate::{
    layer,
    snapshot::{SnapshotView, rows},
    state::{EMPTY, LmptState},
};
use alloy_primitives::Bytes;
use retrie_state::{BackendKey, NodeRead, StateError, wire::put_varint};
use retrie_storage_mpt::{MemorySource, Trie, TrieHash};
use std::collections::HashSet;

/// The proof of `keys` (`docs/formats/lmpt.md`, Proof bytes).
pub(crate) fn prove(
    view: &dyn NodeRead,
    state: &LmptState,
    keys: &[BackendKey],
) -> Result<Bytes, StateError> {
    let layers = state.layers(view)?;
    let small = [&layers.delta, &layers.intermediate];
    let empty = Trie::empty(TrieHash::Keccak256);
    let snapshot = state.meta.as_ref().map_or(&empty, |meta| &meta.snapshot);
    let source = SnapshotView(view);
    let mut parts: [ProofNodes; 3] = Default::default();
    let mut way = Vec::new();
    'keys: for key in keys {
        let path = layer::path_of(key);
        for (trie, part) in small.iter().zip(&mut parts) {
            let found = trie.prove(&MemorySource, &path, &mut way)?;
            part.add(&mut way);
            if found.is_some() {
                continue 'keys;
            }
        }
        snapshot.prove(&rows(&source), &path, &mut way)?;
        parts[2].add(&mut way);
    }
    let mut out = Vec::new();
    let roots = state
        .meta
        .as_ref()
        .map_or([EMPTY; 3], |meta| [meta.delta, meta.intermediate, meta.snapshot.hash()]);
    roots.iter().for_each(|root| out.extend_from_slice(root.as_slice()));
    parts.iter().for_each(|part| part.encode(&mut out));
    Ok(out.into())
}

/// The nodes of one trie, each once, in the order in which they are first reached.
#[derive(Default)]
struct ProofNodes {
    nodes: Vec<Bytes>,
    known: HashSet<Bytes>,
}

impl ProofNodes {
    fn add(&mut self, way: &mut Vec<Bytes>) {
        for node in way.drain(..) {
            if self.known.insert(node.clone()) {
                self.nodes.push(node);
            }
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.nodes.len() as u64);
        for node in &self.nodes {
            put_varint(out, node.len() as u64);
            out.extend_from_slice(node);
        }
    }
}
