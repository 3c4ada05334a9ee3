//! Proofs: [`build`]ing them, [`part`]s of other nodes, and their [bytes](wire).

pub(crate) mod asked;
#[cfg(feature = "std")]
mod build;
#[cfg(feature = "std")]
mod part;
mod reader;
pub(crate) mod wire;

#[cfg(feature = "std")]
pub(crate) use build::{parts, prove};
#[cfg(feature = "std")]
pub(crate) use part::{check, fills, holes};
pub use wire::combine;
