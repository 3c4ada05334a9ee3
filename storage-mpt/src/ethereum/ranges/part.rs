//! Checks a part of a chunk: that some leaves are the first ones below a slot.
//!
//! The nodes of the proof are those on the paths to the slot's first key and to the last leaf. The
//! check walks them from the slot, each against the reference that its parent has for it. What hangs
//! at a lower slot is
//!
//! * beyond the end, if all keys below it are: the proof says nothing of it;
//! * inside, if all of them are up to the last leaf: its reference must be that of the trie of the
//!   given leaves below it;
//! * on the end otherwise: its node must be among those of the proof, and its children are checked.
//!
//! So no leaf can be missing, wrong or added before the last one.

use super::chunk::{RangeSlot, WITH, malformed};
use crate::{
    trie::{BuildSource, BuiltSubtrie, LeafUpdate, NodeEncoder, child_slot, key_bounds},
    verify::decode_node,
};
use alloy_primitives::{B256, Bytes, map::B256HashMap};
use alloy_trie::{
    Nibbles,
    nodes::{RlpNode, TrieNode},
};
use retrie_state::{ChunkId, ProofError, TrieLeaf};

/// Checks that `leaves` are the first leaves of the chunk `id`, by the nodes of `proof`, which come
/// in any order. Its work and memory are bounded by the sizes of `leaves` and `proof`.
///
/// # Errors
/// [`ProofError::Malformed`] for leaves that are not in order or not below the slot, and for nodes
/// that no trie has; [`ProofError::RootMismatch`] if leaves are wrong, missing or added;
/// [`ProofError::Missing`] if a node on the path to the last leaf is not there.
pub(super) fn check_part(
    id: &ChunkId,
    leaves: &[TrieLeaf],
    proof: &[Bytes],
) -> Result<(), ProofError> {
    let slot = RangeSlot::of(id).ok_or_else(|| malformed("id of a chunk"))?;
    let [first, last] = key_bounds(&slot.path);
    let end = leaves.last().ok_or_else(|| malformed("no leaves"))?.key;
    let are_sorted = leaves.is_sorted_by(|one, next| one.key < next.key);
    if !are_sorted || leaves.first().is_some_and(|leaf| leaf.key < first) || end > last {
        return Err(malformed("leaves of a range"));
    }
    let update = |leaf: &TrieLeaf| LeafUpdate::new(leaf.key, Some(leaf.value.clone()));
    let leaves: Vec<_> = leaves.iter().map(update).collect();
    let nodes = proof.iter().map(|node| (WITH.hash(node), node)).collect();
    PartCheck { end, leaves: &leaves, nodes }.slot(&slot.path, Some(&slot.reference))
}

struct PartCheck<'a> {
    /// Key of the last leaf.
    end: B256,
    leaves: &'a [LeafUpdate],
    nodes: B256HashMap<&'a Bytes>,
}

impl PartCheck<'_> {
    /// The given leaves below `slot`.
    fn below(&self, slot: &Nibbles) -> &[LeafUpdate] {
        let [first, last] = key_bounds(slot);
        let start = self.leaves.partition_point(|leaf| leaf.key < first);
        let end = self.leaves.partition_point(|leaf| leaf.key <= last);
        self.leaves.get(start..end).unwrap_or_default()
    }

    /// Checks what hangs at `slot`, `None` if nothing does.
    fn slot(&self, slot: &Nibbles, reference: Option<&RlpNode>) -> Result<(), ProofError> {
        let [first, last] = key_bounds(slot);
        match reference {
            _ if first > self.end => Ok(()),
            Some(reference) if last > self.end => self.edge(slot, reference),
            reference => self.inside(slot, reference),
        }
    }

    /// Checks a slot whose leaves are all given.
    fn inside(&self, slot: &Nibbles, reference: Option<&RlpNode>) -> Result<(), ProofError> {
        let source = BuildSource::default();
        let built = BuiltSubtrie::build(WITH, &source, slot, self.below(slot), &mut ());
        let built = built.map(|part| part.reference(slot, &mut NodeEncoder::new(WITH)));
        if built.as_ref() == reference { Ok(()) } else { Err(ProofError::RootMismatch) }
    }

    /// Checks a slot on the end, by its node.
    fn edge(&self, slot: &Nibbles, reference: &RlpNode) -> Result<(), ProofError> {
        let node = match reference.as_hash() {
            Some(hash) => {
                let missing = ProofError::Missing { what: "the end of a range" };
                decode_node(self.nodes.get(&hash).ok_or(missing)?)
            }
            None => decode_node(reference),
        };
        match node.ok_or_else(|| malformed("trie node"))? {
            TrieNode::EmptyRoot => Err(malformed("empty node")),
            TrieNode::Leaf(leaf) => {
                if slot.len() + leaf.key.len() != 64 {
                    return Err(malformed("leaf"));
                }
                let [key, _] = key_bounds(&slot.join(&leaf.key));
                let own = [LeafUpdate::new(key, Some(leaf.value.into()))];
                let expected = if key <= self.end { &own[..] } else { &[] };
                if self.below(slot) == expected { Ok(()) } else { Err(ProofError::RootMismatch) }
            }
            TrieNode::Extension(extension) => {
                if extension.key.is_empty() || slot.len() + extension.key.len() > 63 {
                    return Err(malformed("extension"));
                }
                let path = slot.join(&extension.key);
                if self.below(slot).len() != self.below(&path).len() {
                    return Err(ProofError::RootMismatch);
                }
                self.slot(&path, Some(&extension.child))
            }
            TrieNode::Branch(branch) => {
                if slot.len() > 63 {
                    return Err(malformed("branch"));
                }
                let mut children = branch.stack.iter();
                for nibble in 0..16 {
                    let child = match branch.state_mask.is_bit_set(nibble) {
                        true => Some(children.next().ok_or_else(|| malformed("trie node"))?),
                        false => None,
                    };
                    self.slot(&child_slot(slot, nibble), child)?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::chunk::tests::leaves, *};
    use alloy_trie::{HashBuilder, proof::ProofRetainer};
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use retrie_state::StateTrie;

    /// The root of alloy's trie of these leaves, and the nodes on the paths to `targets`.
    fn built(leaves: &[TrieLeaf], targets: &[B256]) -> (B256, Vec<Bytes>) {
        let targets = targets.iter().map(|key| Nibbles::unpack(key)).collect();
        let mut builder = HashBuilder::default().with_proof_retainer(ProofRetainer::new(targets));
        for leaf in leaves {
            builder.add_leaf(Nibbles::unpack(leaf.key), &leaf.value);
        }
        let root = builder.root();
        let nodes = builder.take_proof_nodes().into_nodes_sorted();
        (root, nodes.into_iter().map(|(_, node)| node).collect())
    }

    #[test]
    fn first_leaves_are_accepted_and_others_are_not() {
        let mut rng = StdRng::seed_from_u64(1);
        for count in [1, 2, 3, 17, 300, 2000] {
            let all = leaves(&mut rng, count);
            for round in 0..20 {
                let part = match round {
                    0 => all.clone(),
                    _ => all[..rng.random_range(1..=all.len())].to_vec(),
                };
                let (root, proof) = built(&all, &[B256::ZERO, part.last().unwrap().key]);
                let of = |root| RangeSlot::root(StateTrie::Accounts, root).id().unwrap();
                let check = |leaves: &[TrieLeaf]| check_part(&of(root), leaves, &proof);
                assert_eq!(check(&part), Ok(()));
                assert!(check_part(&of(root ^ B256::with_last_byte(1)), &part, &proof).is_err());
                assert!(check_part(&of(root), &[], &proof).is_err());
                assert!(check_part(&of(root), &part, &[]).is_err());
                for at in 0..part.len().min(20) {
                    let mut wrong = part.clone();
                    wrong[at].value = Bytes::from_static(&[0x7e]);
                    assert!(check(&wrong).is_err() || wrong == part, "leaf {at} is another");
                    let mut wrong = part.clone();
                    wrong[at].key[31] ^= 1;
                    assert!(check(&wrong).is_err(), "leaf {at} has another key");
                    let mut wrong = part.clone();
                    wrong.remove(at);
                    // Without the last leaf it is a shorter part, whose end has no proof or has one.
                    if at + 1 < part.len() {
                        assert!(check(&wrong).is_err(), "leaf {at} is missing");
                    }
                }
                let added = B256::from(rng.random::<[u8; 32]>());
                if added < part.last().unwrap().key {
                    let mut wrong = part.clone();
                    let at = wrong.partition_point(|leaf| leaf.key < added);
                    let value = Bytes::from_static(&[1]);
                    wrong.insert(at, TrieLeaf { key: added, value });
                    assert!(check(&wrong).is_err(), "a leaf was added");
                }
                // Whatever is done to a node: wrong leaves stay refused.
                let mut wrong = part.clone();
                wrong[0].key[31] ^= 1;
                for at in 0..proof.len() {
                    let mut flipped = proof.clone();
                    let mut node = flipped[at].to_vec();
                    let bit = rng.random_range(0..node.len() * 8);
                    node[bit / 8] ^= 1 << (bit % 8);
                    flipped[at] = node.into();
                    assert!(check_part(&of(root), &wrong, &flipped).is_err());
                    flipped.remove(at);
                    assert!(check_part(&of(root), &wrong, &flipped).is_err());
                }
            }
        }
    }
}
