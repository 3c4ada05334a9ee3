//! Who we are connected with: listening, dialling, slots, reputation.
//!
//! ```text
//!  listen ---.                                 .--> Link, one for each peer
//!            |--> admitted? --> establish --> run           ^
//!  dial -----'      |                          |            |
//!    ^            Slots                        '--> Ended   Peers: what others hold
//!    |                                                |
//!  static nodes, candidates of discovery       Reputation: forgiven, disconnected, banned
//! ```
//!
//! | thread | work |
//! |---|---|
//! | `p2p`, two of them (tokio) | all connections, discovery, and whatever else is spawned on [`Manager::runtime`] |
//! | `p2p` that may block | a request at a time for each peer; decoding of long messages |
//!
//! [`handle`] is what the rest of a node sees of it.

mod dial;
mod listen;
mod manager;
mod reputation;
mod slots;

pub use crate::handle::{
    self, Candidate, CandidateSource, Event, GossipReceiver, Heard, Network, Offence, PeerInfo,
    Peers, RequestError, Serve, ServeStates, StateAudience,
};
pub(crate) use manager::short;
pub use manager::{Config, Manager, NetworkError, Started, start};
pub use slots::NetworkShare;
