//! Calls: the answer of `state_call`, and with the feature `calls` its verification.

mod response;
#[cfg(feature = "calls")]
mod verify;

pub use response::{AccountReads, CallResponse};
#[cfg(feature = "calls")]
pub use verify::{TrustedBlock, VerifiedCall};
