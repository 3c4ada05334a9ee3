//! Tests of `retrie-storage-raw` from outside: a module for each subject, one program for all.

mod format;
mod kit;
