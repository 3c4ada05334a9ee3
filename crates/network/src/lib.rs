//! State sync: a state from peers that nobody trusts (`docs/state-sync.md`).
//!
//! ```text
//!   peers ---answers---> Fetch: a thread each --checked--> spool (a restart goes on from it)
//!     ^                    |  stack of what is wanted         |
//!     '-------ids----------'                                  '--> Fetched: entries sorted on disk,
//!                                                                  codes, parts
//! ```
//!
//! | module | what |
//! |---|---|
//! | [`peer`] | what a node that is asked can do; over JSON-RPC, and whatever else comes to carry it |
//! | [`origin`] | which block it shall be, and its headers |
//! | [`mod@fetch`] | getting all of its state: who is asked for what, and who no longer is |
//! | `work` | what is wanted, under way and done |
//! | `splits` | whether those who split had reason to |
//! | `spool` | answers on disk |
//!
//! # Assumptions
//!
//! * The root, or the hash of the block that has it, is trusted; nothing else is. What the backend's
//!   [`Chunks::open`](retrie_state::Chunks::open) accepts is the state's own, whoever sent it.
//! * One peer that is honest and has the state is enough. Without any the fetch ends with what each of
//!   them did; never with another state.
//! * Memory is bounded by the shape of the state and not by what peers send: ids on one way down, hashes
//!   of contract codes, 32 bytes an answer.

pub mod fetch;
pub mod origin;
pub mod peer;
mod splits;
mod spool;
mod work;

pub use fetch::{Codes, FetchError, FetchOptions, Fetched, Progress, fetch};
pub use origin::{Origin, OriginError};
pub use peer::{HttpPeer, Peer, PeerError};
pub use spool::SpoolError;
