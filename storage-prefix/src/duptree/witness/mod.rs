//! Block witnesses: some leaves, the hashes that lead from them to the root, and, if the block has
//! new keys, the right edge of the tree.
//!
//! # Soundness
//!
//! As that of [proofs](super::verify). A block changes leaves that the witness shows: those of its
//! keys, and for a new key the leaf that covers it, whose next key it becomes. New leaves take the
//! numbers from the number of leaves on, which no root binds. It follows from the edge: the hash of
//! the last leaf is not that of an empty one, all nodes right of its path are empty, and both lead to
//! the root.

mod bytes;
#[cfg(feature = "std")]
mod make;

#[cfg(feature = "std")]
pub(super) use make::make;

use super::{
    hash,
    leaf::{IndexedLeaf, KeyPosition},
};
use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    format,
    vec::Vec,
};
use alloy_primitives::B256;
use bytes::WitnessBytes;
use retrie_state::{
    AccountKey, BackendDelta, BackendKey, ProofError, StateValue, WitnessError,
    descriptor::{OpenedWitness, WitnessResult, check_previous},
};

/// Opens the witness `bytes` of the state of `root`.
pub(super) fn open(root: B256, bytes: &[u8]) -> WitnessResult {
    let read = WitnessBytes::decode(bytes)?;
    let WitnessBytes { height, count, leaves, last, hashes } = read;
    let mut tree = PartialTree { height, count, nodes: BTreeMap::new() };
    let mut known: BTreeMap<u64, B256> = BTreeMap::new();
    let mut by_key = BTreeMap::new();
    for (number, leaf) in &leaves {
        known.insert(*number, leaf_hash(leaf));
        if by_key.insert(leaf.key, *number).is_some() {
            return Err(ProofError::Malformed { what: "two leaves of one key" }.into());
        }
    }
    if let (Some(count), Some(last)) = (count, last) {
        known.insert(count - 1, last);
    }
    let mut hashes = hashes.into_iter();
    let top = tree.fill(known, &mut hashes)?;
    if hashes.next().is_some() {
        return Err(ProofError::Unused.into());
    }
    if hash::root(height, &top) != root {
        return Err(ProofError::RootMismatch.into());
    }
    Ok(Box::new(DupTreeWitness { tree, leaves: leaves.into_iter().collect(), by_key, top }))
}

fn leaf_hash(leaf: &IndexedLeaf) -> B256 {
    let mut bytes = Vec::new();
    leaf.encode(&mut bytes);
    hash::leaf(&bytes)
}

/// Nodes of a tree, by level and number.
#[derive(Clone, Debug)]
struct PartialTree {
    height: u8,
    /// Number of leaves, if the witness shows the right edge.
    count: Option<u64>,
    nodes: BTreeMap<(u8, u64), B256>,
}

impl PartialTree {
    /// Whether a node is known to have no leaves below.
    fn is_empty(&self, level: u8, number: u64) -> bool {
        self.count.is_some_and(|count| number >= count.div_ceil(1 << level))
    }

    /// Takes the leaves `known`, and from `hashes` the siblings that do not follow; returns the top.
    fn fill(
        &mut self,
        mut known: BTreeMap<u64, B256>,
        hashes: &mut impl Iterator<Item = B256>,
    ) -> Result<B256, ProofError> {
        let empty = hash::empty_nodes(self.height);
        if known.is_empty() {
            let top = hashes.next().ok_or(ProofError::Missing { what: "the top" })?;
            self.nodes.insert((self.height, 0), top);
            return Ok(top);
        }
        for level in 0..self.height {
            let numbers: Vec<u64> = known.keys().copied().collect();
            for sibling in numbers.iter().map(|number| number ^ 1) {
                if known.contains_key(&sibling) {
                    continue;
                }
                let node = match self.is_empty(level, sibling) {
                    true => empty[usize::from(level)],
                    false => hashes.next().ok_or(ProofError::Missing { what: "a sibling" })?,
                };
                known.insert(sibling, node);
            }
            let mut above = BTreeMap::new();
            for (number, node) in &known {
                self.nodes.insert((level, *number), *node);
                if let Some(right) = known.get(&(number + 1)).filter(|_| number % 2 == 0) {
                    above.insert(number / 2, hash::inner(node, right));
                }
            }
            known = above;
        }
        let top = known.get(&0).copied().ok_or(ProofError::Missing { what: "the top" })?;
        self.nodes.insert((self.height, 0), top);
        Ok(top)
    }
}

/// An opened witness.
#[derive(Debug)]
struct DupTreeWitness {
    tree: PartialTree,
    leaves: BTreeMap<u64, IndexedLeaf>,
    by_key: BTreeMap<Option<BackendKey>, u64>,
    top: B256,
}

/// The number of the leaf that covers `key`, and its position.
fn covering(
    by_key: &BTreeMap<Option<BackendKey>, u64>,
    leaves: &BTreeMap<u64, IndexedLeaf>,
    key: &BackendKey,
) -> Result<(u64, KeyPosition), WitnessError> {
    let unproven = || WitnessError::Unproven { key: *key };
    let (_, number) = by_key.range(..=Some(*key)).next_back().ok_or_else(unproven)?;
    let leaf = leaves.get(number).ok_or_else(unproven)?;
    match leaf.place(key) {
        KeyPosition::Elsewhere => Err(unproven()),
        position => Ok((*number, position)),
    }
}

impl OpenedWitness for DupTreeWitness {
    fn value(&self, key: &BackendKey) -> Result<Option<StateValue>, WitnessError> {
        Ok(match covering(&self.by_key, &self.leaves, key)? {
            (number, KeyPosition::Own) => {
                self.leaves.get(&number).and_then(|leaf| leaf.value.clone())
            }
            _ => None,
        })
    }

    /// Each leaf names the next key, so a witness with all leaves from the gap before the first slot
    /// on lists them.
    fn slots_of(&self, account: &AccountKey) -> Result<Vec<(B256, StateValue)>, WitnessError> {
        let unlisted = || WitnessError::Unlisted { account: *account };
        let first = BackendKey::Slot(*account, B256::ZERO);
        let (mut number, _) =
            covering(&self.by_key, &self.leaves, &first).map_err(|_| unlisted())?;
        let mut slots = Vec::new();
        loop {
            let leaf = self.leaves.get(&number).ok_or_else(unlisted)?;
            if let (Some(BackendKey::Slot(owner, slot)), Some(value)) = (&leaf.key, &leaf.value)
                && owner == account
            {
                slots.push((*slot, value.clone()));
            }
            match &leaf.next {
                Some(next @ BackendKey::Slot(owner, _)) if owner == account => {
                    number = *self.by_key.get(&Some(*next)).ok_or_else(unlisted)?;
                }
                _ => return Ok(slots),
            }
        }
    }

    fn apply(&self, _: u64, delta: &BackendDelta) -> Result<B256, WitnessError> {
        check_previous(self, delta)?;
        let (mut leaves, mut by_key) = (self.leaves.clone(), self.by_key.clone());
        let mut count = self.tree.count;
        let mut changed = BTreeMap::new();
        for change in delta.changes() {
            let key = change.key;
            let (number, position) = covering(&by_key, &leaves, &key)?;
            let Some(leaf) = leaves.get_mut(&number) else { continue };
            let is_own = matches!(position, KeyPosition::Own);
            if !is_own && change.next.is_none() {
                continue;
            }
            changed.insert(number, B256::ZERO);
            if is_own {
                leaf.value = change.next.clone();
                continue;
            }
            let next = leaf.next;
            leaf.next = Some(key);
            let own = count.ok_or_else(|| no_edge(&key))?;
            if own >> super::proof::MAX_HEIGHT != 0 {
                let what = format!("there is no leaf left for {key}");
                return Err(WitnessError::InvalidDelta { what });
            }
            leaves.insert(own, IndexedLeaf { key: Some(key), value: change.next.clone(), next });
            by_key.insert(Some(key), own);
            changed.insert(own, B256::ZERO);
            count = Some(own + 1);
        }
        for (number, hash) in &mut changed {
            if let Some(leaf) = leaves.get(number) {
                *hash = leaf_hash(leaf);
            }
        }
        self.tree.root_after(self.top, count, changed)
    }
}

fn no_edge(key: &BackendKey) -> WitnessError {
    WitnessError::Incomplete {
        what: format!("the right edge of the tree, where the new {key} goes"),
    }
}

impl PartialTree {
    /// The root after leaves have `changed`, and there are `count` of them.
    fn root_after(
        &self,
        top: B256,
        count: Option<u64>,
        mut changed: BTreeMap<u64, B256>,
    ) -> Result<B256, WitnessError> {
        if changed.is_empty() {
            return Ok(hash::root(self.height, &top));
        }
        let height = count.map_or(self.height, height_of);
        let empty = hash::empty_nodes(height);
        for level in 0..height {
            let node = |number: u64| {
                let known = changed.get(&number).or_else(|| self.nodes.get(&(level, number)));
                let empty = empty.get(usize::from(level)).filter(|_| self.is_empty(level, number));
                known.or(empty).copied().ok_or_else(|| WitnessError::Incomplete {
                    what: format!("node {number} of level {level}"),
                })
            };
            let parents: BTreeSet<u64> = changed.keys().map(|number| number / 2).collect();
            let mut above = BTreeMap::new();
            for number in parents {
                above.insert(number, hash::inner(&node(2 * number)?, &node(2 * number + 1)?));
            }
            changed = above;
        }
        let top = changed.get(&0).copied();
        let top = top.ok_or_else(|| WitnessError::Incomplete { what: "the top".into() })?;
        Ok(hash::root(height, &top))
    }
}

/// The height of a tree of so many leaves, one or more.
const fn height_of(leaves: u64) -> u8 {
    (64 - leaves.saturating_sub(1).leading_zeros()) as u8
}
