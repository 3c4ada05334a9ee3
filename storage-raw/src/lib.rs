//! The backend `raw`: the flat state and nothing else.
//!
//! Its root is always zero, it has no proofs and one row per key. It is the upper bound of speed
//! that benchmarks compare authenticated backends with. It adds only its name to the flat state of
//! `retrie-state`.

#![cfg_attr(not(feature = "std"), no_std)]

#[cfg(feature = "std")]
mod backend;
mod descriptor;

#[cfg(feature = "std")]
pub use backend::Raw;
#[cfg(feature = "std")]
pub use descriptor::BACKENDS;
pub use descriptor::PROOF_FORMATS;
