//! Preimage files (EIP-8347), made by hand and real.

use alloy_primitives::{Address, B256, Bytes, keccak256};
use retrie_sources::{FilePreimage, PreimageFile, PreimageWriter, SourceError, SourcePlace};
use retrie_state_testkit::data;
use std::path::{Path, PathBuf};

fn read(path: &Path) -> Result<Vec<FilePreimage>, SourceError> {
    PreimageFile::open(path).unwrap().collect()
}

/// Writes what was read.
fn write(path: &Path, preimages: &[FilePreimage]) -> (u64, B256) {
    let mut writer = PreimageWriter::create(path).unwrap();
    let is_slot = |one: &FilePreimage| matches!(one, FilePreimage::Slot(..));
    for (at, preimage) in preimages.iter().enumerate() {
        match preimage {
            FilePreimage::Account(_, address) => {
                let slots = preimages[at + 1..].iter().take_while(|one| is_slot(one)).count();
                writer.account(address, slots as u32).unwrap();
            }
            FilePreimage::Slot(_, slot) => writer.slot(slot).unwrap(),
        }
    }
    assert!(!path.exists(), "the file has its name when it is whole");
    writer.finish().unwrap()
}

/// Two accounts in the order of their hashes, the first with three slots.
fn small() -> (Vec<u8>, Vec<FilePreimage>) {
    let mut accounts = [Address::repeat_byte(1), Address::repeat_byte(2)];
    accounts.sort_by_key(|key| keccak256(key));
    let mut slots = [1, 2, 3].map(B256::with_last_byte);
    slots.sort_by_key(|key| keccak256(key));
    let mut bytes = [&accounts[0][..], &[0, 0, 0, 3]].concat();
    slots.iter().for_each(|slot| bytes.extend_from_slice(slot.as_slice()));
    bytes.extend_from_slice(&[&accounts[1][..], &[0; 4]].concat());
    let account = |address: Address| FilePreimage::Account(keccak256(address), address);
    let mut all = vec![account(accounts[0])];
    all.extend(slots.map(|slot| FilePreimage::Slot(keccak256(slot), slot)));
    all.push(account(accounts[1]));
    (bytes, all)
}

#[test]
fn preimages_are_read_and_written_byte_by_byte() {
    let folder = tempfile::tempdir().unwrap();
    let (bytes, expected) = small();
    let path = folder.path().join("file");
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(read(&path).unwrap(), expected);
    for name in ["copy", "copy.gz"] {
        let copy = folder.path().join(name);
        assert_eq!(write(&copy, &expected), (bytes.len() as u64, keccak256(&bytes)));
        assert_eq!(read(&copy).unwrap(), expected);
    }
    assert_eq!(std::fs::read(folder.path().join("copy")).unwrap(), bytes);
    std::fs::write(&path, []).unwrap();
    assert_eq!(read(&path).unwrap(), []);
}

#[test]
fn wrong_preimage_files_are_refused_with_the_place() {
    let folder = tempfile::tempdir().unwrap();
    let (bytes, whole) = small();
    let refused = |bytes: &[u8]| {
        let path = folder.path().join("file");
        std::fs::write(&path, bytes).unwrap();
        let mut file = PreimageFile::open(&path).unwrap();
        let before: Vec<_> = file.by_ref().map_while(Result::ok).collect();
        assert!(before.iter().all(|one| whole.contains(one)) && file.next().is_none());
        read(&path).unwrap_err()
    };
    // Ends within a record. Where one ends, the file is a shorter, right one.
    for len in (1..bytes.len()).filter(|len| *len != 24 + 3 * 32) {
        let error = refused(&bytes[..len]);
        assert!(error.to_string().contains("truncated"), "{len}: {error}");
        let index = u64::from(len > 24 + 3 * 32);
        assert!(matches!(error.place, SourcePlace::Account { index: at, .. } if at == index));
    }
    let (first, second) = bytes.split_at(24 + 3 * 32);
    let swapped = [&first[..24], &first[56..88], &first[24..56], &first[88..], second].concat();
    for wrong in [
        [second, first].concat(),
        [&bytes[..], second].concat(),
        swapped,
        [&first[..56], &first[24..56], &first[88..], second].concat(),
    ] {
        let error = refused(&wrong).to_string();
        assert!(error.contains("ascending order of their hashes"), "{error}");
    }
    let mut many = bytes.clone();
    many[20..24].fill(0xff);
    assert!(refused(&many).to_string().contains(", account 0 at byte "), "{}", refused(&many));
    assert!(PreimageFile::open(folder.path().join("none")).is_err());
}

fn lines(name: &str) -> Option<Vec<serde_json::Value>> {
    let file: PathBuf = data::find("pbt")?.join(name);
    let text = zstd::decode_all(std::fs::File::open(file).unwrap()).unwrap();
    let lines = std::str::from_utf8(&text).unwrap().lines();
    Some(lines.map(|line| serde_json::from_str(line).unwrap()).collect())
}

fn bytes_of(line: &serde_json::Value) -> Option<Bytes> {
    serde_json::from_value(line.get("preimages")?.clone()).unwrap()
}

#[test]
fn preimage_files_of_migration_vectors_are_read_and_written() {
    let Some(lines) = lines("migration.jsonl.zst") else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let mut seen = 0;
    for line in &lines {
        let Some(bytes) = bytes_of(line) else { continue };
        std::fs::write(&path, &bytes).unwrap();
        let preimages = read(&path).unwrap();
        let accounts = preimages.iter().filter(|one| matches!(one, FilePreimage::Account(..)));
        assert_eq!(Some(accounts.count() as u64), line["accounts"].as_u64(), "{}", line["id"]);
        let copy = folder.path().join(format!("copy-{seen}"));
        let (len, digest) = write(&copy, &preimages);
        assert_eq!(Some(len), line["preimageBytes"].as_u64());
        assert_eq!(digest.to_string(), line["preimageDigest"].as_str().unwrap());
        assert_eq!(std::fs::read(&copy).unwrap(), bytes);
        seen += 1;
    }
    assert!(seen > 20, "{seen}");
}

/// Faults that the bytes alone show. The others are right files of another state.
#[test]
fn faults_of_negative_vectors_are_refused() {
    let Some(lines) = lines("negative.jsonl.zst") else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let mut seen = 0;
    for line in &lines {
        let Some(bytes) = bytes_of(line) else { continue };
        std::fs::write(&path, bytes).unwrap();
        let fault = line["fault"].as_str().unwrap();
        let is_seen = [
            "preimage trailing byte",
            "preimage record twice",
            "preimages sorted by address",
            "preimage slots sorted by slot",
        ];
        assert_eq!(read(&path).is_err(), is_seen.contains(&fault), "{} {fault}", line["base"]);
        seen += usize::from(is_seen.contains(&fault));
    }
    assert!(seen > 15, "{seen}");
}
