//! Tests of `retrie-storage-prefix` from outside: a module for each subject, one program for all.

#[path = "../../../storage-mpt/tests/it/common/mod.rs"]
mod common;
mod duptree_common;
mod duptree_damage;
mod duptree_kit;
mod duptree_model;
mod duptree_proofs;
mod kit;
mod prefix;
