//! Difficulty against the public difficulty tests of ethereum/tests.

use crate::common;

use alloy_primitives::{B256, U256};
use retrie_chainspec::{
    ChainSpec, ChainSpecParts, primitives::Header, test_networks::test_network,
};
use retrie_consensus::next_difficulty;
use serde_json::Value;

fn spec(network: &str) -> ChainSpec {
    ChainSpec::new(ChainSpecParts {
        name: network.to_owned(),
        chain_id: 1,
        genesis: Default::default(),
        genesis_header: None,
        forks: test_network(network).unwrap().forks,
        blob_schedule: Default::default(),
        deposit_contract: None,
        dao_fork: None,
    })
}

fn number(value: &Value) -> U256 {
    value.as_str().unwrap().parse().unwrap()
}

/// Runs one case; `with_ommers` says what `parentUncles` means.
fn check(name: &str, spec: &ChainSpec, case: &Value, with_ommers: bool) {
    let parent = Header {
        number: number(&case["currentBlockNumber"]).to::<u64>() - 1,
        timestamp: number(&case["parentTimestamp"]).to(),
        difficulty: number(&case["parentDifficulty"]),
        ommers_hash: if with_ommers { B256::repeat_byte(1) } else { Header::default().ommers_hash },
        ..Default::default()
    };
    let got = next_difficulty(spec, &parent, number(&case["currentTimestamp"]).to());
    assert_eq!(got, number(&case["currentDifficulty"]), "{name}: {case}");
}

#[test]
fn every_fork_computes_the_difficulty_of_the_public_tests() {
    let Some(data) = common::data() else { return };
    let mut cases = 0;
    for (path, content) in common::archive(&data, "ethereum-tests-basics") {
        if !path.contains("/DifficultyTests/") || !path.ends_with(".json") {
            continue;
        }
        let file: Value = serde_json::from_slice(&content).unwrap();
        for test in file.as_object().unwrap().values() {
            for (network, group) in test.as_object().unwrap() {
                if network == "_info" {
                    continue;
                }
                let spec = spec(network);
                for (name, case) in group.as_object().unwrap() {
                    let with_ommers = !number(&case["parentUncles"]).is_zero();
                    check(&format!("{path} {network} {name}"), &spec, case, with_ommers);
                    cases += 1;
                }
            }
        }
    }
    assert!(cases > 8000, "only {cases} cases found");
}

#[test]
fn mainnet_changes_its_difficulty_rule_at_the_fork_blocks() {
    let Some(data) = common::data() else { return };
    let archive = common::archive(&data, "ethereum-tests-basics");
    let file = &archive["ethereum-tests-basics/BasicTests/difficultyMainNetwork.json"];
    let file: Value = serde_json::from_slice(file).unwrap();
    let spec = ChainSpec::mainnet();
    let mut checked = 0;
    for (name, case) in file.as_object().unwrap() {
        let no_ommers = Header::default().ommers_hash.to_string();
        check(name, &spec, case, case["parentUncles"] != no_ommers.as_str());
        checked += 1;
    }
    assert!(checked > 2000, "only {checked} cases found");
}

#[test]
fn bomb_of_the_far_future_saturates_instead_of_overflowing() {
    let parent = Header { number: u64::MAX, difficulty: U256::MAX, ..Default::default() };
    for network in ["Frontier", "Homestead", "Byzantium", "GrayGlacier"] {
        assert_eq!(next_difficulty(&spec(network), &parent, 1), U256::MAX, "{network}");
        let light = Header { number: 30_000_000, ..Default::default() };
        assert!(next_difficulty(&spec(network), &light, u64::MAX) >= U256::from(131_072));
    }
}

#[test]
fn floor_holds_for_the_sum_with_the_bomb() {
    // Public suite: DifficultyTest1 of difficultyCustomHomestead, whose parent is below the floor.
    for network in ["Frontier", "Homestead"] {
        let parent = |difficulty| Header {
            number: 899_999,
            difficulty: U256::from(difficulty),
            ..Default::default()
        };
        assert_eq!(next_difficulty(&spec(network), &parent(1_000), 1), U256::from(131_072));
        // One step down, and the bomb of 2^7 on top.
        assert_eq!(next_difficulty(&spec(network), &parent(131_072 * 2), 20), U256::from(262_144));
    }
}
