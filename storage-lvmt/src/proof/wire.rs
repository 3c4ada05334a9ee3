//! A proof and its bytes; `docs/formats/lvmt-proofs.md` has them one by one.
//!
//! What follows from the asked keys or from other parts is left out: the ways of the entries, the
//! number of siblings, the numbers of the blocks. So for what a proof says there is one encoding,
//! and there is no place for a part that is not needed.
//!
//! A proof may have *holes*: a node that keeps one proof shard cannot give the quotients of other
//! entries of the root AMT, nor the siblings within the trees of other blocks. All else is the same
//! on every node, so that the parts of several nodes [merge](Proof::merge) into a whole.

use super::reader::{Reader, malformed};
use crate::{
    amt::{MAX_HEIGHT, SLOTS},
    merkle,
};
use alloc::{collections::BTreeMap, vec::Vec};
use alloy_primitives::B256;
use retrie_state::{ProofError, StateKey, Value, wire::put_varint};

/// A point of G1 as proofs have it: see [`Point::from_compressed`](crate::point::Point). Not
/// checked before everything cheaper is.
pub(crate) type Compressed = [u8; 32];

/// A hole at an entry.
pub(crate) const NO_QUOTIENTS: ProofError =
    ProofError::Missing { what: "an entry (its quotients belong to another proof shard)" };

/// A hole at a block.
pub(crate) const NO_TREE: ProofError =
    ProofError::Missing { what: "a block (its Merkle tree belongs to another proof shard)" };

/// First byte of a proof.
const WHOLE: u8 = 1;

/// First byte of a proof with holes.
const PARTIAL: u8 = 2;

/// What shows the values of some keys under a root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Proof {
    /// Height of the AMTs.
    pub height: u8,
    /// Commitment of the root AMT.
    pub commitment: Compressed,
    /// First block of the range.
    pub first: u64,
    /// Number of its blocks.
    pub blocks: u64,
    /// The entries on the ways of the asked keys, by level, then by way.
    pub entries: Vec<Entry>,
    /// The trees of the blocks that wrote the tuples shown, by block: see [`Proof::positions`].
    pub trees: Vec<Tree>,
    /// The multi-proof of these blocks in the range.
    pub range: Vec<B256>,
}

/// An entry of an AMT, opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Its versions: of the sub-AMT, then of the keys. Slots fill in order, the sub-AMT's last.
    pub versions: [u64; SLOTS],
    /// The quotients above it, root first; `None` is a hole.
    pub quotients: Option<Vec<Compressed>>,
    /// Occupants that are shown, in slots 1 to 5.
    pub tuples: [Option<Tuple>; SLOTS - 1],
    /// The sub-AMT below, if an asked key's way leads there.
    pub amt: Option<Amt>,
}

/// What a slot's occupant held when its version was written last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tuple {
    /// Whose slot it is.
    pub occupant: Occupant,
    /// The value, `None` if deleted.
    pub value: Option<Value>,
    /// Where the tuple is.
    pub place: Place,
}

/// The key in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Occupant {
    /// One of the asked keys that come to this entry, numbered by location.
    Asked(u32),
    /// Another key.
    Other(StateKey),
}

/// A sub-AMT as it was written last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Amt {
    /// Its commitment.
    pub commitment: Compressed,
    /// Where its tuple is.
    pub place: Place,
}

/// A leaf of a block's tree. In the order of blocks, then positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// Block number.
    pub block: u64,
    /// Position in its tree.
    pub position: u32,
}

/// What is shown of a block's tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tree {
    /// Number of its leaves.
    pub leaves: u32,
    /// The multi-proof of the tuples shown; `None` is a hole.
    pub siblings: Option<Vec<B256>>,
}

/// What is missing from a proof with holes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Missing {
    /// Entries without quotients, numbered in the order of the proof.
    pub entries: Vec<usize>,
    /// Blocks without siblings.
    pub blocks: Vec<u64>,
}

impl Entry {
    /// How many of slots 1 to 5 are occupied.
    pub(crate) fn occupied(&self) -> usize {
        self.versions[1..].iter().take_while(|version| **version > 0).count()
    }
}

impl Proof {
    /// The positions of all tuples shown, ascending, by block.
    pub(crate) fn positions(&self) -> BTreeMap<u64, Vec<u64>> {
        positions(&self.entries)
    }

    /// What is missing.
    pub(crate) fn missing(&self) -> Missing {
        let holes = self.entries.iter().enumerate().filter(|(_, entry)| entry.quotients.is_none());
        let blocks = self.positions().into_keys().zip(&self.trees);
        Missing {
            entries: holes.map(|(at, _)| at).collect(),
            blocks: blocks
                .filter(|(_, tree)| tree.siblings.is_none())
                .map(|(block, _)| block)
                .collect(),
        }
    }

    /// Has it no holes?
    pub(crate) fn is_whole(&self) -> bool {
        self.entries.iter().all(|entry| entry.quotients.is_some())
            && self.trees.iter().all(|tree| tree.siblings.is_some())
    }

    /// Fills the holes of one part of a proof with what another one has.
    ///
    /// # Errors
    /// [`ProofError::Malformed`] if they are not parts of the same proof.
    pub(crate) fn merge(mut self, mut other: Self) -> Result<Self, ProofError> {
        const DIFFERENT: ProofError =
            ProofError::Malformed { what: "its parts belong to different proofs" };
        if (self.entries.len(), self.trees.len()) != (other.entries.len(), other.trees.len()) {
            return Err(DIFFERENT);
        }
        // Fill both from each other; then they must be the same.
        for (mine, theirs) in self.entries.iter_mut().zip(&mut other.entries) {
            fill(&mut mine.quotients, &mut theirs.quotients);
        }
        for (mine, theirs) in self.trees.iter_mut().zip(&mut other.trees) {
            fill(&mut mine.siblings, &mut theirs.siblings);
        }
        if self == other { Ok(self) } else { Err(DIFFERENT) }
    }

    /// Its bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let whole = self.is_whole();
        let mut out = Vec::new();
        out.extend_from_slice(&[if whole { WHOLE } else { PARTIAL }, self.height]);
        out.extend_from_slice(&self.commitment);
        put_varint(&mut out, self.first);
        put_varint(&mut out, self.blocks);
        put_varint(&mut out, self.entries.len() as u64);
        for entry in &self.entries {
            self.put_entry(&mut out, entry, whole);
        }
        for tree in &self.trees {
            put_varint(&mut out, tree.leaves.into());
            put_hole(&mut out, tree.siblings.is_none(), whole);
            out.extend(tree.siblings.iter().flatten().flat_map(|hash| hash.0));
        }
        out.extend(self.range.iter().flat_map(|hash| hash.0));
        out
    }

    fn put_entry(&self, out: &mut Vec<u8>, entry: &Entry, whole: bool) {
        let occupied = entry.occupied();
        for version in &entry.versions[1..SLOTS.min(occupied + 2)] {
            put_varint(out, *version);
        }
        if occupied == SLOTS - 1 {
            put_varint(out, entry.versions[0]);
        }
        put_hole(out, entry.quotients.is_none(), whole);
        out.extend(entry.quotients.iter().flatten().flatten());
        let bits = entry.tuples.iter().enumerate();
        let mask = bits.fold(u8::from(entry.amt.is_some()), |mask, (slot, tuple)| {
            mask | u8::from(tuple.is_some()) << (slot + 1)
        });
        out.push(mask);
        for tuple in entry.tuples.iter().flatten() {
            let live = u64::from(tuple.value.is_some());
            match &tuple.occupant {
                Occupant::Other(key) => {
                    // The first byte of a key is 0 or 1, and tells how long it is.
                    let key = key.encode();
                    put_varint(out, u64::from(key[0]) << 1 | live);
                    out.extend_from_slice(&key[1..]);
                }
                Occupant::Asked(at) => put_varint(out, (u64::from(*at) + 2) << 1 | live),
            }
            if let Some(value) = &tuple.value {
                put_varint(out, value.len() as u64);
                out.extend_from_slice(value);
            }
            self.put_place(out, tuple.place);
        }
        if let Some(amt) = &entry.amt {
            out.extend_from_slice(&amt.commitment);
            self.put_place(out, amt.place);
        }
    }

    fn put_place(&self, out: &mut Vec<u8>, place: Place) {
        put_varint(out, place.block.wrapping_sub(self.first));
        put_varint(out, place.position.into());
    }

    /// Reads [`encode`](Self::encode)'s bytes: exactly these. Points are not looked at.
    ///
    /// `total` is the length of all parts of the proof together, which have to hold quotients for
    /// every entry. So entries are bounded by it, also those that are holes here, and what is
    /// allocated is a small multiple of it at most.
    pub(crate) fn decode(bytes: &[u8], total: usize) -> Result<Self, ProofError> {
        let mut bytes = Reader::new(bytes);
        let whole = match bytes.byte()? {
            WHOLE => true,
            PARTIAL => false,
            _ => return Err(malformed("kind")),
        };
        let height = bytes.byte()?;
        if !(1..=MAX_HEIGHT).contains(&height) {
            return Err(malformed("height"));
        }
        let commitment = *bytes.array()?;
        let (first, blocks) = (bytes.varint()?, bytes.varint()?);
        if first.checked_add(blocks).is_none() {
            return Err(malformed("blocks of the range"));
        }
        let count = bytes.varint()?;
        if count > (total / (usize::from(height) * 32)) as u64 {
            return Err(NO_QUOTIENTS);
        }
        let mut entries = Vec::with_capacity(count as usize);
        for _ in 0..count {
            entries.push(bytes.entry(height, first, blocks, whole)?);
        }
        let positions = positions(&entries);
        let mut trees = Vec::with_capacity(positions.len());
        for shown in positions.values() {
            let leaves = u32::try_from(bytes.varint()?).map_err(|_| malformed("leaves"))?;
            if shown.last().is_some_and(|last| *last >= u64::from(leaves)) {
                return Err(malformed("position of a tuple"));
            }
            let hashes = merkle::siblings(leaves.into(), shown);
            let siblings = match bytes.is_hole(whole)? {
                // Where no hash is needed none is missing: there is one form of it.
                true if hashes == 0 => return Err(malformed("hole")),
                true => None,
                false => Some(bytes.hashes(hashes)?),
            };
            trees.push(Tree { leaves, siblings });
        }
        let shown: Vec<_> = positions.keys().map(|block| block - first).collect();
        let range = bytes.hashes(merkle::siblings(blocks, &shown))?;
        if !bytes.is_empty() {
            return Err(malformed("bytes after the end"));
        }
        let proof = Self { height, commitment, first, blocks, entries, trees, range };
        if proof.is_whole() == whole { Ok(proof) } else { Err(malformed("kind")) }
    }
}

/// Puts the parts of one proof together, in any order: the bytes of the whole.
///
/// # Errors
/// [`ProofError::Missing`] if they do not make a whole; [`ProofError::Malformed`] if they are not
/// canonical, or not parts of the same proof.
pub fn combine<P: AsRef<[u8]>>(parts: &[P]) -> Result<Vec<u8>, ProofError> {
    let total = parts.iter().map(|part| part.as_ref().len()).sum();
    let mut parts = parts.iter().map(|part| Proof::decode(part.as_ref(), total));
    let first =
        parts.next().ok_or(ProofError::Missing { what: "all keys: there are no parts" })??;
    let proof = parts.try_fold(first, |whole, part| whole.merge(part?))?;
    let missing = proof.missing();
    if !missing.entries.is_empty() {
        return Err(NO_QUOTIENTS);
    }
    if !missing.blocks.is_empty() {
        return Err(NO_TREE);
    }
    Ok(proof.encode())
}

fn positions(entries: &[Entry]) -> BTreeMap<u64, Vec<u64>> {
    let mut positions = BTreeMap::<_, Vec<_>>::new();
    for entry in entries {
        let tuples = entry.tuples.iter().flatten().map(|tuple| tuple.place);
        for place in tuples.chain(entry.amt.map(|amt| amt.place)) {
            positions.entry(place.block).or_default().push(place.position.into());
        }
    }
    positions.values_mut().for_each(|positions| positions.sort_unstable());
    positions
}

fn fill<T: Clone>(a: &mut Option<T>, b: &mut Option<T>) {
    match (&a, &b) {
        (None, Some(b)) => *a = Some(b.clone()),
        (Some(a), None) => *b = Some(a.clone()),
        _ => {}
    }
}

/// Whole proofs have no holes, and no bytes that say so.
fn put_hole(out: &mut Vec<u8>, hole: bool, whole: bool) {
    if !whole {
        out.push(hole.into());
    }
}
