//! Integration tests of `retrie-storage-cole`: a module for each subject, one test program.

mod common;
mod damage;
mod garbage;
mod history;
mod kit;
