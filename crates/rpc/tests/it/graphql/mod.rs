//! GraphQL: the public cases, and what bounds and guards it.

mod cases;
mod http;
mod queries;
