//! Tests of `retrie-consensus` from outside: a module for each subject, one program for all.

mod access_list;
mod common;
mod difficulty;
mod headers;
mod ommers;
mod post_execution;
mod suites;
