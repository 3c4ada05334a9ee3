//! Proofs: their bytes, and checking them against a root. Pure, without storage or `std`.
//!
//! ```text
//!  proof   nothing for the empty tree; else node
//!  node    00 value                       a leaf: the only target that leads here
//!          01 key value                   a leaf, by its whole key: 34 bytes, or 66 in zone ff
//!          02 count child child           a branch whose prefix all targets that lead here continue
//!          03 count bits child child      a branch, by its prefix (count bits, packed, padded with 0)
//!  child   a node if targets lead there, else its hash (32)
//!  value   its length without leading zeros (1), these bytes
//!  count   two bytes, big-endian
//! ```
//!
//! The *targets* are the leaves that the asked keys need: an account needs leaves 0, 1 and 2 of its
//! header, a slot needs its own. A branch or leaf is written in the first form that fits, so one root
//! and one set of keys have exactly one proof.
//!
//! # Soundness
//!
//! The root belongs to an honestly computed state. Breaking any step takes a collision of the hash.
//!
//! 1. *One tree.* Leaves and branches are hashed with different first bytes, and each input has one
//!    meaning: a leaf's key has one of two lengths. So everything that a proof shows is part of the
//!    tree, and a branch's hash binds its prefix, so it is at its place.
//! 2. *Presence.* A shown leaf with the target's key has the target's value.
//! 3. *Absence.* All leaves below a branch continue its prefix. A target that does not continue it, or
//!    that leads to a leaf with another key, would have to be there.

use crate::{
    hash::{MAX_KEY_LEN, TreeHash, bit, common_bits},
    key::{
        BASIC_DATA, CODE_HASH, CODE_ZONE, DELEGATION, HEADER_ZONE, STORAGE_ZONE, SlotPlace, Stem,
        account_path, account_word, group_path,
    },
    leaf::{account_of, chunks},
};
use alloc::{collections::BTreeMap, vec, vec::Vec};
use alloy_primitives::{B256, U256, keccak256};
use retrie_state::{BackendKey, ProofError, StateValue, encode_slot, wire::WireReader};

/// A leaf's key.
pub type LeafKey = Vec<u8>;

/// The keys of the leaves that `key` needs.
pub fn targets_of(hash: TreeHash, key: &BackendKey) -> Vec<LeafKey> {
    let path = account_path(hash, key.account());
    let at = |stem: Stem, sub| {
        let (key, len) = stem.key(sub);
        key[..len].to_vec()
    };
    let header = Stem::short(HEADER_ZONE, &path);
    match key {
        BackendKey::Account(_) => {
            [BASIC_DATA, CODE_HASH, DELEGATION].map(|sub| at(header, sub)).to_vec()
        }
        BackendKey::Slot(owner, slot) => vec![match SlotPlace::of(slot) {
            SlotPlace::Header(sub) => at(header, sub),
            SlotPlace::Storage { group, sub } => {
                let group = group_path(hash, &account_word(owner), &group);
                at(Stem::storage(&path, &group), sub)
            }
        }],
    }
}

/// The key of one chunk.
fn chunk_target(hash: TreeHash, code: &B256, chunk: u32) -> LeafKey {
    let mut group = B256::ZERO;
    group[28..].copy_from_slice(&(chunk / 256).to_be_bytes());
    let stem = Stem::short(CODE_ZONE, &group_path(hash, code, &group));
    let (key, len) = stem.key((chunk % 256) as u8);
    key[..len].to_vec()
}

/// The values of `keys` (in any order; a key may come twice) under `root`, as `proof` shows them.
///
/// # Errors
/// A [`ProofError`] for a proof that is not canonical ([`Malformed`](ProofError::Malformed)), or leads
/// to another root ([`RootMismatch`](ProofError::RootMismatch)).
pub fn verify(
    hash: TreeHash,
    root: B256,
    keys: &[BackendKey],
    proof: &[u8],
) -> Result<Vec<Option<StateValue>>, ProofError> {
    verify_with_chunks(hash, root, keys, &BTreeMap::new(), proof)
}

/// As [`verify`], if the proof also shows the chunks of codes with these keys and values; zero is an
/// absent one.
///
/// # Errors
/// As [`verify`]; [`ProofError::RootMismatch`] also if the tree has other chunks.
pub fn verify_with_chunks(
    hash: TreeHash,
    root: B256,
    keys: &[BackendKey],
    chunks: &BTreeMap<LeafKey, B256>,
    proof: &[u8],
) -> Result<Vec<Option<StateValue>>, ProofError> {
    let targets: Vec<_> = keys.iter().map(|key| targets_of(hash, key)).collect();
    let mut sorted: Vec<&[u8]> =
        targets.iter().flatten().chain(chunks.keys()).map(|key| &key[..]).collect();
    sorted.sort_unstable();
    sorted.dedup();
    let leaves = verify_leaves(hash, root, &sorted, proof)?;
    let shown = |key| leaves.get(key).copied().unwrap_or_default();
    if chunks.iter().any(|(key, value)| shown(key) != *value) {
        return Err(ProofError::RootMismatch);
    }
    keys.iter()
        .zip(&targets)
        .map(|(key, targets)| {
            let leaf = |at: usize| targets.get(at).and_then(|key| leaves.get(key)).copied();
            match key {
                BackendKey::Account(_) => {
                    let account = account_of(leaf(0), leaf(1), leaf(2))
                        .map_err(|what| ProofError::Malformed { what })?;
                    Ok(account.map(|(account, _)| account.encode()))
                }
                BackendKey::Slot(..) => {
                    Ok(leaf(0).and_then(|value| encode_slot(U256::from_be_bytes(value.0))))
                }
            }
        })
        .collect()
}

/// The keys and values of these chunks of `code`. A chunk of zeros, or behind the end of the code, has
/// the value zero.
pub fn chunk_leaves(
    hash: TreeHash,
    code: &[u8],
    wanted: impl IntoIterator<Item = u32>,
) -> BTreeMap<LeafKey, B256> {
    let (code_hash, all) = (keccak256(code), chunks(code));
    let leaf = |chunk: u32| {
        let key = chunk_target(hash, &code_hash, chunk);
        (key, all.get(chunk as usize).copied().unwrap_or_default())
    };
    wanted.into_iter().map(leaf).collect()
}

/// The leaves among `targets`, which are sorted keys, that the tree of `root` has.
///
/// # Errors
/// As [`verify`].
pub fn verify_leaves(
    hash: TreeHash,
    root: B256,
    targets: &[&[u8]],
    proof: &[u8],
) -> Result<BTreeMap<LeafKey, B256>, ProofError> {
    let mut walk = ProofWalk { hash, reader: WireReader::new(proof), found: BTreeMap::new() };
    let shown = if proof.is_empty() || targets.is_empty() {
        // A proof of nothing has no bytes and shows nothing.
        if !proof.is_empty() {
            return Err(ProofError::Malformed { what: "a proof of no keys has bytes" });
        }
        if targets.is_empty() { root } else { B256::ZERO }
    } else {
        walk.node(targets, 0)?
    };
    walk.reader.finish()?;
    if shown == root { Ok(walk.found) } else { Err(ProofError::RootMismatch) }
}

const fn malformed<T>(what: &'static str) -> Result<T, ProofError> {
    Err(ProofError::Malformed { what })
}

struct ProofWalk<'a> {
    hash: TreeHash,
    reader: WireReader<'a>,
    found: BTreeMap<LeafKey, B256>,
}

impl ProofWalk<'_> {
    /// The hash of the node that `targets` lead to. They are at least one, and share their first
    /// `from` bits, which lead here.
    fn node(&mut self, targets: &[&[u8]], from: usize) -> Result<B256, ProofError> {
        let (Some(first), Some(last)) = (targets.first(), targets.last()) else {
            return malformed("a node without a target");
        };
        let shared = common_bits(first, last);
        match self.reader.u8()? {
            0 => {
                if targets.len() != 1 {
                    return malformed("a leaf without its key, and several targets");
                }
                let value = self.value()?;
                self.found.insert(first.to_vec(), value);
                Ok(self.hash.leaf(first, &value))
            }
            1 => {
                let zone = self.reader.rest().first().copied();
                let len = if zone == Some(STORAGE_ZONE) { MAX_KEY_LEN } else { 34 };
                let key = self.reader.take(len)?;
                if common_bits(key, first) < from {
                    return malformed("a leaf at a place that its key does not lead to");
                }
                let is_target = targets.binary_search(&key).is_ok();
                if is_target && targets.len() == 1 {
                    return malformed("a target with its key");
                }
                let value = self.value()?;
                if is_target {
                    self.found.insert(key.to_vec(), value);
                }
                Ok(self.hash.leaf(key, &value))
            }
            2 => {
                let split = from + usize::from(self.reader.u16()?);
                if shared < split || first.len() * 8 <= split || last.len() * 8 <= split {
                    return malformed(
                        "a branch without its prefix, which not all targets continue",
                    );
                }
                self.branch(targets, first, from, split)
            }
            3 => {
                let count = usize::from(self.reader.u16()?);
                let split = from + count;
                if split >= MAX_KEY_LEN * 8 {
                    return malformed("a prefix that is longer than keys are");
                }
                let bits = self.reader.take(count.div_ceil(8))?;
                if let Some(last) = bits.last()
                    && !count.is_multiple_of(8)
                    && last & (0xff >> (count % 8)) != 0
                {
                    return malformed("bits behind the end of a prefix");
                }
                let mut key = [0; MAX_KEY_LEN];
                for at in 0..split {
                    let bit = if at < from { bit(first, at) } else { bit(bits, at - from) };
                    key[at / 8] |= bit << (7 - at % 8);
                }
                let continues =
                    |target: &&[u8]| common_bits(&key, target) >= split && target.len() * 8 > split;
                let start =
                    targets.partition_point(|target| !continues(target) && **target < key[..]);
                let rest = &targets[start..];
                let rest = &rest[..rest.partition_point(continues)];
                if rest.len() == targets.len() {
                    return malformed("a branch with its prefix, which all targets continue");
                }
                self.branch(rest, &key, from, split)
            }
            _ => malformed("an unknown kind of node"),
        }
    }

    /// The hash of the branch whose prefix is bits `from..split` of `key`, and that `targets` continue.
    fn branch(
        &mut self,
        targets: &[&[u8]],
        key: &[u8],
        from: usize,
        split: usize,
    ) -> Result<B256, ProofError> {
        let (left, right) = targets.split_at(targets.partition_point(|key| bit(key, split) == 0));
        let mut child = |targets: &[&[u8]]| match targets.is_empty() {
            true => Ok(self.reader.hash()?),
            false => self.node(targets, split + 1),
        };
        let (left, right) = (child(left)?, child(right)?);
        Ok(self.hash.branch(key, from, split, &left, &right))
    }

    fn value(&mut self) -> Result<B256, ProofError> {
        let len = usize::from(self.reader.u8()?);
        if len > 32 {
            return malformed("a value of more than 32 bytes");
        }
        let bytes = self.reader.take(len)?;
        if bytes.first().is_none_or(|first| *first == 0) {
            return malformed("a value of zero, or with leading zeros");
        }
        Ok(B256::left_padding_from(bytes))
    }
}
