//! Tests of `retrie-execution` from outside: a module for each subject, one program for all.

mod amsterdam;
mod bounded;
mod common;
mod creations;
mod deposits;
mod parallel;
mod prefetch;
mod real_blocks;
mod simulated_env;
mod stateless;
mod traps;
