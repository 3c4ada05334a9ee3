//! Damaged files are detected and named, without a panic.

use super::{super::file::PAGE, *};
use retrie_state::StateError;
use std::fs;

/// Opens a run, reads all of it in every way, checks it, and returns all errors.
fn read_all(dir: &Path, info: &RunDescription, pairs: &PairMap) -> Vec<String> {
    let mut said = Vec::new();
    if let Err(error) = RunDescription::read(dir, &info.stem) {
        said.push(error.to_string());
    }
    let run = match Run::open(dir, info.clone()) {
        Ok(run) => run,
        Err(error) => {
            said.push(error.to_string());
            return said;
        }
    };
    let mut note = |error: Option<StateError>| said.extend(error.map(|error| error.to_string()));
    let count = info.source.pairs;
    for (n, (key, block)) in (0..).zip(pairs.keys()).step_by(7) {
        note(run.get(key, *block).err());
        note(run.floor(key, u64::MAX).err());
        note(run.may_hold(crate::hash::filter_key(key)).err());
        note(run.cursor(key, 0).and_then(|mut cursor| cursor.next().map(drop)).err());
        note(run.show(&[n..n + 1]).err());
        note(run.show_filter(&[n % info.source.filter_blocks]).err());
    }
    note(run.show(&[0..count]).err());
    let mut cursor = run.cursor_from_start();
    loop {
        match cursor.next() {
            Ok(None) => break,
            Ok(Some(_)) => {}
            Err(error) => {
                note(Some(error));
                break;
            }
        }
    }
    said.extend(faults(&run));
    said
}

#[test]
fn any_byte_changed_in_any_file_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let pairs = pairs(KeyPattern::Random, 1_500, 9);
    let info = write(dir.path(), "run", &ColeParams::default(), &pairs);
    assert_eq!(read_all(dir.path(), &info, &pairs), Vec::<String>::new());
    let mut rng = StdRng::seed_from_u64(1);
    for name in info.file_names() {
        let path = dir.path().join(&name);
        let whole = fs::read(&path).unwrap();
        let pages = whole.len() / PAGE;
        for n in 0..60 {
            // The first bytes, the last bytes, and random ones.
            let at = match n {
                0..8 => n,
                8..16 => whole.len() - 1 - (n - 8),
                16..32 => rng.random_range(0..pages) * PAGE + n - 16,
                _ => rng.random_range(0..whole.len()),
            };
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << rng.random_range(0..8);
            fs::write(&path, &damaged).unwrap();
            let said = read_all(dir.path(), &info, &pairs);
            assert!(!said.is_empty(), "{name}, byte {at}");
            for said in said {
                assert!(said.contains(&name), "{name}, byte {at}: {said}");
            }
        }
        fs::write(&path, &whole).unwrap();
    }
}

fn walk(run: &Run) -> PairMap {
    let mut pairs = PairMap::new();
    let mut cursor = run.cursor_from_start();
    while let Some(pair) = cursor.next().unwrap() {
        pairs.insert((pair.key.to_vec(), pair.block), pair.value.map(<[u8]>::to_vec));
    }
    pairs
}

/// With correct checksums nothing panics, and the check still finds the fault.
#[test]
fn forged_pages_are_noticed_too() {
    let dir = tempfile::tempdir().unwrap();
    let pairs = pairs(KeyPattern::Near, 900, 4);
    let info = write(dir.path(), "run", &ColeParams::default(), &pairs);
    let mut rng = StdRng::seed_from_u64(2);
    for name in info.file_names() {
        let path = dir.path().join(&name);
        let whole = fs::read(&path).unwrap();
        for n in 0..150 {
            let mut damaged = whole.clone();
            let page = rng.random_range(0..whole.len() / PAGE);
            let bytes = &mut damaged[page * PAGE..][..PAGE];
            let at = match n % 3 {
                0 => rng.random_range(0..16),
                1 => PAGE - 5 - rng.random_range(0..40),
                _ => rng.random_range(0..PAGE - 4),
            };
            bytes[at] = rng.random();
            let mut hasher = crc32fast::Hasher::new();
            hasher.update(&(page as u64).to_be_bytes());
            hasher.update(&bytes[..PAGE - 4]);
            bytes[PAGE - 4..].copy_from_slice(&hasher.finalize().to_be_bytes());
            fs::write(&path, &damaged).unwrap();
            if read_all(dir.path(), &info, &pairs).is_empty() {
                // The change hit padding, or gave a line that is as good.
                let run = Run::open(dir.path(), info.clone()).unwrap();
                assert!(walk(&run) == pairs, "{name}, page {page}, byte {at}");
                for ((key, block), value) in &pairs {
                    let got = run.get(key, *block).unwrap();
                    let got = got.map(|(block, value)| (block, value.map(|v| v.to_vec())));
                    assert_eq!(got, Some((*block, value.clone())));
                }
                let digests = run.filter_tree.end() as usize;
                let used = match &*name {
                    "run.merkle" => digests.saturating_sub(page * 127).min(127) * 32,
                    "run.filter" => {
                        let blocks = info.source.filter_blocks as usize;
                        blocks.saturating_sub(page * 63).min(63) * 64
                    }
                    _ => 0,
                };
                assert!(at >= used || damaged == whole, "{name}, page {page}, byte {at}");
            }
        }
        fs::write(&path, &whole).unwrap();
    }
}

#[test]
fn a_forged_value_does_not_pass_for_the_true_one() {
    let dir = tempfile::tempdir().unwrap();
    let params = ColeParams::default();
    let honest = pairs(KeyPattern::Consecutive, 2_000, 4);
    let mut forged = honest.clone();
    *forged.values_mut().nth(1_000).unwrap() = Some(b"much more".to_vec());
    let info = write(dir.path(), "run", &params, &honest);
    let other = tempfile::tempdir().unwrap();
    let other_info = write(other.path(), "run", &params, &forged);
    // The whole file of another run: its description differs.
    let values = dir.path().join("run.values");
    let whole = fs::read(&values).unwrap();
    let foreign = fs::read(other.path().join("run.values")).unwrap();
    fs::write(&values, &foreign).unwrap();
    let error = Run::open(dir.path(), info.clone()).unwrap_err().to_string();
    assert!(error.contains("run.values"), "{error}");
    // The honest description before the forged pairs.
    let mut mixed = foreign;
    mixed[..PAGE].copy_from_slice(&whole[..PAGE]);
    if other_info.value_pages == info.value_pages {
        fs::write(&values, &mixed).unwrap();
        let run = Run::open(dir.path(), info).unwrap();
        let error = run.show(&[1_000..1_001]).unwrap_err().to_string();
        assert!(error.contains("run.values") && error.contains("run.merkle"), "{error}");
        assert!(!faults(&run).is_empty());
    }
}

#[test]
fn missing_and_cut_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let pairs = pairs(KeyPattern::Random, 3_000, 2);
    let info = write(dir.path(), "run", &ColeParams::default(), &pairs);
    for name in info.file_names() {
        let path = dir.path().join(&name);
        let whole = fs::read(&path).unwrap();
        for len in [0, 1, whole.len() - 1, whole.len() - PAGE, whole.len() + PAGE] {
            let mut other = whole.clone();
            other.resize(len, 0);
            fs::write(&path, &other).unwrap();
            let error = Run::open(dir.path(), info.clone()).unwrap_err().to_string();
            assert!(error.contains(&name) && error.contains("bytes"), "{error}");
            if name.ends_with(".values") && len < PAGE {
                assert!(RunDescription::read(dir.path(), "run").is_err());
            }
        }
        fs::remove_file(&path).unwrap();
        let error = Run::open(dir.path(), info.clone()).unwrap_err().to_string();
        assert!(error.contains(&name) && error.contains("not there"), "{error}");
        fs::write(&path, &whole).unwrap();
    }
    assert!(Run::open(dir.path(), info).is_ok());
}
