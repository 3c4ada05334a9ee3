//! Integration tests of `retrie-rpc`: one module per subject, all in one program.

mod call;
mod common;
mod compat;
mod complete_logs;
mod debug;
mod debug_blocks;
mod debug_forms;
mod debug_tracers;
mod debug_witness;
mod dev;
mod environment;
mod eth_reads;
#[cfg(feature = "graphql")]
mod graphql;
mod hashed_keys;
mod log_tables;
mod methods;
mod node_tools;
mod ots;
mod peers;
mod proven_call;
mod server_transports;
mod simulate;
mod switch;
mod trace;
