//! Tests of `retrie-light-client` from outside: a module for each subject, one program for all.

mod api;
mod vectors;
