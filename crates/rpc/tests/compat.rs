//! The suite `rpc-compat` of execution-apis: its chain is imported, every `.io` file is replayed.
//!
//! An answer must be the expected one, field by field; of errors the code must be. Files marked
//! `speconly` ask only that the answer fits the schema of the method in `openrpc.json`.

mod common;

use common::{Node, mpt, post};
use retrie_chainspec::ChainSpec;
use retrie_rpc::Namespace;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Files whose answers differ, and why that is right or not yet otherwise.
const EXCEPTIONS: &[(&str, &str)] = &[];

/// The unpacked suite; `None` where there is no data. `RPC_COMPAT` names another folder than that of
/// the data, with the archive or the unpacked suite.
fn suite(dir: &Path) -> Option<PathBuf> {
    let data = std::env::var_os("RETRIE_DATA").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"),
        PathBuf::from,
    );
    let suites =
        std::env::var_os("RPC_COMPAT").map_or_else(|| data.join("conformance"), PathBuf::from);
    let archive = suites.join("rpc-compat.tar.zst");
    let Ok(file) = fs::File::open(&archive) else {
        let unpacked = suites.join("rpc-compat");
        if unpacked.is_dir() {
            return Some(unpacked);
        }
        let required = std::env::var("RETRIE_REQUIRE_DATA").is_ok_and(|value| value == "1");
        assert!(!required, "{} is missing", archive.display());
        eprintln!("skipped: no RETRIE_DATA");
        return None;
    };
    tar::Archive::new(zstd::Decoder::new(file).unwrap()).unpack(dir).unwrap();
    Some(dir.join("rpc-compat"))
}

/// One file: requests with the answers they shall have.
struct Case {
    name: String,
    spec_only: bool,
    exchanges: Vec<(String, Value)>,
}

impl Case {
    fn read(root: &Path, path: &Path) -> Self {
        let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
        let text = fs::read_to_string(path).unwrap();
        let spec_only = text.lines().any(|line| line.starts_with("// speconly:"));
        let requests = text.lines().filter_map(|line| line.strip_prefix(">> "));
        let answers = text.lines().filter_map(|line| line.strip_prefix("<< "));
        let exchanges = requests
            .zip(answers)
            .map(|(request, answer)| (request.into(), serde_json::from_str(answer).unwrap()))
            .collect();
        Self { name, spec_only, exchanges }
    }

    /// What is wrong with the answers, if something is.
    async fn run(&self, addr: SocketAddr, schemas: &BTreeMap<String, Value>) -> Option<String> {
        assert!(!self.exchanges.is_empty(), "{}: no requests", self.name);
        for (request, expected) in &self.exchanges {
            let answer = post(addr, request).await.json();
            let request: Value = serde_json::from_str(request).unwrap();
            let method = request["method"].as_str().unwrap();
            let wrong = if self.spec_only && expected.get("error").is_none() {
                against_schema(&answer, schemas.get(method))
            } else {
                difference("", expected, &answer)
            };
            if let Some(wrong) = wrong {
                return Some(format!("{method}: {wrong}"));
            }
        }
        None
    }
}

fn against_schema(answer: &Value, schema: Option<&Value>) -> Option<String> {
    let Some(result) = answer.get("result") else { return Some(format!("no result: {answer}")) };
    let validator = jsonschema::validator_for(schema?).unwrap();
    validator.iter_errors(result).next().map(|error| format!("{}: {error}", error.instance_path()))
}

/// The first difference between two answers. Error messages and their data may differ.
fn difference(path: &str, expected: &Value, got: &Value) -> Option<String> {
    match (expected, got) {
        (Value::Object(expected), Value::Object(got)) => {
            if path == "/error" {
                let codes = (&expected["code"], &got["code"]);
                return (codes.0 != codes.1).then(|| {
                    format!("code {} instead of {}: {}", codes.1, codes.0, got["message"])
                });
            }
            let keys = expected.keys().chain(got.keys());
            keys.into_iter().find_map(|key| {
                let path = format!("{path}/{key}");
                match (expected.get(key), got.get(key)) {
                    (Some(expected), Some(got)) => difference(&path, expected, got),
                    (Some(expected), None) => {
                        Some(format!("{path} is missing: {expected}; {got:?}"))
                    }
                    (None, _) => Some(format!("{path} should not be there: {}", got[key])),
                }
            })
        }
        (Value::Array(expected), Value::Array(got)) if expected.len() == got.len() => {
            let pairs = expected.iter().zip(got).enumerate();
            pairs.into_iter().find_map(|(at, (e, g))| difference(&format!("{path}/{at}"), e, g))
        }
        _ if expected == got => None,
        _ => Some(format!("{path}: {got} instead of {expected}")),
    }
}

fn cases(root: &Path) -> Vec<Case> {
    let mut files = Vec::new();
    for folder in fs::read_dir(root).unwrap() {
        let folder = folder.unwrap().path();
        if folder.is_dir() {
            files.extend(fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()));
        }
    }
    // What sends transactions changes the pool, so it comes last.
    let is_late = |path: &Path| {
        let path = path.to_string_lossy();
        let groups = ["eth_sendRawTransaction", "txpool_", "testing_"];
        groups.iter().position(|group| path.contains(group))
    };
    files.sort_by_key(|path| (is_late(path), path.clone()));
    files.iter().map(|path| Case::read(root, path)).collect()
}

#[tokio::test]
async fn every_file_of_rpc_compat_is_answered_as_expected() {
    let dir = tempfile::tempdir().unwrap();
    let Some(root) = suite(dir.path()) else { return };
    let genesis = fs::read_to_string(root.join("genesis.json")).unwrap();
    let spec = Arc::new(ChainSpec::from_genesis_json(&genesis).unwrap());
    let mut node = Node::with_file(&spec, mpt(), Some(&root.join("chain.rlp")));
    let head = node.live().head().hash();
    node.set_head(head, head, head).await;
    let mut config = node.config();
    config.http.as_mut().unwrap().apis.push(Namespace::Testing);
    let servers = node.serve(&config).await;
    let addr = servers.http_addr().unwrap();

    let openrpc: Value =
        serde_json::from_slice(&fs::read(root.join("openrpc.json")).unwrap()).unwrap();
    let schemas: BTreeMap<String, Value> = openrpc["methods"]
        .as_array()
        .unwrap()
        .iter()
        .map(|method| (method["name"].as_str().unwrap().into(), method["result"]["schema"].clone()))
        .collect();

    let cases = cases(&root);
    let mut groups: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    let (mut failed, mut unexpected) = (0, Vec::new());
    for case in &cases {
        let listed = EXCEPTIONS.iter().find(|(name, _)| *name == case.name);
        let wrong = case.run(addr, &schemas).await;
        let group = groups.entry(case.name.split('/').next().unwrap()).or_default();
        *(if wrong.is_none() { &mut group.0 } else { &mut group.1 }) += 1;
        failed += usize::from(wrong.is_some());
        match (wrong, listed) {
            (None, None) | (Some(_), Some(_)) => {}
            (Some(wrong), None) => {
                let wrong: String = wrong.chars().take(600).collect();
                unexpected.push(format!("{}: {wrong}", case.name));
            }
            (None, Some((name, _))) => unexpected.push(format!("{name} passes: strike it off")),
        }
    }
    for (group, (passed, failed)) in groups {
        println!("{group}: {passed} passed, {failed} failed");
    }
    println!("{} passed, {failed} failed", cases.len() - failed);
    assert!(unexpected.is_empty(), "{} unexpected:\n{}", unexpected.len(), unexpected.join("\n"));
}
