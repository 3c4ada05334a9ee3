//! The servers: what each transport answers, refuses and survives.

mod auth;
mod budget;
mod engine_rest;
mod http;
mod ipc;
mod odd_messages;
mod otlp;
mod ws;
