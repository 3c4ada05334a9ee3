//! Tests of `retrie-conformance` from outside: a module for each subject, one program for all.

mod harness;
mod pack;
mod sample;
