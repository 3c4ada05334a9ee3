//! The backend `raw`: the flat state and nothing else.
//!
//! No root (always zero), no proofs, one row a key: the ceiling that authenticated backends are
//! measured against. All it adds to the flat state of `retrie-state` is its name.

mod backend;

pub use backend::Raw;
