//! The peer-to-peer network of the node: discovery, encrypted connections, the protocols `eth`,
//! `rchk` and `snap`, gossip of transactions (`docs/network.md`). No peer is trusted. Block sync and state sync
//! are crates of their own, above this one.
//!
//! ```text
//!  discovery --candidates--> peers --one session a peer--> session --frames--> rlpx --> TCP
//!                              |                              |
//!                              '--- NetworkHandle (handle) ---'   requests, answers, transactions
//!                                     |
//!                 .-------------------+-------------------------.
//!               serve               gossip           block sync, state sync
//!         answers from the    transactions, into the   (crates above this one)
//!         datadir             pool and out of it
//! ```
//!
//! | module | what |
//! |---|---|
//! | [`discovery`] | finding nodes: versions 4 and 5, DNS lists, node records, the node key |
//! | [`networks`] | boot nodes and DNS lists of the public networks |
//! | [`rlpx`] | encrypted connections, and the base protocol |
//! | [`mod@eth`] | messages of eth/69 to eth/72: types, encoding, limits |
//! | [`rchk`] | messages of rchk/1: chunks of a state |
//! | [`snap`] | messages of snap/1: ranges of a state |
//! | [`session`] | the connection with one peer, from the handshake to the end |
//! | [`handle`] | the interface of the network to the rest of the node |
//! | [`peers`] | listening, dialling, slots, reputation |
//! | [`serve`] | answers to requests of peers |
//! | `gossip_queue` | queue of gossip between the sessions and the gossip task |
//! | [`gossip`] | transactions from peers and to peers |
//!
//! # Vocabulary
//!
//! * **peer**: a connected node whose status fits. Its id is its public key.
//! * **candidate**: a node that discovery has found.
//! * **static** and **trusted** peers: nodes that are dialled until they are connected. Slot limits
//!   do not hold for trusted peers.
//! * **offence**: a fault of a peer, which costs it reputation.
//! * **serve**: to answer requests. **gossip**: messages that are sent without a request.
//!
//! # Assumptions
//!
//! * No message is trusted. Every length is checked against a limit before anything is read,
//!   decompressed or decoded.
//! * The limits in `docs/network.md` bound the memory, whatever peers send.

pub mod discovery;
pub mod eth;
#[cfg(test)]
mod fuzz;
pub mod gossip;
mod gossip_queue;
pub mod handle;
pub mod networks;
pub mod peers;
mod rate;
pub mod rchk;
pub mod rlpx;
pub mod serve;
pub mod session;
pub mod snap;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
#[cfg(test)]
mod vectors;
