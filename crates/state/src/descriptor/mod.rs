//! What a storage crate says of itself, so that nobody has to list backends by hand.
//!
//! ```text
//!  storage crate                                   crates/backends      who loops over it
//!  -------------                                   ---------------      -----------------
//!  PROOF_FORMATS: what its proofs are, who checks -> proof_formats() -> light clients (`no_std`)
//!  BACKENDS: names, flags, how each is made -------> all() -----------> command line, races, tests
//! ```
//!
//! A storage crate exports two statics: `PROOF_FORMATS`, a slice of [`ProofFormat`], and, with the
//! feature `std`, `BACKENDS`, a slice of [`Descriptor`]. Flags are data, not code of a command line:
//! whoever has a command line makes its own of them.

mod verifier;

pub use verifier::{ParamsFacts, ProofFormat, ProofVerifier};

#[cfg(feature = "std")]
mod entry;
#[cfg(feature = "std")]
mod error;
#[cfg(feature = "std")]
mod flags;

#[cfg(feature = "std")]
pub use entry::{Descriptor, Make, Making, OtherHash, Pin, Pins, Purpose};
#[cfg(feature = "std")]
pub use error::MakeError;
#[cfg(feature = "std")]
pub use flags::{Flag, Flags, Takes, is};
