//! LVMT: multi-layer versioned multipoint trie (Li et al., OSDI 2023).
#![cfg_attr(not(feature = "std"), no_std)]
extern crate alloc;

mod amt;
mod hash;
mod merkle;
mod params;
mod point;
mod proof;
mod verify;

#[cfg(feature = "std")]
mod apply;
#[cfg(feature = "std")]
mod backend;
#[cfg(feature = "std")]
mod bulk;
#[cfg(feature = "std")]
mod cache;
#[cfg(feature = "std")]
mod check;
#[cfg(feature = "std")]
mod collect;
#[cfg(feature = "std")]
mod record;
#[cfg(feature = "std")]
mod shard;
#[cfg(feature = "std")]
mod tree;

#[cfg(feature = "std")]
pub use backend::{Lvmt, LvmtError};
#[cfg(feature = "std")]
pub use params::{FileFault, Params, ParamsError, Phase, Progress, PtauFault, insecure_dev_tau};
#[cfg(feature = "std")]
pub use shard::{ParseShardError, ProofShard};

pub use amt::{MAX_HEIGHT, SLOTS, VERSION_BITS};
pub use params::{Opening, VerifierParams};
pub use point::Point;
pub use proof::combine;
pub use verify::verify;
