//! Chunks with hashed keys. Pure; the work is bounded by the length of the answer.
//!
//! ```text
//! id      00 the account trie, or 01 and the hash of an address (32): its storage trie
//!         number of nibbles of the path, at most 64 (1), the nibbles, one a byte
//!         the reference as in a branch: a0 and the hash (33), or the RLP of a node below 32 bytes
//! answer  00, all leaves below the slot: varint: their number; each its key (32), varint: length of
//!         its value, the value; or
//!         01, the RLP of the node at the slot, which names further ids
//! ```

use crate::{
    TrieHash, leaf,
    trie::{BuildSource, BuiltSubtrie, LeafUpdate, NodeEncoder, child_slot, key_bounds},
    verify::decode_node,
};
use alloy_primitives::{B256, Bytes};
use alloy_trie::{
    Nibbles,
    nodes::{RlpNode, TrieNode},
};
use retrie_state::{
    AccountKey, BackendKey, ChunkId, ChunkPlace, OpenedChunk, ProofError, StateTrie, StateValue,
    TrieLeaf,
    wire::{WireReader, put_varint},
};

const LEAVES: u8 = 0;
const NODE: u8 = 1;
pub(super) const WITH: TrieHash = TrieHash::Keccak256;

/// A slot of a trie, and the reference of the node that hangs there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RangeSlot {
    trie: StateTrie,
    pub(super) path: Nibbles,
    pub(super) reference: RlpNode,
}

impl RangeSlot {
    pub(super) fn root(trie: StateTrie, root: B256) -> Self {
        Self { trie, path: Nibbles::new(), reference: RlpNode::word_rlp(&root) }
    }

    pub(super) fn id(&self) -> Option<ChunkId> {
        let mut id = Vec::with_capacity(68);
        match self.trie {
            StateTrie::Accounts => id.push(0),
            StateTrie::Storage(account) => {
                id.push(1);
                id.extend(account);
            }
        }
        id.push(self.path.len() as u8);
        id.extend(self.path.to_vec());
        id.extend_from_slice(&self.reference);
        ChunkId::new(id)
    }

    pub(super) fn of(id: &ChunkId) -> Option<Self> {
        let (tag, mut rest) = id.bytes().split_first()?;
        let trie = match tag {
            0 => StateTrie::Accounts,
            1 => {
                let (account, behind) = rest.split_first_chunk::<32>()?;
                rest = behind;
                StateTrie::Storage(account.into())
            }
            _ => return None,
        };
        let (len, rest) = rest.split_first()?;
        let (path, reference) = rest.split_at_checked(usize::from(*len))?;
        if path.len() > 64 || path.iter().any(|nibble| *nibble > 0x0f) {
            return None;
        }
        let path = Nibbles::from_nibbles(path);
        Some(Self { trie, path, reference: RlpNode::from_raw(reference)? })
    }

    pub(super) fn place(&self) -> ChunkPlace {
        let [first, last] = key_bounds(&self.path);
        let own = &self.reference;
        let embedded = own.as_hash().is_none().then(|| Bytes::copy_from_slice(own));
        ChunkPlace { trie: self.trie, path: self.path.to_vec(), keys: first..=last, embedded }
    }

    fn at(&self, path: Nibbles, reference: &RlpNode) -> Self {
        Self { trie: self.trie, path, reference: reference.clone() }
    }
}

/// The answer that has these leaves.
pub(super) fn pack_leaves(leaves: &[TrieLeaf]) -> Bytes {
    let mut out = vec![LEAVES];
    put_varint(&mut out, leaves.len() as u64);
    for TrieLeaf { key, value } in leaves {
        out.extend(key);
        put_varint(&mut out, value.len() as u64);
        out.extend_from_slice(value);
    }
    out.into()
}

/// The leaves of an answer that has leaves, unchecked.
pub(super) fn unpack_leaves(answer: &[u8]) -> Option<Vec<TrieLeaf>> {
    let (&LEAVES, rest) = answer.split_first()? else { return None };
    let mut reader = WireReader::new(rest);
    let count = reader.count(34).ok()?;
    let mut leaves = Vec::with_capacity(count);
    for _ in 0..count {
        let key = reader.hash().ok()?;
        let len = reader.count(1).ok()?;
        leaves.push(TrieLeaf { key, value: Bytes::copy_from_slice(reader.take(len).ok()?) });
    }
    reader.finish().ok()?;
    Some(leaves)
}

/// The answer that has this node.
pub(super) fn pack_node(node: &[u8]) -> Bytes {
    [&[NODE], node].concat().into()
}

/// Checks the answer to `id`, and returns its content.
///
/// # Errors
/// [`ProofError::RootMismatch`] if what is below the slot does not have the slot's reference,
/// [`ProofError::Malformed`] if the answer is not in the canonical form.
pub(super) fn open(id: &ChunkId, answer: &[u8]) -> Result<OpenedChunk, ProofError> {
    let slot = RangeSlot::of(id).ok_or_else(|| malformed("id of a chunk"))?;
    match answer.split_first() {
        Some((&LEAVES, rest)) => {
            let mut reader = WireReader::new(rest);
            let leaves = read_leaves(&slot, &mut reader)?;
            reader.finish()?;
            opened(&slot, leaves)
        }
        Some((&NODE, rlp)) => node(&slot, rlp),
        _ => Err(malformed("tag of an answer")),
    }
}

pub(super) const fn malformed(what: &'static str) -> ProofError {
    ProofError::Malformed { what }
}

/// Reads all leaves below a slot. Their subtrie must have the slot's reference.
fn read_leaves(
    slot: &RangeSlot,
    reader: &mut WireReader<'_>,
) -> Result<Vec<LeafUpdate>, ProofError> {
    // Minimal size: a key, and a value of one byte.
    let count = reader.count(34)?;
    let mut leaves: Vec<LeafUpdate> = Vec::with_capacity(count);
    for _ in 0..count {
        let key = reader.hash()?;
        let len = reader.count(1)?;
        let value = Bytes::copy_from_slice(reader.take(len)?);
        if !Nibbles::unpack_array(&key.0).starts_with(&slot.path) {
            return Err(malformed("a key that is not below the slot"));
        }
        if leaves.last().is_some_and(|last| last.key >= key) {
            return Err(malformed("keys are out of order"));
        }
        leaves.push(LeafUpdate::new(key, Some(value)));
    }
    let part = BuiltSubtrie::build(WITH, &BuildSource::default(), &slot.path, &leaves, &mut ());
    let reference = part.map(|part| part.reference(&slot.path, &mut NodeEncoder::new(WITH)));
    match reference.as_ref() == Some(&slot.reference) {
        true => Ok(leaves),
        false => Err(ProofError::RootMismatch),
    }
}

/// The entries of checked leaves, and the storage tries that they name.
fn opened(slot: &RangeSlot, leaves: Vec<LeafUpdate>) -> Result<OpenedChunk, ProofError> {
    let (mut entries, mut further) = (Vec::with_capacity(leaves.len()), Vec::new());
    for LeafUpdate { key, value, .. } in leaves {
        let value = value.unwrap_or_default();
        entries.push(match slot.trie {
            StateTrie::Accounts => {
                let (account, root) =
                    leaf::decode_account(&value).ok_or_else(|| malformed("account"))?;
                if root != WITH.empty_root() {
                    further.extend(RangeSlot::root(StateTrie::Storage(key), root).id());
                }
                (BackendKey::Account(AccountKey::hashed(key)), account.encode())
            }
            StateTrie::Storage(account) => {
                let value: StateValue =
                    leaf::decode_slot_value(&value).ok_or_else(|| malformed("value of a slot"))?;
                (BackendKey::Slot(AccountKey::hashed(account), key), value)
            }
        });
    }
    Ok(OpenedChunk::Entries { entries, further })
}

/// Reads the node at a slot: a leaf, or what names the slots below it.
fn node(slot: &RangeSlot, rlp: &[u8]) -> Result<OpenedChunk, ProofError> {
    let own = match rlp.len() {
        ..32 => RlpNode::from_raw(rlp),
        _ => Some(RlpNode::word_rlp(&WITH.hash(rlp))),
    };
    if own.as_ref() != Some(&slot.reference) {
        return Err(ProofError::RootMismatch);
    }
    let below: Vec<_> = match decode_node(rlp).ok_or_else(|| malformed("trie node"))? {
        TrieNode::EmptyRoot => return Err(malformed("empty node")),
        TrieNode::Leaf(found) => {
            if slot.path.len() + found.key.len() != 64 {
                return Err(malformed("leaf"));
            }
            let [key, _] = key_bounds(&slot.path.join(&found.key));
            return opened(slot, vec![LeafUpdate::new(key, Some(found.value.into()))]);
        }
        TrieNode::Extension(extension) => {
            if extension.key.is_empty() || slot.path.len() + extension.key.len() > 63 {
                return Err(malformed("extension"));
            }
            slot.at(slot.path.join(&extension.key), &extension.child).id().into_iter().collect()
        }
        TrieNode::Branch(branch) => {
            let mask = branch.state_mask;
            if slot.path.len() > 63 || branch.stack.len() != usize::from(mask.count_bits()) {
                return Err(malformed("branch"));
            }
            let nibbles = (0..16).filter(|nibble| mask.is_bit_set(*nibble));
            let child = |(nibble, child): (u8, &RlpNode)| {
                slot.at(child_slot(&slot.path, nibble), child).id()
            };
            nibbles.zip(&branch.stack).filter_map(child).collect()
        }
    };
    Ok(OpenedChunk::Split { below, least: 1 })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::ethereum::ranges::HashedRanges;
    use crate::{MemorySource, Trie};
    use alloy_primitives::U256;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use retrie_state::{Account, RangeFormat, encode_slot};

    /// The leaves of a storage trie, some of them close to each other.
    pub(in super::super) fn leaves(rng: &mut StdRng, count: usize) -> Vec<TrieLeaf> {
        let mut keys: Vec<B256> =
            (0..count).map(|_| B256::from(rng.random::<[u8; 32]>())).collect();
        for n in 0..count / 4 {
            let mut near = keys[n];
            near[rng.random_range(0..32)] ^= 1 << rng.random_range(0..8);
            keys.push(near);
        }
        keys.sort_unstable();
        keys.dedup();
        let mut value = || {
            let value = U256::from(rng.random_range(1..u128::MAX) >> rng.random_range(0..120))
                .max(U256::from(1));
            leaf::encode_slot_value(&encode_slot(value).unwrap()).unwrap()
        };
        keys.into_iter().map(|key| TrieLeaf { key, value: value() }).collect()
    }

    fn trie(leaves: &[TrieLeaf]) -> Trie {
        let items: Vec<_> =
            leaves.iter().map(|leaf| LeafUpdate::new(leaf.key, Some(leaf.value.clone()))).collect();
        Trie::default().update(&MemorySource, &items, &mut ()).unwrap()
    }

    #[test]
    fn chunks_down_to_any_depth_have_the_leaves_and_nothing_else() {
        let mut rng = StdRng::seed_from_u64(3);
        let account = StateTrie::Storage(B256::repeat_byte(9));
        for count in [1, 2, 3, 40, 500] {
            let all = leaves(&mut rng, count);
            let whole = RangeSlot::root(account, trie(&all).hash()).id().unwrap();
            // Asks for leaves at random, for nodes otherwise.
            let (mut wanted, mut found) = (vec![whole], Vec::new());
            while let Some(id) = wanted.pop() {
                let slot = RangeSlot::of(&id).unwrap();
                let ChunkPlace { trie, path, keys, .. } = slot.place();
                assert_eq!(trie, account);
                let below: Vec<_> =
                    all.iter().filter(|leaf| keys.contains(&leaf.key)).cloned().collect();
                let as_node = slot.reference.as_hash().is_none() && rng.random_bool(0.5);
                let answer = match as_node {
                    true => pack_node(&slot.reference),
                    false => pack_leaves(&below),
                };
                match open(&id, &answer).unwrap() {
                    OpenedChunk::Entries { entries, further } => {
                        assert!(further.is_empty());
                        found.extend(entries);
                    }
                    OpenedChunk::Split { below, .. } => wanted.extend(below),
                }
                for at in 0..below.len().min(5) {
                    let mut wrong = below.clone();
                    wrong.remove(at);
                    assert!(open(&id, &pack_leaves(&wrong)).is_err(), "one is missing at {path:?}");
                    let mut wrong = below.clone();
                    wrong[at].key[31] ^= 1;
                    assert!(open(&id, &pack_leaves(&wrong)).is_err(), "one has another key");
                }
                let bit = rng.random_range(0..answer.len() * 8);
                let mut flipped = answer.to_vec();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert!(open(&id, &flipped).is_err(), "bit {bit} of the answer for {path:?}");
            }
            assert_eq!(found.len(), all.len());
        }
    }

    #[test]
    fn accounts_name_their_storage() {
        let storage = B256::repeat_byte(5);
        let of = |root| leaf::encode_account(&Account { nonce: 1, ..Default::default() }, root);
        let leaves = [
            TrieLeaf { key: B256::repeat_byte(1), value: of(storage) },
            TrieLeaf { key: B256::repeat_byte(2), value: of(WITH.empty_root()) },
        ];
        let id = RangeSlot::root(StateTrie::Accounts, trie(&leaves).hash()).id().unwrap();
        let opened = open(&id, &pack_leaves(&leaves)).unwrap();
        let OpenedChunk::Entries { entries, further } = opened else { panic!("{opened:?}") };
        assert_eq!(entries.len(), 2);
        let first = RangeSlot::root(StateTrie::Storage(leaves[0].key), storage);
        assert_eq!(further, [first.id().unwrap()]);
        let none = HashedRanges.whole_range(StateTrie::Accounts, WITH.empty_root());
        assert_eq!(none, None);
    }
}
