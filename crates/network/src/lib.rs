//! A node among nodes: who there is, what is said, and what is fetched from whom nobody trusts
//! (`docs/network.md`, `docs/state-sync.md`).
//!
//! ```text
//!  discovery --candidates--> peers --a connection each--> session --frames--> rlpx --> TCP
//!                              |                             |
//!                              '--- Peers (handle) ----------'   requests, answers, transactions
//!                                     |
//!                 .-------------------+-------------------.
//!               serve               sync                gossip
//!         answers from the     blocks below an       transactions, into the
//!         datadir              unknown head          pool and out of it
//! ```
//!
//! | module | what |
//! |---|---|
//! | [`discovery`] | finding nodes: versions 4 and 5, lists in DNS, records, the node's key |
//! | [`networks`] | where public networks are entered |
//! | [`rlpx`] | encrypted connections, and the messages of every node |
//! | [`mod@eth`] | the messages of eth/69, eth/70 and eth/71, as bytes and with limits |
//! | [`rchk`] | the messages of rchk/1, parts of states, and who asks for them |
//! | [`session`] | the connection with one peer, from its handshake to its end |
//! | [`handle`] | peers as the rest of a node sees them |
//! | [`peers`] | listening, dialling, slots, reputation |
//! | [`serve`] | answers to what peers ask |
//! | [`sync`] | blocks from peers, for the follower |
//! | [`heard`] | gossip on its way from sessions to the task that looks at it |
//! | [`gossip`] | transactions from peers and to them |
//! | [`peer`], [`origin`], [`mod@fetch`] | state sync: whom to ask, which block it shall be, getting all of its state |
//! | `work`, `splits`, `spool` | of state sync: what is wanted; whether those who split had reason to; answers on disk |
//!
//! # Vocabulary
//!
//! * **peer**: a node with which a connection stands and whose status fits. Its id is its public key.
//! * **candidate**: a node of which discovery has heard.
//! * **static** and **trusted** peers: dialled until they are there; for trusted ones limits of slots do
//!   not hold.
//! * **offence**: what a peer has done wrong, and pays for with its reputation.
//! * **serve**: to answer; **gossip**: to tell without being asked.
//!
//! # Assumptions
//!
//! * Nothing that comes over a connection is believed. Lengths are held against limits before anything
//!   is read, decompressed or decoded; blocks count if they hash to what a consensus client has named.
//! * Memory is bounded by the limits of `docs/network.md` and not by what peers send.
//! * State sync: the root, or the hash of the block that has it, is trusted; nothing else is. What the
//!   backend's [`Chunks::open`](retrie_state::Chunks::open) accepts is the state's own, whoever sent
//!   it. One peer that is honest and has the state is enough. Without any the fetch ends with what each
//!   of them did; never with another state.

pub mod discovery;
pub mod eth;
pub mod fetch;
#[cfg(test)]
mod fuzz;
pub mod gossip;
pub mod handle;
pub mod heard;
pub mod networks;
pub mod origin;
pub mod peer;
pub mod peers;
mod rate;
pub mod rchk;
pub mod rlpx;
pub mod serve;
pub mod session;
mod splits;
mod spool;
pub mod sync;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
#[cfg(test)]
mod vectors;
mod work;

pub use fetch::{Codes, FetchError, FetchOptions, Fetched, Progress, Roster, fetch};
pub use origin::{Origin, OriginError};
pub use peer::{HttpPeer, Peer, PeerError};
pub use spool::SpoolError;
