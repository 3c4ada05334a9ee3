//! Public parameters: what the verifier needs ([`VerifierParams`]), and with `std` the tables of
//! precomputed points that make an update of commitments and quotients a matter of additions
//! ([`Params`]).

mod verifier;

pub use verifier::{Opening, VerifierParams, insecure_dev_tau};

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
pub use tables::{Params, Phase, Progress};
