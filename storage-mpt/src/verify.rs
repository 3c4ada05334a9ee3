//! Checking proofs against a root: pure, without storage or `std`.
//!
//! # The proof bytes of a [`StateProof`](retrie_state::StateProof)
//!
//! RLP of `[digest, [node, node, ...]]`:
//!
//! * `digest`: keccak-256 of the concatenated [encodings](BackendKey::encode) of the proven keys. It
//!   binds the proof to its question.
//! * `node`: the RLP of a trie node as a byte string. Walk the keys in the order given: for a slot
//!   down the account trie to its account, then down the storage trie; for an account down the
//!   account trie. Each node that has a hash is listed once, when it is first reached. Embedded
//!   nodes are part of their parents. An empty trie has no nodes.
//!
//! For a root and a list of keys exactly one byte string is a proof; any other is refused.
//!
//! `mpt-archive` with another hash function uses that function everywhere in place of keccak-256:
//! in `digest`, in the references of nodes, in the paths of keys.

use crate::{TrieHash, leaf};
use alloc::{collections::BTreeMap, vec::Vec};
use alloy_primitives::{Address, B256, Bytes};
use alloy_rlp::{Decodable, Header};
use alloy_trie::{
    EMPTY_ROOT_HASH, Nibbles,
    nodes::{RlpNode, TrieNode},
};
use retrie_state::{Account, BackendKey, ProofError, StateValue, decode_slot};

/// The values of `keys` under `root`, as `proof` proves them.
///
/// # Errors
/// A [`ProofError`] for anything but the one proof that belongs to `root` and `keys`.
pub fn verify(
    root: B256,
    keys: &[BackendKey],
    proof: &[u8],
) -> Result<Vec<Option<StateValue>>, ProofError> {
    verify_with(TrieHash::Keccak256, root, keys, proof)
}

/// As [`verify()`] for a trie hashed `with` this function.
///
/// # Errors
/// As [`verify()`].
pub(crate) fn verify_with(
    with: TrieHash,
    root: B256,
    keys: &[BackendKey],
    proof: &[u8],
) -> Result<Vec<Option<StateValue>>, ProofError> {
    let mut rest = proof;
    let mut content = list(&mut rest)?;
    if !rest.is_empty() {
        return Err(ProofError::Malformed { what: "bytes after the end" });
    }
    let digest = B256::decode(&mut content).map_err(|_| malformed("digest of the keys"))?;
    if digest != keys_digest(with, keys) {
        return Err(ProofError::WrongKind { what: "keys" });
    }
    let mut nodes = list(&mut content)?;
    if !content.is_empty() {
        return Err(ProofError::Malformed { what: "parts after the nodes" });
    }
    let mut seen = BTreeMap::new();
    let mut fetch = |hash: &B256| {
        if let Some(node) = seen.get(hash) {
            return Ok(*node);
        }
        let node = next_node(with, &mut nodes, hash)?;
        seen.insert(*hash, node);
        Ok(node)
    };
    let mut values = Vec::with_capacity(keys.len());
    for key in keys {
        let path = with.account_path(key.account());
        let account = account(with, root, &path, &mut fetch)?;
        values.push(match (key, account) {
            (_, None) => None,
            (BackendKey::Account(_), Some((account, _))) => Some(account.encode()),
            (BackendKey::Slot(account, slot), Some((_, storage_root))) => {
                self::slot(with, storage_root, &with.slot_path(account, slot), &mut fetch)?
            }
        });
    }
    if !nodes.is_empty() {
        return Err(ProofError::Unused);
    }
    Ok(values)
}

/// The digest that binds a proof to its keys.
pub(crate) fn keys_digest(with: TrieHash, keys: &[BackendKey]) -> B256 {
    let mut all = Vec::with_capacity(keys.len() * BackendKey::MAX_ENCODED_LEN);
    for key in keys {
        all.extend_from_slice(&key.encode());
    }
    with.hash(all)
}

/// An account with some of its slots and their proofs, as in EIP-1186 (`eth_getProof`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountProof {
    /// The address.
    pub address: Address,
    /// The account, `None` if there is none.
    pub account: Option<Account>,
    /// Root of its storage trie; the root of the empty trie if there is no account.
    pub storage_root: B256,
    /// The nodes from the state root down to the account, or to the node that shows its absence.
    pub account_proof: Vec<Bytes>,
    /// The slots, in the order asked for.
    pub storage: Vec<SlotProof>,
}

/// One slot of an [`AccountProof`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotProof {
    /// The slot.
    pub slot: B256,
    /// Its value, `None` if it is zero.
    pub value: Option<StateValue>,
    /// The nodes from the storage root down to the slot, or to the node that shows its absence;
    /// none if the storage is empty.
    pub proof: Vec<Bytes>,
}

impl AccountProof {
    /// Checks every statement of the proof against the state root.
    ///
    /// # Errors
    /// A [`ProofError`] if a node is missing, wrong or not needed, or proves another value.
    pub fn verify(&self, root: B256) -> Result<(), ProofError> {
        let shown = shown_account(root, &self.address, &self.account_proof)?;
        let claimed = self.account.map(|account| (account, self.storage_root));
        if shown != claimed || (shown.is_none() && self.storage_root != EMPTY_ROOT_HASH) {
            return Err(ProofError::RootMismatch);
        }
        for SlotProof { slot, value, proof } in &self.storage {
            let shown = shown_slot(self.storage_root, slot, proof)?;
            if shown != *value || value.as_ref().is_some_and(|value| decode_slot(value).is_none()) {
                return Err(ProofError::RootMismatch);
            }
        }
        Ok(())
    }
}

/// The account at `address` and the root of its storage trie (`None`: there is no such account), as
/// EIP-1186's `accountProof` proves them under the state root.
///
/// # Errors
/// A [`ProofError`] if a node is missing, wrong or not needed.
pub fn shown_account(
    root: B256,
    address: &Address,
    nodes: &[Bytes],
) -> Result<Option<(Account, B256)>, ProofError> {
    let with = TrieHash::Keccak256;
    consume(nodes, |fetch| account(with, root, &with.hash(address), fetch))
}

/// The value of a slot (`None`: zero), as EIP-1186's `proof` of a slot proves it under the root of
/// the account's storage trie.
///
/// # Errors
/// As [`shown_account`].
pub fn shown_slot(
    storage_root: B256,
    slot: &B256,
    nodes: &[Bytes],
) -> Result<Option<StateValue>, ProofError> {
    let with = TrieHash::Keccak256;
    consume(nodes, |fetch| self::slot(with, storage_root, &with.hash(slot), fetch))
}

/// Returns the RLP of the node with a hash, and has checked the hash.
pub type NodeFetch<'f, 'a> = &'f mut dyn FnMut(&B256) -> Result<&'a [u8], ProofError>;

/// Runs `walk` on `nodes`, all of which it must use, in order.
fn consume<'a, T>(
    nodes: &'a [Bytes],
    walk: impl FnOnce(NodeFetch<'_, 'a>) -> Result<T, ProofError>,
) -> Result<T, ProofError> {
    let mut nodes = nodes.iter();
    let shown = walk(&mut |hash| {
        let node = nodes.next().ok_or(ProofError::Missing { what: "a node on the way" })?;
        check_hash(TrieHash::Keccak256, node, hash)
    })?;
    if nodes.next().is_some() {
        return Err(ProofError::Unused);
    }
    Ok(shown)
}

const fn malformed(what: &'static str) -> ProofError {
    ProofError::Malformed { what }
}

/// Takes the RLP list at the head of `bytes` and returns its content.
fn list<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8], ProofError> {
    Header::decode_bytes(bytes, true).map_err(|_| malformed("list"))
}

fn next_node<'a>(
    with: TrieHash,
    nodes: &mut &'a [u8],
    hash: &B256,
) -> Result<&'a [u8], ProofError> {
    if nodes.is_empty() {
        return Err(ProofError::Missing { what: "a node on the way" });
    }
    let node = Header::decode_bytes(nodes, false).map_err(|_| malformed("node"))?;
    check_hash(with, node, hash)
}

fn check_hash<'a>(with: TrieHash, node: &'a [u8], hash: &B256) -> Result<&'a [u8], ProofError> {
    if with.hash(node) == *hash { Ok(node) } else { Err(ProofError::RootMismatch) }
}

fn account(
    with: TrieHash,
    root: B256,
    path: &B256,
    fetch: NodeFetch<'_, '_>,
) -> Result<Option<(Account, B256)>, ProofError> {
    walk(with, root, path, fetch)?
        .map(|leaf| leaf::decode_account(&leaf).ok_or_else(|| malformed("account leaf")))
        .transpose()
}

fn slot(
    with: TrieHash,
    root: B256,
    path: &B256,
    fetch: NodeFetch<'_, '_>,
) -> Result<Option<StateValue>, ProofError> {
    walk(with, root, path, fetch)?
        .map(|leaf| leaf::decode_slot_value(&leaf).ok_or_else(|| malformed("slot leaf")))
        .transpose()
}

/// Goes from `root` down to `key` in a trie hashed `with` this function and returns the value of
/// the leaf, `None` if there is no leaf. `fetch` returns the node of a hash. All verifiers of trie
/// proofs use this walk; they differ in how `fetch` finds the nodes.
///
/// # Errors
/// Errors of `fetch`, and [`ProofError::Malformed`] for a node that no trie over 32-byte keys has,
/// or that is not canonically encoded.
pub fn walk(
    with: TrieHash,
    root: B256,
    key: &B256,
    fetch: NodeFetch<'_, '_>,
) -> Result<Option<Vec<u8>>, ProofError> {
    if root == with.empty_root() {
        return Ok(None);
    }
    let key = Nibbles::unpack_array(&key.0);
    let mut depth = 0;
    let mut reference = RlpNode::word_rlp(&root);
    loop {
        let node = match reference.as_hash() {
            Some(hash) => decode_node(fetch(&hash)?),
            None => decode_node(&reference),
        };
        match node.ok_or_else(|| malformed("trie node"))? {
            TrieNode::EmptyRoot => return Err(malformed("empty node")),
            TrieNode::Branch(branch) => {
                let nibble = key.get(depth).ok_or_else(|| malformed("branch below a key"))?;
                if !branch.state_mask.is_bit_set(nibble) {
                    return Ok(None);
                }
                let at = (branch.state_mask.get() & ((1 << nibble) - 1)).count_ones() as usize;
                let child = branch.stack.get(at);
                reference = child.ok_or_else(|| malformed("trie node"))?.clone();
                depth += 1;
            }
            TrieNode::Extension(extension) => {
                let end = depth + extension.key.len();
                if extension.key.is_empty() || end > 63 {
                    return Err(malformed("extension"));
                }
                if key.slice(depth..end) != extension.key {
                    return Ok(None);
                }
                reference = extension.child;
                depth = end;
            }
            TrieNode::Leaf(leaf) => {
                if depth + leaf.key.len() != 64 {
                    return Err(malformed("leaf"));
                }
                return Ok((key.slice(depth..) == leaf.key).then_some(leaf.value));
            }
        }
    }
}

/// Decodes a node. All its references must be hashes or embedded nodes, and its path must be padded
/// with zero.
pub(crate) fn decode_node(whole: &[u8]) -> Option<TrieNode> {
    let mut bytes = whole;
    let node = TrieNode::decode(&mut bytes).ok()?;
    let valid = |reference: &RlpNode| match reference.first() {
        Some(0xa0) => reference.len() == 33,
        // A list of less than 32 bytes.
        Some(0xc0..=0xde) => true,
        _ => false,
    };
    let references_valid = match &node {
        TrieNode::EmptyRoot | TrieNode::Leaf(_) => true,
        TrieNode::Branch(branch) => branch.stack.iter().all(valid),
        TrieNode::Extension(extension) => valid(&extension.child),
    };
    let path_valid = matches!(node, TrieNode::EmptyRoot | TrieNode::Branch(_)) || is_path_of(whole);
    (bytes.is_empty() && references_valid && path_valid).then_some(node)
}

/// Whether the node starts with a canonically encoded path, which `TrieNode` does not check.
fn is_path_of(mut node: &[u8]) -> bool {
    let path = Header::decode_bytes(&mut node, true)
        .and_then(|mut items| Header::decode_bytes(&mut items, false));
    path.is_ok_and(|path| hex_prefix(path).is_some())
}

/// Decodes the path of a leaf or an extension in hex-prefix encoding (yellow paper, appendix C):
/// whether it is a leaf's, its first nibble if the number of nibbles is odd, and the other nibbles,
/// two a byte. `None` for other flags or padding that is not zero.
pub(crate) fn hex_prefix(path: &[u8]) -> Option<(bool, Option<u8>, &[u8])> {
    let (first, rest) = path.split_first()?;
    let (flags, low) = (first >> 4, first & 0x0f);
    let odd = (flags & 1 == 1).then_some(low);
    (flags <= 3 && (odd.is_some() || low == 0)).then_some((flags >= 2, odd, rest))
}
