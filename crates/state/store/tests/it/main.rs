//! Tests of `retrie-state` from outside: a module for each subject, one program for all.

mod common;
mod flat_history;
mod framework;
mod mock_codes;
mod mock_column;
mod mock_hash;
mod mock_layers;
mod prefetch;
