//! Answers requests for chunks from the tries of one state.

use super::{
    super::StateTries,
    ChunkSlot, ENTRIES, MAX_BRANCHES, MAX_ENTRIES, SPLIT,
    keys::{OrderedKeys, PlainKeys},
};
use crate::{
    TrieHash, leaf,
    trie::{Leaf, NodeEncoder, NodeLink, NodeSource, Trie, child_slot, loaded, resolved},
};
use alloy_primitives::{Address, B256};
use alloy_trie::Nibbles;
use retrie_state::{
    BackendKey, ChunkAnswer, ChunkId, ChunkServer, NodeRead, StateError, flat, wire::put_varint,
};
use std::{path::Path, sync::Arc};

/// A server of the flat state in `view`, whose tries are hashed `with` this function. It calls
/// `answer` for each request (see [`answer()`]). Keys are sorted into files of the folder `scratch`
/// when an answer first needs them.
pub fn server<A>(
    with: TrieHash,
    view: Arc<dyn NodeRead>,
    scratch: Option<&Path>,
    answer: A,
) -> Box<dyn ChunkServer>
where
    A: Fn(&PlainKeys, &ChunkId) -> Result<ChunkAnswer, StateError> + Send + Sync + 'static,
{
    Box::new(TrieChunkServer { keys: PlainKeys::new(with, view, scratch), answer })
}

struct TrieChunkServer<A> {
    keys: PlainKeys,
    answer: A,
}

impl<A> ChunkServer for TrieChunkServer<A>
where
    A: Fn(&PlainKeys, &ChunkId) -> Result<ChunkAnswer, StateError> + Send + Sync,
{
    fn chunk(&self, id: &ChunkId) -> Result<ChunkAnswer, StateError> {
        (self.answer)(&self.keys, id)
    }
}

/// The answer to `id` in the state of these tries and keys. An id that names no node is rejected by
/// the tries alone, before any key is read.
///
/// # Errors
/// Errors of the tries' source, and [`StateError::Corrupt`] if tries and flat state differ.
pub fn answer(
    tries: &impl StateTries,
    keys: &PlainKeys,
    id: &ChunkId,
) -> Result<ChunkAnswer, StateError> {
    ServedTries { tries, keys }.answer(id)
}

struct ServedTries<'a, T> {
    tries: &'a T,
    keys: &'a PlainKeys,
}

impl<T: StateTries> ServedTries<'_, T> {
    fn answer(&self, id: &ChunkId) -> Result<ChunkAnswer, StateError> {
        let Some(slot) = ChunkSlot::of(id) else { return Ok(ChunkAnswer::NoNode) };
        let Some(address) = slot.trie else {
            let (trie, source) = self.tries.accounts();
            let Some(link) = self.named(&trie, &source, &slot)? else {
                return Ok(ChunkAnswer::NoNode);
            };
            let Some(keys) = self.keys.accounts()? else { return Ok(ChunkAnswer::NotReady) };
            return self.below(&source, &slot, link, &keys, |out, address, leaf| {
                self.account(out, &Address::from(*address), leaf)
            });
        };
        let (trie, source) = self.tries.accounts();
        let Some(leaf) = trie.leaf(&source, &self.tries.hash().hash(address))? else {
            return Ok(ChunkAnswer::NoNode);
        };
        let (_, root) = leaf::decode_account(leaf.value())
            .ok_or_else(|| malformed(&BackendKey::Account(address.into())))?;
        let (trie, source) = self.tries.storage(&address.into(), root, leaf.stamp())?;
        let Some(link) = self.named(&trie, &source, &slot)? else {
            return Ok(ChunkAnswer::NoNode);
        };
        let Some(keys) = self.keys.slots(&address)? else { return Ok(ChunkAnswer::NotReady) };
        self.below(&source, &slot, link, &keys, |out, slot, leaf| {
            let value = leaf::decode_slot_value(leaf.value())
                .ok_or_else(|| malformed(&BackendKey::Slot(address.into(), B256::from(*slot))))?;
            put_value(out, &value);
            Ok(())
        })
    }

    /// What hangs at the slot, if it has the slot's reference.
    fn named(
        &self,
        trie: &Trie<T::Stamp>,
        source: &T::Source,
        slot: &ChunkSlot,
    ) -> Result<Option<NodeLink<T::Stamp>>, StateError> {
        let link = link_at(trie, source, &slot.path)?;
        let mut encoder = NodeEncoder::new(self.tries.hash());
        Ok(link.filter(|link| link.reference(slot.path.len(), &mut encoder) == slot.reference))
    }

    /// Appends the value of an account, and the root of its storage if it has any.
    fn account(
        &self,
        out: &mut Vec<u8>,
        address: &Address,
        leaf: &Leaf<T::Stamp>,
    ) -> Result<(), StateError> {
        let (account, root) = leaf::decode_account(leaf.value())
            .ok_or_else(|| malformed(&BackendKey::Account((*address).into())))?;
        put_value(out, &account.encode());
        let has_storage = root != self.tries.hash().empty_root();
        out.push(has_storage.into());
        out.extend(root.iter().filter(|_| has_storage));
        Ok(())
    }

    fn below<const N: usize>(
        &self,
        source: &T::Source,
        slot: &ChunkSlot,
        link: NodeLink<T::Stamp>,
        keys: &OrderedKeys<N>,
        value: impl Fn(&mut Vec<u8>, &[u8; N], &Leaf<T::Stamp>) -> Result<(), StateError>,
    ) -> Result<ChunkAnswer, StateError> {
        let with = self.tries.hash();
        if keys.has_more(&slot.path, MAX_ENTRIES)? {
            let encoder = NodeEncoder::new(with);
            let mut split =
                SplitWriter { source, keys, encoder, out: vec![SPLIT], left: MAX_BRANCHES };
            split.node(&slot.path, link)?;
            return Ok(ChunkAnswer::Chunk(split.out.into()));
        }
        let mut own = keys.below(&slot.path)?.into_iter();
        let mut leaves = Vec::with_capacity(own.len());
        collect(source, &slot.path, link, &mut leaves)?;
        let mut out = vec![ENTRIES];
        put_varint(&mut out, leaves.len() as u64);
        for leaf in &leaves {
            let differ = || {
                let what = format!("no key has the hash {} of a leaf", leaf.key());
                StateError::corrupt(flat::TABLE.name, what)
            };
            let key = own.next().filter(|key| with.hash(key) == *leaf.key()).ok_or_else(differ)?;
            out.extend_from_slice(&key);
            value(&mut out, &key, leaf)?;
        }
        Ok(ChunkAnswer::Chunk(out.into()))
    }
}

fn put_value(out: &mut Vec<u8>, value: &[u8]) {
    put_varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

fn malformed(key: &BackendKey) -> StateError {
    StateError::corrupt("trie", format!("the leaf of {key} is malformed"))
}

/// What hangs at the slot `path`, if there is such a slot.
pub(in super::super) fn link_at<N: NodeSource>(
    trie: &Trie<N::Stamp>,
    source: &N,
    path: &Nibbles,
) -> Result<Option<NodeLink<N::Stamp>>, StateError> {
    let mut slot = Nibbles::new();
    let mut next = trie.root().cloned();
    while let Some(link) = next.take() {
        let link = resolved(source, &slot, link)?;
        if slot == *path {
            return Ok(Some(link));
        }
        let NodeLink::Branch(link) = link else { return Ok(None) };
        let own = link.path(&slot);
        let Some(nibble) = path.get(own.len()).filter(|_| path.starts_with(&own)) else {
            return Ok(None);
        };
        next = loaded(source, &own, &link)?.children()[usize::from(nibble)].clone();
        slot = child_slot(&own, nibble);
    }
    Ok(None)
}

/// Appends the leaves below a slot, in order.
fn collect<N: NodeSource>(
    source: &N,
    slot: &Nibbles,
    link: NodeLink<N::Stamp>,
    leaves: &mut Vec<Arc<Leaf<N::Stamp>>>,
) -> Result<(), StateError> {
    match resolved(source, slot, link)? {
        NodeLink::Leaf(leaf) => leaves.push(leaf),
        NodeLink::Branch(link) => {
            let path = link.path(slot);
            let branch = loaded(source, &path, &link)?;
            for (nibble, child) in (0u8..).zip(branch.children()) {
                if let Some(child) = child {
                    collect(source, &child_slot(&path, nibble), child.clone(), leaves)?;
                }
            }
        }
        NodeLink::Unresolved(_) => {
            return Err(StateError::corrupt("trie", format!("no node hangs at {slot:?}")));
        }
    }
    Ok(())
}

/// Writes a split answer.
struct SplitWriter<'a, S, const N: usize> {
    source: &'a S,
    keys: &'a OrderedKeys<N>,
    encoder: NodeEncoder,
    out: Vec<u8>,
    /// Number of branches that may still be added.
    left: usize,
}

impl<S: NodeSource, const N: usize> SplitWriter<'_, S, N> {
    /// Appends a slot with too many entries below it: the RLP of the extension, if there is one,
    /// the RLP of the branch, a mask (2) of the children that follow, and these children.
    fn node(&mut self, slot: &Nibbles, link: NodeLink<S::Stamp>) -> Result<(), StateError> {
        let link = resolved(self.source, slot, link)?;
        if link.encode_short(slot.len(), &mut self.encoder) {
            put_value(&mut self.out, &self.encoder.rlp);
        }
        let NodeLink::Branch(link) = link else {
            return Err(StateError::corrupt(
                "trie",
                format!("many keys, but one leaf at {slot:?}"),
            ));
        };
        let path = link.path(slot);
        let branch = loaded(self.source, &path, &link)?;
        branch.encode(path.len(), &mut self.encoder);
        put_value(&mut self.out, &self.encoder.rlp);
        self.left = self.left.saturating_sub(1);
        let mut follow = Vec::new();
        let mut mask = 0u16;
        for (nibble, child) in (0u8..).zip(branch.children()) {
            let slot = child_slot(&path, nibble);
            if let Some(child) = child
                && follow.len() < self.left
                && self.keys.has_more(&slot, MAX_ENTRIES)?
            {
                mask |= 1 << nibble;
                follow.push((slot, child.clone()));
            }
        }
        self.out.extend(mask.to_be_bytes());
        // Reserves one branch for each of these children before any of them splits further.
        self.left -= follow.len();
        for (slot, child) in follow {
            self.left += 1;
            self.node(&slot, child)?;
        }
        Ok(())
    }
}
