//! Checks answers. Pure; the work is bounded by the length of the answer.

use super::{ChunkSlot, ENTRIES, MAX_BRANCHES, MAX_ENTRIES, SPLIT};
use crate::{
    TrieHash, leaf,
    trie::{BuildSource, BuiltSubtrie, LeafUpdate, NodeEncoder, child_slot},
    verify::decode_node,
};
use alloy_primitives::Address;
use alloy_trie::{
    Nibbles,
    nodes::{RlpNode, TrieNode},
};
use retrie_state::{
    Account, BackendKey, ChunkId, OpenedChunk, ProofError, StateValue,
    wire::{WireError, WireReader},
};

/// Checks the answer to `id`, in a state whose tries are hashed `with` this function, and returns
/// its content.
///
/// # Errors
/// [`ProofError::RootMismatch`] if a node does not have the reference by which it is named,
/// [`ProofError::Malformed`] if the answer is not in the canonical form.
pub fn open(with: TrieHash, id: &ChunkId, answer: &[u8]) -> Result<OpenedChunk, ProofError> {
    let slot = ChunkSlot::of(id).ok_or_else(|| malformed("id of a chunk"))?;
    let mut reader = WireReader::new(answer);
    let opened = match reader.u8()? {
        ENTRIES => entries(with, &slot, &mut reader)?,
        SPLIT => {
            let ChunkSlot { trie, path, reference } = slot;
            let mut split = SplitReader { with, trie, reader, below: Vec::new(), branches: 0 };
            split.node(&path, &reference)?;
            reader = split.reader;
            OpenedChunk::Split { below: split.below, least: MAX_ENTRIES as u64 + 1 }
        }
        _ => return Err(malformed("tag of an answer")),
    };
    reader.finish()?;
    Ok(opened)
}

const fn malformed(what: &'static str) -> ProofError {
    ProofError::Malformed { what }
}

/// Reads all entries below a slot. The subtrie of their leaves must have the slot's reference.
fn entries(
    with: TrieHash,
    slot: &ChunkSlot,
    reader: &mut WireReader<'_>,
) -> Result<OpenedChunk, ProofError> {
    // Minimal size: a slot, or an address and a flag, and a value of one byte.
    let count = reader.count(if slot.trie.is_some() { 34 } else { 23 })?;
    if count == 0 || count > MAX_ENTRIES {
        return Err(malformed("number of entries"));
    }
    let (mut entries, mut items, mut further) = (Vec::with_capacity(count), Vec::new(), Vec::new());
    for _ in 0..count {
        let (key, value, item) = match slot.trie {
            None => account(with, reader, &mut further)?,
            Some(address) => storage(with, address, reader)?,
        };
        if !Nibbles::unpack_array(&item.key.0).starts_with(&slot.path) {
            return Err(malformed("a key that is not below the slot"));
        }
        if items.last().is_some_and(|last: &LeafUpdate| last.key >= item.key) {
            return Err(malformed("keys are out of order"));
        }
        entries.push((key, value));
        items.push(item);
    }
    let part = BuiltSubtrie::build(with, &BuildSource::default(), &slot.path, &items, &mut ());
    let reference = part.map(|part| part.reference(&slot.path, &mut NodeEncoder::new(with)));
    if reference.as_ref() == Some(&slot.reference) {
        Ok(OpenedChunk::Entries { entries, further })
    } else {
        Err(ProofError::RootMismatch)
    }
}

fn value(reader: &mut WireReader<'_>) -> Result<StateValue, WireError> {
    let len = reader.count(1)?;
    Ok(StateValue::copy_from_slice(reader.take(len)?))
}

fn account(
    with: TrieHash,
    reader: &mut WireReader<'_>,
    further: &mut Vec<ChunkId>,
) -> Result<(BackendKey, StateValue, LeafUpdate), ProofError> {
    let address = Address::from(*reader.array::<20>()?);
    let value = value(reader)?;
    let account = Account::decode(&value).ok_or_else(|| malformed("account"))?;
    let storage_root = match reader.u8()? {
        0 => with.empty_root(),
        1 => {
            let root = reader.hash()?;
            if root == with.empty_root() {
                return Err(malformed("an empty storage"));
            }
            let reference = RlpNode::word_rlp(&root);
            let slot = ChunkSlot { trie: Some(address), path: Nibbles::new(), reference };
            further.extend(slot.id());
            root
        }
        _ => return Err(malformed("flag of a storage")),
    };
    let leaf = leaf::encode_account(&account, storage_root);
    Ok((
        BackendKey::Account(address.into()),
        value,
        LeafUpdate::new(with.hash(address), Some(leaf)),
    ))
}

fn storage(
    with: TrieHash,
    address: Address,
    reader: &mut WireReader<'_>,
) -> Result<(BackendKey, StateValue, LeafUpdate), ProofError> {
    let slot = reader.hash()?;
    let value = value(reader)?;
    let leaf = leaf::encode_slot_value(&value).ok_or_else(|| malformed("value of a slot"))?;
    Ok((
        BackendKey::Slot(address.into(), slot),
        value,
        LeafUpdate::new(with.hash(slot), Some(leaf)),
    ))
}

/// Reads a split answer: branches of one trie.
struct SplitReader<'a> {
    with: TrieHash,
    trie: Option<Address>,
    reader: WireReader<'a>,
    below: Vec<ChunkId>,
    branches: usize,
}

impl<'a> SplitReader<'a> {
    /// Reads the branch at `slot`, and the extension above it if there is one.
    fn node(&mut self, slot: &Nibbles, reference: &RlpNode) -> Result<(), ProofError> {
        let node = self.referred(reference)?;
        match node {
            TrieNode::Extension(extension) => {
                if extension.key.is_empty() || slot.len() + extension.key.len() > 63 {
                    return Err(malformed("extension"));
                }
                let path = slot.join(&extension.key);
                match self.referred(&extension.child)? {
                    TrieNode::Branch(branch) => {
                        self.children(&path, &branch.stack, branch.state_mask.get())
                    }
                    _ => Err(malformed("an extension above no branch")),
                }
            }
            TrieNode::Branch(branch) => self.children(slot, &branch.stack, branch.state_mask.get()),
            _ => Err(malformed("a split leaf")),
        }
    }

    /// Reads the next node, which must have this reference.
    fn referred(&mut self, reference: &RlpNode) -> Result<TrieNode, ProofError> {
        let len = self.reader.count(1)?;
        let rlp: &'a [u8] = self.reader.take(len)?;
        let own = match rlp.len() {
            ..32 => RlpNode::from_raw(rlp),
            _ => Some(RlpNode::word_rlp(&self.with.hash(rlp))),
        };
        if own.as_ref() != Some(reference) {
            return Err(ProofError::RootMismatch);
        }
        decode_node(rlp).ok_or_else(|| malformed("trie node"))
    }

    fn children(&mut self, path: &Nibbles, stack: &[RlpNode], mask: u16) -> Result<(), ProofError> {
        self.branches += 1;
        if path.len() > 63 || stack.len() < 2 || self.branches > MAX_BRANCHES {
            return Err(malformed("branch"));
        }
        let follow = self.reader.u16()?;
        if follow & !mask != 0 {
            return Err(malformed("a child that is not there"));
        }
        let nibbles = (0u8..16).filter(|nibble| mask & (1 << nibble) != 0);
        let mut followed = Vec::new();
        for (nibble, child) in nibbles.zip(stack) {
            let slot = child_slot(path, nibble);
            if follow & (1 << nibble) != 0 {
                followed.push((slot, child));
            } else {
                let slot = ChunkSlot { trie: self.trie, path: slot, reference: child.clone() };
                self.below.extend(slot.id());
            }
        }
        followed.into_iter().try_for_each(|(slot, child)| self.node(&slot, child))
    }
}
