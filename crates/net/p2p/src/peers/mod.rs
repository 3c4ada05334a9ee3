//! The set of connected peers: listening, dialling, slots, reputation.
//!
//! ```text
//!  listen ---.                                 .--> SessionHandle, one for each peer
//!            |--> admit? ----> establish ----> run           ^
//!  dial -----'      |                          |             |
//!    ^          SlotPool                       '--> SessionEnd     NetworkHandle
//!    |                                                |
//!  static nodes, candidates of discovery       ReputationTable: forgiven, disconnected, banned
//! ```
//!
//! | thread | work |
//! |---|---|
//! | `p2p`, two of them (tokio) | all connections, discovery, and other tasks spawned on [`NetworkManager::runtime`] |
//! | `p2p` blocking threads | one request at a time for each peer; decoding of long messages |
//!
//! [`handle`](crate::handle) is the interface to the rest of the node.

mod dial;
mod listen;
mod manager;
mod reputation;
mod slots;

pub use manager::{NetworkConfig, NetworkError, NetworkManager, StartedNetwork, start};
pub use slots::SubnetLimits;
