//! The backend `raw`: the flat state and nothing else.
//!
//! No root (always zero), no proofs, one row a key: the ceiling that authenticated backends are
//! measured against. All it adds to the flat state of `retrie-state` is its name.

#![cfg_attr(not(feature = "std"), no_std)]

#[cfg(feature = "std")]
mod backend;
mod descriptor;

#[cfg(feature = "std")]
pub use backend::Raw;
#[cfg(feature = "std")]
pub use descriptor::BACKENDS;
pub use descriptor::PROOF_FORMATS;
