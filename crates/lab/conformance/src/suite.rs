//! The known suites, and how each is run.

use crate::{
    archive::TestFile,
    basics,
    blockchain::{self, BadBlocks},
    engine,
    format::{CaseResult, TestVerdict},
    p2p,
    pack::PackSuite,
    pbt, precompiles, state, witness,
    worker::TestWorker,
};
use serde_json::value::RawValue;

/// A suite of the conformance data.
#[derive(Debug)]
pub struct TestSuite {
    /// The name of its archive or folder; with the prefix `engine:` if its blocks go through the
    /// Engine API, `witness:` if the witness of each is checked, too.
    pub name: &'static str,
    /// The kind of its files.
    pub(crate) kind: SuiteKind,
    /// Whether it is run.
    pub gate: SuiteGate,
}

/// Whether a suite is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuiteGate {
    /// Every case must pass.
    Enforced,
    /// The suite is not run, for this reason.
    NotRun(&'static str),
}

/// The kind of files in a suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SuiteKind {
    Blockchain(BadBlocks),
    /// Blockchain tests, converted to payloads.
    Engine(BadBlocks),
    /// The same, and the witness of each block is checked.
    Witnesses(BadBlocks),
    /// Blocks with witnesses, to be filled again.
    Refilled,
    /// Payloads, sent as they are.
    Payloads,
    State,
    Basics,
    Precompiles,
    Chain,
    /// Calls of the Engine API that build a chain.
    Calls,
    /// Cases of the pack of EIP-8297.
    Pack(PackSuite),
    Other,
}

const fn suite(name: &'static str, kind: SuiteKind, gate: SuiteGate) -> TestSuite {
    TestSuite { name, kind, gate }
}

const fn pack(suite: PackSuite) -> TestSuite {
    TestSuite { name: suite.name(), kind: SuiteKind::Pack(suite), gate: SuiteGate::Enforced }
}

const BLOCKS: SuiteKind = SuiteKind::Blockchain(BadBlocks::Named);
const OLD_BLOCKS: SuiteKind = SuiteKind::Blockchain(BadBlocks::MaybeSilent);
const PAYLOADS: SuiteKind = SuiteKind::Engine(BadBlocks::Named);
const WITNESSES: SuiteKind = SuiteKind::Witnesses(BadBlocks::Named);
const DEVNET: SuiteGate = SuiteGate::NotRun("Amsterdam as of a devnet that no release follows");

/// All suites.
pub const SUITES: &[TestSuite] = &[
    suite("eest-v5.4.0-blockchain", BLOCKS, SuiteGate::Enforced),
    suite("eest-v5.4.0-blockchain-static", BLOCKS, SuiteGate::Enforced),
    suite("eest-v5.4.0-state", SuiteKind::State, SuiteGate::Enforced),
    suite("eest-v5.4.0-state-static", SuiteKind::State, SuiteGate::Enforced),
    suite("eest-bal-v5.7.0-osaka", BLOCKS, SuiteGate::Enforced),
    suite("eest-bal-v5.7.0-oldforks", BLOCKS, SuiteGate::Enforced),
    suite("ethereum-tests-blockchain", BLOCKS, SuiteGate::Enforced),
    suite("ethereum-tests-basics", SuiteKind::Basics, SuiteGate::Enforced),
    suite("legacytests-cancun-blockchain", BLOCKS, SuiteGate::Enforced),
    suite("legacytests-constantinople-blockchain", OLD_BLOCKS, SuiteGate::Enforced),
    suite("legacytests-constantinople-state", SuiteKind::State, SuiteGate::Enforced),
    suite("geth-precompiles", SuiteKind::Precompiles, SuiteGate::Enforced),
    suite("p2p", SuiteKind::Chain, SuiteGate::Enforced),
    suite("eest-amsterdam-refilled", BLOCKS, SuiteGate::Enforced),
    suite("eest-amsterdam-refilled-ported", BLOCKS, SuiteGate::Enforced),
    suite("gen-amsterdam", BLOCKS, SuiteGate::Enforced),
    suite("eest-benchmark-engine", SuiteKind::Payloads, SuiteGate::Enforced),
    suite("engine:eest-v5.4.0-blockchain", PAYLOADS, SuiteGate::Enforced),
    suite("engine:eest-v5.4.0-blockchain-static", PAYLOADS, SuiteGate::Enforced),
    suite("engine:eest-bal-v5.7.0-osaka", PAYLOADS, SuiteGate::Enforced),
    suite("engine:eest-bal-v5.7.0-oldforks", PAYLOADS, SuiteGate::Enforced),
    suite("engine:ethereum-tests-blockchain", PAYLOADS, SuiteGate::Enforced),
    suite("engine:legacytests-cancun-blockchain", PAYLOADS, SuiteGate::Enforced),
    suite("engine:p2p", SuiteKind::Calls, SuiteGate::Enforced),
    suite("engine:eest-amsterdam-refilled", PAYLOADS, SuiteGate::Enforced),
    suite("engine:eest-amsterdam-refilled-ported", PAYLOADS, SuiteGate::Enforced),
    suite("engine:gen-amsterdam", PAYLOADS, SuiteGate::Enforced),
    suite("witness:eest-v5.4.0-blockchain", WITNESSES, SuiteGate::Enforced),
    suite("witness:eest-bal-v5.7.0-osaka", WITNESSES, SuiteGate::Enforced),
    suite("witness:eest-amsterdam-refilled", WITNESSES, SuiteGate::Enforced),
    suite("witness:eest-amsterdam-refilled-ported", WITNESSES, SuiteGate::Enforced),
    suite("witness:gen-amsterdam", WITNESSES, SuiteGate::Enforced),
    suite("eest-zkevm-v0.3.3-witness", SuiteKind::Refilled, SuiteGate::Enforced),
    pack(PackSuite::Histories),
    pack(PackSuite::States),
    pack(PackSuite::Migration),
    pack(PackSuite::Faults),
    pack(PackSuite::Public),
    suite("eest-bal-v5.7.0-amsterdam", SuiteKind::Other, DEVNET),
    suite("eest-bal-v5.7.0-amsterdam-ported", SuiteKind::Other, DEVNET),
    suite(
        "legacytests-vm",
        SuiteKind::Other,
        SuiteGate::NotRun(
            "one call frame without a transaction and without inner calls; state tests hold the same programs",
        ),
    ),
    suite("rpc-compat", SuiteKind::Other, SuiteGate::NotRun("needs JSON-RPC")),
    suite("graphql", SuiteKind::Other, SuiteGate::NotRun("needs GraphQL")),
];

/// The suite with this name.
pub fn find(name: &str) -> Option<&'static TestSuite> {
    SUITES.iter().find(|suite| suite.name == name)
}

/// Prefixes of suites that go through the Engine API.
const PREFIXES: [&str; 2] = ["engine:", "witness:"];

impl TestSuite {
    /// Name of its archive or folder.
    pub fn archive(&self) -> &'static str {
        PREFIXES.iter().find_map(|prefix| self.name.strip_prefix(prefix)).unwrap_or(self.name)
    }

    /// Whether a file of the suite has tests.
    pub(crate) fn has_tests(&self, path: &str) -> bool {
        match self.kind {
            SuiteKind::Chain => path.ends_with("chain.rlp") && p2p::is_tested_chain(path),
            SuiteKind::Calls => p2p::has_calls(path),
            SuiteKind::Pack(suite) => suite.is_case(path),
            _ => path.ends_with(".json"),
        }
    }

    /// Runs one case: a member of the JSON file `path`. `None` if the case is not of this suite.
    pub(crate) fn run_case(
        &self,
        path: &str,
        json: &RawValue,
        worker: &TestWorker,
    ) -> Option<CaseResult> {
        let verdict = match self.kind {
            SuiteKind::Engine(bad_blocks) => return engine::run(json, bad_blocks, worker),
            SuiteKind::Witnesses(bad_blocks) => return witness::run(json, bad_blocks, worker),
            SuiteKind::Refilled => witness::run_refilled(json, worker),
            SuiteKind::Payloads => return Some(engine::run_payloads(json, worker)),
            SuiteKind::Blockchain(bad_blocks) => blockchain::run(json, bad_blocks, worker),
            SuiteKind::State => state::run(json, worker),
            SuiteKind::Basics => basics::run(path, json, worker),
            SuiteKind::Precompiles => precompiles::run(path, json, worker),
            SuiteKind::Chain | SuiteKind::Calls | SuiteKind::Pack(_) | SuiteKind::Other => {
                Err("not a file of tests".into())
            }
        };
        Some(verdict.into())
    }

    /// Runs a file that is one case as a whole; `None` if the file has several cases.
    pub(crate) fn run_file(
        &self,
        file: &TestFile,
        all: &[TestFile],
        worker: &TestWorker,
    ) -> Option<TestVerdict> {
        match self.kind {
            SuiteKind::Chain => Some(p2p::run(file, all, worker)),
            SuiteKind::Calls => Some(p2p::run_calls(file, all, worker)),
            SuiteKind::Pack(suite) => Some(pbt::run(suite, file, all, worker)),
            _ => None,
        }
    }

    /// Whether each file is one case of many, of which a sample may take some.
    pub(crate) const fn has_case_files(&self) -> bool {
        matches!(self.kind, SuiteKind::Pack(_))
    }
}
