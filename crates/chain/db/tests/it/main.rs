//! Tests of `retrie-db` from outside: a module for each subject, one program for all.

mod addresses;
mod chain;
mod common;
mod datadir;
mod index_tables;
mod kv;
mod logs;
