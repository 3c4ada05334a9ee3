//! Messages of the ethstats protocol: JSON objects with one list, `emit`, of a name and a value.

use super::StatsTarget;
use alloy_primitives::{Address, B256, U256};
use serde_json::{Value, json};

/// Blocks of one `history`, at most.
pub(super) const MAX_HISTORY: usize = 50;
/// What a server's keep-alive begins with; the answer has `pong` instead.
const PING: &str = "primus::ping::";

/// Who reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeIdentity {
    /// Name and version of the client.
    pub(crate) client: String,
    /// The port for peers; 0 without one.
    pub(crate) port: u16,
    /// The network id.
    pub(crate) network: u64,
    /// The versions of `eth`, such as `eth/69`.
    pub(crate) protocols: String,
}

/// What is reported of a block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockStats {
    pub(crate) number: u64,
    pub(crate) hash: B256,
    pub(crate) parent_hash: B256,
    /// Seconds since 1970.
    pub(crate) timestamp: u64,
    pub(crate) miner: Address,
    pub(crate) gas_used: u64,
    pub(crate) gas_limit: u64,
    pub(crate) difficulty: U256,
    pub(crate) total_difficulty: U256,
    pub(crate) transactions: Vec<B256>,
    pub(crate) transactions_root: B256,
    pub(crate) state_root: B256,
    pub(crate) ommers: Vec<B256>,
}

/// What is reported of the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeStats {
    /// Connected peers.
    pub(crate) peers: usize,
    /// Transactions of the pool that the next block may include.
    pub(crate) pending: usize,
    /// Base fee of the head, in wei.
    pub(crate) gas_price: u64,
    /// Whether the node is behind.
    pub(crate) syncing: bool,
}

fn emit(name: &str, content: Value) -> Value {
    json!({ "emit": [name, content] })
}

/// Logs in.
pub(super) fn hello(target: &StatsTarget, node: &NodeIdentity) -> Value {
    let info = json!({
        "name": target.name(),
        "node": node.client,
        "port": node.port,
        "net": node.network.to_string(),
        "protocol": node.protocols,
        "api": "No",
        "os": std::env::consts::OS,
        "os_v": std::env::consts::ARCH,
        "client": "0.1.1",
        "canUpdateHistory": true,
    });
    emit("hello", json!({ "id": target.name(), "info": info, "secret": target.secret() }))
}

/// Asks the server for a `node-pong`.
pub(super) fn node_ping(target: &StatsTarget, now_millis: u128) -> Value {
    emit("node-ping", json!({ "id": target.name(), "clientTime": now_millis.to_string() }))
}

/// Half of the time until the pong came.
pub(super) fn latency(target: &StatsTarget, millis: u128) -> Value {
    emit("latency", json!({ "id": target.name(), "latency": millis.to_string() }))
}

fn block_value(block: &BlockStats) -> Value {
    let hashes = |all: &[B256]| all.iter().map(|hash| json!({ "hash": hash })).collect::<Vec<_>>();
    json!({
        "number": block.number,
        "hash": block.hash,
        "parentHash": block.parent_hash,
        "timestamp": block.timestamp,
        "miner": block.miner,
        "gasUsed": block.gas_used,
        "gasLimit": block.gas_limit,
        "difficulty": block.difficulty.to_string(),
        "totalDifficulty": block.total_difficulty.to_string(),
        "transactions": hashes(&block.transactions),
        "transactionsRoot": block.transactions_root,
        "stateRoot": block.state_root,
        "uncles": hashes(&block.ommers),
    })
}

/// The head.
pub(super) fn block(target: &StatsTarget, block: &BlockStats) -> Value {
    emit("block", json!({ "id": target.name(), "block": block_value(block) }))
}

/// Blocks that the server has asked for, the oldest first.
pub(super) fn history(target: &StatsTarget, blocks: &[BlockStats]) -> Value {
    let blocks: Vec<_> = blocks.iter().map(block_value).collect();
    emit("history", json!({ "id": target.name(), "history": blocks }))
}

/// Transactions that the next block may include.
pub(super) fn pending(target: &StatsTarget, node: &NodeStats) -> Value {
    emit("pending", json!({ "id": target.name(), "stats": { "pending": node.pending } }))
}

/// The state of the node.
pub(super) fn stats(target: &StatsTarget, node: &NodeStats) -> Value {
    let stats = json!({
        "active": true,
        "mining": false,
        "hashrate": 0,
        "peers": node.peers,
        "gasPrice": node.gas_price,
        "syncing": node.syncing,
        "uptime": 100,
    });
    emit("stats", json!({ "id": target.name(), "stats": stats }))
}

/// What a server sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ServerMessage {
    /// The node is logged in.
    Ready,
    /// The answer to [`node_ping`].
    NodePong,
    /// A request for these blocks; for the last 50 if there is no list.
    History(Option<Vec<u64>>),
    /// A keep-alive, and its answer.
    KeepAlive(Value),
    /// Nothing that this node knows.
    Unknown,
}

impl ServerMessage {
    /// Reads a message; anything may have come.
    pub(super) fn read(text: &str) -> Self {
        let Ok(message) = serde_json::from_str::<Value>(text) else { return Self::Unknown };
        if let Some(ping) = message.as_str().and_then(|text| text.strip_prefix(PING)) {
            return Self::KeepAlive(json!(format!("primus::pong::{ping}")));
        }
        match message["emit"][0].as_str() {
            Some("ready") => Self::Ready,
            Some("node-pong") => Self::NodePong,
            Some("history") => {
                let list = message["emit"][1]["list"].as_array();
                let numbers = |list: &Vec<Value>| {
                    list.iter().filter_map(Value::as_u64).take(MAX_HISTORY).collect()
                };
                Self::History(list.map(numbers))
            }
            _ => Self::Unknown,
        }
    }
}
