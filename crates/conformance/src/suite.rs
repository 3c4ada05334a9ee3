//! The suites that are known here, and how each is run.

use crate::{
    archive::TestFile,
    basics,
    blockchain::{self, BadBlocks},
    engine,
    format::{Ran, Verdict},
    p2p, precompiles, state,
    worker::Worker,
};
use serde_json::value::RawValue;

/// A suite of the conformance data.
#[derive(Debug)]
pub struct Suite {
    /// Its name: that of its archive or folder, or `engine:` and that, if its blocks go through the
    /// Engine API.
    pub name: &'static str,
    /// What its files are.
    pub(crate) kind: Kind,
    /// What its failures mean.
    pub gate: Gate,
}

/// What failures mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Every case must pass.
    Enforced,
    /// Not run here, for this reason.
    NotRun(&'static str),
}

/// What the files of a suite are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Blockchain(BadBlocks),
    /// Blockchain tests as payloads.
    Engine(BadBlocks),
    /// Payloads as they stand.
    Payloads,
    State,
    Basics,
    Precompiles,
    Chain,
    /// Calls of the Engine API that make a chain.
    Calls,
    Other,
}

const fn suite(name: &'static str, kind: Kind, gate: Gate) -> Suite {
    Suite { name, kind, gate }
}

const BLOCKS: Kind = Kind::Blockchain(BadBlocks::Named);
const OLD_BLOCKS: Kind = Kind::Blockchain(BadBlocks::MaybeSilent);
const PAYLOADS: Kind = Kind::Engine(BadBlocks::Named);
const DEVNET: Gate = Gate::NotRun("Amsterdam as of a devnet that no release follows");

/// All suites.
pub const SUITES: &[Suite] = &[
    suite("eest-v5.4.0-blockchain", BLOCKS, Gate::Enforced),
    suite("eest-v5.4.0-blockchain-static", BLOCKS, Gate::Enforced),
    suite("eest-v5.4.0-state", Kind::State, Gate::Enforced),
    suite("eest-v5.4.0-state-static", Kind::State, Gate::Enforced),
    suite("eest-bal-v5.7.0-osaka", BLOCKS, Gate::Enforced),
    suite("eest-bal-v5.7.0-oldforks", BLOCKS, Gate::Enforced),
    suite("ethereum-tests-blockchain", BLOCKS, Gate::Enforced),
    suite("ethereum-tests-basics", Kind::Basics, Gate::Enforced),
    suite("legacytests-cancun-blockchain", BLOCKS, Gate::Enforced),
    suite("legacytests-constantinople-blockchain", OLD_BLOCKS, Gate::Enforced),
    suite("legacytests-constantinople-state", Kind::State, Gate::Enforced),
    suite("geth-precompiles", Kind::Precompiles, Gate::Enforced),
    suite("p2p", Kind::Chain, Gate::Enforced),
    suite("eest-amsterdam-refilled", BLOCKS, Gate::Enforced),
    suite("eest-amsterdam-refilled-ported", BLOCKS, Gate::Enforced),
    suite("gen-amsterdam", BLOCKS, Gate::Enforced),
    suite("eest-benchmark-engine", Kind::Payloads, Gate::Enforced),
    suite("engine:eest-v5.4.0-blockchain", PAYLOADS, Gate::Enforced),
    suite("engine:eest-v5.4.0-blockchain-static", PAYLOADS, Gate::Enforced),
    suite("engine:eest-bal-v5.7.0-osaka", PAYLOADS, Gate::Enforced),
    suite("engine:eest-bal-v5.7.0-oldforks", PAYLOADS, Gate::Enforced),
    suite("engine:ethereum-tests-blockchain", PAYLOADS, Gate::Enforced),
    suite("engine:legacytests-cancun-blockchain", PAYLOADS, Gate::Enforced),
    suite("engine:p2p", Kind::Calls, Gate::Enforced),
    suite("engine:eest-amsterdam-refilled", PAYLOADS, Gate::Enforced),
    suite("engine:eest-amsterdam-refilled-ported", PAYLOADS, Gate::Enforced),
    suite("engine:gen-amsterdam", PAYLOADS, Gate::Enforced),
    suite("eest-bal-v5.7.0-amsterdam", Kind::Other, DEVNET),
    suite("eest-bal-v5.7.0-amsterdam-ported", Kind::Other, DEVNET),
    suite("eest-zkevm-v0.3.3-witness", Kind::Other, DEVNET),
    suite(
        "legacytests-vm",
        Kind::Other,
        Gate::NotRun(
            "one call frame without a transaction and without inner calls; state tests hold the same programs",
        ),
    ),
    suite("rpc-compat", Kind::Other, Gate::NotRun("needs JSON-RPC")),
    suite("graphql", Kind::Other, Gate::NotRun("there is no GraphQL")),
];

/// The suite with this name.
pub fn find(name: &str) -> Option<&'static Suite> {
    SUITES.iter().find(|suite| suite.name == name)
}

/// What suites that go through the Engine API begin with.
const ENGINE: &str = "engine:";

impl Suite {
    /// Name of its archive or folder.
    pub fn archive(&self) -> &'static str {
        self.name.strip_prefix(ENGINE).unwrap_or(self.name)
    }

    /// Whether a file of the suite holds tests.
    pub(crate) fn has_tests(&self, path: &str) -> bool {
        match self.kind {
            Kind::Chain => path.ends_with("chain.rlp") && p2p::is_run(path),
            Kind::Calls => p2p::has_calls(path),
            _ => path.ends_with(".json"),
        }
    }

    /// Runs one case: a member of the JSON file `path`. `None` if it is none of this suite.
    pub(crate) fn run_case(&self, path: &str, json: &RawValue, worker: &Worker) -> Option<Ran> {
        let verdict = match self.kind {
            Kind::Engine(bad_blocks) => return engine::run(json, bad_blocks, worker),
            Kind::Payloads => return Some(engine::run_payloads(json, worker)),
            Kind::Blockchain(bad_blocks) => blockchain::run(json, bad_blocks, worker),
            Kind::State => state::run(json, worker),
            Kind::Basics => basics::run(path, json, worker),
            Kind::Precompiles => precompiles::run(path, json, worker),
            Kind::Chain | Kind::Calls | Kind::Other => Err("not a file of tests".into()),
        };
        Some(verdict.into())
    }

    /// Runs a file that is one case as a whole; `None` if it holds cases of its own.
    pub(crate) fn run_file(
        &self,
        file: &TestFile,
        all: &[TestFile],
        worker: &Worker,
    ) -> Option<Verdict> {
        match self.kind {
            Kind::Chain => Some(p2p::run(file, all, worker)),
            Kind::Calls => Some(p2p::run_calls(file, all, worker)),
            _ => None,
        }
    }
}
