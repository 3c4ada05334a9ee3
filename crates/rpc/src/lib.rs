//! JSON-RPC: the namespaces of an execution client, over HTTP, WebSocket and IPC.
//!
//! ```text
//!  HTTP, WebSocket ---.                            .--> eth, net, web3, txpool, admin, state, debug, trace
//!  IPC --------------- server -- Methods of the ---+
//!  auth port (JWT) ---'  limits   chosen [Namespace]s '--> View of the live chain, pool
//! ```
//!
//! Every method takes a [`View`](retrie_engine::View) of the live chain at its start and answers
//! from that alone, so that an answer never mixes two moments.
//!
//! # Vocabulary
//! * **namespace**: the methods whose names start alike. Each is one module with one function that
//!   registers them; [`build_methods`] puts the chosen ones together.
//! * **context** ([`RpcContext`]): what every method has at hand: chain, pool, limits.
//! * **quick, read, heavy**: quick methods need nothing from disk and are answered on the server's own
//!   threads, as are the smallest reads at the head. The others get threads that may block: those that
//!   read older or whole blocks, and those that execute or walk over many; of each only so many run at
//!   once.
//! * **proof peer**: a node that keeps another part of proofs; see [`proof_peers`].

mod admin;
mod args;
mod call;
mod context;
mod convert;
mod debug;
mod dev;
mod engine;
mod error;
mod eth;
mod eth_state;
mod namespace;
mod net;
pub mod proof_peers;
mod replay;
pub mod server;
mod state;
mod sync;
mod testing;
mod trace;
mod txpool;
mod typed_data;
mod wallet;
mod web3;
mod words;

pub use args::Args;
pub use context::{DevNode, Limits, RpcContext};
pub use engine::engine_methods;
pub use error::{ReplayMismatch, RpcError, RpcResult};
pub use namespace::{Namespace, UnknownNamespace, build_methods};
pub use web3::client_version;
