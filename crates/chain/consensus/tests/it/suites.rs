//! The blockchain tests of the public suites, as far as they can be checked without execution:
//! every block they accept passes all rules of this crate, and the ones they refuse for their
//! header, body or ommers are refused here.

use crate::common;

use std::{
    collections::{BTreeMap, HashMap},
    convert::Infallible,
};

use alloy_primitives::{B256, U256};
use alloy_rlp::Decodable;
use retrie_chainspec::{
    ChainSpec, ChainSpecParts, EthereumHardfork,
    blobs::{blob_params, blob_schedule},
    primitives::{Block, Header, SealedBlock, SealedHeader},
    test_networks::test_network,
};
use retrie_consensus::{
    ConsensusError, HeaderProvider, validate_body, validate_header, validate_header_against_parent,
    validate_merge, validate_ommers,
};
use serde_json::Value;

/// Blocks of one test by hash, with their total difficulty.
#[derive(Default)]
struct TestBlockTree(HashMap<B256, (SealedHeader, Vec<Header>, U256)>);

impl HeaderProvider for TestBlockTree {
    type Error = Infallible;

    fn header_and_ommers(
        &self,
        hash: B256,
    ) -> Result<Option<(SealedHeader, Vec<Header>)>, Infallible> {
        Ok(self.0.get(&hash).map(|(header, ommers, _)| (header.clone(), ommers.clone())))
    }
}

impl TestBlockTree {
    fn import(&mut self, spec: &ChainSpec, block: &SealedBlock) -> Result<(), ConsensusError> {
        let header = block.clone_sealed_header();
        let unknown = ConsensusError::UnknownAncestor { hash: header.parent_hash };
        let (parent, _, total_difficulty) = self.0.get(&header.parent_hash).ok_or(unknown)?;
        validate_header(spec, &header)?;
        validate_header_against_parent(spec, &header, parent)?;
        validate_merge(spec, &header, *total_difficulty)?;
        validate_body(spec, block)?;
        validate_ommers(spec, block, &*self)?;
        let total_difficulty = *total_difficulty + header.difficulty;
        self.0.insert(header.hash(), (header, block.body().ommers.clone(), total_difficulty));
        Ok(())
    }
}

fn spec(test: &Value, genesis: &SealedHeader) -> Option<ChainSpec> {
    let network = test_network(test["network"].as_str()?)?;
    let mut entries = BTreeMap::new();
    for (name, entry) in test["config"]["blobSchedule"].as_object().into_iter().flatten() {
        let number = |field: &str| entry[field].as_str().unwrap().parse::<U256>().unwrap().to();
        let params =
            blob_params(number("target"), number("max"), number("baseFeeUpdateFraction")).unwrap();
        entries.insert(name.parse::<EthereumHardfork>().unwrap(), params);
    }
    Some(ChainSpec::new(ChainSpecParts {
        name: "test".to_owned(),
        chain_id: 1,
        genesis: Default::default(),
        genesis_header: Some(genesis.clone_header()),
        blob_schedule: blob_schedule(|fork| network.activation_time(fork), &entries).unwrap(),
        forks: network.forks,
        deposit_contract: None,
        dao_fork: network.dao_fork,
    }))
}

#[derive(Default)]
struct SuiteOutcome {
    accepted: usize,
    refused: usize,
    /// Exceptions of blocks that pass without execution, with their count.
    left_to_execution: BTreeMap<String, usize>,
}

fn run(name: &str) -> Option<SuiteOutcome> {
    let data = common::data()?;
    let mut outcome = SuiteOutcome::default();
    for (path, content) in common::archive(&data, name) {
        if !path.ends_with(".json") {
            continue;
        }
        let file: Value = serde_json::from_slice(&content).unwrap();
        for (test_name, test) in file.as_object().unwrap() {
            // A few old files state the genesis header field by field only.
            let Some(rlp) = test["genesisRLP"].as_str() else { continue };
            let rlp = alloy_primitives::hex::decode(rlp).unwrap();
            let genesis = SealedBlock::seal_slow(Block::decode(&mut rlp.as_slice()).unwrap());
            let genesis = genesis.clone_sealed_header();
            let spec = spec(test, &genesis)
                .unwrap_or_else(|| panic!("{path} {test_name}: network {}", test["network"]));
            let mut tree = TestBlockTree::default();
            let difficulty = genesis.difficulty;
            tree.0.insert(genesis.hash(), (genesis, Vec::new(), difficulty));
            for (index, block) in test["blocks"].as_array().unwrap().iter().enumerate() {
                // Blocks to be refused have no decoded header beside them; older files do not
                // even name the reason.
                let exception = block.get("blockHeader").is_none().then(|| {
                    let fields = block.as_object().unwrap();
                    fields
                        .iter()
                        .find(|(key, _)| key.starts_with("expectException"))
                        .map_or("unnamed", |(_, value)| value.as_str().unwrap())
                        .to_owned()
                });
                let rlp = common::hex_of(&block["rlp"]);
                let decoded = alloy_rlp::decode_exact::<Block>(&rlp).map(SealedBlock::seal_slow);
                let result = match &decoded {
                    Ok(block) => tree.import(&spec, block).map_err(|error| error.to_string()),
                    Err(error) => Err(error.to_string()),
                };
                match (result, exception) {
                    (Ok(()), None) => outcome.accepted += 1,
                    (Err(_), Some(_)) => outcome.refused += 1,
                    (Ok(()), Some(exception)) => {
                        // Refused by execution only: nothing may build upon it.
                        tree.0.remove(&decoded.unwrap().hash());
                        *outcome.left_to_execution.entry(exception).or_default() += 1;
                    }
                    (Err(error), None) => panic!("{path} {test_name} block {index}: {error}"),
                }
            }
        }
    }
    Some(outcome)
}

/// Runs a suite and checks that invalid blocks that pass break rules of execution only.
fn check(suite: &str, at_least_accepted: usize, at_least_refused: usize, execution: &[&str]) {
    let Some(outcome) = run(suite) else { return };
    eprintln!("{suite}: {} accepted, {} refused", outcome.accepted, outcome.refused);
    assert!(outcome.accepted >= at_least_accepted, "{} accepted", outcome.accepted);
    assert!(outcome.refused >= at_least_refused, "{} refused", outcome.refused);
    for (exception, count) in &outcome.left_to_execution {
        assert!(
            exception.split('|').any(|one| execution.iter().any(|known| one.contains(known))),
            "{suite}: {count} blocks with {exception} passed"
        );
    }
}

/// `InvalidBlockNonce` is the proof-of-work seal, which this client does not check.
const OLD_NAMES: [&str; 6] = [
    "IntrinsicGas",
    "InvalidGasUsed",
    "InvalidReceiptsStateRoot",
    "InvalidStateRoot",
    "TooMuchGasUsed",
    "InvalidBlockNonce",
];

#[test]
fn ethereum_tests_agree_on_headers_bodies_and_ommers() {
    let execution =
        ["INVALID_GAS_USED", "INVALID_RECEIPTS_ROOT", "INVALID_STATE_ROOT", "INTRINSIC"];
    check("ethereum-tests-blockchain", 1000, 140, &execution);
}

#[test]
fn legacy_tests_up_to_cancun_agree_on_headers_bodies_and_ommers() {
    check("legacytests-cancun-blockchain", 3000, 500, &OLD_NAMES);
}

#[test]
fn legacy_tests_up_to_constantinople_agree_on_headers_bodies_and_ommers() {
    check("legacytests-constantinople-blockchain", 2000, 200, &OLD_NAMES);
}

#[test]
fn osaka_tests_agree_on_headers_and_bodies() {
    let execution = [
        "INVALID_DEPOSIT_EVENT_LAYOUT",
        "INVALID_REQUESTS",
        "SYSTEM_CONTRACT",
        "TransactionException",
    ];
    check("eest-bal-v5.7.0-osaka", 3000, 40, &execution);
}
