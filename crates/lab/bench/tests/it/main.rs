//! Tests of `retrie-bench` from outside: a module for each subject, one program for all.

mod adversary;
mod budget;
mod clients;
mod common;
mod made_chain;
mod peers;
mod provenance;
mod race;
mod report;
mod trace;
