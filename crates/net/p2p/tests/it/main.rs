//! Integration tests of `retrie-p2p`: one module for each subject, in one program.

mod discovery;
mod manual_peer;
mod peers;
mod snap;
