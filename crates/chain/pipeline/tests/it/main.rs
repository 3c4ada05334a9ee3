//! Tests of `retrie-pipeline` from outside: a module for each subject, one program for all.

mod batches;
mod bundle_make;
mod common;
mod flat_history;
mod history;
mod imports;
mod invalid;
mod joining;
mod migrate;
mod prefetch;
mod reorgs;
mod root_task;
mod stateless;
mod switch;
mod verify;
mod witness_vectors;
