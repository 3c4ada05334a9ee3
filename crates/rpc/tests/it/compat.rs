//! The suite `rpc-compat` of execution-apis: imports its chain and replays every `.io` file.
//!
//! Each response must equal the expected one, field by field; of errors only the code must be
//! equal. For files marked `speconly` the response must only fit the method's schema in
//! `openrpc.json`; without a schema it must equal the response in the file.

use crate::common::{NodeFixture, mpt, post};
use retrie_chainspec::ChainSpec;
use retrie_rpc::ApiNamespace;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Files whose responses differ, and the reason.
const EXCEPTIONS: &[(&str, &str)] = &[];

/// The unpacked suite; `None` without test data. `RPC_COMPAT` names another folder that has the
/// archive or the unpacked suite.
fn suite(dir: &Path) -> Option<PathBuf> {
    let suites = match std::env::var_os("RPC_COMPAT") {
        Some(folder) => PathBuf::from(folder),
        None => retrie_state_testkit::data::find("conformance")?,
    };
    let archive = suites.join("rpc-compat.tar.zst");
    let Ok(file) = fs::File::open(&archive) else {
        let unpacked = suites.join("rpc-compat");
        assert!(unpacked.is_dir(), "{} is missing", archive.display());
        return Some(unpacked);
    };
    tar::Archive::new(zstd::Decoder::new(file).unwrap()).unpack(dir).unwrap();
    Some(dir.join("rpc-compat"))
}

/// One file: requests with their expected responses.
#[derive(Debug)]
struct CompatCase {
    name: String,
    spec_only: bool,
    exchanges: Vec<(Value, Value)>,
}

impl CompatCase {
    fn read(root: &Path, path: &Path) -> Self {
        let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
        let text = fs::read_to_string(path).unwrap();
        Self::parse(name, &text).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Every request must be followed by its response, and every line must have a known form.
    fn parse(name: String, text: &str) -> Result<Self, String> {
        let (mut exchanges, mut asked, mut spec_only) = (Vec::new(), None, false);
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        for (at, line) in lines {
            let wrong = |what: &str| format!("{name}, line {}: {what}", at + 1);
            let json = |json: &str| {
                serde_json::from_str::<Value>(json).map_err(|error| wrong(&error.to_string()))
            };
            match line.split_at_checked(3) {
                Some((">> ", request)) => {
                    if asked.replace(json(request)?).is_some() {
                        return Err(wrong("a request before the last one was answered"));
                    }
                }
                Some(("<< ", answer)) => match asked.take() {
                    Some(request) => exchanges.push((request, json(answer)?)),
                    None => return Err(wrong("an answer to no request")),
                },
                _ if line.starts_with("//") => spec_only |= line.starts_with("// speconly:"),
                _ => return Err(wrong("neither a request nor an answer nor a comment")),
            }
        }
        if asked.is_some() || exchanges.is_empty() {
            return Err(format!("{name}: a request without an answer, or none at all"));
        }
        Ok(Self { name, spec_only, exchanges })
    }

    /// The first wrong response, if any.
    async fn run(&self, addr: SocketAddr, schemas: &BTreeMap<String, Value>) -> Option<String> {
        for (request, expected) in &self.exchanges {
            let answer = post(addr, &request.to_string()).await.json();
            let method = request["method"].as_str().unwrap();
            if let Some(wrong) = self.wrong(schemas.get(method), expected, &answer) {
                return Some(format!("{method}: {wrong}"));
            }
        }
        None
    }

    fn wrong(&self, schema: Option<&Value>, expected: &Value, answer: &Value) -> Option<String> {
        match schema {
            Some(schema) if self.spec_only && expected.get("error").is_none() => {
                against_schema(answer, schema)
            }
            _ => difference("", expected, answer),
        }
    }
}

fn against_schema(answer: &Value, schema: &Value) -> Option<String> {
    let Some(result) = answer.get("result") else { return Some(format!("no result: {answer}")) };
    let validator = jsonschema::validator_for(schema).unwrap();
    validator.iter_errors(result).next().map(|error| format!("{}: {error}", error.instance_path()))
}

/// The first difference between two responses; error messages and data are ignored.
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

fn cases(root: &Path) -> Vec<CompatCase> {
    let mut files = Vec::new();
    for folder in fs::read_dir(root).unwrap() {
        let folder = folder.unwrap().path();
        if folder.is_dir() {
            files.extend(fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()));
        }
    }
    // Files that send transactions change the pool, so they come last.
    let is_late = |path: &Path| {
        let path = path.to_string_lossy();
        let groups = ["eth_sendRawTransaction", "txpool_", "testing_"];
        groups.iter().position(|group| path.contains(group))
    };
    files.sort_by_key(|path| (is_late(path), path.clone()));
    files.iter().map(|path| CompatCase::read(root, path)).collect()
}

#[test]
fn a_file_whose_requests_and_answers_are_not_paired_is_refused() {
    let (ask, answer) = (">> {\"id\":1}\n", "<< {\"id\":1}\n");
    let parse = |text: &str| CompatCase::parse("x.io".into(), text);
    let pairs = parse(&format!("// speconly: yes\n{ask}{answer}\n{ask}{answer}")).unwrap();
    assert_eq!((pairs.exchanges.len(), pairs.spec_only), (2, true));
    let unpaired = [
        ask.to_owned(),
        answer.to_owned(),
        format!("{ask}{answer}{ask}"),
        format!("{ask}{answer}{answer}"),
        format!("{ask}{ask}{answer}{answer}"),
        format!("{ask}{answer}what\n"),
        String::new(),
    ];
    for text in unpaired {
        let error = parse(&text).expect_err(&text);
        assert!(error.starts_with("x.io"), "{error}");
    }
}

#[test]
fn a_method_without_a_schema_is_held_against_the_recorded_answer() {
    let text = "// speconly: yes\n>> {\"method\":\"debug_traceCall\"}\n<< {\"result\":{\"gas\":1}}";
    let case = CompatCase::parse("x.io".into(), text).unwrap();
    let expected = &case.exchanges[0].1;
    let wrong = |schema, answer: Value| case.wrong(schema, expected, &answer);
    assert_eq!(wrong(None, json!({"result": {"gas": 1}})), None);
    assert!(wrong(None, json!({"result": "anything"})).is_some());
    let schema = json!({"type": "object"});
    assert_eq!(wrong(Some(&schema), json!({"result": {"gas": 2}})), None);
    assert!(wrong(Some(&schema), json!({"result": "anything"})).is_some());
}

#[tokio::test]
async fn every_file_of_rpc_compat_is_answered_as_expected() {
    let dir = tempfile::tempdir().unwrap();
    let Some(root) = suite(dir.path()) else { return };
    let genesis = fs::read_to_string(root.join("genesis.json")).unwrap();
    let spec = Arc::new(ChainSpec::from_genesis_json(&genesis).unwrap());
    let mut node = NodeFixture::with_file(&spec, mpt(), Some(&root.join("chain.rlp")));
    let head = node.live().head().hash();
    node.set_head(head, head, head).await;
    let mut config = node.config();
    config.http.as_mut().unwrap().apis.push(ApiNamespace::Testing);
    let servers = node.serve(&config).await;
    let addr = servers.http_addr().unwrap();

    let openrpc: Value =
        serde_json::from_slice(&fs::read(root.join("openrpc.json")).unwrap()).unwrap();
    let schemas: BTreeMap<String, Value> = openrpc["methods"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|method| {
            let schema = method["result"].get("schema")?;
            Some((method["name"].as_str().unwrap().into(), schema.clone()))
        })
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
