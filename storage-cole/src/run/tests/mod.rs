//! Runs compared with plain maps.

// A single range is intended.
#![allow(clippy::single_range_in_vec_init)]

mod comparisons;
mod damage;
mod filters;
mod lookups;
mod merges;
mod models;
mod speed;
mod trees;
mod version_trees;

use super::{Run, RunBuilder, RunDescription};
use crate::ColeParams;
use proptest::prelude::*;
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{collections::BTreeMap, path::Path};

pub(super) type PairMap = BTreeMap<(Vec<u8>, u64), Option<Vec<u8>>>;

/// The pattern of the keys of a test.
#[derive(Clone, Copy, Debug)]
pub(super) enum KeyPattern {
    /// Random accounts and slots.
    Random,
    /// Consecutive accounts.
    Consecutive,
    /// Slots of one account, some close together and some far apart.
    Near,
    /// Slots whose distances double.
    Exponential,
    /// One key.
    One,
}

pub(super) fn any_keys() -> impl Strategy<Value = KeyPattern> {
    use KeyPattern::*;
    prop_oneof![Just(Random), Just(Consecutive), Just(Near), Just(Exponential), Just(One)]
}

pub(super) fn any_params() -> impl Strategy<Value = ColeParams> {
    let fanout = prop_oneof![2u8..=64, Just(2), Just(3), Just(4), Just(15), Just(16), Just(64)];
    let epsilon = prop_oneof![1u8..=32, Just(1), Just(32)];
    (fanout, epsilon).prop_map(|(fanout, epsilon)| ColeParams {
        fanout,
        epsilon,
        ..ColeParams::default()
    })
}

impl KeyPattern {
    pub(super) fn key(self, n: u64, rng: &mut StdRng) -> Vec<u8> {
        let slot = |tail: &[u8]| {
            let mut key = vec![1; 53];
            key[53 - tail.len()..].copy_from_slice(tail);
            key
        };
        match self {
            Self::Random if rng.random_bool(0.5) => {
                let mut key = rng.random::<[u8; 21]>().to_vec();
                key[0] = 0;
                key
            }
            Self::Random => slot(&rng.random::<[u8; 52]>()),
            Self::Consecutive => {
                let mut key = vec![0; 21];
                key[13..].copy_from_slice(&n.to_be_bytes());
                key
            }
            Self::Near => slot(&(n >> (n % 40)).to_be_bytes()),
            Self::Exponential => {
                let mut key = vec![1; 53];
                key[1..].fill(0);
                key[52 - (n % 416) as usize / 8] = 1 << (n % 8);
                key
            }
            Self::One => slot(&[7; 32]),
        }
    }
}

/// Values as on a chain, and some long ones.
pub(super) fn value(before: Option<&Vec<u8>>, rng: &mut StdRng) -> Option<Vec<u8>> {
    let len = match rng.random_range(0..400) {
        0 => rng.random_range(3_000..70_000),
        1..20 => return None,
        20..40 => rng.random_range(100..400),
        40 => 0,
        _ => rng.random_range(1..80),
    };
    match before {
        Some(before) if !before.is_empty() && rng.random_bool(0.7) => {
            let mut value = before.clone();
            let at = rng.random_range(0..value.len());
            value[at] = rng.random();
            value.truncate(value.len().saturating_sub(rng.random_range(0..3)));
            Some(value)
        }
        _ => Some((0..len).map(|_| rng.random()).collect()),
    }
}

/// `count` pairs, or fewer if random keys coincide.
pub(super) fn pairs(keys: KeyPattern, count: usize, seed: u64) -> PairMap {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut pairs = PairMap::new();
    let mut n = rng.random_range(0..1 << 40);
    while pairs.len() < count {
        n += 1;
        let key = keys.key(n, &mut rng);
        let versions = match keys {
            KeyPattern::One => count,
            _ if rng.random_bool(0.8) => 1,
            _ => rng.random_range(1..100),
        };
        let mut block = match rng.random_range(0..10) {
            0 => 0,
            1 => u64::MAX - versions as u64,
            _ => rng.random_range(0..20_000_000),
        };
        let mut last: Option<Vec<u8>> = None;
        for _ in 0..versions {
            let value = value(last.as_ref(), &mut rng);
            last.clone_from(&value);
            pairs.insert((key.clone(), block), value);
            block = block.saturating_add(match rng.random_range(0..4) {
                0 => rng.random_range(1..100_000).min((u64::MAX - block) / 100),
                _ => 1,
            });
        }
        if matches!(keys, KeyPattern::Exponential) && n % 416 == 0 && rng.random_bool(0.1) {
            break;
        }
    }
    pairs
}

pub(super) fn build(dir: &Path, params: &ColeParams, pairs: &PairMap) -> Run {
    let info = write(dir, "run", params, pairs);
    Run::open(dir, info).unwrap()
}

pub(super) fn write(
    dir: &Path,
    stem: &str,
    params: &ColeParams,
    pairs: &PairMap,
) -> RunDescription {
    let mut run = RunBuilder::new(dir, stem, params).unwrap();
    // Filters of more than 300 keys are built in parts; checks and merges build them whole.
    run.filter_memory = 9 << 10;
    for (n, ((key, block), value)) in pairs.iter().enumerate() {
        let value = value.as_deref();
        let leaf = (n % 3 == 1).then(|| crate::hash::pair(key, *block, value));
        run.push(key, *block, value, leaf).unwrap();
    }
    run.finish().unwrap()
}

pub(super) fn faults(run: &Run) -> Vec<String> {
    let mut faults = Vec::new();
    run.check(&mut |error| faults.push(error.to_string()), &|| Ok(())).unwrap();
    faults
}
