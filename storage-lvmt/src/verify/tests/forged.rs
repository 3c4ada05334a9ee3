//! Attacks of a dishonest prover that has the whole history: each part is true by itself, or was
//! true in an old state, and the Merkle proofs fit what is shown.

use super::{
    assemble::{ProofSource, assemble},
    model::{LvmtModel, ModelPath},
    *,
};
use crate::proof::wire::{EntryProof, ProvenAmt, ProvenTuple, TreeProof};
use retrie_state::{BackendKey, StateError};

/// A source that takes some parts from an old state.
struct LyingSource<'a> {
    now: &'a LvmtModel,
    old: &'a LvmtModel,
    lies: u8,
}

const LIES: u8 = 7;

impl LyingSource<'_> {
    /// The state that this part is taken from: the old state for a lie, if it `has` the part.
    fn of(&self, lie: u8, has: impl Fn(&LvmtModel) -> bool) -> &LvmtModel {
        if self.lies & 1 << lie != 0 && has(self.old) { self.old } else { self.now }
    }
}

impl ProofSource for LyingSource<'_> {
    fn state(&self) -> (u8, CompressedPoint, u64, u64) {
        let (height, _, first, blocks) = self.now.state();
        (height, self.of(0, |_| true).state().1, first, blocks)
    }
    fn find(&mut self, key: &BackendKey) -> Result<Option<(u8, u8)>, StateError> {
        (&mut self.of(1, |_| true)).find(key)
    }
    fn versions(&mut self, way: &[u16]) -> Result<[u64; SLOTS], StateError> {
        (&mut self.of(2, |_| true)).versions(way)
    }
    fn occupant(
        &mut self,
        way: &[u16],
        slot: u8,
    ) -> Result<(BackendKey, Option<StateValue>, ProvenPosition), StateError> {
        let has = |state: &LvmtModel| state.occupants.contains_key(&(way.to_vec(), slot));
        (&mut self.of(3, has)).occupant(way, slot)
    }
    fn amt(&mut self, way: &[u16]) -> Result<ProvenAmt, StateError> {
        (&mut self.of(4, |state| state.amts.contains_key(way))).amt(way)
    }
    fn quotients(&mut self, way: &[u16]) -> Result<Option<Vec<CompressedPoint>>, StateError> {
        (&mut self.of(5, |_| true)).quotients(way)
    }
    fn tree(&mut self, block: u64, shown: &[u64]) -> Result<TreeProof, StateError> {
        (&mut self.now).tree(block, shown)
    }
    fn range(&mut self, shown: &[u64]) -> Result<Vec<B256>, StateError> {
        let blocks = self.old.blocks.len() as u64;
        (&mut self.of(6, |_| shown.iter().all(|block| *block < blocks))).range(shown)
    }
}

#[test]
fn no_mixture_of_old_and_new_parts_shows_anything_but_the_truth() {
    let rng = &mut StdRng::seed_from_u64(11);
    let mut refused = [0; 1 << LIES];
    for height in 1..=2 {
        let params = params(height);
        for _ in 0..3 {
            let states = states(rng, height, 30 << height, 14);
            let now = states.last().unwrap();
            for _ in 0..2 {
                let old = states[1..].choose(rng).unwrap();
                let count = rng.random_range(1..4);
                let asked = some_keys(rng, 36 << height, count);
                let honest = proof(now, &asked).encode();
                for lies in 0..1 << LIES {
                    let forged =
                        assemble(&asked, &mut LyingSource { now, old, lies }).unwrap().encode();
                    match verify(&params, now.root(), &asked, &forged) {
                        Ok(shown) => assert_eq!(shown, truth(now, &asked), "lies {lies:07b}"),
                        Err(_) => {
                            assert_ne!(forged, honest);
                            refused[usize::from(lies)] += 1;
                        }
                    }
                }
            }
        }
    }
    assert_eq!(refused[0], 0);
    assert!(refused[1..].iter().all(|count| *count > 0), "{refused:?}");
}

/// A state of height 2 with keys of each kind; it forges proofs.
struct ProofForger {
    params: VerifierParams,
    states: Vec<LvmtModel>,
}

impl ProofForger {
    fn new(seed: u64) -> Self {
        let states = states(&mut StdRng::seed_from_u64(seed), 2, 400, 40);
        Self { params: params(2), states }
    }

    fn now(&self) -> &LvmtModel {
        &self.states[self.states.len() - 1]
    }

    /// Key, path and slot of each key at a level that has a value now.
    fn live_at(&self, level: usize) -> impl Iterator<Item = (&BackendKey, &ModelPath, u8)> {
        let keys = self.now().keys.iter();
        keys.filter(move |(_, (way, _, value, _))| way.len() == level + 1 && value.is_some())
            .map(|(key, (way, slot, ..))| (key, way, *slot))
    }

    /// Proves `key` with changed entries. All other parts are recomputed to fit.
    fn forge(
        &self,
        key: BackendKey,
        change: impl FnOnce(&mut Vec<EntryProof>),
    ) -> Result<Option<StateValue>, ProofError> {
        let now = self.now();
        let mut forged = proof(now, &[key]);
        change(&mut forged.entries);
        forged.trees.clear();
        let mut shown = Vec::new();
        for (block, positions) in forged.positions() {
            forged.trees.push((&mut &*now).tree(block, &positions).unwrap());
            shown.push(block - now.first);
        }
        forged.range = (&mut &*now).range(&shown).unwrap();
        let bytes = forged.encode();
        // A forged proof need not decode.
        verify(&self.params, now.root(), &[key], &bytes).map(|mut values| values.remove(0))
    }
}

fn shown(entry: &mut EntryProof) -> &mut ProvenTuple {
    entry.tuples.iter_mut().flatten().next().expect("a tuple that is shown")
}

#[test]
fn an_older_value_is_refused_with_its_own_version_and_with_the_newest() {
    let forger = ProofForger::new(21);
    let mut tried = 0;
    for level in 0..4 {
        for (key, _, slot) in forger.live_at(level).collect::<Vec<_>>() {
            let newest = &forger.now().keys[key];
            let older = forger.states.iter().rev().filter_map(|state| state.keys.get(key));
            let Some((way, _, value, place)) = older.clone().find(|older| older.3 != newest.3)
            else {
                continue;
            };
            let at_place =
                |state: &&LvmtModel| state.keys.get(key).is_some_and(|at| at.3 == *place);
            let version =
                forger.states.iter().find(at_place).unwrap().versions[way][usize::from(slot)];
            let old = |entries: &mut Vec<EntryProof>| {
                let tuple = shown(entries.last_mut().unwrap());
                (tuple.value, tuple.place) = (value.clone(), *place);
            };
            assert_eq!(forger.forge(*key, old), Err(ProofError::RootMismatch));
            let with_version = |entries: &mut Vec<EntryProof>| {
                old(entries);
                entries.last_mut().unwrap().versions[usize::from(slot)] = version;
            };
            // The hashes lead to the root; the opening fails.
            assert_eq!(forger.forge(*key, with_version), Err(ProofError::RootMismatch));
            tried += 1;
        }
    }
    assert!(tried > 30, "{tried}");
}

#[test]
fn a_present_key_cannot_be_shown_as_absent() {
    let forger = ProofForger::new(22);
    for level in 0..4 {
        let mut tried = 0;
        for (key, way, slot) in forger.live_at(level).take(25).collect::<Vec<_>>() {
            let slot = usize::from(slot);
            let now = forger.now();
            // All occupants on the path are shown, and the key itself as another key.
            let display = |entries: &mut Vec<EntryProof>, from: usize| {
                for (len, entry) in (1..).zip(entries).skip(from) {
                    for slot in 1..=entry.occupied() as u8 {
                        let way = &way[..len];
                        let (key, value, place) = (&mut &*now).occupant(way, slot).unwrap();
                        let occupant = SlotOccupant::Other(key);
                        entry.tuples[usize::from(slot) - 1] =
                            Some(ProvenTuple { occupant, value, place });
                    }
                }
            };
            let as_other = |entries: &mut Vec<EntryProof>| display(entries, 0);
            assert!(matches!(forger.forge(*key, as_other), Err(ProofError::Malformed { .. })));
            // The key is left out.
            let left_out = |entries: &mut Vec<EntryProof>| {
                display(entries, 0);
                entries.last_mut().unwrap().tuples[slot - 1] = None;
            };
            let error = forger.forge(*key, left_out).unwrap_err();
            assert!(matches!(error, ProofError::Missing { .. }), "{error}");
            // The slot of the key is declared free.
            let free = |entries: &mut Vec<EntryProof>| {
                display(entries, 0);
                let entry = entries.last_mut().unwrap();
                entry.versions[slot..].fill(0);
                entry.versions[0] = 0;
                entry.tuples[slot - 1..].fill(None);
                entry.amt = None;
            };
            assert_eq!(forger.forge(*key, free), Err(ProofError::RootMismatch));
            // Another key in its place.
            if let Some(other) = (1..slot).next() {
                let stands_in = |entries: &mut Vec<EntryProof>| {
                    display(entries, 0);
                    let entry = entries.last_mut().unwrap();
                    entry.tuples[slot - 1] = entry.tuples[other - 1].clone();
                };
                assert!(forger.forge(*key, stands_in).is_err());
            }
            // A sub-AMT is declared missing.
            if level > 0 {
                let cut = |entries: &mut Vec<EntryProof>| {
                    display(entries, 0);
                    entries.truncate(level);
                    let entry = &mut entries[level - 1];
                    (entry.versions[0], entry.amt) = (0, None);
                };
                assert_eq!(forger.forge(*key, cut), Err(ProofError::RootMismatch));
                let stopped = |entries: &mut Vec<EntryProof>| entries.truncate(level);
                assert!(matches!(forger.forge(*key, stopped), Err(ProofError::Missing { .. })));
            }
            tried += 1;
        }
        assert!(tried > 3, "level {level}: {tried}");
    }
}

#[test]
fn a_tuple_counts_in_its_own_slot_at_its_own_level_only() {
    let forger = ProofForger::new(23);
    let mut tried = [0; 2];
    for level in 0..4 {
        for (key, way, slot) in forger.live_at(level).take(25).collect::<Vec<_>>() {
            let other_slot = |entries: &mut Vec<EntryProof>| {
                let entry = entries.last_mut().unwrap();
                let to = if usize::from(slot) < entry.occupied() { slot } else { slot - 2 };
                entry.tuples.swap(usize::from(slot) - 1, usize::from(to));
            };
            if slot > 1 || forger.now().versions[way][usize::from(slot) + 1] > 0 {
                assert_eq!(forger.forge(*key, other_slot), Err(ProofError::RootMismatch));
                tried[0] += 1;
            }
            if level > 0 {
                // The tuple is shown one level higher, as if there were no level below.
                let skipped = |entries: &mut Vec<EntryProof>| {
                    let last = entries.pop().unwrap();
                    let above = entries.last_mut().unwrap();
                    (above.tuples, above.amt) = (last.tuples, None);
                };
                assert_eq!(forger.forge(*key, skipped), Err(ProofError::RootMismatch));
                // An entry on the path is left out.
                let without = |entries: &mut Vec<EntryProof>| {
                    entries.remove(level - 1);
                };
                assert!(forger.forge(*key, without).is_err());
                tried[1] += 1;
            }
        }
    }
    assert!(tried.iter().all(|count| *count > 20), "{tried:?}");
}

#[test]
fn an_older_commitment_of_a_sub_amt_is_refused() {
    let forger = ProofForger::new(24);
    let mut tried = 0;
    for level in 1..4 {
        for (key, way, _) in forger.live_at(level).take(25).collect::<Vec<_>>() {
            for len in 1..=level {
                let way = &way[..len];
                let newest = forger.now().amts[way].1;
                let older = |state: &&LvmtModel| {
                    state.amts.get(way).is_some_and(|(_, place)| *place != newest)
                };
                let Some(old) = forger.states.iter().rev().find(older) else { continue };
                let replace = |entries: &mut Vec<EntryProof>| {
                    entries[len - 1].amt = Some((&mut &*old).amt(way).unwrap());
                };
                assert_eq!(forger.forge(*key, replace), Err(ProofError::RootMismatch));
                let with_version = |entries: &mut Vec<EntryProof>| {
                    replace(entries);
                    entries[len - 1].versions[0] = old.versions[way][0];
                };
                assert_eq!(forger.forge(*key, with_version), Err(ProofError::RootMismatch));
                tried += 1;
            }
        }
    }
    assert!(tried > 20, "{tried}");
}

#[test]
fn parts_that_are_true_but_not_needed_are_refused() {
    let forger = ProofForger::new(25);
    let now = forger.now();
    let mut tried = [0; 3];
    for level in 0..3 {
        for (key, way, slot) in forger.live_at(level).take(25).collect::<Vec<_>>() {
            let occupied = now.versions[way][1..].iter().filter(|version| **version > 0).count();
            if let Some(other) = (1..=occupied as u8).find(|other| *other != slot) {
                let (occupant, value, place) = (&mut &*now).occupant(way, other).unwrap();
                let occupant = SlotOccupant::Other(occupant);
                let more = |entries: &mut Vec<EntryProof>| {
                    let tuples = &mut entries.last_mut().unwrap().tuples;
                    tuples[usize::from(other) - 1] = Some(ProvenTuple { occupant, value, place });
                };
                assert_eq!(forger.forge(*key, more), Err(ProofError::Unused));
                tried[0] += 1;
            }
            if now.amts.contains_key(way) {
                let more = |entries: &mut Vec<EntryProof>| {
                    entries.last_mut().unwrap().amt = Some((&mut &*now).amt(way).unwrap());
                };
                assert_eq!(forger.forge(*key, more), Err(ProofError::Unused));
                tried[1] += 1;
            }
            let twice = |entries: &mut Vec<EntryProof>| entries.push(entries[0].clone());
            assert!(forger.forge(*key, twice).is_err());
            let bare = |entries: &mut Vec<EntryProof>| {
                let quotients = entries[0].quotients.clone();
                let tuples = Default::default();
                entries.push(EntryProof { versions: [0; SLOTS], quotients, tuples, amt: None });
            };
            assert_eq!(forger.forge(*key, bare), Err(ProofError::Unused));
            tried[2] += 1;
        }
    }
    assert!(tried.iter().all(|count| *count > 10), "{tried:?}");
}

#[test]
fn siblings_of_another_block_lead_nowhere() {
    let forger = ProofForger::new(26);
    let now = forger.now();
    let mut rng = StdRng::seed_from_u64(27);
    let mut tried = 0;
    for _ in 0..60 {
        let asked = some_keys(&mut rng, 400, 6);
        let mut forged = proof(now, &asked);
        let same = |a: &TreeProof, b: &TreeProof| {
            let len = |tree: &TreeProof| tree.siblings.as_ref().map_or(0, Vec::len);
            len(a) == len(b) && len(a) > 0 && a.leaves == b.leaves
        };
        let count = forged.trees.len();
        let mut pairs = (0..count).flat_map(|a| (0..a).map(move |b| (a, b)));
        let pair = pairs.find(|(a, b)| same(&forged.trees[*a], &forged.trees[*b]));
        if let Some((a, b)) = pair {
            forged.trees.swap(a, b);
        } else if let Some(leaves) = forged.trees.iter_mut().map(|tree| &mut tree.leaves).next() {
            // A tree that declares another number of leaves.
            *leaves += 1;
        }
        let shown = verify(&forger.params, now.root(), &asked, &forged.encode());
        assert!(shown.is_err());
        tried += usize::from(pair.is_some());
    }
    assert!(tried > 5, "{tried}");
}

#[test]
fn points_must_be_canonical_and_the_right_ones() {
    let forger = ProofForger::new(28);
    let now = forger.now();
    let (key, ..) = forger.live_at(2).next().unwrap();
    let honest = proof(now, &[*key]);
    // The modulus of the base field, little-endian as in points.
    let mut modulus = hex!("30644e72e131a029b85045b68181585d97816a916871ca8d3c208c16d87cfd47");
    modulus.reverse();
    let mut one_more = modulus;
    one_more[0] += 1;
    let off_curve = (4u8..)
        .map(|x| {
            let mut bytes = [0; 32];
            bytes[0] = x;
            bytes
        })
        .find(|bytes| G1Point::from_compressed(bytes).is_none())
        .unwrap();
    let infinity = G1Point::INFINITY.to_compressed();
    let mut marked = infinity;
    marked[0] = 1;
    let mut signed = infinity;
    signed[31] |= 0x80;
    let bad = [modulus, one_more, [0xff; 32], off_curve, marked, signed];
    let wrong = [infinity, honest.commitment];
    type PointPick = fn(&mut LvmtProof) -> &mut CompressedPoint;
    let replace: [(&str, PointPick); 5] = [
        ("the root AMT", |proof| &mut proof.commitment),
        ("a sub-AMT", |proof| &mut proof.entries[0].amt.as_mut().unwrap().commitment),
        ("a first quotient", |proof| &mut proof.entries[0].quotients.as_mut().unwrap()[0]),
        ("a last quotient", |proof| &mut proof.entries[2].quotients.as_mut().unwrap()[1]),
        ("a quotient", |proof| &mut proof.entries[1].quotients.as_mut().unwrap()[1]),
    ];
    for (what, at) in replace {
        for point in &bad {
            let mut forged = honest.clone();
            *at(&mut forged) = *point;
            let shown = verify(&forger.params, now.root(), &[*key], &forged.encode());
            assert_eq!(shown, Err(malformed("a point")), "{what} {}", hex::encode(point));
        }
        let mut negated = *at(&mut honest.clone());
        negated[31] ^= 0x80;
        for point in wrong.iter().chain([&negated]) {
            let mut forged = honest.clone();
            if *at(&mut forged) != *point {
                *at(&mut forged) = *point;
                let shown = verify(&forger.params, now.root(), &[*key], &forged.encode());
                assert_eq!(shown, Err(ProofError::RootMismatch), "{what} {}", hex::encode(point));
            }
        }
    }
    // All quotients at infinity: an opening that shows zeros, of an AMT with other versions.
    let mut forged = honest;
    forged.entries.iter_mut().for_each(|entry| entry.quotients = Some(vec![infinity; 2]));
    let shown = verify(&forger.params, now.root(), &[*key], &forged.encode());
    assert_eq!(shown, Err(ProofError::RootMismatch));
}
