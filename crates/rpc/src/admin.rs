//! The namespace `admin`: this node and its peers, and a subscription to their changes.

use crate::{
    RpcContext, RpcError, RpcResult,
    args::{MethodParams, register_quick},
    debug::chain_config,
    subscription::{next, send},
    web3::client_version,
};
use alloy_primitives::{B256, hex, keccak256};
use jsonrpsee::{
    Methods, PendingSubscriptionSink, RpcModule, core::SubscriptionError, types::Params,
};
use retrie_engine::{NodeAddress, NodeNetwork, PeerChange, PeerStatus};
use serde::Serialize;
use serde_json::{Value, json};
use std::{net::SocketAddr, sync::Arc};
use tokio::sync::broadcast::Receiver;

/// The response of `admin_nodeInfo`. A node without a peer-to-peer network has no endpoint.
#[derive(Clone, Debug, Serialize)]
struct NodeInfo {
    name: String,
    protocols: NodeProtocols,
    #[serde(flatten)]
    address: Option<NodeEndpoint>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeEndpoint {
    id: String,
    enode: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    enr: Option<String>,
    ip: String,
    ports: ListenPorts,
    listen_addr: String,
}

#[derive(Clone, Debug, Serialize)]
struct ListenPorts {
    discovery: u16,
    listener: u16,
}

#[derive(Clone, Debug, Serialize)]
struct NodeProtocols {
    eth: EthInfo,
}

#[derive(Clone, Debug, Serialize)]
struct EthInfo {
    network: u64,
    genesis: B256,
    head: B256,
    config: Value,
}

impl From<NodeAddress> for NodeEndpoint {
    fn from(address: NodeAddress) -> Self {
        let listener = address.listens.map_or(0, |listens| listens.port());
        Self {
            id: hex::encode(keccak256(address.id)),
            enode: address.enode,
            enr: address.enr,
            ip: address.ip.to_string(),
            ports: ListenPorts { discovery: address.discovery_port, listener },
            listen_addr: address.listens.as_ref().map(SocketAddr::to_string).unwrap_or_default(),
        }
    }
}

/// A peer in geth's JSON form.
fn peer(peer: PeerStatus) -> Value {
    let mut protocols = json!({
        "eth": {
            "version": peer.version,
            "earliestBlock": peer.blocks[0],
            "latestBlock": peer.blocks[1],
            "latestBlockHash": peer.head,
        },
    });
    if let Some(version) = peer.snap {
        protocols["snap"] = json!({ "version": version });
    }
    json!({
        "enode": format!("enode://{}@{}", hex::encode(peer.id), peer.remote),
        "id": hex::encode(keccak256(peer.id)),
        "name": peer.name,
        "caps": peer.capabilities,
        "network": {
            "localAddress": peer.local.to_string(),
            "remoteAddress": peer.remote.to_string(),
            "inbound": peer.inbound,
            "trusted": peer.trusted,
            "static": peer.is_static,
        },
        "protocols": protocols,
    })
}

/// The peer-to-peer network; an error if this node has none.
pub(crate) fn network(rpc: &RpcContext) -> RpcResult<&dyn NodeNetwork> {
    let none = || RpcError::Rejected("this node takes no part in the peer-to-peer network".into());
    rpc.node.network().ok_or_else(none)
}

/// Registers a method that takes an enode URL and changes the peer set.
fn register_peer_change(
    module: &mut RpcModule<RpcContext>,
    name: &'static str,
    change: fn(&dyn NodeNetwork, &str) -> Result<(), String>,
) {
    register_quick(module, name, move |rpc, args: &mut MethodParams<'_>| {
        let url: String = args.required()?;
        change(network(rpc)?, &url)
            .map_err(|error| RpcError::InvalidParams(format!("invalid enode: {error}")))?;
        Ok(true)
    });
}

/// A change of the peers in geth's JSON form (`p2p.PeerEvent`).
fn peer_event(change: &PeerChange) -> Value {
    let mut event = json!({
        "type": if change.dropped.is_some() { "drop" } else { "add" },
        "peer": hex::encode(keccak256(change.id)),
        "local": change.local.to_string(),
        "remote": change.remote.to_string(),
    });
    if let Some(cause) = &change.dropped {
        event["error"] = json!(cause);
    }
    event
}

/// The changes that `admin_subscribe` asks for.
fn subject(rpc: &RpcContext, params: &Params<'_>) -> RpcResult<Receiver<Arc<PeerChange>>> {
    let mut args = MethodParams::new(params)?;
    let kind: String = args.required()?;
    if kind != "peerEvents" {
        let message = format!("no {kind:?} subscription in admin namespace");
        return Err(RpcError::Coded { code: RpcError::METHOD_NOT_FOUND, message });
    }
    args.end()?;
    Ok(network(rpc)?.changes())
}

/// Serves one `admin_subscribe`.
async fn subscribe(
    rpc: &RpcContext,
    params: Params<'static>,
    pending: PendingSubscriptionSink,
) -> Result<(), SubscriptionError> {
    let admitted =
        subject(rpc, &params).and_then(|changes| Ok((rpc.eth.subscriptions.admit(None)?, changes)));
    // The permit is returned when the subscription ends.
    let (_place, mut changes) = match admitted {
        Ok(admitted) => admitted,
        Err(error) => {
            pending.reject(error).await;
            return Ok(());
        }
    };
    let sink = pending.accept().await?;
    while let Some(change) = next(&sink, &mut changes).await? {
        send(&sink, &peer_event(&change)).await?;
    }
    Ok(())
}

/// The methods of this namespace.
pub(crate) fn methods(context: &RpcContext) -> Methods {
    let mut module = RpcModule::new(context.clone());
    register_quick(&mut module, "admin_nodeInfo", |rpc, _| {
        let spec = rpc.live.spec();
        let eth = EthInfo {
            network: spec.chain_id(),
            genesis: spec.genesis_hash(),
            head: rpc.live.head().hash(),
            config: chain_config(rpc)?,
        };
        let address = rpc.node.network().map(|network| network.address().into());
        Ok(NodeInfo { name: client_version(), protocols: NodeProtocols { eth }, address })
    });
    register_quick(&mut module, "admin_peers", |rpc, _| {
        let peers = rpc.node.network().map(NodeNetwork::peers).unwrap_or_default();
        Ok(peers.into_iter().map(peer).collect::<Vec<_>>())
    });
    register_peer_change(&mut module, "admin_addPeer", |network, url| network.add(url, false));
    register_peer_change(&mut module, "admin_removePeer", |network, url| {
        network.remove(url, false)
    });
    register_peer_change(&mut module, "admin_addTrustedPeer", |network, url| {
        network.add(url, true)
    });
    register_peer_change(&mut module, "admin_removeTrustedPeer", |network, url| {
        network.remove(url, true)
    });
    register_quick(&mut module, "admin_datadir", |rpc, _| {
        let unknown = || RpcError::Rejected("the datadir is not known".into());
        Ok(rpc.node.datadir().ok_or_else(unknown)?.display().to_string())
    });
    let registered = module.register_subscription(
        "admin_subscribe",
        "admin_subscription",
        "admin_unsubscribe",
        |params, pending, rpc, _| async move { subscribe(&rpc, params, pending).await },
    );
    registered.expect("a namespace names each of its methods once");
    module.into()
}
