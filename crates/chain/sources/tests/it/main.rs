//! Tests of `retrie-sources` from outside: a module for each subject, one program for all.

mod common;
mod damage;
mod download;
mod ere;
mod formats;
mod objects;
mod preimages;
mod real_data;
mod rpc;
