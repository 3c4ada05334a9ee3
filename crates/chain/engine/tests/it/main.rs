//! Tests of `retrie-engine` from outside: a module for each subject, one program for all.

mod amsterdam;
mod common;
mod creations;
mod deep;
mod dev;
mod engine;
mod engine_invalid;
mod follow;
mod payload;
mod peers;
mod pool;
mod set_head;
mod storm;
mod witness;
