//! Proofs: [making](mod@prove) them, [parts](part) from other nodes, and their [bytes](wire).

pub(crate) mod asked_keys;
#[cfg(feature = "std")]
mod part;
#[cfg(feature = "std")]
mod prove;
mod reader;
pub(crate) mod wire;

#[cfg(feature = "std")]
pub(crate) use part::{check, fills, holes};
#[cfg(feature = "std")]
pub(crate) use prove::{parts, prove};
pub use wire::combine;
