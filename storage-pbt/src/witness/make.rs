//! Makes witnesses: applies the block to the store's tree, opened as far as that needs.

use super::{
    ShownState, WitnessFault, bytes, code_leaves,
    tree::{NodeContent, PartialNode, TreeOrigin, TreeWork},
};
use crate::{
    descriptor::NAME,
    hash::Subtree,
    prove::{Node, OpenedNode, TreeWalk},
    state::StateTrees,
    verify::targets_of,
};
use alloy_primitives::B256;
use retrie_state::{Account, BackendKey, StateError, WitnessRequest};
use std::collections::BTreeSet;

/// The witness of `block` in the state of `trees`.
pub(crate) fn make(
    trees: StateTrees<'_>,
    block: WitnessRequest<'_>,
) -> Result<Vec<u8>, StateError> {
    make_from(trees, block).map_err(|fault| {
        let why = match fault {
            WitnessFault::State(error) => return error,
            WitnessFault::Witness(error) => {
                let what = format!("it does not fit the state: {error}");
                return StateError::corrupt("delta", what);
            }
            WitnessFault::LosesCode(_) => {
                "an account loses its code, and no root says how many others have it"
            }
            WitnessFault::UnknownCode(_) => {
                "it needs the bytes of a code that the block does not bring"
            }
        };
        StateError::NoWitness { backend: NAME, why }
    })
}

fn make_from(trees: StateTrees<'_>, block: WitnessRequest<'_>) -> Result<Vec<u8>, WitnessFault> {
    let delta = block.delta;
    let codes = |hash: &B256| delta.code(hash).cloned();
    let walk = TreeWalk { trees, codes: &codes };
    let top = match walk.root() {
        Some(root) => Some(PartialNode::closed(walk.hash(&root, 0)?, Some(root))),
        None => None,
    };
    let work = TreeWork { with: trees.hash, origin: &walk };
    for key in block.keys() {
        for target in targets_of(trees.hash, &key) {
            work.leaf(top.as_ref(), &target)?;
        }
    }
    let accounts = delta.changes().iter().filter_map(|change| match change.key {
        BackendKey::Account(_) => Account::decode(change.next.as_ref()?),
        BackendKey::Slot(..) => None,
    });
    let codes: BTreeSet<B256> = accounts.map(|account| account.code_hash).collect();
    for code in codes.iter().filter_map(|code| delta.code(code)) {
        for target in code_leaves(trees.hash, code).into_keys() {
            work.leaf(top.as_ref(), &target)?;
        }
    }
    ShownState { work, top: top.as_ref() }.root_after(delta)?;
    Ok(bytes::encode(top.as_ref()))
}

impl TreeOrigin for TreeWalk<'_> {
    type Handle = Node;

    fn open(&self, node: &Node) -> Result<NodeContent<Node>, WitnessFault> {
        if node.is_code()
            && let Some(subtree) = self.unknown_chunks(node)?
        {
            return unknown_chunks(subtree);
        }
        Ok(match TreeWalk::open(self, node.clone())? {
            OpenedNode::Leaf { key, value } => NodeContent::Leaf { key, value },
            OpenedNode::Branch { key, split, left, right } => {
                let closed = |node: Node| -> Result<_, StateError> {
                    Ok(PartialNode::closed(self.hash(&node, split + 1)?, Some(node)))
                };
                let key = Box::new(crate::hash::key_bits(&key, split));
                NodeContent::Branch { split, key, left: closed(left)?, right: closed(right)? }
            }
        })
    }
}

/// A group of chunks of a code that is not at hand: of a branch the children can be named, of a leaf
/// neither key nor value.
fn unknown_chunks(subtree: Subtree) -> Result<NodeContent<Node>, WitnessFault> {
    match subtree {
        Subtree::Branch { split, key, left, right } => Ok(NodeContent::Branch {
            split: split.into(),
            key: Box::new(key),
            left: PartialNode::closed(left, None),
            right: PartialNode::closed(right, None),
        }),
        Subtree::Leaf(leaf) => Err(WitnessFault::UnknownCode(leaf)),
    }
}
