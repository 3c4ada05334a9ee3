//! Feeds every decoder of the crate with mutations of valid input. A decoder may refuse an input,
//! but it must neither panic nor allocate more memory than the input accounts for.
//!
//! As a test, each decoder gets a few thousand inputs. `scripts/network/fuzz` runs them for a
//! chosen time, in a release build and under a memory limit.

use crate::{discovery, eth, rchk, rlpx, snap};
use alloy_rlp::{Encodable, Header};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use std::time::{Duration, Instant};

/// A decoder of bytes that remote nodes send.
pub(crate) struct FuzzDecoder {
    pub(crate) name: &'static str,
    /// Valid inputs, one of each kind.
    pub(crate) seeds: Vec<Vec<u8>>,
    /// Decodes the input. Returns whether it was accepted.
    pub(crate) run: fn(&[u8]) -> bool,
}

fn decoders() -> Vec<FuzzDecoder> {
    let mut all = discovery::fuzz();
    all.extend(eth::fuzz());
    all.extend(rchk::fuzz());
    all.extend(snap::fuzz());
    all.extend(rlpx::fuzz());
    all
}

/// Bytes that have a meaning in the formats.
const TELLING: &[u8] = &[
    0, 1, 0x7f, 0x80, 0x81, 0x83, 0xb7, 0xb8, 0xbf, 0xc0, 0xc1, 0xf7, 0xf8, 0xfb, 0xff, b',', b' ',
];

/// An RLP list or string.
#[derive(Clone, Debug)]
enum RlpItem {
    String(Vec<u8>),
    List(Vec<Self>),
}

impl RlpItem {
    /// Parses all of the bytes, down to `depth` nested lists. `None` if they are not RLP.
    fn parse(mut bytes: &[u8], depth: usize) -> Option<Vec<Self>> {
        let mut items = Vec::new();
        while !bytes.is_empty() {
            let header = Header::decode(&mut bytes).ok()?;
            let (content, rest) = bytes.split_at_checked(header.payload_length)?;
            bytes = rest;
            items.push(match header.list {
                true if depth > 0 => Self::List(Self::parse(content, depth - 1)?),
                true => return None,
                false => Self::String(content.to_vec()),
            });
        }
        Some(items)
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::String(bytes) => bytes.as_slice().encode(out),
            Self::List(items) => {
                let mut content = Vec::new();
                items.iter().for_each(|item| item.write(&mut content));
                Header { list: true, payload_length: content.len() }.encode(out);
                out.extend(content);
            }
        }
    }

    fn mutate(&mut self, rng: &mut StdRng) {
        match self {
            Self::List(items) if !items.is_empty() && rng.random_bool(0.8) => {
                let at = rng.random_range(0..items.len());
                match rng.random_range(0..12) {
                    0 => drop(items.remove(at)),
                    1 => items.insert(at, items[at].clone()),
                    2 => {
                        let other = rng.random_range(0..items.len());
                        items.swap(at, other);
                    }
                    3 => items[at] = Self::List(vec![items[at].clone()]),
                    4 => {
                        let mut bytes = Vec::new();
                        items[at].write(&mut bytes);
                        let most = 1 + (64 << 10) / bytes.len();
                        items.extend(vec![items[at].clone(); rng.random_range(1..=most)]);
                    }
                    5 => items[at] = Self::List(Vec::new()),
                    _ => items[at].mutate(rng),
                }
            }
            Self::List(items) => match rng.random_range(0..3) {
                0 => *items = Vec::new(),
                1 => items.push(Self::String(vec![rng.random()])),
                _ => *self = Self::String(Vec::new()),
            },
            Self::String(bytes) => match rng.random_range(0..8) {
                0 => *bytes = Vec::new(),
                1 => *bytes = vec![0xff; rng.random_range(1..40)],
                2 => bytes.insert(0, 0),
                3 => bytes.truncate(bytes.len() / 2),
                4 => *bytes = rng.random::<u64>().to_be_bytes().to_vec(),
                5 => *self = Self::List(vec![self.clone()]),
                6 => *bytes = vec![rng.random()],
                _ => mutate_bytes(bytes, rng),
            },
        }
    }
}

fn mutate_bytes(bytes: &mut Vec<u8>, rng: &mut StdRng) {
    for _ in 0..rng.random_range(1..5) {
        let at = rng.random_range(0..=bytes.len());
        let telling = *TELLING.choose(rng).unwrap();
        match rng.random_range(0..7) {
            0 if at < bytes.len() => bytes[at] ^= 1 << rng.random_range(0..8),
            1 if at < bytes.len() => bytes[at] = rng.random(),
            2 if at < bytes.len() => bytes[at] = telling,
            3 => bytes.insert(at, telling),
            4 => bytes.truncate(at),
            5 if at < bytes.len() => drop(bytes.remove(at)),
            6 => {
                let end = rng.random_range(at..=bytes.len());
                let part = bytes[at..end].to_vec();
                bytes.extend(part);
            }
            _ => {}
        }
    }
}

/// The next input. Most inputs that are RLP stay RLP. The first byte of an input is its kind.
fn next_input(seeds: &[Vec<u8>], rng: &mut StdRng) -> Vec<u8> {
    let mut input = seeds.choose(rng).unwrap().clone();
    let parsed = input.split_first().and_then(|(kind, rest)| {
        RlpItem::parse(rest, 12).filter(|items| !items.is_empty()).map(|items| (*kind, items))
    });
    match parsed {
        Some((kind, mut items)) if rng.random_bool(0.8) => {
            for _ in 0..rng.random_range(1..4) {
                let at = rng.random_range(0..items.len());
                items[at].mutate(rng);
            }
            let mut out = vec![kind];
            items.iter().for_each(|item| item.write(&mut out));
            if rng.random_bool(0.1) {
                mutate_bytes(&mut out, rng);
            }
            out
        }
        _ => {
            mutate_bytes(&mut input, rng);
            input
        }
    }
}

/// Feeds a decoder until `end` returns true. Returns the number of inputs and how many were
/// accepted.
fn feed(decoder: &FuzzDecoder, seed: u64, mut end: impl FnMut(u64) -> bool) -> (u64, u64) {
    for input in &decoder.seeds {
        assert!((decoder.run)(input), "{} refuses a valid input", decoder.name);
    }
    let mut rng = StdRng::seed_from_u64(seed);
    let (mut inputs, mut taken) = (0, 0);
    while !end(inputs) {
        let input = next_input(&decoder.seeds, &mut rng);
        let run = || (decoder.run)(&input);
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
            Ok(is_taken) => taken += u64::from(is_taken),
            Err(_) => panic!(
                "{} panics, seed {seed}, input {inputs}: {}",
                decoder.name,
                alloy_primitives::hex::encode(input)
            ),
        }
        inputs += 1;
    }
    (inputs, taken)
}

#[test]
fn no_decoder_panics() {
    for decoder in decoders() {
        let (inputs, taken) = feed(&decoder, 1, |inputs| inputs == 2000);
        assert!(taken < inputs, "{} takes everything", decoder.name);
    }
}

/// Environment: `RETRIE_FUZZ_DECODER` (default: all), `RETRIE_FUZZ_SECONDS` for each decoder
/// (default: 10) and `RETRIE_FUZZ_SEED` (default: 1).
#[test]
#[ignore = "runs for a chosen time: scripts/network/fuzz"]
fn fuzz() {
    let var = |name: &str| std::env::var(name).ok();
    let number = |name: &str, default: u64| {
        var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}: {text}")))
    };
    let (seconds, seed) = (number("RETRIE_FUZZ_SECONDS", 10), number("RETRIE_FUZZ_SEED", 1));
    let only = var("RETRIE_FUZZ_DECODER");
    let all = decoders();
    if let Some(only) = &only {
        let names: Vec<_> = all.iter().map(|decoder| decoder.name).collect();
        assert!(names.contains(&only.as_str()), "no decoder is called {only}; there are {names:?}");
    }
    for decoder in
        all.iter().filter(|decoder| only.as_ref().is_none_or(|only| only == decoder.name))
    {
        let start = Instant::now();
        let (inputs, taken) = feed(decoder, seed, |inputs| {
            inputs % 256 == 0 && start.elapsed() >= Duration::from_secs(seconds)
        });
        println!("{:<12} {inputs:>12} inputs, {taken:>12} taken, {seconds} s", decoder.name);
    }
}
