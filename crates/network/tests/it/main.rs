//! Integration tests of `retrie-network`: one module for each subject, in one program.

mod discovery;
#[path = "common/p2p.rs"]
mod p2p;
mod peers;
mod state_sync;
