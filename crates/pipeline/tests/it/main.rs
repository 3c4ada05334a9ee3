//! Tests of `retrie-pipeline` from outside: a module for each subject, one program for all.

mod ahead;
mod bundle_make;
mod common;
mod flat_history;
mod history;
mod imports;
mod invalid;
mod migrate;
mod read_ahead;
mod reorgs;
mod runs;
mod verify;
