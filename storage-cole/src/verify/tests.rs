//! Honest proofs are accepted, and no others: compared with a model of the whole store.

mod forged;
mod model;
mod trees;

use super::*;
use alloy_primitives::hex;
use model::{StoreModel, key, some_keys};
use proptest::prelude::*;
use rand::{Rng, SeedableRng, rngs::StdRng};
use retrie_state::BackendKey;

/// The verifier. If `RETRIE_RECORD_PROOFS` names a file, each question and answer is appended to it
/// as one line, so that other verifiers can be given the same questions (`crates/light-client`).
fn verify_versions(
    params: &ColeParams,
    root: B256,
    keys: &[BackendKey],
    blocks: RangeInclusive<u64>,
    proof: &[u8],
) -> Result<Vec<Vec<ValueVersion>>, ProofError> {
    let shown = super::verify_versions(params, root, keys, blocks.clone(), proof);
    if let Some(file) = std::env::var_os("RETRIE_RECORD_PROOFS") {
        let class = shown.as_ref().map_or_else(class, |_| "ok");
        let keys: Vec<_> = keys.iter().map(|key| hex::encode(&key.encode()[..])).collect();
        let version = |version: &ValueVersion| {
            let value = version.value.as_ref().map_or_else(|| "-".into(), hex::encode);
            format!("{}:{value}", version.block)
        };
        let versions = |all: &Vec<_>| all.iter().map(version).collect::<Vec<_>>().join(";");
        let answer: Vec<_> = shown.iter().flatten().map(versions).collect();
        let test = std::thread::current().name().unwrap_or_default().to_owned();
        let line = [
            test.rsplit("::").next().unwrap_or_default(),
            class,
            &hex::encode(params.digest()),
            &hex::encode(root),
            &hex::encode(proof),
            &keys.join(","),
            &blocks.start().to_string(),
            &blocks.end().to_string(),
            &answer.join(","),
        ];
        let options = std::fs::OpenOptions::new().append(true).create(true).open(file);
        let line = format!("{}\n", line.join(" "));
        std::io::Write::write_all(&mut options.unwrap(), line.as_bytes()).unwrap();
    }
    shown
}

fn class(error: &ProofError) -> &'static str {
    match error {
        ProofError::WrongKind { .. } => "kind",
        ProofError::RootMismatch => "root",
        ProofError::Missing { .. } => "missing",
        ProofError::Unused => "unused",
        _ => "malformed",
    }
}

proptest! {
    #[test]
    fn honest_proofs_show_all_versions_and_nothing_else(seed: u64) {
        let rng = &mut StdRng::seed_from_u64(seed);
        let keys = [2, 6, 30, 300][rng.random_range(0..4)];
        let state = StoreModel::random(rng, keys);
        let root = state.root();
        for count in [0, 1, 1, 2, 9] {
            // A third of these keys never get a value.
            let asked = some_keys(rng, keys * 3 / 2, count);
            let blocks = state.range(rng);
            let bytes = state.prove(&asked, &blocks);
            let truth = state.truth(&asked, &blocks);
            let shown = verify_versions(&state.params, root, &asked, blocks.clone(), &bytes);
            prop_assert_eq!(shown.as_ref(), Ok(&truth));
            if *blocks.start() == u64::MAX {
                let values = verify(&state.params, root, &asked, &bytes).unwrap();
                let newest = truth.iter().map(|all| all.first().and_then(|v| v.value.clone()));
                prop_assert_eq!(values, newest.collect::<Vec<_>>());
            }
            // The order of the keys does not matter, nor does a repeated key.
            let mut other: Vec<_> = asked.iter().rev().chain(&asked).copied().collect();
            let shown = verify_versions(&state.params, root, &other, blocks.clone(), &bytes);
            prop_assert_eq!(shown, Ok(state.truth(&other, &blocks)));
            // If the proof is accepted for another question, what it shows is true.
            other.push(key(rng.random_range(0..keys * 3)));
            let shown = verify_versions(&state.params, root, &other, blocks.clone(), &bytes);
            if let Ok(shown) = shown {
                prop_assert_eq!(shown, state.truth(&other, &blocks));
            }
            let range = state.range(rng);
            if let Ok(shown) = verify_versions(&state.params, root, &asked, range.clone(), &bytes) {
                prop_assert_eq!(shown, state.truth(&asked, &range));
            }
        }
    }

    #[test]
    fn no_part_of_a_proof_can_be_changed_dropped_or_added(seed: u64) {
        let rng = &mut StdRng::seed_from_u64(seed);
        let keys = [2, 6, 30][rng.random_range(0..3)];
        let state = StoreModel::random(rng, keys);
        let root = state.root();
        let count = rng.random_range(0..4);
        let asked = some_keys(rng, keys * 3 / 2, count);
        let blocks = state.range(rng);
        let bytes = state.prove(&asked, &blocks);
        let refuse = |mutated: &[u8], how: &str| {
            let shown = verify_versions(&state.params, root, &asked, blocks.clone(), mutated);
            assert!(mutated == bytes || shown.is_err(), "{how}: {}", hex::encode(mutated));
        };
        let step = 1 + bytes.len() * 8 / 400;
        for bit in (rng.random_range(0..step)..bytes.len() * 8).step_by(step) {
            let mut mutated = bytes.clone();
            mutated[bit / 8] ^= 1 << (bit % 8);
            refuse(&mutated, "a flipped bit");
        }
        for _ in 0..20 {
            let from = rng.random_range(0..bytes.len());
            let to = rng.random_range(from..=bytes.len().min(from + 70));
            let (head, part, tail) = (&bytes[..from], &bytes[from..to], &bytes[to..]);
            refuse(head, "cut off");
            refuse(&[head, tail].concat(), "dropped");
            refuse(&[head, part, part, tail].concat(), "doubled");
            refuse(&[head, &vec![0; part.len()], tail].concat(), "zeroed");
            refuse(&[tail, part, head].concat(), "turned around");
        }
        refuse(&[&bytes[..], &[0]].concat(), "longer");
        let other = StoreModel::random(rng, keys);
        if other.root() != root {
            refuse(&other.prove(&asked, &blocks), "of another state");
        }
    }

    #[test]
    fn what_is_not_a_proof_is_refused_without_a_panic(seed: u64) {
        let rng = &mut StdRng::seed_from_u64(seed);
        let state = StoreModel::random(rng, 30);
        let (root, blocks) = (state.root(), state.range(rng));
        let asked = some_keys(rng, 40, 4);
        let bytes = state.prove(&asked, &blocks);
        for _ in 0..60 {
            let mut random = bytes[..rng.random_range(1..=bytes.len())].to_vec();
            random.extend((0..rng.random_range(0..200)).map(|_| rng.random::<u8>()));
            for _ in 0..rng.random_range(1..4) {
                let at = rng.random_range(0..random.len());
                random[at] = [0, 1, 2, 3, 0x7f, 0x80, 0xff, rng.random()][rng.random_range(0..8)];
            }
            let shown = verify_versions(&state.params, root, &asked, blocks.clone(), &random);
            assert!(random == bytes || shown.is_err());
        }
    }
}
