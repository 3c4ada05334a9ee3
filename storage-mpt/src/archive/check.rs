//! The check of an archive: every row is what its key says, and no state lacks a node.

use super::{KEYS, LIVE, NODES, ROOTS, block_number, decode_root, key_mark};
use crate::{TrieHash, leaf, verify::decode_node};
use alloy_primitives::{B256, Bytes};
use alloy_trie::nodes::{RlpNode, TrieNode};
use retrie_state::{Direction, KeyRange, NodeRead, Rows, StateError, StateKey, Table};
use std::collections::HashSet;

/// Checks all rows that `view` shows, old versions included: a node has the hash it is kept under,
/// and the nodes it names are there; roots follow each other up to `root` and are there; keys bear
/// their marks. `rebuilt` is the same state loaded from its values: it has no nodes but these, and
/// as many keys.
///
/// Takes some 20 bytes of memory a node.
pub(super) fn check(
    with: TrieHash,
    view: &dyn NodeRead,
    root: B256,
    rebuilt: Option<&dyn NodeRead>,
    report: &mut dyn FnMut(StateError),
) -> Result<(), StateError> {
    let mut check = Check { with, nodes: HashSet::new(), report };
    check.contents(view)?;
    check.children(view)?;
    check.roots(view, root)?;
    check.keys(view)?;
    if let Some(rebuilt) = rebuilt {
        check.rebuilt(view, rebuilt)?;
    }
    Ok(())
}

struct Check<'a> {
    with: TrieHash,
    /// First half of the hash of each node: no two in any real state share it.
    nodes: HashSet<[u8; 16]>,
    report: &'a mut dyn FnMut(StateError),
}

impl Check<'_> {
    fn fault(&mut self, table: Table, what: String) {
        (self.report)(StateError::corrupt(table.name, what));
    }

    fn contents(&mut self, view: &dyn NodeRead) -> Result<(), StateError> {
        for row in rows(view, NODES)? {
            let (key, rlp) = row?;
            if self.with.hash(&rlp)[..] != key[..] {
                self.fault(NODES, format!("the row {key} holds a node of another hash"));
            } else if decode_node(&rlp).is_none() {
                self.fault(NODES, format!("the row {key} holds no node"));
            }
            self.nodes.insert(half(&key));
        }
        Ok(())
    }

    /// That a node is there, unless it is the root of the empty trie.
    fn expect(&mut self, hash: &B256, of: impl FnOnce() -> String) {
        if *hash != self.with.empty_root() && !self.nodes.contains(&half(&hash[..])) {
            self.fault(NODES, format!("no row for the node {hash}, {}", of()));
        }
    }

    fn children(&mut self, view: &dyn NodeRead) -> Result<(), StateError> {
        for row in rows(view, NODES)? {
            let (key, rlp) = row?;
            each_child(&rlp, &mut |child| self.expect(child, || format!("which {key} names")));
        }
        Ok(())
    }

    fn roots(&mut self, view: &dyn NodeRead, root: B256) -> Result<(), StateError> {
        let mut last: Option<(u64, B256)> = None;
        for row in rows(view, ROOTS)? {
            let (key, row) = row?;
            let entry = block_number(&key).and_then(|n| Ok((n, decode_root(n, &row)?)));
            let (number, root) = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    (self.report)(error);
                    continue;
                }
            };
            if last.is_some_and(|(last, _)| last + 1 != number) {
                self.fault(ROOTS, format!("the row before block {number} is not its parent's"));
            }
            // Nothing but its node vouches for a root, so that has to have all of its hash.
            if root != self.with.empty_root() && view.get(NODES, &root[..])?.is_none() {
                self.fault(
                    NODES,
                    format!("no row for the node {root}, the root of block {number}"),
                );
            }
            last = Some((number, root));
        }
        if last.map_or_else(|| self.with.empty_root(), |(_, root)| root) != root {
            self.fault(ROOTS, format!("the last root is not {root}, that of the state"));
        }
        Ok(())
    }

    fn keys(&mut self, view: &dyn NodeRead) -> Result<(), StateError> {
        for row in view.scan(KEYS, KeyRange::new(&[], LIVE), Direction::Forward)? {
            let (key, mark) = row?;
            let fits = StateKey::decode(&key)
                .is_some_and(|decoded| key_mark(self.with, &decoded)[..] == mark[..]);
            if !fits {
                self.fault(KEYS, format!("the row {key} does not bear the mark of its key"));
            }
        }
        Ok(())
    }

    fn rebuilt(&mut self, view: &dyn NodeRead, rebuilt: &dyn NodeRead) -> Result<(), StateError> {
        for row in rows(rebuilt, NODES)? {
            self.expect(&hash_of(&row?.0), || "which the values ask for".to_owned());
        }
        let (found, expected) = (view.get(KEYS, LIVE)?, rebuilt.get(KEYS, LIVE)?);
        if found != expected {
            let what = format!("the number of keys is {found:?}, the values ask for {expected:?}");
            self.fault(KEYS, what);
        }
        Ok(())
    }
}

fn rows<'a>(view: &'a dyn NodeRead, table: Table) -> Result<Rows<'a>, StateError> {
    view.scan(table, KeyRange::ALL, Direction::Forward)
}

fn half(hash: &[u8]) -> [u8; 16] {
    hash.first_chunk().copied().unwrap_or_default()
}

fn hash_of(key: &Bytes) -> B256 {
    B256::try_from(&key[..]).unwrap_or_default()
}

/// Calls `child` with each hash that a node names: of child nodes, through embedded ones, and the
/// storage root of an account. What does not decode names none.
fn each_child(rlp: &[u8], child: &mut dyn FnMut(&B256)) {
    let reference = |reference: &RlpNode, child: &mut dyn FnMut(&B256)| match reference.as_hash() {
        Some(hash) => child(&hash),
        None => each_child(reference, child),
    };
    match decode_node(rlp) {
        Some(TrieNode::Branch(branch)) => {
            branch.stack.iter().for_each(|node| reference(node, child));
        }
        Some(TrieNode::Extension(extension)) => reference(&extension.child, child),
        // The value of a slot is no list, so it is not taken for an account.
        Some(TrieNode::Leaf(leaf)) => {
            if let Some((_, storage_root)) = leaf::decode_account(&leaf.value) {
                child(&storage_root);
            }
        }
        Some(TrieNode::EmptyRoot) | None => {}
    }
}
