//! Integration tests of `retrie-stream`: one module per subject, all in one program.

mod common;
mod file;
mod records;
mod websocket;
