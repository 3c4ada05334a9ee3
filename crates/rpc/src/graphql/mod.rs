//! GraphQL (EIP-1767), in the schema that geth and Besu serve: the same answers as JSON-RPC, for
//! clients that choose the fields.
//!
//! ```text
//!  GET, POST /graphql -- server/graphql.rs --> GraphqlCall
//!     document     size, nesting, depth and number of fields are checked before anything else
//!     service      one heavy permit, one LiveView, one thread; again after a reorg took its state
//!     query, block, transaction, ..   resolvers: functions of `eth`, `call` and `debug`
//!     budget       time, fields and bytes of the execution
//!     answer       JSON of data and errors, status 200 or 400
//! ```
//!
//! # Assumptions
//! * Resolvers never wait, except those of mutations on dev chains. So a query is executed by the
//!   thread that holds its permit, and lists are not resolved concurrently.
//! * The library bounds neither the text of a query nor how often fragments multiply it. The
//!   module [`document`] does, before the library validates.

// The macros of `async-graphql` repeat the name of the type.
#![allow(clippy::use_self)]

mod account;
mod answer;
mod block;
mod budget;
mod call_data;
mod document;
mod log;
mod pending;
mod query;
mod scalars;
mod scope;
mod service;
mod transaction;

pub(crate) use service::{GraphqlCall, GraphqlService};
