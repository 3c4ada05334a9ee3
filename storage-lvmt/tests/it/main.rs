//! Tests of `retrie-storage-lvmt` from outside: a module for each subject, one program for all.

mod collect;
mod common;
mod damage;
mod kit;
mod model;
mod shards;
