//! Tests of `retrie-storage-pbt` from outside: a module for each subject, one program for all.

mod common;
mod damage;
mod kit;
mod model;
mod witness;
