//! Checking proofs against a root: pure, without storage or `std`.
//!
//! # Why an accepted proof is true
//!
//! The root is the root of an honestly computed state. The prover is not trusted, and may have
//! written values into that state. To break a step below takes a collision of BLAKE2b-256, or a
//! false opening of an AMT.
//!
//! 1. *One structure.* The root is a hash of the root AMT's commitment and of the range: its first
//!    block, its length, its top. A leaf of the range binds a block's number, the number of its
//!    tuples and their top. Inputs of hashes of different domains start differently, so a tuple
//!    cannot pass for an inner node, nor a block for a tuple.
//! 2. *Fixed positions.* The shape of a Merkle tree follows from its number of leaves, which is
//!    bound. So a position has one path, with one hash on each side; directions are not part of a
//!    proof.
//! 3. *The history contains the tuple.* Some earlier block wrote every tuple shown, by the rules of
//!    the state. The range is append-only: a written tuple is never removed.
//! 4. *Versions are the newest.* A commitment binds the number a_e at every entry. Six versions
//!    below 2^40 make a number below 2^240, less than the group's order, so the number has one
//!    decomposition into six versions. A version counts the writes to its slot; so the tuple with
//!    the slot's version is the last tuple of the slot.
//! 5. *A slot belongs to one key, a key has one slot.* Slots are never freed, not even when their
//!    key is deleted. Level, slot and key are in the tuple; the key's hash leads to the entry. So
//!    the tuple of a requested key at its slot's version is the value of the key, whatever is on
//!    its path above.
//! 6. *Commitments of sub-AMTs* are counted by slot 0: by 3 and 4 the tuple shown is the newest,
//!    and it names the whole path of the sub-AMT.
//! 7. *Absence.* A new key takes the first free slot on its path, and slots do not become free. So
//!    on the path of a key without a slot, every entry is full of other keys (all are shown, and
//!    their hashes lead there), up to the first entry that has a free slot (version 0), or below
//!    which there is no sub-AMT yet (slot 0 at version 0). The key cannot be below that entry.
//!
//! Only quotients can be replaced: with the public parameters, others can be computed that open the
//! same entry to the same versions. They prove the same statement.
//!
//! # Costs
//!
//! Hashes are checked first. Points are decompressed and paired only if the hashes lead to the
//! root. Memory is bounded by a small multiple of the lengths of the proof and of the list of keys.

#[cfg(all(test, feature = "std"))]
mod tests;

use crate::{
    amt::SLOTS,
    hash, merkle,
    params::{EntryOpening, VerifierParams},
    point::G1Point,
    proof::{
        asked_keys::AskedKeys,
        wire::{
            CompressedPoint, EntryProof, LvmtProof, NO_QUOTIENTS, NO_TREE, ProvenPosition,
            SlotOccupant,
        },
    },
};
use alloc::{vec, vec::Vec};
use alloy_primitives::B256;
use retrie_state::{BackendKey, KeyForm, ProofError, StateValue};

/// The values of `keys` under `root`, as `proof` shows them; a key may occur twice.
///
/// # Errors
/// A [`ProofError`] for a proof that is not canonical, lacks a part or has an unused part, is made
/// for other keys or another root, or is forged.
pub fn verify(
    params: &VerifierParams,
    root: B256,
    keys: &[BackendKey],
    proof: &[u8],
) -> Result<Vec<Option<StateValue>>, ProofError> {
    let shown = ShownEntries::read(params.height(), root, keys, proof)?;
    shown.check_openings(params, root, keys, proof)?;
    let numbers = shown.asked.numbers();
    Ok(numbers.iter().map(|number| shown.values[*number].clone()).collect())
}

/// What a proof shows: entries on the paths of keys.
pub(crate) struct ShownEntries {
    pub(crate) parts: LvmtProof,
    /// Commitment of the root AMT.
    pub(crate) commitment: G1Point,
    pub(crate) asked: AskedKeys,
    /// The entries, in the order of `parts`.
    pub(crate) visits: Vec<EntryVisit>,
    /// For each asked key, by number: its visit and slot, if it has one.
    pub(crate) places: Vec<Option<(usize, u8)>>,
    pub(crate) values: Vec<Option<StateValue>>,
}

impl ShownEntries {
    /// Reads a proof and checks all of it but the openings.
    pub(crate) fn read(
        height: u8,
        root: B256,
        keys: &[BackendKey],
        proof: &[u8],
    ) -> Result<Self, ProofError> {
        let parts = LvmtProof::decode(proof, proof.len())?;
        if parts.height != height {
            return Err(ProofError::WrongKind { what: "height" });
        }
        if KeyForm::of(keys) != parts.form {
            return Err(ProofError::WrongKind { what: "form of the keys" });
        }
        let asked = AskedKeys::new(keys, parts.height);
        let commitment = point(&parts.commitment)?;
        let mut walk = EntryWalk::new(&asked, parts.entries.len());
        walk.all(commitment, &parts.entries)?;
        let EntryWalk { visits, places, values, tuples, .. } = walk;
        check_display(&visits, &parts.entries)?;
        check_root(root, &commitment, &parts, tuples)?;
        Ok(Self { parts, commitment, asked, visits, places, values })
    }

    /// Checks the openings of the entries.
    pub(crate) fn check_openings(
        &self,
        params: &VerifierParams,
        root: B256,
        keys: &[BackendKey],
        proof: &[u8],
    ) -> Result<(), ProofError> {
        let entries: Vec<_> = self.parts.entries.iter().collect();
        check_openings(params, &self.visits, &entries, &seed(params, root, keys, proof))
    }
}

/// Checks what `part` shows and `own` does not: openings by their quotients, blocks' trees by
/// `leaf_of`, which returns the leaf of a block in the range. `own` is a part of the same proof
/// that the asking node made from its own state: the two must be equal except for holes.
///
/// # Errors
/// A [`ProofError`]; then `part` is not from an honest node.
#[cfg(feature = "std")]
pub(crate) fn check_part(
    params: &VerifierParams,
    keys: &[BackendKey],
    own: &LvmtProof,
    bytes: &[u8],
    part: &LvmtProof,
    leaf_of: &dyn Fn(u64) -> Option<B256>,
) -> Result<(), ProofError> {
    part.clone().merge(own.clone())?;
    let asked = AskedKeys::new(keys, part.height);
    let mut walk = EntryWalk::new(&asked, part.entries.len());
    walk.all(point(&part.commitment)?, &part.entries)?;
    let EntryWalk { visits, mut tuples, .. } = walk;
    tuples.sort_unstable();
    let trees = part.trees.iter().zip(&own.trees);
    let by_block = tuples.chunk_by(|(a, _), (b, _)| a.block == b.block);
    for (tuples, (tree, own)) in by_block.zip(trees) {
        let (Some(siblings), None) = (&tree.siblings, &own.siblings) else { continue };
        let number = tuples[0].0.block;
        let top = multi_proof(tree.leaves.into(), &shown(tuples), siblings)?;
        if leaf_of(number) != Some(hash::block(number, tree.leaves, &top)) {
            return Err(ProofError::RootMismatch);
        }
    }
    let news = part.entries.iter().zip(&own.entries);
    let news = news.map(|(entry, own)| entry.quotients.is_some() && own.quotients.is_none());
    let (entries, visits): (Vec<_>, Vec<_>) = part
        .entries
        .iter()
        .zip(visits)
        .zip(news)
        .filter_map(|(opened, is_new)| is_new.then_some(opened))
        .unzip();
    check_openings(params, &visits, &entries, &seed(params, B256::ZERO, keys, bytes))
}

/// An entry on the path of requested keys.
pub(crate) struct EntryVisit {
    /// The visit of the entry above.
    pub(crate) above: Option<usize>,
    /// Commitment of its AMT.
    commitment: G1Point,
    /// The number of the entry in its AMT.
    pub(crate) entry: u32,
    /// Commitment of the sub-AMT below, if the path of a key goes on.
    pub(crate) below: Option<G1Point>,
    /// Whether a key that comes to this entry is absent. Then the proof must show all occupants.
    absent: bool,
}

/// The paths of all requested keys, level by level.
struct EntryWalk<'a> {
    asked: &'a AskedKeys,
    visits: Vec<EntryVisit>,
    /// The last visit of each requested key.
    last: Vec<Option<usize>>,
    /// The visit and the slot of each requested key that has one.
    places: Vec<Option<(usize, u8)>>,
    values: Vec<Option<StateValue>>,
    tuples: Vec<(ProvenPosition, B256)>,
}

impl<'a> EntryWalk<'a> {
    fn new(asked: &'a AskedKeys, entries: usize) -> Self {
        Self {
            asked,
            visits: Vec::with_capacity(entries),
            last: vec![None; asked.len()],
            places: vec![None; asked.len()],
            values: vec![None; asked.len()],
            tuples: Vec::new(),
        }
    }

    fn all(&mut self, commitment: G1Point, entries: &[EntryProof]) -> Result<(), ProofError> {
        let asked = self.asked;
        let mut parts = entries.iter();
        let mut pending: Vec<_> = (0..asked.len()).collect();
        let mut level = 0;
        while !pending.is_empty() {
            let mut deeper = Vec::new();
            for run in asked.by_entry(&pending, level) {
                let part = parts
                    .next()
                    .ok_or(ProofError::Missing { what: "an entry on the path of a key" })?;
                let above = self.last[run[0]];
                let commitment = match above {
                    None => commitment,
                    Some(above) => self.visits[above].below.ok_or(NO_AMT)?,
                };
                self.entry(level, run, above, commitment, part, &mut deeper)?;
            }
            (pending, level) = (deeper, level + 1);
        }
        if parts.next().is_none() { Ok(()) } else { Err(ProofError::Unused) }
    }

    /// Visits an entry with the requested keys `run`. Keys whose paths go on are added to `deeper`.
    fn entry(
        &mut self,
        level: usize,
        run: &[usize],
        above: Option<usize>,
        commitment: G1Point,
        part: &EntryProof,
        deeper: &mut Vec<usize>,
    ) -> Result<(), ProofError> {
        let way = self.asked.path(run[0], level);
        let way = way.ok_or_else(|| malformed("a path is longer than the hash of its key"))?;
        let mut found = vec![false; run.len()];
        for slot in 1..SLOTS {
            let Some(tuple) = &part.tuples[slot - 1] else { continue };
            let version = part.versions[slot];
            if version == 0 {
                return Err(malformed("a free slot has an occupant"));
            }
            let key = match &tuple.occupant {
                SlotOccupant::Asked(at) => {
                    let at = *at as usize;
                    match found.get_mut(at) {
                        Some(found @ false) => *found = true,
                        _ => return Err(malformed("asked key")),
                    }
                    self.values[run[at]] = tuple.value.clone();
                    self.places[run[at]] = Some((self.visits.len(), slot as u8));
                    self.asked.key(run[at])
                }
                SlotOccupant::Other(key) => {
                    self.check_other(key, &way)?;
                    key
                }
            };
            let (level, slot, value) =
                (level as u8, slot as u8, tuple.value.as_ref().map(|value| &value[..]));
            let hash = hash::key_tuple(level, slot, version, &key.encode(), value);
            self.tuples.push((tuple.place, hash));
        }
        let goes_on = |(number, found): (&usize, bool)| (!found).then_some(*number);
        let rest = run.iter().zip(found).filter_map(goes_on).collect::<Vec<_>>();
        let asked_goes_no_further = self.asked.path(run[0], level + 1).is_none();
        // Slot 0 has a version only if all other slots are occupied.
        let has_sub_amt = part.versions[0] > 0;
        let below = match &part.amt {
            Some(_) if rest.is_empty() || !has_sub_amt => return Err(ProofError::Unused),
            None if !rest.is_empty() && has_sub_amt => return Err(NO_AMT),
            None => None,
            Some(amt) => {
                // A sub-AMT has entries, so the hash must be long enough for them.
                if asked_goes_no_further {
                    return Err(malformed("a path is longer than the hash of its key"));
                }
                let commitment = point(&amt.commitment)?;
                let hash = hash::amt_tuple(&way, part.versions[0], &commitment.to_bytes());
                self.tuples.push((amt.place, hash));
                Some(commitment)
            }
        };
        let visit = self.visits.len();
        run.iter().for_each(|number| self.last[*number] = Some(visit));
        let entry = way.last().copied().unwrap_or_default().into();
        let absent = !rest.is_empty() && !has_sub_amt;
        self.visits.push(EntryVisit { above, commitment, entry, below, absent });
        if has_sub_amt {
            deeper.extend(rest);
        }
        Ok(())
    }

    /// Checks that another key is not a requested one, and that its hash leads to this entry.
    fn check_other(&self, key: &BackendKey, way: &[u16]) -> Result<(), ProofError> {
        let location = hash::location(&key.encode());
        if self.asked.contains(&location, key) {
            return Err(malformed("an asked key stands for another one"));
        }
        match self.asked.path_of(&location, way.len() - 1) {
            Some(other) if other == way => Ok(()),
            _ => Err(malformed("an occupant belongs to another entry")),
        }
    }
}

/// Checks that a proof shows all occupants on the path of an absent key, and elsewhere only
/// requested keys.
fn check_display(visits: &[EntryVisit], parts: &[EntryProof]) -> Result<(), ProofError> {
    let mut absent: Vec<_> = visits.iter().map(|visit| visit.absent).collect();
    for (at, visit) in visits.iter().enumerate().rev() {
        if let Some(above) = visit.above {
            absent[above] |= absent[at];
        }
    }
    for (part, absent) in parts.iter().zip(absent) {
        let mut shown = part.tuples.iter().flatten();
        if absent && shown.clone().count() < part.occupied() {
            return Err(ProofError::Missing { what: "an occupant on the path of an absent key" });
        }
        if !absent && shown.any(|tuple| matches!(tuple.occupant, SlotOccupant::Other(_))) {
            return Err(ProofError::Unused);
        }
    }
    Ok(())
}

/// Checks that tuples lead to blocks, blocks to the range, and the range and the root AMT to the
/// root.
fn check_root(
    root: B256,
    commitment: &G1Point,
    parts: &LvmtProof,
    mut tuples: Vec<(ProvenPosition, B256)>,
) -> Result<(), ProofError> {
    tuples.sort_unstable();
    let mut trees = parts.trees.iter();
    let mut blocks = Vec::with_capacity(parts.trees.len());
    for tuples in tuples.chunk_by(|(a, _), (b, _)| a.block == b.block) {
        let number = tuples[0].0.block;
        let tree = trees.next().ok_or(NO_TREE)?;
        let siblings = tree.siblings.as_ref().ok_or(NO_TREE)?;
        let top = multi_proof(tree.leaves.into(), &shown(tuples), siblings)?;
        blocks.push((number - parts.first, hash::block(number, tree.leaves, &top)));
    }
    let range = multi_proof(parts.blocks, &blocks, &parts.range)?;
    let shown = hash::root(&commitment.to_bytes(), parts.first, parts.blocks, &range);
    if shown == root { Ok(()) } else { Err(ProofError::RootMismatch) }
}

/// Position and hash of the tuples of one block.
fn shown(tuples: &[(ProvenPosition, B256)]) -> Vec<(u64, B256)> {
    tuples.iter().map(|(place, hash)| (u64::from(place.position), *hash)).collect()
}

fn multi_proof(n: u64, shown: &[(u64, B256)], siblings: &[B256]) -> Result<B256, ProofError> {
    let mut siblings = siblings.iter().copied();
    let top = merkle::verify_many(n, shown, &mut siblings)
        .ok_or_else(|| malformed("a position comes twice"))?;
    if siblings.next().is_none() { Ok(top) } else { Err(ProofError::Unused) }
}

fn check_openings(
    params: &VerifierParams,
    visits: &[EntryVisit],
    parts: &[&EntryProof],
    seed: &B256,
) -> Result<(), ProofError> {
    let mut quotients = Vec::with_capacity(parts.len());
    for part in parts {
        let part = part.quotients.as_ref();
        let part = part.ok_or(NO_QUOTIENTS)?;
        quotients.push(part.iter().map(point).collect::<Result<Vec<_>, _>>()?);
    }
    let openings: Vec<_> = visits
        .iter()
        .zip(parts.iter().zip(&quotients))
        .map(|(visit, (part, quotients))| EntryOpening {
            commitment: visit.commitment,
            entry: visit.entry,
            versions: part.versions,
            quotients,
        })
        .collect();
    // Without keys there is nothing to open.
    if openings.is_empty() || params.check_openings(&openings, seed) {
        Ok(())
    } else {
        Err(ProofError::RootMismatch)
    }
}

/// A hash of the whole statement.
fn seed(params: &VerifierParams, root: B256, keys: &[BackendKey], proof: &[u8]) -> B256 {
    let mut asked = Vec::with_capacity(keys.len() * BackendKey::MAX_ENCODED_LEN);
    keys.iter().for_each(|key| asked.extend_from_slice(&key.encode()));
    let count = (keys.len() as u64).to_be_bytes();
    let params = params.digest();
    hash::parts(&[b"retrie lvmt proof 1", &params[..], &root[..], &count, &asked, proof])
}

const NO_AMT: ProofError = ProofError::Missing { what: "the sub-AMT on the path of a key" };

fn point(bytes: &CompressedPoint) -> Result<G1Point, ProofError> {
    G1Point::from_compressed(bytes).ok_or_else(|| malformed("a point"))
}

const fn malformed(what: &'static str) -> ProofError {
    ProofError::Malformed { what }
}
