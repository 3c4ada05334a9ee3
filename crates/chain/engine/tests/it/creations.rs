//! Contracts that are created where there is storage, in blocks that geth built.

use crate::common::{NodeSetup, TestNode, valid};
use alloy_primitives::B256;
use alloy_rpc_types_engine::{ExecutionPayload, ExecutionPayloadV3};
use retrie_chainspec::ChainSpec;
use retrie_state_testkit::sample;
use serde::Deserialize;
use std::sync::Arc;

/// A genesis that has accounts with only storage, at the addresses of four CREATE2 contracts, and a
/// block of geth 1.17.8 for each creation (`engine_getPayloadV5`): the init code reads the storage,
/// leaves it, overwrites it, or writes to it and reverts.
const OF_GETH: &str = include_str!("data/creations_of_geth.json");

#[derive(Deserialize)]
struct GethCreations {
    genesis: serde_json::Value,
    payloads: Vec<ExecutionPayloadV3>,
}

/// Regression: the withdrawn EIP-7610 was checked, so that the first of these blocks was invalid
/// here and this client left geth's chain.
#[test]
fn creations_over_storage_have_the_state_roots_of_geth() {
    let GethCreations { genesis, payloads } = serde_json::from_str(OF_GETH).unwrap();
    let spec = Arc::new(ChainSpec::from_genesis_json(&genesis.to_string()).unwrap());
    for setup in sample::of(NodeSetup::checked(), 3) {
        let running = TestNode::new(&spec, setup).start();
        assert_eq!(payloads.len(), 4);
        for payload in &payloads {
            let hash = payload.payload_inner.payload_inner.block_hash;
            let payload = ExecutionPayload::V3(payload.clone());
            let status =
                running.send_payload(payload, Vec::new(), B256::ZERO, Some(Vec::new())).unwrap();
            assert_eq!(status, valid(hash), "{setup:?}");
            running.lead(hash);
        }
    }
}
