//! The pack of EIP-8297 and EIP-8347: folders with a part of its files, and cases that must fail.

use retrie_conformance::{ArchiveError, ExceptionList, SuiteReport, SuiteRunner, find, names};
use retrie_state_testkit::data;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::{
    fs,
    path::{Path, PathBuf},
};
use tempfile::TempDir;

/// The pack; `None`, after a message, if the test is skipped.
fn pack() -> Option<PathBuf> {
    data::find("pbt")
}

/// The lines of a file that `is_wanted` names.
fn lines(pack: &Path, name: &str, is_wanted: impl Fn(&Value) -> bool) -> Vec<Value> {
    let text = zstd::stream::decode_all(&fs::read(pack.join(name)).unwrap()[..]).unwrap();
    let all = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let all = all.map(|line| serde_json::from_slice::<Value>(line).unwrap());
    all.filter(is_wanted).collect()
}

fn write(folder: &Path, name: &str, lines: &[Value]) {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(folder.join(name), zstd::stream::encode_all(text.as_bytes(), 1).unwrap()).unwrap();
}

fn run(folder: &Path, suite: &str) -> Result<SuiteReport, ArchiveError> {
    let mut runner = SuiteRunner::new(ExceptionList::default());
    runner.threads = 1;
    runner.run(folder, find(suite).unwrap())
}

/// The reason why the only case of a suite fails.
fn failure(folder: &Path, suite: &str) -> String {
    let report = run(folder, suite).unwrap();
    assert_eq!((report.passed, report.failures.len()), (0, 1), "{:?}", report.failures);
    format!("{}: {}", report.failures[0].case, report.failures[0].reason)
}

/// A folder with one short history and the codes.
fn with_history(pack: &Path) -> (TempDir, Value) {
    let folder = TempDir::new().unwrap();
    let is_short = |line: &Value| line["id"] == "h0006";
    let history = lines(pack, "histories.jsonl.zst", is_short).remove(0);
    write(folder.path(), "histories.jsonl.zst", std::slice::from_ref(&history));
    fs::copy(pack.join("codes.json.zst"), folder.path().join("codes.json.zst")).unwrap();
    (folder, history)
}

#[test]
fn a_folder_with_some_of_the_files_has_their_suites() {
    let Some(pack) = pack() else { return };
    let (folder, _) = with_history(&pack);
    assert_eq!(names(folder.path()).unwrap(), ["pbt-histories"]);
    assert_eq!(run(folder.path(), "pbt-histories").unwrap().passed, 1);
    let anchor = lines(&pack, "migration.jsonl.zst", |line| line["id"] == "h0006");
    write(folder.path(), "migration.jsonl.zst", &anchor);
    fs::create_dir(folder.path().join("public")).unwrap();
    let all = ["pbt-histories", "pbt-migration", "pbt-public"];
    assert_eq!(names(folder.path()).unwrap(), all);
    assert_eq!(run(folder.path(), "pbt-migration").unwrap().passed, 1);
    let nothing = run(folder.path(), "pbt-public").unwrap();
    assert!(nothing.failures[0].reason.contains("no tests"));
    assert!(matches!(run(folder.path(), "pbt-states"), Err(ArchiveError::Io { .. })));
}

#[test]
fn a_history_with_another_root_count_or_code_fails() {
    let Some(pack) = pack() else { return };
    let (folder, history) = with_history(&pack);
    let last = history["blocks"].as_array().unwrap().len() - 1;
    let fails = |change: &dyn Fn(&mut Value), what: &[&str]| {
        let mut line = history.clone();
        change(&mut line);
        write(folder.path(), "histories.jsonl.zst", &[line]);
        let said = failure(folder.path(), "pbt-histories");
        for part in what {
            assert!(said.contains(part), "`{part}` is not in: {said}");
        }
    };
    let block = format!("block {last}");
    let zero = format!("0x{}", "00".repeat(32));
    fails(&|line| line["blocks"][last]["root"] = json!(zero), &["h0006", &block, "root"]);
    fails(&|line| line["blocks"][last]["leaves"] = json!(7), &[&block, "leaves", "expected 7"]);
    fails(&|line| line["blocks"][0]["storageClears"] = json!("x"), &["not a test"]);
    fails(&|line| line["blocks"][0]["other"] = json!(1), &["other"]);
    fails(&|line| line["blocks"] = json!(7), &["not a test"]);
    write(folder.path(), "histories.jsonl.zst", &[history]);
    fs::remove_file(folder.path().join("codes.json.zst")).unwrap();
    assert!(failure(folder.path(), "pbt-histories").contains("is not given"));
    fs::write(folder.path().join("codes.json.zst"), "x").unwrap();
    assert!(matches!(run(folder.path(), "pbt-histories"), Err(ArchiveError::Damaged { .. })));
    let text = zstd::stream::encode_all(&b"{\n"[..], 1).unwrap();
    fs::remove_file(folder.path().join("codes.json.zst")).unwrap();
    fs::write(folder.path().join("histories.jsonl.zst"), text).unwrap();
    assert!(failure(folder.path(), "pbt-histories").contains("line 1: the line is not JSON"));
}

#[test]
fn files_that_differ_from_the_written_ones_fail() {
    let Some(pack) = pack() else { return };
    let (folder, _) = with_history(&pack);
    let anchor = lines(&pack, "migration.jsonl.zst", |line| line["id"] == "h0006").remove(0);
    let fails = |change: &dyn Fn(&mut Value), what: &str| {
        let mut line = anchor.clone();
        change(&mut line);
        write(folder.path(), "migration.jsonl.zst", &[line]);
        let said = failure(folder.path(), "pbt-migration");
        assert!(said.contains(what), "`{what}` is not in: {said}");
    };
    let zero = json!(format!("0x{}", "00".repeat(32)));
    fails(&|line| line["pbtRoot"] = zero.clone(), "the root is");
    fails(&|line| line["mptStateRoot"] = zero.clone(), "the check refuses it");
    fails(&|line| line["preimageDigest"] = zero.clone(), "the digest of the preimage file");
    fails(&|line| line["tagged"]["digest"] = zero.clone(), "the digest of the snapshot (tagged)");
    fails(&|line| line["counts"]["bytes"] = json!(3), "the length of the snapshot (counts)");
    fails(&|line| line["rlp"]["hex"] = json!("0x00"), "the snapshot (rlp) differs at byte 0");
    fails(&|line| line["id"] = json!("h9"), "h9 is not there");

    // Right files among the faulty ones, and a fault that is another one.
    let mut faults = lines(&pack, "negative.jsonl.zst", |line| line["base"] == "h0006");
    assert!(faults.len() > 20);
    write(folder.path(), "negative.jsonl.zst", &faults);
    assert_eq!(run(folder.path(), "pbt-faults").unwrap().passed, faults.len() as u64);
    let mut fault = faults.remove(0);
    fault["fault"] = json!("snapshot cut");
    write(folder.path(), "negative.jsonl.zst", std::slice::from_ref(&fault));
    assert!(failure(folder.path(), "pbt-faults").contains("expected Truncated"));
    fault["snapshot"] = anchor["rlp"]["hex"].clone();
    fault["preimages"] = anchor["preimages"].clone();
    write(folder.path(), "negative.jsonl.zst", &[fault]);
    assert!(failure(folder.path(), "pbt-faults").contains("are accepted"));
}

#[test]
fn states_and_vectors_with_another_root_fail() {
    let Some(pack) = pack() else { return };
    let root = TempDir::new().unwrap();
    let folder = root.path().join("pack");
    fs::create_dir(&folder).unwrap();
    let ids = ["prestate/46147/pre", "witness/1/post"];
    let mut states = lines(&pack, "real.jsonl.zst", |line| ids.iter().any(|id| line["id"] == *id));
    write(&folder, "real.jsonl.zst", &states);
    assert!(matches!(run(&folder, "pbt-states"), Err(ArchiveError::Io { .. })), "no sources");
    for source in states.iter().map(|line| line["source"].as_str().unwrap()) {
        let (from, to) = (pack.join("../mainnet").join(source), root.path().join("mainnet"));
        let to = to.join(source);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(from, to).unwrap();
    }
    assert_eq!(run(&folder, "pbt-states").unwrap().passed, states.len() as u64);
    let mut state = states.remove(0);
    state["leaves"] = json!(1);
    write(&folder, "real.jsonl.zst", std::slice::from_ref(&state));
    assert!(failure(&folder, "pbt-states").contains("the number of leaves"));
    state["state"] = json!("other");
    write(&folder, "real.jsonl.zst", &[state]);
    assert!(failure(&folder, "pbt-states").contains("no state `other`"));

    let public = folder.join("public");
    fs::create_dir(&public).unwrap();
    let vectors = r#"{"trie_vectors": [{"name": "empty", "entries": [], "root": "ROOT"}]}"#;
    let file = public.join("geth_eip8297_vectors.json");
    fs::write(&file, vectors.replace("ROOT", &format!("0x{}", "00".repeat(32)))).unwrap();
    assert_eq!(run(&folder, "pbt-public").unwrap().passed, 1);
    fs::write(&file, vectors.replace("ROOT", &format!("0x{}", "01".repeat(32)))).unwrap();
    let said = failure(&folder, "pbt-public");
    assert!(said.contains("trie_vectors/empty: the root is"), "{said}");
    fs::rename(&file, public.join("other.json")).unwrap();
    assert!(failure(&folder, "pbt-public").contains("no vectors of this name"));
}

#[test]
fn checksums_of_the_pack_are_compared() {
    let Some(pack) = pack() else { return };
    let (folder, _) = with_history(&pack);
    let sum = |name: &str| {
        let bytes = fs::read(folder.path().join(name)).unwrap();
        alloy_primitives::hex::encode(Sha256::digest(bytes))
    };
    let sums = folder.path().join("SHA256SUMS");
    let [histories, codes] = ["histories.jsonl.zst", "codes.json.zst"];
    let right = format!("{}  ./{histories}\n{}  ./{codes}\n", sum(histories), sum(codes));
    fs::write(&sums, &right).unwrap();
    assert_eq!(run(folder.path(), "pbt-histories").unwrap().passed, 1);
    fs::write(&sums, right.replace(&sum(codes), &sum(histories))).unwrap();
    let wrong = run(folder.path(), "pbt-histories");
    assert!(matches!(wrong, Err(ArchiveError::Checksum { .. })));
    fs::write(&sums, format!("{right}{}  ./negative.jsonl.zst\n", sum(codes))).unwrap();
    assert_eq!(names(folder.path()).unwrap(), ["pbt-faults", "pbt-histories"]);
    assert!(run(folder.path(), "pbt-faults").is_err(), "a listed file is missing");
}
