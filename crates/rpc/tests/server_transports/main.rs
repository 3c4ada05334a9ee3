//! The servers: what each transport answers, refuses and survives.

#[path = "../common/mod.rs"]
mod common;

mod auth;
mod budget;
mod http;
mod ipc;
mod odd;
mod ws;
