//! The namespaces that read, on chains of the test-kit and several backends.

#[path = "../common/mod.rs"]
mod common;

mod blocks;
mod fees;
mod filters;
mod history;
mod indexed_logs;
mod proofs;
mod send;
mod state;
