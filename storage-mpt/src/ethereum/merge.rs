//! The sibling nodes that a removal needs, beyond the path to the removed key. A branch that is
//! left with one child merges with this child, so the child must be known.

use super::prove::{StateTries, account};
use crate::trie::{NodeEncoder, NodeLink, NodeSource, Trie, child_slot, loaded, resolved};
use alloy_primitives::{B256, Bytes, map::HashMap};
use alloy_trie::Nibbles;
use retrie_state::{BackendKey, StateError};

/// The nodes that branches may merge with when the keys `removed` are removed together.
///
/// # Errors
/// Errors of the tries' source.
pub fn merge_nodes(
    tries: &impl StateTries,
    removed: &[BackendKey],
) -> Result<Vec<Bytes>, StateError> {
    let with = tries.hash();
    let mut nodes = Vec::new();
    let mut accounts = Vec::new();
    let mut slots: HashMap<_, Vec<Nibbles>> = HashMap::default();
    for key in removed {
        match key {
            BackendKey::Account(owner) => accounts.push(path_of(&with.account_path(owner))),
            BackendKey::Slot(owner, slot) => {
                slots.entry(*owner).or_default().push(path_of(&with.slot_path(owner, slot)));
            }
        }
    }
    let (trie, source) = tries.accounts();
    collect(&trie, &source, &accounts, &mut nodes)?;
    for (owner, paths) in slots {
        let Some((_, root, stamp)) = account(tries, &owner, &mut Vec::new())? else { continue };
        let (trie, source) = tries.storage(&owner, root, stamp)?;
        collect(&trie, &source, &paths, &mut nodes)?;
    }
    Ok(nodes)
}

fn path_of(key: &B256) -> Nibbles {
    Nibbles::unpack_array(&key.0)
}

fn collect<N: NodeSource>(
    trie: &Trie<N::Stamp>,
    source: &N,
    removed: &[Nibbles],
    nodes: &mut Vec<Bytes>,
) -> Result<(), StateError> {
    let Some(root) = trie.root() else { return Ok(()) };
    let encoder = NodeEncoder::new(trie.hash_function());
    MergeCollector { source, encoder, nodes }.below(Nibbles::new(), root.clone(), removed)
}

struct MergeCollector<'a, N> {
    source: &'a N,
    encoder: NodeEncoder,
    nodes: &'a mut Vec<Bytes>,
}

impl<N: NodeSource> MergeCollector<'_, N> {
    /// Collects the nodes at and below `slot`.
    fn below(
        &mut self,
        slot: Nibbles,
        link: NodeLink<N::Stamp>,
        removed: &[Nibbles],
    ) -> Result<(), StateError> {
        let NodeLink::Branch(link) = resolved(self.source, &slot, link)? else { return Ok(()) };
        let path = link.path(&slot);
        let mut by_nibble: [Vec<Nibbles>; 16] = Default::default();
        for key in removed.iter().filter(|key| key.starts_with(&path)) {
            if let Some(nibble) = key.get(path.len()) {
                by_nibble[usize::from(nibble)].push(*key);
            }
        }
        if by_nibble.iter().all(Vec::is_empty) {
            return Ok(());
        }
        let branch = loaded(self.source, &path, &link)?;
        let children = || (0u8..16).zip(branch.children());
        let children = || children().filter_map(|(at, child)| Some((at, child.clone()?)));
        let mut untouched = children().filter(|(at, _)| by_nibble[usize::from(*at)].is_empty());
        if let (Some((nibble, child)), None) = (untouched.next(), untouched.next()) {
            self.add(child_slot(&path, nibble), child)?;
        }
        for (nibble, child) in children() {
            let removed = &by_nibble[usize::from(nibble)];
            if !removed.is_empty() {
                self.below(child_slot(&path, nibble), child, removed)?;
            }
        }
        Ok(())
    }

    /// Adds the node at `slot`, unless it is embedded in its parent.
    fn add(&mut self, slot: Nibbles, link: NodeLink<N::Stamp>) -> Result<(), StateError> {
        let link = resolved(self.source, &slot, link)?;
        if !link.encode_short(slot.len(), &mut self.encoder) {
            let NodeLink::Branch(link) = &link else { return Ok(()) };
            let path = link.path(&slot);
            loaded(self.source, &path, link)?.encode(path.len(), &mut self.encoder);
        }
        if self.encoder.rlp.len() >= 32 {
            self.nodes.push(Bytes::copy_from_slice(&self.encoder.rlp));
        }
        Ok(())
    }
}
