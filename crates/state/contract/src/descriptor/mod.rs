//! Self-description of storage crates: all lists of backends are made from it.
//!
//! ```text
//!  storage crate                                   crates/backends      users
//!  -------------                                   ---------------      -----
//!  PROOF_FORMATS: proof formats and verifiers -----> proof_formats() -> light clients (`no_std`)
//!  BACKENDS: names, flags, constructors -----------> all() -----------> command line, races, tests
//! ```
//!
//! A storage crate exports two statics: `PROOF_FORMATS`, a slice of [`ProofFormat`], and, with the
//! feature `std`, `BACKENDS`, a slice of [`BackendDescriptor`]. Flags are data, not code of a
//! command line: a program with a command line makes its own arguments from them.

mod verifier;
mod witness;

pub use verifier::{FormatVerifier, ParamsFacts, ProofFormat, ProofVerifier};
pub use witness::{OpenedWitness, WitnessResult, check_previous};

#[cfg(feature = "std")]
mod entry;
#[cfg(feature = "std")]
mod error;
#[cfg(feature = "std")]
mod flags;

#[cfg(feature = "std")]
pub use entry::{
    BackendConstructor, BackendDescriptor, ConstructorInput, HashVariant, StorePurpose,
    TrustedParams, VerifierConstructor,
};
#[cfg(feature = "std")]
pub use error::MakeError;
#[cfg(feature = "std")]
pub use flags::{BackendFlag, FlagArgument, FlagValues, parses_as};
