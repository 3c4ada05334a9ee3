//! Prints speeds and sizes; asserts none of them.

use super::{
    super::pair::{CurrentPair, EncodedPair},
    *,
};
use crate::hash;
use std::hint::black_box;

/// CPU time of this thread, so that other processes hardly matter.
struct CpuTimer(u64);

impl CpuTimer {
    fn start() -> Self {
        Self(Self::now())
    }

    fn now() -> u64 {
        let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        stat.split(' ').next().unwrap().parse().unwrap()
    }

    fn seconds(&self) -> f64 {
        (Self::now() - self.0) as f64 / 1e9
    }
}

/// Slots and accounts as on a chain: 4 of 5 keys are slots, values of slots are short, a tenth of
/// the keys has many versions.
fn chain_like(count: usize) -> Vec<(Vec<u8>, u64, Option<Vec<u8>>)> {
    let mut rng = StdRng::seed_from_u64(1);
    let mut keys: Vec<Vec<u8>> = Vec::new();
    while keys.len() < count / 2 {
        let address: [u8; 20] = rng.random();
        let mut account = vec![0];
        account.extend(address);
        keys.push(account.clone());
        for _ in 0..rng.random_range(0..9) {
            account[0] = 1;
            keys.push([&account[..], &rng.random::<[u8; 32]>()].concat());
        }
    }
    keys.sort_unstable();
    let mut pairs = Vec::new();
    for key in keys {
        let mut block = rng.random_range(0..10_000_000);
        let versions = if rng.random_bool(0.1) { rng.random_range(1..20) } else { 1 };
        let mut bytes: Vec<u8> = match key.len() {
            21 => [&[9, 1, 5][..], &rng.random::<[u8; 9]>()].concat(),
            _ => (0..rng.random_range(1..20)).map(|_| rng.random()).collect(),
        };
        for _ in 0..versions {
            if let Some(last) = bytes.last_mut() {
                *last = rng.random();
            }
            pairs.push((key.clone(), block, rng.random_bool(0.97).then(|| bytes.clone())));
            block += rng.random_range(1..100_000);
        }
    }
    pairs
}

#[test]
#[ignore = "prints speeds and sizes"]
fn speeds_and_sizes() {
    let dir = tempfile::tempdir().unwrap();
    let pairs = chain_like(2_000_000);
    let count = pairs.len() as f64;
    let start = CpuTimer::start();
    let mut run = RunBuilder::new(dir.path(), "run", &ColeParams::default()).unwrap();
    for (key, block, value) in &pairs {
        run.push(key, *block, value.as_deref(), None).unwrap();
    }
    let pushed = start.seconds();
    let info = run.finish().unwrap();
    let built = start.seconds();
    println!("build: {:.2} M pairs/s ({:.2} s to finish)", count / built / 1e6, built - pushed);
    let run = Run::open(dir.path(), info).unwrap();
    let raw: usize = pairs
        .iter()
        .map(|(key, _, value)| key.len() + 8 + value.as_ref().map_or(0, Vec::len))
        .sum();
    // The size of further versions, and their size if they had another key and value.
    let (mut close, mut alone, mut before) = (Vec::new(), 0, CurrentPair::default());
    for pair in pairs.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
        let value = pair[1].2.as_deref();
        before.set(&pair[0].0, pair[0].1, pair[0].2.as_deref());
        EncodedPair::write(&mut close, &before, &pair[1].0, pair[1].1, value);
        let mut whole = Vec::new();
        before.set(&[&pair[0].0[..], &[0]].concat(), pair[0].1, None);
        EncodedPair::write(&mut whole, &before, &pair[1].0, pair[1].1, value);
        alone += whole.len();
    }
    let versions = pairs.windows(2).filter(|pair| pair[0].0 == pair[1].0).count();
    println!("{} pairs, {versions} of them further versions", pairs.len());
    println!("plain: {:.1} bytes/pair", raw as f64 / count);
    for (name, pages) in
        ["values", "index", "merkle", "filter"].iter().zip(run.description().pages())
    {
        println!("{name}: {:.2} bytes/pair", (pages * 4096) as f64 / count);
    }
    println!(
        "further versions: {:.1} bytes each, without compression against the last {:.1}",
        close.len() as f64 / versions as f64,
        alone as f64 / versions as f64
    );

    let mut rng = StdRng::seed_from_u64(2);
    let picks: Vec<_> = (0..400_000).map(|_| &pairs[rng.random_range(0..pairs.len())]).collect();
    for round in ["first", "second"] {
        run.values.reads.store(0, std::sync::atomic::Ordering::Relaxed);
        let start = CpuTimer::start();
        for (key, ..) in &picks {
            black_box(run.get(key, u64::MAX).unwrap().unwrap());
        }
        let reads = run.values.reads.load(std::sync::atomic::Ordering::Relaxed);
        println!(
            "get, {round} round: {:.0} ns, {:.2} pages",
            1e9 * start.seconds() / picks.len() as f64,
            reads as f64 / picks.len() as f64
        );
    }
    let start = CpuTimer::start();
    for (key, ..) in &picks {
        black_box(super::super::model::number(key, u64::MAX));
        black_box(run.guess(key, u64::MAX).unwrap());
    }
    println!("  of it the index: {:.0} ns", 1e9 * start.seconds() / picks.len() as f64);
    let start = CpuTimer::start();
    let hashes: Vec<_> = picks.iter().map(|(key, ..)| hash::filter_key(key)).collect();
    println!("hash: {:.0} ns", 1e9 * start.seconds() / picks.len() as f64);
    let start = CpuTimer::start();
    for hash in &hashes {
        black_box(run.may_hold(*hash).unwrap());
    }
    println!("filter: {:.0} ns", 1e9 * start.seconds() / picks.len() as f64);
    let start = CpuTimer::start();
    let mut cursor = run.cursor_from_start();
    while cursor.advance().unwrap() {
        black_box(cursor.pair());
    }
    println!("cursor: {:.1} M pairs/s", count / start.seconds() / 1e6);
    let start = CpuTimer::start();
    for _ in 0..1000 {
        let at = rng.random_range(0..pairs.len() as u64 - 2);
        black_box(run.show(&[at..at + 2]).unwrap());
    }
    println!("show: {:.1} us", 1e3 * start.seconds());
    let start = CpuTimer::start();
    assert_eq!(faults(&run), Vec::<String>::new());
    println!("check: {:.1} s", start.seconds());
}
