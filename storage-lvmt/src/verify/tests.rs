//! Honest proofs are accepted, and no others: compared with a model of the whole structure.

mod assemble;
mod forged;
mod model;

use super::*;
use crate::combine;
use alloy_primitives::{Address, hex};
use assemble::assemble;
use model::{LvmtModel, params};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use retrie_state::BackendKey;
use std::collections::BTreeMap;

/// The verifier. If `RETRIE_RECORD_PROOFS` names a file, each question and answer is appended to it
/// as one line, so that other verifiers can be given the same questions (`crates/light-client`).
fn verify(
    params: &VerifierParams,
    root: B256,
    keys: &[BackendKey],
    proof: &[u8],
) -> Result<Vec<Option<StateValue>>, ProofError> {
    let shown = super::verify(params, root, keys, proof);
    if let Some(file) = std::env::var_os("RETRIE_RECORD_PROOFS") {
        let class = match &shown {
            Ok(_) => "ok",
            Err(ProofError::WrongKind { .. }) => "kind",
            Err(ProofError::RootMismatch) => "root",
            Err(ProofError::Missing { .. }) => "missing",
            Err(ProofError::Unused) => "unused",
            Err(_) => "malformed",
        };
        let keys: Vec<_> = keys.iter().map(|key| hex::encode(&key.encode()[..])).collect();
        let value =
            |value: &Option<StateValue>| value.as_ref().map_or_else(|| "-".into(), hex::encode);
        let values: Vec<_> = shown.iter().flatten().map(value).collect();
        let test = std::thread::current().name().unwrap_or_default().to_owned();
        let line = [
            test.rsplit("::").next().unwrap_or_default(),
            class,
            &hex::encode(params.to_bytes()),
            &hex::encode(root),
            &hex::encode(proof),
            &keys.join(","),
            &values.join(","),
        ];
        let options = std::fs::OpenOptions::new().append(true).create(true).open(file);
        let line = format!("{}\n", line.join(" "));
        std::io::Write::write_all(&mut options.unwrap(), line.as_bytes()).unwrap();
    }
    shown
}

fn key(number: u32) -> BackendKey {
    let address = Address::left_padding_from(&(number / 3).to_be_bytes());
    match number % 3 {
        0 => BackendKey::Account(address.into()),
        slot => BackendKey::Slot(address.into(), B256::with_last_byte(slot as u8)),
    }
}

/// Changes of some of the first `keys` keys.
fn changes(rng: &mut StdRng, keys: u32, count: usize) -> BTreeMap<BackendKey, Option<StateValue>> {
    let mut change = || {
        let mut value = vec![0; rng.random_range(0..40)];
        rng.fill(&mut value[..]);
        let value = rng.random_bool(0.8).then(|| value.into());
        (key(rng.random_range(0..keys)), value)
    };
    (0..count).map(|_| change()).collect()
}

/// The states after each of some random blocks; the first state is empty.
fn states(rng: &mut StdRng, height: u8, keys: u32, blocks: usize) -> Vec<LvmtModel> {
    let mut states = vec![LvmtModel::new(height, rng.random_range(0..1000))];
    for _ in 0..blocks {
        let mut state = states[states.len() - 1].clone();
        let count = [0, 1, 3, 10, 40][rng.random_range(0..5)];
        state.block(&changes(rng, keys, count));
        states.push(state);
    }
    states
}

fn truth(state: &LvmtModel, keys: &[BackendKey]) -> Vec<Option<StateValue>> {
    keys.iter().map(|key| state.keys.get(key).and_then(|key| key.2.clone())).collect()
}

fn proof(state: &LvmtModel, keys: &[BackendKey]) -> LvmtProof {
    assemble(keys, &mut &*state).unwrap()
}

fn some_keys(rng: &mut StdRng, below: u32, count: usize) -> Vec<BackendKey> {
    (0..count).map(|_| key(rng.random_range(0..below))).collect()
}

#[test]
fn honest_proofs_show_presence_deletion_and_absence_at_every_level() {
    let rng = &mut StdRng::seed_from_u64(1);
    let mut seen = BTreeMap::<_, u32>::new();
    for height in 1..=3 {
        let params = params(height);
        let keys = 60 << height;
        for state in states(rng, height, keys, 24) {
            for count in [0, 1, 1, 2, 7, 60] {
                // A third of these keys never get a value.
                let asked = some_keys(rng, keys * 3 / 2, count);
                let bytes = proof(&state, &asked).encode();
                let shown = verify(&params, state.root(), &asked, &bytes);
                assert_eq!(shown.as_ref(), Ok(&truth(&state, &asked)), "height {height}");
                for key in &asked {
                    let kind = state.keys.get(key).map(|key| (key.0.len(), key.2.is_some()));
                    *seen.entry(kind).or_default() += 1;
                }
                // The order of the keys does not matter, nor does a repeated key.
                let mut asked: Vec<_> = asked.iter().rev().chain(&asked).copied().collect();
                assert_eq!(
                    verify(&params, state.root(), &asked, &bytes).unwrap(),
                    truth(&state, &asked)
                );
                // If the proof is accepted for other keys, what it shows is true.
                asked.push(key(rng.random_range(0..keys * 3)));
                if let Ok(shown) = verify(&params, state.root(), &asked, &bytes) {
                    assert_eq!(shown, truth(&state, &asked));
                }
            }
        }
    }
    for level in 1..=4 {
        assert!(seen[&Some((level, true))] > 20 && seen[&Some((level, false))] > 5, "{seen:?}");
    }
    assert!(seen[&None] > 100, "{seen:?}");
}

#[test]
fn no_part_of_a_proof_can_be_changed_dropped_or_added() {
    let rng = &mut StdRng::seed_from_u64(2);
    for height in 1..=3 {
        let params = params(height);
        let states = states(rng, height, 40 << height, 12);
        let state = &states[states.len() - 1];
        for count in [0, 1, 2, 6] {
            let asked = some_keys(rng, 60 << height, count);
            let bytes = proof(state, &asked).encode();
            let refuse = |mutated: &[u8], how: &str| {
                let shown = verify(&params, state.root(), &asked, mutated);
                assert!(mutated == bytes || shown.is_err(), "{how}: {}", hex::encode(mutated));
            };
            for bit in 0..bytes.len() * 8 {
                if bit < 400 || rng.random_bool(0.02) {
                    let mut mutated = bytes.clone();
                    mutated[bit / 8] ^= 1 << (bit % 8);
                    refuse(&mutated, "a flipped bit");
                }
            }
            for _ in 0..60 {
                let from = rng.random_range(0..bytes.len());
                let to = rng.random_range(from..=bytes.len().min(from + 70));
                let (head, part, tail) = (&bytes[..from], &bytes[from..to], &bytes[to..]);
                refuse(head, "cut off");
                refuse(&[head, tail].concat(), "dropped");
                refuse(&[head, part, part, tail].concat(), "doubled");
                refuse(&[head, &vec![0; part.len()], tail].concat(), "zeroed");
                refuse(&[tail, part, head].concat(), "turned around");
            }
            for state in &states[..states.len() - 1] {
                if state.root() != states[states.len() - 1].root() {
                    let shown = verify(&params, state.root(), &asked, &bytes);
                    assert_eq!(shown, Err(ProofError::RootMismatch));
                }
            }
        }
        let other = model::params(height + 1);
        let bytes = proof(state, &[]).encode();
        let shown = verify(&other, state.root(), &[], &bytes);
        assert_eq!(shown, Err(ProofError::WrongKind { what: "height" }));
    }
}

#[test]
fn what_is_not_a_proof_is_refused_without_a_panic() {
    let rng = &mut StdRng::seed_from_u64(3);
    let params = params(2);
    let states = states(rng, 2, 100, 10);
    let state = &states[states.len() - 1];
    let asked = some_keys(rng, 150, 5);
    let bytes = proof(state, &asked).encode();
    for _ in 0..20_000 {
        let mut random = match rng.random_range(0..3) {
            0 => {
                let mut random = vec![0; rng.random_range(0..400)];
                rng.fill(&mut random[..]);
                random
            }
            // A valid beginning, then random bytes.
            1 => {
                let mut random = bytes[..rng.random_range(0..bytes.len())].to_vec();
                random.extend((0..rng.random_range(0..200)).map(|_| rng.random::<u8>()));
                random
            }
            _ => bytes.clone(),
        };
        for _ in 0..rng.random_range(1..4) {
            if !random.is_empty() {
                let at = rng.random_range(0..random.len());
                random[at] = [0, 1, 0x7f, 0x80, 0xff, rng.random()][rng.random_range(0..6)];
            }
        }
        if let Some(first) = random.first_mut()
            && rng.random_bool(0.7)
        {
            *first = rng.random_range(1..=2);
        }
        if let Ok(decoded) = LvmtProof::decode(&random, random.len()) {
            assert_eq!(decoded.encode(), random, "one encoding for each proof");
        }
        if random != bytes {
            assert!(verify(&params, state.root(), &asked, &random).is_err());
        }
    }
}

#[test]
fn a_proof_in_parts_is_whole_once_all_parts_are_there() {
    let rng = &mut StdRng::seed_from_u64(4);
    let height = 3;
    let params = params(height);
    let states = states(rng, height, 300, 16);
    let state = &states[states.len() - 1];
    for count in [1, 3, 30] {
        let asked = some_keys(rng, 400, count);
        let whole = proof(state, &asked);
        let (nodes, bytes) = (4, whole.encode());
        let parts: Vec<_> = (0..nodes)
            .map(|node| {
                let mut part = whole.clone();
                let holes = part.entries.iter_mut().enumerate();
                holes.filter(|(at, _)| at % nodes != node).for_each(|(_, e)| e.quotients = None);
                let holes = part.trees.iter_mut().enumerate();
                holes
                    .filter(|(at, _)| (at + 1) % nodes != node)
                    .for_each(|(_, t)| t.siblings = None);
                part
            })
            .collect();
        let encoded: Vec<_> = parts.iter().map(LvmtProof::encode).collect();
        for (part, bytes) in parts.iter().zip(&encoded) {
            assert_eq!(LvmtProof::decode(bytes, 4 * bytes.len()).as_ref(), Ok(part));
            if !part.is_whole() {
                let shown = verify(&params, state.root(), &asked, bytes);
                assert!(matches!(shown, Err(ProofError::Missing { .. })), "{shown:?}");
                let combined = combine(std::slice::from_ref(bytes));
                assert!(matches!(combined, Err(ProofError::Missing { .. })), "{combined:?}");
            }
        }
        assert_eq!(combine(&encoded), Ok(bytes.clone()));
        let backwards: Vec<_> = encoded.iter().rev().chain(&encoded[..2]).collect();
        assert_eq!(combine(&backwards), Ok(bytes.clone()));
        let missing = parts[0].missing();
        let entries = (0..whole.entries.len()).filter(|at| at % nodes != 0);
        assert_eq!(missing.entries, entries.collect::<Vec<_>>());
        let blocks = whole.positions().into_keys().enumerate();
        let blocks = blocks.filter(|(at, _)| (at + 1) % nodes != 0).map(|(_, block)| block);
        assert_eq!(missing.blocks, blocks.collect::<Vec<_>>());

        // Parts of another state or for other keys do not fit, nor do contradictory parts.
        let old = proof(&states[states.len() - 3], &asked).encode();
        let other = proof(state, &some_keys(rng, 400, count + 1)).encode();
        let mut lie = whole.clone();
        lie.entries[0].quotients.as_mut().unwrap()[0][0] ^= 1;
        for other in [old, other, lie.encode()] {
            let combined = combine(&[&bytes, &other]);
            assert!(matches!(combined, Err(ProofError::Malformed { .. })), "{combined:?}");
        }
    }
    assert!(matches!(combine::<Vec<u8>>(&[]), Err(ProofError::Missing { .. })));
}

#[test]
fn the_format_has_not_changed() {
    let check = |state: &LvmtModel, asked: &[BackendKey]| {
        let bytes = proof(state, asked).encode();
        assert_eq!(verify(&params(1), state.root(), asked, &bytes), Ok(truth(state, asked)));
        (hex::encode(state.root()), bytes)
    };
    let hex = |lines: &str| -> Vec<u8> {
        hex::decode(lines.split_whitespace().collect::<String>()).unwrap()
    };
    let mut state = LvmtModel::new(1, 7);
    let (root, bytes) = check(&state, &[]);
    assert_eq!(root, "4808fb00f08d9f5c9ee25f119ab8ce3b25844927a4bce1c9c4938427780035e7");
    assert_eq!(bytes, hex(EMPTY));

    for block in 0..3u8 {
        let keys = (0..4 + u32::from(block)).map(key);
        state.block(&keys.map(|key| (key, Some(vec![block; 2].into()))).collect());
    }
    let (root, bytes) = check(&state, &[key(1)]);
    assert_eq!((root.as_str(), hex::encode(&bytes)), (ROOT, hex::encode(hex(PRESENT))));

    // Deeper, with absent keys: compared by digest.
    state.block(&(3..50).map(|n| (key(n), (n > 9).then(|| vec![9; 3].into()))).collect());
    let (_, bytes) = check(&state, &[0, 3, 9, 20, 1000].map(key));
    assert_eq!(hex::encode(hash::parts(&[&bytes])), MANY);
}

/// No keys in the empty state of height 1.
const EMPTY: &str =
    "01 01 00000000000000000000000000000000000000000000000000000000000000 40 00 00 00";

/// The root of the state in which `PRESENT` proves one key.
const ROOT: &str = "d16d2b1482ec15e9c07ff6cd5d31738f924d79be143e04a1bd5928a64d270a51";

/// The example of docs/formats/lvmt-proofs.md, part by part.
const PRESENT: &str = "
    01 01
    0eaec87fbe77e122bf1a644a3eff368afe44c457d1d7340a69c126bcb7f8fc0d
    07 03 01
    03 03 03 00
    6beb39e84ac4a47e1ff34dd335742619ab8629ab305bcd696095519ad8769522
    08
    05 02 0202 02 02
    06
    02a95483e7af0cab06cfdd8d688e3b270f4df000e94ca44c682e1a46302535ac
    7cd7ab43e1835b04758d3e37b5d2b03cf0d209ef7e51b156e61a71b39dd60bc3
    97d805725a27fc57a337ac65b0d956c77e7666243686da4c060033b724b0a160
    b9fd7382b7a6d4e11371902818e3b680498e5a4091c06fafb148d311d79b1979
";

/// BLAKE2b-256 of a longer proof.
const MANY: &str = "25fe539c55dfba80486ead85853a10031dcedfca12f26e8856092f3a937c6493";
