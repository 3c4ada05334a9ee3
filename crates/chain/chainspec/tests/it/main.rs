//! Tests of `retrie-chainspec` from outside: a module for each subject, one program for all.

mod genesis;
mod round_trip;
