//! Integration tests of `retrie-storage-lvmt`: a module for each subject, one test program.

mod common;
mod damage;
mod garbage;
mod kit;
mod model;
mod new_keys;
mod shards;
mod sub_trees;
