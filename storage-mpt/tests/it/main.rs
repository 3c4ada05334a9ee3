//! Tests of `retrie-storage-mpt` from outside: a module for each subject, one program for all.

mod archive;
mod chunks;
mod common;
mod kit;
mod mainnet;
mod model;
mod proofs;
mod pruned;
mod seam;
