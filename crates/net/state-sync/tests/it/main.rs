//! Integration tests of `retrie-state-sync`: one module for each subject, in one program.

mod download;
mod snap;
mod snapshot;
