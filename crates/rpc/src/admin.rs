//! The namespace `admin`: the node itself.

use crate::{RpcContext, RpcError, args::quick, debug::chain_config, web3::client_version};
use alloy_primitives::B256;
use jsonrpsee::{Methods, RpcModule};
use serde::Serialize;

/// The answer of `admin_nodeInfo`, as far as a node without peers has one.
#[derive(Clone, Debug, Serialize)]
struct NodeInfo {
    name: String,
    protocols: Protocols,
}

#[derive(Clone, Debug, Serialize)]
struct Protocols {
    eth: EthInfo,
}

#[derive(Clone, Debug, Serialize)]
struct EthInfo {
    network: u64,
    genesis: B256,
    head: B256,
    config: serde_json::Value,
}

/// The methods of this namespace.
pub(crate) fn methods(context: &RpcContext) -> Methods {
    let mut module = RpcModule::new(context.clone());
    quick(&mut module, "admin_nodeInfo", |rpc, _| {
        let spec = rpc.live.spec();
        let eth = EthInfo {
            network: spec.chain_id(),
            genesis: spec.genesis_hash(),
            head: rpc.live.head().hash(),
            config: chain_config(rpc)?,
        };
        Ok(NodeInfo { name: client_version(), protocols: Protocols { eth } })
    });
    quick(&mut module, "admin_peers", |_, _| Ok(Vec::<()>::new()));
    quick(&mut module, "admin_datadir", |rpc, _| {
        let unknown = || RpcError::Rejected("the datadir is not known".into());
        Ok(rpc.node.datadir().ok_or_else(unknown)?.display().to_string())
    });
    module.into()
}
