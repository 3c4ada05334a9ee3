//! Checking answers: pure, and bounded by their length.

use super::{ENTRIES, MAX_BRANCHES, MAX_ENTRIES, SPLIT, Slot};
use crate::{
    TrieHash, leaf,
    trie::{Encoder, Item, Part, Unkept, child_slot},
    verify::decode_node,
};
use alloy_primitives::Address;
use alloy_trie::{
    Nibbles,
    nodes::{RlpNode, TrieNode},
};
use retrie_state::{
    Account, ChunkId, Opened, ProofError, StateKey, Value,
    wire::{WireError, WireReader},
};

/// What the answer to `id` shows, in a state whose tries are hashed `with` this function.
///
/// # Errors
/// [`ProofError::RootMismatch`] if nodes do not have the references that name them,
/// [`ProofError::Malformed`] for any other form than that of a server.
pub fn open(with: TrieHash, id: &ChunkId, answer: &[u8]) -> Result<Opened, ProofError> {
    let slot = Slot::of(id).ok_or_else(|| malformed("id of a chunk"))?;
    let mut reader = WireReader::new(answer);
    let opened = match reader.u8()? {
        ENTRIES => entries(with, &slot, &mut reader)?,
        SPLIT => {
            let Slot { trie, path, reference } = slot;
            let mut split = Split { with, trie, reader, below: Vec::new(), branches: 0 };
            split.node(&path, &reference)?;
            reader = split.reader;
            Opened::Split { below: split.below, least: MAX_ENTRIES as u64 + 1 }
        }
        _ => return Err(malformed("tag of an answer")),
    };
    reader.finish()?;
    Ok(opened)
}

const fn malformed(what: &'static str) -> ProofError {
    ProofError::Malformed { what }
}

/// All entries below a slot: with their leaves the trie must have the reference that names it.
fn entries(with: TrieHash, slot: &Slot, reader: &mut WireReader<'_>) -> Result<Opened, ProofError> {
    // A slot, or an address and a flag, and a value of one byte or more.
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
        if items.last().is_some_and(|last: &Item| last.key >= item.key) {
            return Err(malformed("keys are out of order"));
        }
        entries.push((key, value));
        items.push(item);
    }
    let part = Part::build(with, &Unkept::default(), &slot.path, &items, &mut ());
    let reference = part.map(|part| part.reference(&slot.path, &mut Encoder::new(with)));
    if reference.as_ref() == Some(&slot.reference) {
        Ok(Opened::Entries { entries, further })
    } else {
        Err(ProofError::RootMismatch)
    }
}

fn value(reader: &mut WireReader<'_>) -> Result<Value, WireError> {
    let len = reader.count(1)?;
    Ok(Value::copy_from_slice(reader.take(len)?))
}

fn account(
    with: TrieHash,
    reader: &mut WireReader<'_>,
    further: &mut Vec<ChunkId>,
) -> Result<(StateKey, Value, Item), ProofError> {
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
            let slot = Slot { trie: Some(address), path: Nibbles::new(), reference };
            further.extend(slot.id());
            root
        }
        _ => return Err(malformed("flag of a storage")),
    };
    let leaf = leaf::encode_account(&account, storage_root);
    Ok((StateKey::Account(address), value, Item::new(with.hash(address), Some(leaf))))
}

fn storage(
    with: TrieHash,
    address: Address,
    reader: &mut WireReader<'_>,
) -> Result<(StateKey, Value, Item), ProofError> {
    let slot = reader.hash()?;
    let value = value(reader)?;
    let leaf = leaf::encode_slot_value(&value).ok_or_else(|| malformed("value of a slot"))?;
    Ok((StateKey::Slot(address, slot), value, Item::new(with.hash(slot), Some(leaf))))
}

/// Branches of one trie.
struct Split<'a> {
    with: TrieHash,
    trie: Option<Address>,
    reader: WireReader<'a>,
    below: Vec<ChunkId>,
    branches: usize,
}

impl<'a> Split<'a> {
    /// The branch, and the extension above it if there is one, that hang at `slot`.
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

    /// The next node, which has this reference.
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
                let slot = Slot { trie: self.trie, path: slot, reference: child.clone() };
                self.below.extend(slot.id());
            }
        }
        followed.into_iter().try_for_each(|(slot, child)| self.node(&slot, child))
    }
}
