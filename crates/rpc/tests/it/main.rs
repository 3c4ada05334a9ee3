//! Tests of `retrie-rpc` from outside: a module for each subject, one program for all.

mod call;
mod common;
mod compat;
mod debug;
mod debug_forms;
mod debug_tracers;
mod debug_witness;
mod dev;
mod environment;
mod eth_reads;
mod methods;
mod node_tools;
mod peers;
mod server_transports;
mod simulate;
mod trace;
