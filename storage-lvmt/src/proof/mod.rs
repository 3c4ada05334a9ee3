//! Proofs: [`build`]ing them, and their [bytes](wire).

pub(crate) mod asked;
#[cfg(feature = "std")]
mod build;
mod reader;
pub(crate) mod wire;

#[cfg(feature = "std")]
pub(crate) use build::{parts, prove};
pub use wire::combine;
