//! Block witnesses: a proof of the keys that a block reads or changes, the points by which
//! commitments grow, and the peaks of the range.
//!
//! # Soundness
//!
//! The proof shows the slots and versions of all keys, and for a new key the first free slot on its
//! path: see [`verify`](mod@crate::verify). A block raises versions by one, so each commitment grows by
//! points that depend on entries and slots alone; these are checked against the public parameters. The
//! tuples of the block, and so its leaf of the range, follow from versions, values and commitments.
//! The peaks lead to the root, with the number of blocks.

mod bytes;
#[cfg(feature = "std")]
mod make;

#[cfg(feature = "std")]
pub(crate) use make::make;

use crate::{
    amt::{SLOTS, VERSION_BITS},
    hash,
    merkle::{self, RangePeaks},
    params::VerifierParams,
    point::G1Point,
    verify::ShownEntries,
};
use alloc::{boxed::Box, collections::BTreeMap, format, vec::Vec};
use alloy_primitives::B256;
use ark_bn254::{Fr, G1Affine, G1Projective};
use ark_ec::{CurveGroup, VariableBaseMSM};
use ark_ff::{AdditiveGroup, Field, Zero};
use bytes::WitnessBytes;
use retrie_state::{
    BackendDelta, BackendKey, ProofError, StateValue, WitnessError,
    descriptor::{OpenedWitness, WitnessResult, check_previous},
};

/// Opens the witness `bytes` of the state of `root`.
pub(crate) fn open(params: &VerifierParams, root: B256, bytes: &[u8]) -> WitnessResult {
    let read = WitnessBytes::decode(bytes)?;
    let WitnessBytes { keys, proof, increments, half, peaks } = read;
    let shown = ShownEntries::read(params.height(), root, &keys, proof)?;
    let (first, blocks) = (shown.parts.first, shown.parts.blocks);
    let peaks = RangePeaks::new(blocks, peaks);
    let peaks = peaks.ok_or(ProofError::Malformed { what: "number of peaks" })?;
    if hash::root(&shown.commitment.to_bytes(), first, blocks, &peaks.top()) != root {
        return Err(ProofError::RootMismatch.into());
    }
    shown.check_openings(params, root, &keys, proof)?;
    if let Some(half) = half
        && !params.check_increments(&increments, half)
    {
        return Err(ProofError::RootMismatch.into());
    }
    let amts = PartialAmts::of(&shown);
    Ok(Box::new(LvmtWitness { amts, increments: increments.into_iter().collect(), peaks }))
}

/// The entries that lead to an AMT or entry.
type AmtPath = Vec<u16>;

/// A key with a slot.
#[derive(Clone, Debug)]
struct KeySlot {
    /// The path of its entry.
    path: AmtPath,
    slot: u8,
    version: u64,
}

/// The AMTs of a state, as far as a proof shows them.
#[derive(Debug)]
struct PartialAmts {
    height: u8,
    first: u64,
    blocks: u64,
    /// The commitments of AMTs, by path; the root AMT's is empty.
    commitments: BTreeMap<AmtPath, G1Point>,
    /// The versions of entries, by path.
    entries: BTreeMap<AmtPath, [u64; SLOTS]>,
    keys: BTreeMap<BackendKey, ShownKey>,
}

/// What is known of a key: its value, and its slot, if it ever had one.
#[derive(Debug)]
struct ShownKey {
    value: Option<StateValue>,
    slot: Option<KeySlot>,
}

impl PartialAmts {
    fn of(shown: &ShownEntries) -> Self {
        let mut paths: Vec<AmtPath> = Vec::with_capacity(shown.visits.len());
        let mut amts = Self {
            height: shown.parts.height,
            first: shown.parts.first,
            blocks: shown.parts.blocks,
            commitments: BTreeMap::from([(AmtPath::new(), shown.commitment)]),
            entries: BTreeMap::new(),
            keys: BTreeMap::new(),
        };
        for (visit, part) in shown.visits.iter().zip(&shown.parts.entries) {
            let mut path =
                visit.above.and_then(|above| paths.get(above).cloned()).unwrap_or_default();
            // The height is at most 16, so an entry has at most 16 bits.
            path.push(visit.entry as u16);
            if let Some(below) = visit.below {
                amts.commitments.insert(path.clone(), below);
            }
            amts.entries.insert(path.clone(), part.versions);
            paths.push(path);
        }
        for (number, (place, value)) in shown.places.iter().zip(&shown.values).enumerate() {
            let slot = place.and_then(|(visit, slot)| {
                let version = *shown.parts.entries.get(visit)?.versions.get(usize::from(slot))?;
                Some(KeySlot { path: paths.get(visit)?.clone(), slot, version })
            });
            let key = *shown.asked.key(number);
            amts.keys.insert(key, ShownKey { value: value.clone(), slot });
        }
        amts
    }

    /// The versions of an entry before the block; zeros in a sub-AMT that does not exist yet.
    fn versions(&self, path: &[u16]) -> Option<[u64; SLOTS]> {
        if let Some(versions) = self.entries.get(path) {
            return Some(*versions);
        }
        let (_, above) = path.split_last()?;
        // The root AMT has all entries; they are zero only if they are shown.
        let above = self.versions(above).filter(|_| !above.is_empty())?;
        (above[0] == 0).then_some([0; SLOTS])
    }
}

/// The changes of a block.
#[derive(Default)]
struct BlockWrites {
    /// The slot of each key, with the new version, in the order of the delta.
    keys: Vec<KeySlot>,
    /// How often each slot of each entry rises, by AMT, then by entry.
    rises: BTreeMap<AmtPath, BTreeMap<u16, [bool; SLOTS]>>,
}

impl PartialAmts {
    /// The slots and versions that `delta` writes.
    fn writes(&self, delta: &BackendDelta) -> Result<BlockWrites, WitnessError> {
        let mut writes = BlockWrites::default();
        let mut occupied = BTreeMap::new();
        for change in delta.changes() {
            let shown = self.keys.get(&change.key);
            let shown = shown.ok_or(WitnessError::Unproven { key: change.key })?;
            let slot = match &shown.slot {
                Some(slot) => KeySlot { version: next(slot.version, &change.key)?, ..slot.clone() },
                None => self.allocate(&change.key, &mut occupied)?,
            };
            writes.rise(&slot);
            writes.keys.push(slot);
        }
        Ok(writes)
    }

    /// The first free slot on the path of a new key. `occupied` counts the slots of entries in which
    /// the block has allocated one.
    fn allocate(
        &self,
        key: &BackendKey,
        occupied: &mut BTreeMap<AmtPath, usize>,
    ) -> Result<KeySlot, WitnessError> {
        let location = hash::location(&key.encode());
        let mut path = AmtPath::new();
        for level in 0.. {
            let Some(entry) = hash::entry_of(&location, self.height, level) else { break };
            path.push(entry as u16);
            let before = match occupied.get(&path) {
                Some(before) => *before,
                None => {
                    let versions = self.versions(&path);
                    let versions = versions.ok_or(WitnessError::Unproven { key: *key })?;
                    versions[1..].iter().take_while(|version| **version > 0).count()
                }
            };
            if before + 1 < SLOTS {
                occupied.insert(path.clone(), before + 1);
                return Ok(KeySlot { path, slot: before as u8 + 1, version: 1 });
            }
        }
        Err(WitnessError::InvalidDelta { what: format!("there is no level left for {key}") })
    }
}

fn next(version: u64, key: &BackendKey) -> Result<u64, WitnessError> {
    let next = version + 1;
    if next >> VERSION_BITS != 0 {
        return Err(WitnessError::InvalidDelta {
            what: format!("there is no version left for {key}"),
        });
    }
    Ok(next)
}

impl BlockWrites {
    /// Raises the version of a slot, and those of all AMTs above it.
    fn rise(&mut self, slot: &KeySlot) {
        let (mut path, mut at) = (&slot.path[..], usize::from(slot.slot));
        while let Some((entry, above)) = path.split_last() {
            let rises = self.rises.entry(above.to_vec()).or_default().entry(*entry).or_default();
            // An AMT rises once in a block, and so does each key.
            if core::mem::replace(&mut rises[at], true) {
                return;
            }
            (path, at) = (above, 0);
        }
    }

    /// The entries whose increments are needed, ascending.
    #[cfg(feature = "std")]
    fn entries(&self) -> alloc::collections::BTreeSet<u32> {
        self.rises.values().flat_map(BTreeMap::keys).map(|entry| u32::from(*entry)).collect()
    }
}

/// An opened witness.
#[derive(Debug)]
struct LvmtWitness {
    amts: PartialAmts,
    /// The point that a commitment grows by with slot 0 of each entry.
    increments: BTreeMap<u32, G1Point>,
    peaks: RangePeaks,
}

impl LvmtWitness {
    /// The commitment of the AMT at `path` after its entries have risen.
    fn commitment(
        &self,
        path: &[u16],
        rises: &BTreeMap<u16, [bool; SLOTS]>,
    ) -> Result<G1Point, WitnessError> {
        let before = match self.amts.commitments.get(path) {
            Some(before) => *before,
            // A new AMT; that the witness shows others is checked where their version is read.
            None => G1Point::INFINITY,
        };
        let (mut points, mut scalars) = (Vec::new(), Vec::new());
        for (entry, slots) in rises {
            let point = self.increments.get(&u32::from(*entry)).ok_or_else(|| {
                WitnessError::Incomplete { what: format!("the increment of entry {entry}") }
            })?;
            points.push(G1Affine::from(*point));
            scalars.push(scalar_of(slots));
        }
        let grown = G1Projective::msm_unchecked(&points, &scalars) + G1Affine::from(before);
        Ok(grown.into_affine().into())
    }
}

/// The sum of 2^(40 slot) over the slots that rise.
fn scalar_of(slots: &[bool; SLOTS]) -> Fr {
    let step = Fr::from(1u64 << VERSION_BITS);
    slots
        .iter()
        .rev()
        .fold(Fr::zero(), |sum, rises| sum * step + if *rises { Fr::ONE } else { Fr::ZERO })
}

impl OpenedWitness for LvmtWitness {
    fn value(&self, key: &BackendKey) -> Result<Option<StateValue>, WitnessError> {
        let shown = self.amts.keys.get(key).ok_or(WitnessError::Unproven { key: *key })?;
        Ok(shown.value.clone())
    }

    fn apply(&self, number: u64, delta: &BackendDelta) -> Result<B256, WitnessError> {
        let PartialAmts { first, blocks, .. } = self.amts;
        let first = if blocks == 0 { number } else { first };
        if first.checked_add(blocks) != Some(number) {
            let what = format!("block {number} is not the next one of {blocks} from {first} on");
            return Err(WitnessError::InvalidDelta { what });
        }
        check_previous(self, delta)?;
        let writes = self.amts.writes(delta)?;
        let mut tuples = Vec::with_capacity(writes.keys.len() + writes.rises.len());
        for (write, change) in writes.keys.iter().zip(delta.changes()) {
            let level = (write.path.len() - 1) as u8;
            let value = change.next.as_ref().map(|value| &value[..]);
            let key = change.key.encode();
            tuples.push(hash::key_tuple(level, write.slot, write.version, &key, value));
        }
        let mut amts: Vec<_> = writes.rises.iter().collect();
        amts.sort_by_key(|(path, _)| core::cmp::Reverse(path.len()));
        let mut commitment =
            self.amts.commitments.get(&AmtPath::new()).copied().unwrap_or_default();
        for (path, rises) in amts {
            let after = self.commitment(path, rises)?;
            if path.is_empty() {
                commitment = after;
                continue;
            }
            let versions = self.amts.versions(path).ok_or_else(|| WitnessError::Incomplete {
                what: format!("the version of the AMT at {path:x?}"),
            })?;
            if versions[0] > 0 && !self.amts.commitments.contains_key(path) {
                let what = format!("the commitment of the AMT at {path:x?}");
                return Err(WitnessError::Incomplete { what });
            }
            let version = versions[0] + 1;
            if version >> VERSION_BITS != 0 {
                let what = format!("there is no version left for the AMT at {path:x?}");
                return Err(WitnessError::InvalidDelta { what });
            }
            tuples.push(hash::amt_tuple(path, version, &after.to_bytes()));
        }
        let leaves = u32::try_from(tuples.len()).map_err(|_| WitnessError::InvalidDelta {
            what: format!("block {number} has more changes than a tree has leaves"),
        })?;
        let mut range = self.peaks.clone();
        range.push(hash::block(number, leaves, &merkle::top(&tuples)));
        Ok(hash::root(&commitment.to_bytes(), first, blocks + 1, &range.top()))
    }
}
