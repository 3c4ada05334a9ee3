//! The peer-to-peer network of the node: discovery, encrypted connections, the protocols `eth` and
//! `rchk`, block sync and state sync from peers (`docs/network.md`, `docs/state-sync.md`). No peer
//! is trusted.
//!
//! ```text
//!  discovery --candidates--> peers --one session a peer--> session --frames--> rlpx --> TCP
//!                              |                              |
//!                              '--- NetworkHandle (handle) ---'   requests, answers, transactions
//!                                     |
//!                 .-------------------+-------------------.
//!               serve             block_sync             gossip
//!         answers from the     blocks below an       transactions, into the
//!         datadir              unknown head          pool and out of it
//! ```
//!
//! | module | what |
//! |---|---|
//! | [`discovery`] | finding nodes: versions 4 and 5, DNS lists, node records, the node key |
//! | [`networks`] | boot nodes and DNS lists of the public networks |
//! | [`rlpx`] | encrypted connections, and the base protocol |
//! | [`mod@eth`] | messages of eth/69, eth/70 and eth/71: types, encoding, limits |
//! | [`rchk`] | messages of rchk/1 (chunks of a state), and the client side of it |
//! | [`session`] | the connection with one peer, from the handshake to the end |
//! | [`handle`] | the interface of the network to the rest of the node |
//! | [`peers`] | listening, dialling, slots, reputation |
//! | [`serve`] | answers to requests of peers |
//! | [`block_sync`] | blocks from peers, for the follower |
//! | [`gossip_queue`] | queue of gossip between the sessions and the gossip task |
//! | [`gossip`] | transactions from peers and to peers |
//! | [`state_peer`], [`sync_target`], [`state_sync`] | state sync: the peers, the block, the download |
//! | `chunk_queue`, `splits`, `spool` | parts of state sync: the queue of wanted chunks; the check that a peer splits only large parts; answers on disk |
//!
//! # Vocabulary
//!
//! * **peer**: a connected node whose status fits. Its id is its public key.
//! * **candidate**: a node that discovery has found.
//! * **static** and **trusted** peers: nodes that are dialled until they are connected. Slot limits
//!   do not hold for trusted peers.
//! * **offence**: a fault of a peer, which costs it reputation.
//! * **serve**: to answer requests. **gossip**: messages that are sent without a request.
//! * **block sync**: headers and bodies below a head. **state sync**: the whole state of one block.
//!
//! # Assumptions
//!
//! * No message is trusted. Every length is checked against a limit before anything is read,
//!   decompressed or decoded. A block counts only if it hashes to what a consensus client has
//!   named.
//! * The limits in `docs/network.md` bound the memory, whatever peers send.
//! * State sync trusts the root, or the hash of the block that has it, and nothing else. What
//!   [`StateChunks::open`](retrie_state::StateChunks::open) of the backend accepts is part of that state,
//!   whichever peer sent it. One honest peer that has the state is enough. Without one the sync
//!   ends with a reason for each peer, and never with another state.

pub mod block_sync;
mod chunk_queue;
pub mod discovery;
pub mod eth;
#[cfg(test)]
mod fuzz;
pub mod gossip;
pub mod gossip_queue;
pub mod handle;
pub mod networks;
pub mod peers;
mod rate;
pub mod rchk;
pub mod rlpx;
pub mod serve;
pub mod session;
mod splits;
mod spool;
pub mod state_peer;
pub mod state_sync;
pub mod sync_target;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
#[cfg(test)]
mod vectors;

pub use spool::SpoolError;
pub use state_peer::{HttpPeer, StatePeer, StatePeerError};
pub use state_sync::{
    FetchedCodes, FetchedState, PeerSource, StateSyncError, StateSyncOptions, StateSyncProgress,
    fetch_state,
};
pub use sync_target::{SyncTarget, SyncTargetError};
