//! JSON-RPC: the namespaces of an execution client, over HTTP, WebSocket and IPC.
//!
//! ```text
//!  HTTP, WebSocket ---.                            .--> eth, net, web3, txpool, admin, state, debug, trace, ots
//!  IPC --------------- server -- Methods of the ---+
//!  auth port (JWT) ---'  limits   namespaces       '--> View of the live chain, pool
//!         '--- Engine API by REST and SSZ: engine_rest
//! ```
//!
//! Every method takes one [`View`](retrie_engine::LiveView) of the live chain at its start and reads
//! only from it. So one response never mixes two states of the chain.
//!
//! # Vocabulary
//! * **namespace** ([`ApiNamespace`]): the methods whose names start with the same prefix, e.g.
//!   `eth_`. Each namespace is one module with one function that registers its methods;
//!   [`build_methods`] merges the chosen ones.
//! * **context** ([`RpcContext`]): what every method can use: chain, pool, limits.
//! * **quick, read, heavy**: the cost classes of methods. A *quick* method reads nothing from disk
//!   and runs on the server's own threads, as do single reads at the head. A *read* method reads
//!   older or whole blocks, and a *heavy* method executes transactions or walks over many blocks;
//!   both run on threads that may block, and each class has a fixed number of permits.
//! * **GraphQL** (cargo feature `graphql`): the same data under `/graphql`, for queries that choose
//!   their fields. A query is one heavy method.
//! * **proof peer**: a node that keeps another shard of the proofs; see [`proof_peers`].
//! * **replay**: executing a past block again, for traces and for what the database does not store.
//!
//! # Assumptions
//! The chain is trusted, clients are not: every request has limits on time, gas, size and number
//! ([`RequestLimits`], [`ConnectionLimits`](server::ConnectionLimits)). Error texts follow geth's
//! wording, because tools match on it.

mod address_index;
mod admin;
mod args;
mod call;
pub mod chain_json;
mod context;
mod convert;
mod debug;
mod dev;
mod engine;
mod engine_rest;
mod error;
mod eth;
mod eth_state;
mod gathered_proof;
mod geth_errors;
#[cfg(feature = "graphql")]
mod graphql;
mod header_root;
mod namespace;
mod net;
mod ots;
pub mod proof_peers;
mod replay;
pub mod server;
mod state;
mod subscription;
mod sync;
mod testing;
mod trace;
mod txpool;
mod typed_data;
mod wallet;
mod web3;

pub use args::MethodParams;
pub use context::{DevNode, RequestLimits, RpcContext};
pub use error::{AddressIndexError, ReplayMismatch, RpcError, RpcResult};
pub use namespace::{ApiNamespace, UnknownNamespace, build_methods};
pub use web3::client_version;
