//! Tests of `retrie-network` from outside: a module for each subject, one program for all.

mod discovery;
mod fetch;
#[path = "common/p2p.rs"]
mod p2p;
mod peers;
