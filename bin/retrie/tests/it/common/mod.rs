//! Shared by the tests: running the program, and its test data.
#![allow(dead_code, unreachable_pub, missing_docs)]

use retrie_chainspec::primitives::Block;
use retrie_db::{ChainRead, DatabaseEnv, OpenOptions};
use retrie_pipeline::testkit::{TestChain, TestRules, write_blocks};
use serde_json::Value;
use std::{
    ffi::OsStr,
    io::{Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
};
use tempfile::TempDir;

/// Hash of mainnet block 600.
pub const MAINNET_600: &str = "0x2b24005caaa44c607ac59ae72da2d5ce6aac2eda821f730e635b937a4d5107ee";
/// Hash of mainnet block 20,999, the last of the data.
pub const MAINNET_20999: &str =
    "0x6e8f7e79e57d9664121a72b6481cc7c6cf0e47e98753a2a0740d4aec9733494a";

/// The program under test: this build, or the one that `RETRIE_BIN` names.
pub fn program() -> PathBuf {
    let other = std::env::var_os("RETRIE_BIN").map(PathBuf::from);
    other.unwrap_or_else(|| env!("CARGO_BIN_EXE_retrie").into())
}

/// A command line of the program.
pub fn retrie<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(program());
    command.args(args).env_remove("RUST_LOG").env_remove("RUST_BACKTRACE").stdin(Stdio::null());
    command
}

/// Flags with small limits for this backend, so that it flushes, folds and merges every few blocks.
pub fn small_flags(name: &str) -> Vec<String> {
    let word = |(long, value): &(&str, &str)| match value.is_empty() {
        true => format!("--{long}"),
        false => format!("--{long}={value}"),
    };
    retrie_backends::find(name).unwrap().small_flags.iter().map(word).collect()
}

/// Every backend with these flags, in the form of `--state-backend`.
pub fn backends() -> Vec<String> {
    let with_flags = |name| [vec![String::from(name)], small_flags(name)].concat().join(" ");
    retrie_backends::names().into_iter().map(with_flags).collect()
}

/// The same, with `--referee mpt` for backends without Ethereum's roots.
pub fn checked_backends() -> Vec<String> {
    let refereed = |(backend, line): (&retrie_backends::BackendDescriptor, String)| {
        let has_root = backend.profile().ethereum_root;
        if has_root { line } else { format!("{line} --referee mpt") }
    };
    retrie_backends::all().zip(backends()).map(refereed).collect()
}

/// Splits a command line at blanks; paths of the tests have none.
pub fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// Runs a command that must succeed; returns its stdout.
pub fn succeeds(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{command:?}\n{stderr}");
    assert!(!stderr.contains("error") && !stderr.contains("panicked"), "{command:?}\n{stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that must fail: exit code 1, and one line on stderr, which is returned.
pub fn fails(command: &mut Command) -> String {
    let output = command.arg("--quiet").output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{command:?}\n{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{command:?}\n{stderr}");
    let line = stderr.trim_end();
    assert!(!line.contains("panicked"), "{line}");
    line.strip_prefix("error: ").unwrap_or_else(|| panic!("{line}")).to_owned()
}

/// The same; the line must contain every text of `what`.
pub fn fails_saying(command: &mut Command, what: &[&str]) -> String {
    let line = fails(command);
    for part in what {
        assert!(line.contains(part), "`{part}` is not in: {line}");
    }
    line
}

/// Runs a command that clap must refuse: exit code 2, and every text of `what` on stderr.
pub fn misused_saying(command: &mut Command, what: &[&str]) {
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{command:?}\n{stderr}");
    for part in what {
        assert!(stderr.contains(part), "`{part}` is not in: {stderr}");
    }
}

/// A temporary folder for one test, with the files of a small chain if needed.
pub struct TestFolder {
    pub dir: TempDir,
}

impl TestFolder {
    pub fn new() -> Self {
        Self { dir: TempDir::new().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A path in the folder, as an argument.
    pub fn at(&self, name: &str) -> String {
        let path = self.path(name).into_os_string().into_string().unwrap();
        assert!(!path.contains(' '), "{path}");
        path
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        std::fs::write(self.path(name), bytes).unwrap();
        self.at(name)
    }

    pub fn json(&self, name: &str) -> Value {
        serde_json::from_slice(&std::fs::read(self.path(name)).unwrap()).unwrap()
    }

    /// Writes `genesis.json` and `chain.rlp` of a straight chain.
    pub fn with_chain(rules: TestRules, blocks: u64) -> (Self, Vec<Block>) {
        Self::with_blocks_of(test_chain(rules), blocks)
    }

    /// The same of another chain.
    pub fn with_blocks_of(mut chain: TestChain, blocks: u64) -> (Self, Vec<Block>) {
        let scene = Self::new();
        let genesis = chain.genesis();
        let tip = *chain.branch(genesis, blocks, 12, 0).last().unwrap();
        let blocks = chain.path(genesis, tip);
        scene.write("genesis.json", &chain.genesis_json);
        write_blocks(&scene.path("chain.rlp"), &blocks);
        (scene, blocks)
    }

    /// Runs `retrie import` of files in the folder into its datadir `data`, with more arguments.
    pub fn import(&self, files: &str, more: &str) -> Command {
        let mut command = retrie(["import", "--chain", &self.at("genesis.json")]);
        command.args(["--datadir", &self.at("data")]).args(words(more));
        command.args(words(files).into_iter().map(|file| self.at(file)));
        command
    }

    /// Number and root of the datadir's latest state, after any command.
    pub fn head(&self, data: &str) -> (u64, String) {
        self.head_of(data, "")
    }

    /// The same with more arguments.
    pub fn head_of(&self, data: &str, more: &str) -> (u64, String) {
        let mut stats = retrie(["db", "stats", "--datadir", &self.at(data), "--json", "-"]);
        stats.args(words(more));
        let stats: Value = serde_json::from_str(&succeeds(&mut stats)).unwrap();
        let state = &stats["state"];
        (state["block"].as_u64().unwrap(), state["root"].as_str().unwrap().to_owned())
    }

    /// Number of the head, read while another process creates the datadir or writes to it.
    pub fn head_beside(&self, data: &str) -> Option<u64> {
        let db = DatabaseEnv::open(self.path(data), &OpenOptions::read_only()).ok()?;
        Some(db.begin_read().ok()?.tip().ok()??.number)
    }
}

pub fn test_chain(rules: TestRules) -> TestChain {
    TestChain::new(rules, Arc::new(retrie_storage_mpt::Mpt::default()))
}

/// The mainnet data; if it is missing, prints that and returns `None`.
pub fn mainnet() -> Option<PathBuf> {
    retrie_state_testkit::data::find("mainnet")
}

/// Block files 0..=20,999, in order.
pub fn mainnet_blocks(mainnet: &Path) -> Vec<PathBuf> {
    ["mainnet-00000-5ec1ffb8.era1", "mainnet-00001-a5364e9a.era1", "mainnet-16384-20999.rlp.gz"]
        .map(|name| mainnet.join("chain").join(name))
        .to_vec()
}

/// The keys of a JSON object, sorted.
pub fn keys(object: &Value) -> Vec<&str> {
    let mut keys: Vec<_> = object.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

pub fn gunzip(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).unwrap();
    flate2::read::MultiGzDecoder::new(file).read_to_end(&mut bytes).unwrap();
    bytes
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    writer.write_all(bytes).unwrap();
    writer.finish().unwrap()
}

/// Sends a signal by its name.
pub fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
}
