//! Difficulties, for each formula.

use crate::format::{TestVerdict, parse, to_u64};
use alloy_consensus::EMPTY_OMMER_ROOT_HASH;
use alloy_primitives::{B256, U256};
use retrie_chainspec::{
    ChainSpec, ChainSpecParts, EthereumHardfork as Fork, ForkCondition, primitives::Header,
    test_networks::test_network,
};
use retrie_consensus::next_difficulty;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::{collections::BTreeMap, sync::Arc};

/// Numbers are decimal or hex; `parentUncles` is 0, 1 or the ommers hash.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DifficultyCase {
    parent_timestamp: U256,
    parent_difficulty: U256,
    current_timestamp: U256,
    current_block_number: U256,
    current_difficulty: U256,
    #[serde(default)]
    parent_uncles: Option<String>,
}

impl DifficultyCase {
    fn check(&self, spec: &ChainSpec) -> TestVerdict {
        let number = to_u64(self.current_block_number, "currentBlockNumber")?;
        let has_ommers = match self.parent_uncles.as_deref() {
            None | Some("0x00") => false,
            Some("0x01") => true,
            Some(hash) => hash.parse() != Ok(EMPTY_OMMER_ROOT_HASH),
        };
        let parent = Header {
            number: number.checked_sub(1).ok_or("block 0 has no parent")?,
            timestamp: to_u64(self.parent_timestamp, "parentTimestamp")?,
            difficulty: self.parent_difficulty,
            ommers_hash: if has_ommers { B256::ZERO } else { EMPTY_OMMER_ROOT_HASH },
            ..Header::default()
        };
        let timestamp = to_u64(self.current_timestamp, "currentTimestamp")?;
        let got = next_difficulty(spec, &parent, timestamp);
        if got != self.current_difficulty {
            return Err(format!("difficulty {got}, expected {}", self.current_difficulty));
        }
        Ok(())
    }
}

/// Runs a group of cases by fork.
pub(super) fn by_fork(json: &RawValue) -> TestVerdict {
    let forks: BTreeMap<String, &RawValue> = parse(json)?;
    let mut count = 0;
    for (fork, cases) in forks.into_iter().filter(|(name, _)| name != "_info") {
        // Arrow and Gray Glacier are separate network names; the earlier ones are in the order of
        // forks.
        let forks = test_network(&fork).ok_or_else(|| format!("unknown fork {fork}"))?.forks;
        let spec = spec_with(forks);
        let cases: BTreeMap<String, DifficultyCase> = parse(cases)?;
        for (name, case) in cases {
            case.check(&spec).map_err(|error| format!("{fork}, {name}: {error}"))?;
            count += 1;
        }
    }
    if count == 0 { Err("holds no cases".into()) } else { Ok(()) }
}

/// Runs one case with the rules of a chain.
pub(super) fn of_chain(file: &str, json: &RawValue) -> TestVerdict {
    let case: DifficultyCase = parse(json)?;
    let block = ForkCondition::Block;
    let spec = match file {
        "difficulty.json" | "difficultyMainNetwork.json" | "difficultyCustomMainNetwork.json" => {
            ChainSpec::mainnet()
        }
        "difficultyFrontier.json" => Arc::new(spec_with(Vec::new())),
        "difficultyHomestead.json" | "difficultyCustomHomestead.json" => {
            Arc::new(spec_with(vec![(Fork::Homestead, block(0))]))
        }
        "difficultyRopsten.json" => {
            let byzantium = (Fork::Byzantium, block(1_700_000));
            let constantinople = (Fork::Constantinople, block(4_230_000));
            let forks = vec![(Fork::Homestead, block(0)), byzantium, constantinople];
            Arc::new(spec_with(forks))
        }
        _ => return Err("the chain of this file is not known".into()),
    };
    case.check(&spec)
}

fn spec_with(forks: Vec<(Fork, ForkCondition)>) -> ChainSpec {
    ChainSpec::new(ChainSpecParts {
        name: "difficulty".into(),
        chain_id: 1,
        genesis: Default::default(),
        genesis_header: Some(Header::default()),
        forks,
        blob_schedule: Default::default(),
        deposit_contract: None,
        dao_fork: None,
    })
}
