//! Genesis blocks: from the description to the RLP.

use crate::format::{AllocAccount, TestAlloc, TestVerdict, genesis_alloc, parse, to_u64};
use alloy_genesis::Genesis;
use alloy_primitives::{Address, B256, Bytes, U256};
use retrie_chainspec::{
    ChainSpec, ChainSpecParts,
    primitives::{Block, BlockBody},
};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct GenesisTest {
    nonce: U256,
    timestamp: U256,
    parent_hash: B256,
    extra_data: Bytes,
    gas_limit: U256,
    difficulty: U256,
    mix_hash: B256,
    coinbase: Address,
    /// Addresses have no `0x`; most fields are optional.
    alloc: BTreeMap<String, AllocAccount>,
    result: String,
}

pub(super) fn run(json: &RawValue) -> TestVerdict {
    let test: GenesisTest = parse(json)?;
    let address = |(address, account): (String, AllocAccount)| {
        let parsed = address.parse().map_err(|error| format!("address {address}: {error}"))?;
        Ok::<_, String>((parsed, account))
    };
    let alloc = test.alloc.into_iter().map(address).collect::<Result<TestAlloc, _>>()?;
    let genesis = Genesis {
        nonce: to_u64(test.nonce, "nonce")?,
        timestamp: to_u64(test.timestamp, "timestamp")?,
        extra_data: test.extra_data,
        gas_limit: to_u64(test.gas_limit, "gasLimit")?,
        difficulty: test.difficulty,
        mix_hash: test.mix_hash,
        coinbase: test.coinbase,
        parent_hash: Some(test.parent_hash),
        alloc: genesis_alloc(&alloc)?,
        ..Genesis::default()
    };
    let spec = ChainSpec::new(ChainSpecParts {
        name: "genesis".into(),
        chain_id: 1,
        genesis,
        genesis_header: None,
        forks: Vec::new(),
        blob_schedule: Default::default(),
        deposit_contract: None,
        dao_fork: None,
    });
    let block =
        Block { header: spec.genesis_header().header().clone(), body: BlockBody::default() };
    let got = Bytes::from(alloy_rlp::encode(&block));
    let expected: Bytes = test.result.parse().map_err(|error| format!("result: {error}"))?;
    if got != expected { Err(format!("the block is {got}, expected {expected}")) } else { Ok(()) }
}
