//! The namespaces that read, on chains of the test-kit and several backends.

mod blocks;
mod fees;
mod filters;
mod history;
mod indexed_logs;
mod log_pages;
mod proofs;
mod pruned;
mod send;
mod state;
