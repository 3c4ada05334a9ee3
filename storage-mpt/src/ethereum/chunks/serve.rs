//! Answering from the tries of one state.

use super::{super::Tries, ENTRIES, MAX_BRANCHES, MAX_ENTRIES, SPLIT, Slot, sorted::Sorted};
use crate::{
    TrieHash, leaf,
    trie::{Encoder, Leaf, Link, NodeSource, Trie, child_slot, loaded, resolved},
};
use alloy_primitives::{Address, B256, Bytes};
use alloy_trie::Nibbles;
use parking_lot::Mutex;
use retrie_state::{ChunkId, ChunkServer, NodeRead, StateError, StateKey, flat, wire::put_varint};
use std::{collections::VecDeque, sync::Arc};

/// Slots of accounts that stay sorted between answers, at most; 40 bytes each.
const KEPT_SLOTS: usize = 1 << 20;

/// The plain keys of one state: its accounts, sorted by hash (32 bytes each), and the slots of those
/// accounts that were asked for last.
#[derive(Debug)]
pub struct SortedKeys {
    with: TrieHash,
    accounts: Sorted<Address>,
    /// The latest one first.
    slots: Mutex<VecDeque<(Address, Arc<Sorted<B256>>)>>,
}

impl SortedKeys {
    fn of(with: TrieHash, view: &dyn NodeRead) -> Result<Self, StateError> {
        let accounts = flat::accounts(view)?.collect::<Result<_, _>>()?;
        Ok(Self { with, accounts: Sorted::new(with, accounts), slots: Mutex::default() })
    }

    fn slots(
        &self,
        view: &dyn NodeRead,
        address: &Address,
    ) -> Result<Arc<Sorted<B256>>, StateError> {
        if let Some((_, slots)) = self.slots.lock().iter().find(|(own, _)| own == address) {
            return Ok(slots.clone());
        }
        let slots = flat::slots_of(view, address, usize::MAX)?;
        let sorted = Sorted::new(self.with, slots.into_iter().map(|(slot, _)| slot).collect());
        let sorted = Arc::new(sorted);
        // Small ones are sorted anew as fast as they are found.
        if sorted.len() > MAX_ENTRIES {
            let mut kept = self.slots.lock();
            kept.push_front((*address, sorted.clone()));
            let mut sum = 0;
            kept.retain(|(_, slots)| {
                sum += slots.len();
                sum <= KEPT_SLOTS || sum == slots.len()
            });
        }
        Ok(sorted)
    }
}

/// Serves the flat state that `view` shows, whose tries are hashed `with` this function, by `answer`
/// (see [`answer()`]).
///
/// # Errors
/// If the state cannot be read.
pub fn server<A>(
    with: TrieHash,
    view: Arc<dyn NodeRead>,
    answer: A,
) -> Result<Box<dyn ChunkServer>, StateError>
where
    A: Fn(&dyn NodeRead, &SortedKeys, &ChunkId) -> Result<Option<Bytes>, StateError>,
    A: Send + Sync + 'static,
{
    let keys = SortedKeys::of(with, &*view)?;
    Ok(Box::new(Server { view, keys, answer }))
}

struct Server<A> {
    view: Arc<dyn NodeRead>,
    keys: SortedKeys,
    answer: A,
}

impl<A> ChunkServer for Server<A>
where
    A: Fn(&dyn NodeRead, &SortedKeys, &ChunkId) -> Result<Option<Bytes>, StateError> + Send + Sync,
{
    fn chunk(&self, id: &ChunkId) -> Result<Option<Bytes>, StateError> {
        (self.answer)(&*self.view, &self.keys, id)
    }
}

/// The answer to `id` in the state of these tries, keys and flat state; `None` if no such node hangs
/// there.
///
/// # Errors
/// Those of the tries' source, and [`StateError::Corrupt`] if tries and flat state differ.
pub fn answer(
    tries: &impl Tries,
    keys: &SortedKeys,
    view: &dyn NodeRead,
    id: &ChunkId,
) -> Result<Option<Bytes>, StateError> {
    Serving { tries, keys, view }.answer(id)
}

struct Serving<'a, T> {
    tries: &'a T,
    keys: &'a SortedKeys,
    view: &'a dyn NodeRead,
}

impl<T: Tries> Serving<'_, T> {
    fn answer(&self, id: &ChunkId) -> Result<Option<Bytes>, StateError> {
        let Some(slot) = Slot::of(id) else { return Ok(None) };
        match slot.trie {
            None => {
                let (trie, source) = self.tries.accounts();
                self.below(&trie, &source, &slot, &self.keys.accounts, |out, address, leaf| {
                    self.account(out, address, leaf)
                })
            }
            Some(address) => {
                let (trie, source) = self.tries.accounts();
                let Some(leaf) = trie.leaf(&source, &self.tries.hash().hash(address))? else {
                    return Ok(None);
                };
                let (_, root) = leaf::decode_account(leaf.value())
                    .ok_or_else(|| malformed(&StateKey::Account(address)))?;
                let (trie, source) = self.tries.storage(&address, root, leaf.stamp())?;
                let keys = self.keys.slots(self.view, &address)?;
                self.below(&trie, &source, &slot, &keys, |out, slot, leaf| {
                    let value = leaf::decode_slot_value(leaf.value())
                        .ok_or_else(|| malformed(&StateKey::Slot(address, *slot)))?;
                    put_value(out, &value);
                    Ok(())
                })
            }
        }
    }

    /// Appends the value of an account, and the root of its storage if it has any.
    fn account(
        &self,
        out: &mut Vec<u8>,
        address: &Address,
        leaf: &Leaf<T::Stamp>,
    ) -> Result<(), StateError> {
        let (account, root) = leaf::decode_account(leaf.value())
            .ok_or_else(|| malformed(&StateKey::Account(*address)))?;
        put_value(out, &account.encode());
        let has_storage = root != self.tries.hash().empty_root();
        out.push(has_storage.into());
        out.extend(root.iter().filter(|_| has_storage));
        Ok(())
    }

    fn below<K: AsRef<[u8]> + Copy + Send + Sync>(
        &self,
        trie: &Trie<T::Stamp>,
        source: &T::Source,
        slot: &Slot,
        keys: &Sorted<K>,
        value: impl Fn(&mut Vec<u8>, &K, &Leaf<T::Stamp>) -> Result<(), StateError>,
    ) -> Result<Option<Bytes>, StateError> {
        let with = self.tries.hash();
        let Some(link) = hanging(trie, source, &slot.path)? else { return Ok(None) };
        let mut encoder = Encoder::new(with);
        if link.reference(slot.path.len(), &mut encoder) != slot.reference {
            return Ok(None);
        }
        let own = keys.below(&slot.path);
        if own.len() > MAX_ENTRIES {
            let mut split = Split { source, keys, encoder, out: vec![SPLIT], left: MAX_BRANCHES };
            split.node(&slot.path, link)?;
            return Ok(Some(split.out.into()));
        }
        let mut leaves = Vec::with_capacity(own.len());
        collect(source, &slot.path, link, &mut leaves)?;
        let mut out = vec![ENTRIES];
        put_varint(&mut out, leaves.len() as u64);
        let mut own = own;
        for leaf in &leaves {
            let differ = || {
                let what = format!("no key has the hash {} of a leaf", leaf.key());
                StateError::corrupt(flat::TABLE.name, what)
            };
            let key = own.next().filter(|key| with.hash(key) == *leaf.key()).ok_or_else(differ)?;
            out.extend_from_slice(key.as_ref());
            value(&mut out, key, leaf)?;
        }
        Ok(Some(out.into()))
    }
}

fn put_value(out: &mut Vec<u8>, value: &[u8]) {
    put_varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

fn malformed(key: &StateKey) -> StateError {
    StateError::corrupt("trie", format!("the leaf of {key} is malformed"))
}

/// What hangs at the slot `path`, which must be the root or that of a child.
fn hanging<N: NodeSource>(
    trie: &Trie<N::Stamp>,
    source: &N,
    path: &Nibbles,
) -> Result<Option<Link<N::Stamp>>, StateError> {
    let mut slot = Nibbles::new();
    let mut next = trie.root().cloned();
    while let Some(link) = next.take() {
        let link = resolved(source, &slot, link)?;
        if slot == *path {
            return Ok(Some(link));
        }
        let Link::Branch(link) = link else { return Ok(None) };
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
    link: Link<N::Stamp>,
    leaves: &mut Vec<Arc<Leaf<N::Stamp>>>,
) -> Result<(), StateError> {
    match resolved(source, slot, link)? {
        Link::Leaf(leaf) => leaves.push(leaf),
        Link::Branch(link) => {
            let path = link.path(slot);
            let branch = loaded(source, &path, &link)?;
            for (nibble, child) in (0u8..).zip(branch.children()) {
                if let Some(child) = child {
                    collect(source, &child_slot(&path, nibble), child.clone(), leaves)?;
                }
            }
        }
        Link::Unresolved(_) => {
            return Err(StateError::corrupt("trie", format!("no node hangs at {slot:?}")));
        }
    }
    Ok(())
}

/// An answer of branches.
struct Split<'a, N, K> {
    source: &'a N,
    keys: &'a Sorted<K>,
    encoder: Encoder,
    out: Vec<u8>,
    /// Branches that it may still have.
    left: usize,
}

impl<N: NodeSource, K: AsRef<[u8]> + Copy + Send + Sync> Split<'_, N, K> {
    /// A slot with too much below it: the RLP of the extension, if there is one, and of the branch,
    /// which of its children follow (2), and those.
    fn node(&mut self, slot: &Nibbles, link: Link<N::Stamp>) -> Result<(), StateError> {
        let link = resolved(self.source, slot, link)?;
        if link.encode_short(slot.len(), &mut self.encoder) {
            put_value(&mut self.out, &self.encoder.rlp);
        }
        let Link::Branch(link) = link else {
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
                && self.keys.below(&slot).len() > MAX_ENTRIES
            {
                mask |= 1 << nibble;
                follow.push((slot, child.clone()));
            }
        }
        self.out.extend(mask.to_be_bytes());
        // What they take is theirs before any of them splits further.
        self.left -= follow.len();
        for (slot, child) in follow {
            self.left += 1;
            self.node(&slot, child)?;
        }
        Ok(())
    }
}
