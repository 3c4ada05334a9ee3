//! Checking proofs against a root: pure, without storage or `std`.
//!
//! # Why a proof that is accepted tells the truth
//!
//! The root is that of an honestly computed state; who proves is not trusted, and may have written
//! values into that state. Each step below takes a collision of BLAKE2b-256, or a false opening of
//! an AMT, to break.
//!
//! 1. *One structure.* The root is a hash of the root AMT's commitment and of the range: its first
//!    block, its length, its top. A leaf of the range binds a block's number, the number of its
//!    tuples and their top. Hashes of different domains start differently, so a tuple cannot pass
//!    for an inner node, nor a block for a tuple.
//! 2. *Fixed places.* The shape of a Merkle tree follows from its number of leaves, which is bound.
//!    A position then has one path, with one hash on each side: directions are not part of a proof.
//! 3. *The history contains the tuple.* So every tuple shown was written by some block before, as
//!    the state's rules have it. The range is append-only: nothing once written goes away.
//! 4. *Versions are the newest.* A commitment binds the number a_e at every entry. Six versions
//!    below 2^40 make a number below 2^240, less than the group's order, so they are six digits in
//!    one way only. A version counts the writes to its slot; the tuple with the slot's version is
//!    its last one.
//! 5. *A slot belongs to one key, a key has one slot.* Slots are never freed, also when their key is
//!    deleted. Level, slot and key are in the tuple; the key's hash leads to the entry. So the tuple
//!    of an asked key at its slot's version is what the key holds, whatever is on its way above.
//! 6. *Commitments of sub-AMTs* are what slot 0 counts: by 3 and 4 the tuple shown is the newest,
//!    and it names the whole way of the sub-AMT.
//! 7. *Absence.* A new key takes the first free slot on its way, and slots do not become free. On
//!    the way of a key without slot, every entry is thus full of other keys (all shown, and their
//!    hashes lead there), up to the first that has a free slot (version 0), or below which there is
//!    no sub-AMT yet (slot 0 at version 0). Behind it the key cannot be.
//!
//! Quotients are the one thing that can be replaced: whoever knows the public parameters can make
//! others that open the same entry to the same versions. They show the same truth.
//!
//! # What it costs
//!
//! Hashes come first; nothing is decompressed for the pairing, let alone paired, before they lead to
//! the root. Memory is bounded by a small multiple of the length of the proof and of the list of
//! keys.

#[cfg(all(test, feature = "std"))]
mod tests;

use crate::{
    amt::SLOTS,
    hash, merkle,
    params::{Opening, VerifierParams},
    point::Point,
    proof::{
        asked::Asked,
        wire::{Compressed, Entry, NO_QUOTIENTS, NO_TREE, Occupant, Place, Proof},
    },
};
use alloc::{vec, vec::Vec};
use alloy_primitives::B256;
use retrie_state::{ProofError, StateKey, Value};

/// The values of `keys` under `root`, as `proof` shows them; a key may come twice.
///
/// # Errors
/// A [`ProofError`] for a proof that is not canonical, lacks a part or has one too many, is made for
/// other keys or another root, or was made up.
pub fn verify(
    params: &VerifierParams,
    root: B256,
    keys: &[StateKey],
    proof: &[u8],
) -> Result<Vec<Option<Value>>, ProofError> {
    let parts = Proof::decode(proof, proof.len())?;
    if parts.height != params.height() {
        return Err(ProofError::WrongKind { what: "height" });
    }
    let asked = Asked::new(keys, parts.height);
    let commitment = point(&parts.commitment)?;
    let mut walk = Walk::new(&asked, parts.entries.len());
    walk.all(commitment, &parts.entries)?;
    check_display(&walk.visits, &parts.entries)?;
    check_root(root, &commitment, &parts, walk.tuples)?;
    let entries: Vec<_> = parts.entries.iter().collect();
    check_openings(params, &walk.visits, &entries, &seed(params, root, keys, proof))?;
    Ok(asked.numbers().iter().map(|number| walk.values[*number].clone()).collect())
}

/// Checks what `part` shows and `own` does not: openings by their quotients, blocks' trees by
/// `leaf_of`, which gives a block's leaf in the range. `own` is a part of the same proof from whoever
/// asks, made from his own state: all but holes must be the same.
///
/// # Errors
/// A [`ProofError`]; then `part` is not what an honest node gives.
#[cfg(feature = "std")]
pub(crate) fn check_part(
    params: &VerifierParams,
    keys: &[StateKey],
    own: &Proof,
    bytes: &[u8],
    part: &Proof,
    leaf_of: &dyn Fn(u64) -> Option<B256>,
) -> Result<(), ProofError> {
    part.clone().merge(own.clone())?;
    let asked = Asked::new(keys, part.height);
    let mut walk = Walk::new(&asked, part.entries.len());
    walk.all(point(&part.commitment)?, &part.entries)?;
    let Walk { visits, mut tuples, .. } = walk;
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

/// An entry that asked keys come to.
struct Visit {
    /// The visited entry above.
    above: Option<usize>,
    /// Commitment of its AMT.
    commitment: Point,
    /// Its number in there.
    entry: u32,
    /// Commitment of the sub-AMT below, if a key goes there.
    below: Option<Point>,
    /// Whether a key that comes by is absent, which takes all occupants to show.
    absent: bool,
}

/// The way of all asked keys, level by level.
struct Walk<'a> {
    asked: &'a Asked,
    visits: Vec<Visit>,
    /// Of each asked key, the visit it came to last.
    last: Vec<Option<usize>>,
    values: Vec<Option<Value>>,
    tuples: Vec<(Place, B256)>,
}

impl<'a> Walk<'a> {
    fn new(asked: &'a Asked, entries: usize) -> Self {
        Self {
            asked,
            visits: Vec::with_capacity(entries),
            last: vec![None; asked.len()],
            values: vec![None; asked.len()],
            tuples: Vec::new(),
        }
    }

    fn all(&mut self, commitment: Point, entries: &[Entry]) -> Result<(), ProofError> {
        let asked = self.asked;
        let mut parts = entries.iter();
        let mut pending: Vec<_> = (0..asked.len()).collect();
        let mut level = 0;
        while !pending.is_empty() {
            let mut deeper = Vec::new();
            for run in asked.by_entry(&pending, level) {
                let part =
                    parts.next().ok_or(ProofError::Missing { what: "an entry on the way" })?;
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

    /// The asked keys `run` come to an entry; those that go on are added to `deeper`.
    fn entry(
        &mut self,
        level: usize,
        run: &[usize],
        above: Option<usize>,
        commitment: Point,
        part: &Entry,
        deeper: &mut Vec<usize>,
    ) -> Result<(), ProofError> {
        let way = self.asked.way(run[0], level);
        let way = way.ok_or_else(|| malformed("a way is longer than the hash of its key"))?;
        let mut found = vec![false; run.len()];
        for slot in 1..SLOTS {
            let Some(tuple) = &part.tuples[slot - 1] else { continue };
            let version = part.versions[slot];
            if version == 0 {
                return Err(malformed("a free slot has an occupant"));
            }
            let key = match &tuple.occupant {
                Occupant::Asked(at) => {
                    let at = *at as usize;
                    match found.get_mut(at) {
                        Some(found @ false) => *found = true,
                        _ => return Err(malformed("asked key")),
                    }
                    self.values[run[at]] = tuple.value.clone();
                    self.asked.key(run[at])
                }
                Occupant::Other(key) => {
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
        let asked_goes_no_further = self.asked.way(run[0], level + 1).is_none();
        // Slot 0 counts only where all others are occupied.
        let has_sub_amt = part.versions[0] > 0;
        let below = match &part.amt {
            Some(_) if rest.is_empty() || !has_sub_amt => return Err(ProofError::Unused),
            None if !rest.is_empty() && has_sub_amt => return Err(NO_AMT),
            None => None,
            Some(amt) => {
                // The sub-AMT has entries: the hash goes on.
                if asked_goes_no_further {
                    return Err(malformed("a way is longer than the hash of its key"));
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
        self.visits.push(Visit { above, commitment, entry, below, absent });
        if has_sub_amt {
            deeper.extend(rest);
        }
        Ok(())
    }

    /// Another key must lead to this entry, and be another one.
    fn check_other(&self, key: &StateKey, way: &[u16]) -> Result<(), ProofError> {
        let location = hash::location(&key.encode());
        if self.asked.contains(&location, key) {
            return Err(malformed("an asked key stands for another one"));
        }
        match self.asked.way_of(&location, way.len() - 1) {
            Some(other) if other == way => Ok(()),
            _ => Err(malformed("an occupant belongs to another entry")),
        }
    }
}

/// All occupants are shown where a key that comes by is absent; elsewhere asked ones alone.
fn check_display(visits: &[Visit], parts: &[Entry]) -> Result<(), ProofError> {
    let mut absent: Vec<_> = visits.iter().map(|visit| visit.absent).collect();
    for (at, visit) in visits.iter().enumerate().rev() {
        if let Some(above) = visit.above {
            absent[above] |= absent[at];
        }
    }
    for (part, absent) in parts.iter().zip(absent) {
        let mut shown = part.tuples.iter().flatten();
        if absent && shown.clone().count() < part.occupied() {
            return Err(ProofError::Missing {
                what: "the occupant of a slot on an absent key's way",
            });
        }
        if !absent && shown.any(|tuple| matches!(tuple.occupant, Occupant::Other(_))) {
            return Err(ProofError::Unused);
        }
    }
    Ok(())
}

/// The tuples lead to blocks, the blocks to the range, the range and the root AMT to the root.
fn check_root(
    root: B256,
    commitment: &Point,
    parts: &Proof,
    mut tuples: Vec<(Place, B256)>,
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
fn shown(tuples: &[(Place, B256)]) -> Vec<(u64, B256)> {
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
    visits: &[Visit],
    parts: &[&Entry],
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
        .map(|(visit, (part, quotients))| Opening {
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
fn seed(params: &VerifierParams, root: B256, keys: &[StateKey], proof: &[u8]) -> B256 {
    let mut asked = Vec::with_capacity(keys.len() * StateKey::MAX_ENCODED_LEN);
    keys.iter().for_each(|key| asked.extend_from_slice(&key.encode()));
    let count = (keys.len() as u64).to_be_bytes();
    let params = params.digest();
    hash::parts(&[b"retrie lvmt proof 1", &params[..], &root[..], &count, &asked, proof])
}

const NO_AMT: ProofError = ProofError::Missing { what: "the sub-AMT on the way of a key" };

fn point(bytes: &Compressed) -> Result<Point, ProofError> {
    Point::from_compressed(bytes).ok_or_else(|| malformed("a point"))
}

const fn malformed(what: &'static str) -> ProofError {
    ProofError::Malformed { what }
}
