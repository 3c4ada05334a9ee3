//! Tests of `retrie-storage-cole` from outside: a module for each subject, one program for all.

mod common;
mod damage;
mod history;
mod kit;
mod settle;
