//! Truncation and bit flips anywhere must give typed errors or unchanged content, never a panic.

use std::{fs, path::Path};

use crate::common::{Era1File, Xorshift64, chain, encode_all, gunzip, gzip, mainnet_data};
use alloy_primitives::U256;
use retrie_chainspec::primitives::Block;
use retrie_sources::{
    Bundle, Era1Reader, RlpReader, SourceError, SourceErrorKind as Kind, verify_era1,
};

const MUTATIONS: usize = 400;

/// Reads a file of block RLP made of `bytes`.
fn read(dir: &Path, bytes: &[u8]) -> Result<Vec<Block>, SourceError> {
    let path = dir.join("damaged.rlp");
    fs::write(&path, bytes).unwrap();
    RlpReader::open(path)?.map(|item| item.map(|b| b.block)).collect()
}

/// Some real blocks if the data is available, otherwise synthetic ones.
fn blocks() -> Vec<Block> {
    match mainnet_data() {
        Some(data) => RlpReader::open(data.join("chain/mainnet-16384-20999.rlp.gz"))
            .unwrap()
            .take(12)
            .map(|b| b.unwrap().block)
            .chain(chain(1, 12, 6))
            .collect(),
        None => chain(1, 24, 12),
    }
}

#[test]
fn plain_rlp_cut_anywhere_is_truncated_or_shorter_by_whole_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let blocks = blocks();
    let bytes = encode_all(&blocks);
    let mut ends = vec![0];
    for block in &blocks {
        ends.push(ends.last().unwrap() + alloy_rlp::encode(block).len());
    }
    let mut cuts: Vec<usize> = (0..bytes.len()).step_by(97).collect();
    // Around every boundary: list header, its length bytes, first and last byte of the payload.
    cuts.extend(ends.iter().flat_map(|e| e.saturating_sub(2)..(e + 5).min(bytes.len())));
    for cut in cuts {
        match read(dir.path(), &bytes[..cut]) {
            Ok(read) => assert_eq!(ends[read.len()], cut),
            Err(error) if cut == 0 => assert!(matches!(*error.kind, Kind::NoBlocks)),
            Err(error) => assert!(matches!(*error.kind, Kind::Truncated { .. }), "{cut}: {error}"),
        }
    }
}

#[test]
fn mutated_plain_rlp_is_an_error_or_decodes_to_exactly_its_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = encode_all(&blocks());
    let mut rng = Xorshift64(0x1234_5678_9abc_def1);
    let mut errors = 0;
    for _ in 0..MUTATIONS {
        let mutated = rng.mutate(&bytes);
        match read(dir.path(), &mutated) {
            // Plain RLP has no checksum: a changed field is another block, with another hash.
            Ok(read) => assert!(encode_all(&read) == mutated, "decoded leniently"),
            Err(error) => {
                errors += 1;
                assert!(!matches!(*error.kind, Kind::Io { .. }), "{error}");
            }
        }
    }
    assert!(errors > MUTATIONS / 8, "only {errors} mutations were noticed");
}

#[test]
fn gzipped_rlp_cut_or_mutated_anywhere_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let blocks = blocks();
    let bytes = gzip(&encode_all(&blocks));
    for cut in (0..bytes.len()).step_by(31).chain(bytes.len() - 9..bytes.len()) {
        let error = read(dir.path(), &bytes[..cut]).unwrap_err();
        let typed =
            matches!(*error.kind, Kind::Truncated { .. } | Kind::NoBlocks | Kind::NotABlock { .. });
        assert!(typed, "{cut}: {error}");
    }
    let mut rng = Xorshift64(77);
    for i in 0..MUTATIONS {
        let mutated = rng.mutate(&bytes);
        // Only changes of gzip header fields without content (time, system, hints) may pass.
        match read(dir.path(), &mutated) {
            Ok(read) => assert!(read == blocks, "mutation {i} changed a block unnoticed"),
            Err(error) => assert!(!matches!(*error.kind, Kind::Io { .. }), "{error}"),
        }
    }
}

#[test]
fn checksum_mismatch_of_gzip_is_reported_as_damage() {
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = gzip(&encode_all(&chain(1, 3, 9)));
    let crc = bytes.len() - 8;
    bytes[crc] ^= 1;
    let error = read(dir.path(), &bytes).unwrap_err();
    assert!(matches!(*error.kind, Kind::Gzip(_)), "{error}");
}

#[test]
fn era1_cut_or_mutated_anywhere_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("damaged.era1");
    let blocks = chain(0, 24, u64::MAX);
    let bytes = Era1File::of(&blocks, U256::ZERO);
    let read = || -> Result<Vec<_>, SourceError> {
        verify_era1(&path)?;
        Era1Reader::open(&path)?
            .map(|b| b.map(|b| (b.block, b.receipts, b.total_difficulty)))
            .collect()
    };
    fs::write(&path, &bytes).unwrap();
    let original = read().unwrap();
    for cut in (0..bytes.len()).step_by(53).chain(bytes.len() - 20..bytes.len()) {
        fs::write(&path, &bytes[..cut]).unwrap();
        let error = read().unwrap_err();
        assert!(!matches!(*error.kind, Kind::Io { .. }), "{cut}: {error}");
    }
    let mut rng = Xorshift64(4242);
    for i in 0..MUTATIONS {
        let mutated = rng.mutate(&bytes);
        fs::write(&path, &mutated).unwrap();
        match read() {
            // Snappy can encode the same bytes in two ways (a copy within a sequence of zeros).
            Ok(read) => assert!(read == original, "mutation {i} changed a block unnoticed"),
            Err(error) => assert!(!matches!(*error.kind, Kind::Io { .. }), "{error}"),
        }
    }
}

#[test]
fn mutated_bundles_give_typed_errors() {
    let Some(data) = mainnet_data() else { return };
    for (name, seed) in [
        ("witness/1.json.gz", 1),
        ("witness/21429992.json.gz", 2),
        ("prestate/46147.json.gz", 3),
        ("prestate/2462997.json.gz", 4),
        ("prestate/19910734.json.gz", 5),
        ("prestate/1796867.json.gz", 6),
    ] {
        let json = gunzip(&fs::read(data.join(name)).unwrap());
        Bundle::parse(name, &json).unwrap();
        let mut rng = Xorshift64(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        let mut errors = 0;
        for _ in 0..MUTATIONS / 4 {
            if let Err(error) = Bundle::parse(name, &rng.mutate(&json)) {
                errors += 1;
                assert_eq!(error.file, Path::new(name));
                assert!(!matches!(*error.kind, Kind::Io { .. }), "{error}");
            }
        }
        // No hash inside the bundle covers trie nodes and plain state; everything else is covered.
        assert!(errors > MUTATIONS / 16, "{name}: only {errors} mutations were noticed");
        for cut in (0..json.len()).step_by(json.len() / 40) {
            assert!(Bundle::parse(name, &json[..cut]).is_err());
        }
    }

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("1.json.gz");
    let packed = fs::read(data.join("witness/1.json.gz")).unwrap();
    let mut rng = Xorshift64(99);
    for _ in 0..MUTATIONS / 4 {
        fs::write(&path, rng.mutate(&packed)).unwrap();
        if let Ok(bundle) = Bundle::load(&path) {
            assert_eq!(bundle.number, 1);
        }
    }
}

#[test]
fn each_contradiction_in_a_bundle_names_its_member() {
    let Some(data) = mainnet_data() else { return };
    let load = |name: &str| -> serde_json::Value {
        serde_json::from_slice(&gunzip(&fs::read(data.join(name)).unwrap())).unwrap()
    };
    let check = |base: &serde_json::Value, change: &dyn Fn(&mut serde_json::Value), place: &str| {
        let mut changed = base.clone();
        change(&mut changed);
        let json = serde_json::to_vec(&changed).unwrap();
        let error = Bundle::parse("b.json", &json).unwrap_err().to_string();
        assert!(error.starts_with(&format!("b.json, member `{place}")), "{place}: {error}");
    };
    let zero = serde_json::json!(alloy_primitives::B256::ZERO);

    let witness = load("witness/9069000.json.gz");
    check(&witness, &|b| b["number"] = 1.into(), "number");
    check(&witness, &|b| b["txs"] = 1.into(), "txs");
    check(&witness, &|b| b["gasUsed"] = 1.into(), "gasUsed");
    check(&witness, &|b| b["hash"] = zero.clone(), "block");
    check(&witness, &|b| b["hash"] = "0x12".into(), "hash");
    check(&witness, &|b| b["preStateRoot"] = zero.clone(), "preStateRoot");
    check(&witness, &|b| b["postStateRoot"] = zero.clone(), "postStateRoot");
    check(&witness, &|b| b["headers"] = serde_json::json!([]), "headers");
    check(&witness, &|b| b["headers"][3] = b["headers"][2].clone(), "headers[3]");
    check(&witness, &|b| b["headers"][0] = "0xc0".into(), "headers[0]");
    check(&witness, &|b| b["codes"][2] = "0xzz".into(), "codes");
    check(&witness, &|b| b["pre"] = serde_json::json!({"0x12": null}), "pre");
    check(&witness, &|b| drop(b.as_object_mut().unwrap().remove("fork")), "fork");

    let prestate = load("prestate/7280000.json.gz");
    check(&prestate, &|b| drop(b["senders"].as_array_mut().unwrap().pop()), "senders");
    check(&prestate, &|b| b["header"] = "0xc0".into(), "header");
    check(&prestate, &|b| b["transactions"][5] = "0x05".into(), "transactions[5]");
    check(&prestate, &|b| b["transactions"].as_array_mut().unwrap().swap(0, 1), "block");
    check(
        &prestate,
        &|b| {
            b["block"] = serde_json::Value::Null;
            b["transactions"].as_array_mut().unwrap().swap(0, 1);
        },
        "transactions",
    );
    check(&prestate, &|b| b["uncleHashes"] = serde_json::json!([zero]), "block");
    check(&prestate, &|b| b["blockHashes"]["7279999"] = zero.clone(), "blockHashes.7279999");
    check(&prestate, &|b| b["blockHashes"]["7279743"] = zero.clone(), "blockHashes.7279743");
    check(&prestate, &|b| b["blockHashes"]["7280000"] = zero.clone(), "blockHashes.7280000");
    check(
        &prestate,
        &|b| b["codes"].as_object_mut().unwrap().values_mut().for_each(|c| *c = "0x00".into()),
        "codes.0x",
    );
    check(&prestate, &|b| b["pre"] = serde_json::Value::Null, "pre");

    // With ommers the block is null; then the list of their hashes must not be empty.
    let ommers = load("prestate/1796867.json.gz");
    check(&ommers, &|b| b["uncleHashes"] = serde_json::json!([]), "uncleHashes");
    let shanghai = load("prestate/19910734.json.gz");
    check(&shanghai, &|b| b["withdrawals"][0]["amountGwei"] = 1.into(), "block");
}
