//! Networks for tests, here and in other crates.
//!
//! | module | what |
//! |---|---|
//! | `scripted` | peers without connections, which behave as a script says |
//! | [`local`] | nodes of a test chain on this machine, with connections over TCP |

pub mod local;
mod scripted;

pub use scripted::{PeerBehaviour, ScriptedNetwork};
