//! Public parameters: the verifier's part ([`VerifierParams`]), and with `std` the tables of
//! precomputed points ([`LvmtParams`]), with which an update of commitments and quotients takes
//! only additions.

mod verifier;

pub use verifier::{EntryOpening, VerifierParams, insecure_dev_tau};

#[cfg(feature = "std")]
mod derive;
#[cfg(feature = "std")]
mod dev;
#[cfg(feature = "std")]
mod error;
#[cfg(feature = "std")]
mod file;
#[cfg(feature = "std")]
mod ptau;
#[cfg(feature = "std")]
mod tables;
#[cfg(all(test, feature = "std"))]
mod tests;

#[cfg(feature = "std")]
pub use error::{FileFault, ParamsError, PtauFault};
#[cfg(feature = "std")]
pub use tables::{LvmtParams, SetupPhase, SetupProgress};
