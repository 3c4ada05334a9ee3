//! Checks an archive: every row fits its key, and no state lacks a node.

use super::{KEYS, LIVE, NODES, ROOTS, block_number, decode_root, key_mark};
use crate::{TrieHash, leaf, verify::decode_node};
use alloy_primitives::{B256, Bytes};
use alloy_trie::nodes::{RlpNode, TrieNode};
use retrie_state::{BackendKey, KeyRange, NodeRead, RowScan, RowTable, ScanDirection, StateError};
use std::collections::HashSet;

/// Checks all rows of `view`, old versions included. The hash of each node must be its key, and the
/// nodes it names must exist. The roots must belong to consecutive blocks, end with `root`, and
/// their nodes must exist. Keys must have their marks. `rebuilt` is the same state loaded from its
/// values: each of its nodes must exist, and it must have as many keys.
///
/// Takes about 20 bytes of memory per node.
pub(super) fn check(
    with: TrieHash,
    view: &dyn NodeRead,
    root: B256,
    rebuilt: Option<&dyn NodeRead>,
    report: &mut dyn FnMut(StateError),
) -> Result<(), StateError> {
    let mut check = ArchiveCheck { with, nodes: HashSet::new(), report };
    check.contents(view)?;
    check.children(view)?;
    check.roots(view, root)?;
    check.keys(view)?;
    if let Some(rebuilt) = rebuilt {
        check.rebuilt(view, rebuilt)?;
    }
    Ok(())
}

struct ArchiveCheck<'a> {
    with: TrieHash,
    /// First half of the hash of each node; it is unique in any real state.
    nodes: HashSet<[u8; 16]>,
    report: &'a mut dyn FnMut(StateError),
}

impl ArchiveCheck<'_> {
    fn fault(&mut self, table: RowTable, what: String) {
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

    /// Reports a missing node, unless its hash is the root of the empty trie.
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
                self.fault(ROOTS, format!("block {number} does not follow the block before it"));
            }
            // A root is checked by its node alone, so the whole hash has to match.
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
        for row in view.scan(KEYS, KeyRange::new(&[], LIVE), ScanDirection::Forward)? {
            let (key, mark) = row?;
            let fits = BackendKey::decode(&key)
                .is_some_and(|decoded| key_mark(self.with, &decoded)[..] == mark[..]);
            if !fits {
                self.fault(KEYS, format!("the row {key} does not have the mark of its key"));
            }
        }
        Ok(())
    }

    fn rebuilt(&mut self, view: &dyn NodeRead, rebuilt: &dyn NodeRead) -> Result<(), StateError> {
        for row in rows(rebuilt, NODES)? {
            self.expect(&hash_of(&row?.0), || "which the values need".to_owned());
        }
        let (found, expected) = (view.get(KEYS, LIVE)?, rebuilt.get(KEYS, LIVE)?);
        if found != expected {
            let what = format!("the number of keys is {found:?}, but the values need {expected:?}");
            self.fault(KEYS, what);
        }
        Ok(())
    }
}

fn rows<'a>(view: &'a dyn NodeRead, table: RowTable) -> Result<RowScan<'a>, StateError> {
    view.scan(table, KeyRange::ALL, ScanDirection::Forward)
}

fn half(hash: &[u8]) -> [u8; 16] {
    hash.first_chunk().copied().unwrap_or_default()
}

fn hash_of(key: &Bytes) -> B256 {
    B256::try_from(&key[..]).unwrap_or_default()
}

/// Calls `child` with each hash that a node names: hashes of child nodes, also of embedded ones,
/// and the storage root of an account. A node that does not decode names none.
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
        // The value of a slot is not a list, so it does not decode as an account.
        Some(TrieNode::Leaf(leaf)) => {
            if let Some((_, storage_root)) = leaf::decode_account(&leaf.value) {
                child(&storage_root);
            }
        }
        Some(TrieNode::EmptyRoot) | None => {}
    }
}
