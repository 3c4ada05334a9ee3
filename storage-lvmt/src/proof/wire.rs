//! A proof and its bytes; `docs/formats/lvmt-proofs.md` describes each byte.
//!
//! The bytes leave out all that follows from the requested keys or from other parts: the paths of
//! the entries, the numbers of siblings, the numbers of the blocks. So a proof has one encoding,
//! with no place for unused parts.
//!
//! A proof may have *holes*. A node with one proof shard cannot make the quotients of other entries
//! of the root AMT, nor the siblings in the Merkle trees of other blocks. All other parts are equal
//! on all nodes, so the parts of several nodes [merge](LvmtProof::merge) into a whole proof.

use super::reader::{ProofReader, malformed};
use crate::{
    amt::{MAX_HEIGHT, SLOTS},
    merkle,
};
use alloc::{collections::BTreeMap, vec::Vec};
use alloy_primitives::B256;
use retrie_state::{BackendKey, KeyForm, ProofError, StateValue, wire::put_varint};

/// A point of G1 in a proof; see [`G1Point::from_compressed`](crate::point::G1Point). It is checked
/// only after all cheaper checks.
pub(crate) type CompressedPoint = [u8; 32];

/// The error of a hole at an entry.
pub(crate) const NO_QUOTIENTS: ProofError =
    ProofError::Missing { what: "an entry (its quotients belong to another proof shard)" };

/// The error of a hole at a block.
pub(crate) const NO_TREE: ProofError =
    ProofError::Missing { what: "a block (its Merkle tree belongs to another proof shard)" };

/// First byte of a whole proof.
const WHOLE: u8 = 1;

/// First byte of a proof with holes.
const PARTIAL: u8 = 2;

/// Is added to the first byte if keys are hashed.
const HASHED: u8 = 0x10;

/// A proof of the values of some keys under a root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LvmtProof {
    /// The form of all keys.
    pub form: KeyForm,
    /// Height of the AMTs.
    pub height: u8,
    /// Commitment of the root AMT.
    pub commitment: CompressedPoint,
    /// First block of the range.
    pub first: u64,
    /// The number of blocks in the range.
    pub blocks: u64,
    /// The entries on the paths of the keys, by level, then by path.
    pub entries: Vec<EntryProof>,
    /// The trees of the blocks that wrote the tuples shown, by block; see [`LvmtProof::positions`].
    pub trees: Vec<TreeProof>,
    /// The multi-proof of these blocks in the range.
    pub range: Vec<B256>,
}

/// An opened entry of an AMT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EntryProof {
    /// Its versions: of the sub-AMT, then of the keys. Slots fill in order; the sub-AMT's slot
    /// comes last.
    pub versions: [u64; SLOTS],
    /// The quotients above it, root first; `None` is a hole.
    pub quotients: Option<Vec<CompressedPoint>>,
    /// The tuples shown of slots 1 to 5.
    pub tuples: [Option<ProvenTuple>; SLOTS - 1],
    /// The sub-AMT below, if the path of a requested key goes on.
    pub amt: Option<ProvenAmt>,
}

/// The last tuple of a slot's occupant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProvenTuple {
    /// The key in the slot.
    pub occupant: SlotOccupant,
    /// The value, `None` if deleted.
    pub value: Option<StateValue>,
    /// The position of the tuple.
    pub place: ProvenPosition,
}

/// The key in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotOccupant {
    /// A requested key that comes to this entry, numbered by location.
    Asked(u32),
    /// Another key.
    Other(BackendKey),
}

/// A sub-AMT, as its last tuple describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProvenAmt {
    /// Its commitment.
    pub commitment: CompressedPoint,
    /// The position of its tuple.
    pub place: ProvenPosition,
}

/// The position of a tuple, a leaf of a block's tree. Ordered by block, then by position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ProvenPosition {
    /// Block number.
    pub block: u64,
    /// Position in its tree.
    pub position: u32,
}

/// The part of a block's tree that the proof shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TreeProof {
    /// The number of leaves.
    pub leaves: u32,
    /// The multi-proof of the tuples shown; `None` is a hole.
    pub siblings: Option<Vec<B256>>,
}

/// The holes of a proof.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MissingParts {
    /// Entries without quotients, numbered in the order of the proof.
    pub entries: Vec<usize>,
    /// Blocks without siblings.
    pub blocks: Vec<u64>,
}

impl EntryProof {
    /// The number of occupied slots among slots 1 to 5.
    pub(crate) fn occupied(&self) -> usize {
        self.versions[1..].iter().take_while(|version| **version > 0).count()
    }
}

impl LvmtProof {
    /// The positions of all tuples shown, ascending, by block.
    pub(crate) fn positions(&self) -> BTreeMap<u64, Vec<u64>> {
        positions(&self.entries)
    }

    /// The holes of the proof.
    pub(crate) fn missing(&self) -> MissingParts {
        let holes = self.entries.iter().enumerate().filter(|(_, entry)| entry.quotients.is_none());
        let blocks = self.positions().into_keys().zip(&self.trees);
        MissingParts {
            entries: holes.map(|(at, _)| at).collect(),
            blocks: blocks
                .filter(|(_, tree)| tree.siblings.is_none())
                .map(|(block, _)| block)
                .collect(),
        }
    }

    /// Whether the proof has no holes.
    pub(crate) fn is_whole(&self) -> bool {
        self.entries.iter().all(|entry| entry.quotients.is_some())
            && self.trees.iter().all(|tree| tree.siblings.is_some())
    }

    /// Fills the holes of this part of a proof with data of another part.
    ///
    /// # Errors
    /// [`ProofError::Malformed`] if they are not parts of the same proof.
    pub(crate) fn merge(mut self, mut other: Self) -> Result<Self, ProofError> {
        const DIFFERENT: ProofError =
            ProofError::Malformed { what: "its parts belong to different proofs" };
        if (self.entries.len(), self.trees.len()) != (other.entries.len(), other.trees.len()) {
            return Err(DIFFERENT);
        }
        // Fill each from the other; then both must be equal.
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
        let form = if self.form == KeyForm::Hashed { HASHED } else { 0 };
        out.extend_from_slice(&[form | if whole { WHOLE } else { PARTIAL }, self.height]);
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

    fn put_entry(&self, out: &mut Vec<u8>, entry: &EntryProof, whole: bool) {
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
                SlotOccupant::Other(key) => {
                    let key = key.encode();
                    put_varint(out, u64::from(key[0] & 1) << 1 | live);
                    out.extend_from_slice(&key[1..]);
                }
                SlotOccupant::Asked(at) => put_varint(out, (u64::from(*at) + 2) << 1 | live),
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

    fn put_place(&self, out: &mut Vec<u8>, place: ProvenPosition) {
        put_varint(out, place.block.wrapping_sub(self.first));
        put_varint(out, place.position.into());
    }

    /// Reads the bytes of [`encode`](Self::encode), and no others. Does not check points.
    ///
    /// `total` is the length of all parts of the proof together; together they must hold quotients
    /// for every entry. So `total` bounds the number of entries, also of those that are holes here,
    /// and the allocations are a small multiple of `total` at most.
    pub(crate) fn decode(bytes: &[u8], total: usize) -> Result<Self, ProofError> {
        let mut bytes = ProofReader::new(bytes);
        let kind = bytes.byte()?;
        let form = if kind & HASHED == 0 { KeyForm::Plain } else { KeyForm::Hashed };
        let whole = match kind & !HASHED {
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
            entries.push(bytes.entry(form, height, [first, blocks], whole)?);
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
                // A tree that needs no hash is never a hole: so there is one encoding.
                true if hashes == 0 => return Err(malformed("hole")),
                true => None,
                false => Some(bytes.hashes(hashes)?),
            };
            trees.push(TreeProof { leaves, siblings });
        }
        let shown: Vec<_> = positions.keys().map(|block| block - first).collect();
        let range = bytes.hashes(merkle::siblings(blocks, &shown))?;
        if !bytes.is_empty() {
            return Err(malformed("bytes after the end"));
        }
        let proof = Self { form, height, commitment, first, blocks, entries, trees, range };
        if proof.is_whole() == whole { Ok(proof) } else { Err(malformed("kind")) }
    }
}

/// Combines the parts of one proof, in any order, into the bytes of the whole proof.
///
/// # Errors
/// [`ProofError::Missing`] if a hole remains in all parts; [`ProofError::Malformed`] if a part is
/// not canonical, or if they are not parts of the same proof.
pub fn combine<P: AsRef<[u8]>>(parts: &[P]) -> Result<Vec<u8>, ProofError> {
    let total = parts.iter().map(|part| part.as_ref().len()).sum();
    let mut parts = parts.iter().map(|part| LvmtProof::decode(part.as_ref(), total));
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

fn positions(entries: &[EntryProof]) -> BTreeMap<u64, Vec<u64>> {
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

/// Writes whether there is a hole. A whole proof has no such bytes.
fn put_hole(out: &mut Vec<u8>, hole: bool, whole: bool) {
    if !whole {
        out.push(hole.into());
    }
}
