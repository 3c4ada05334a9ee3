//! Replay: real blocks on a fresh store of any backend, measured.
//!
//! A *bundle* is one block with the state that it touches. It is executed on a base state (empty,
//! or padded with random accounts so that tries have mainnet's depth), which is restored
//! afterwards:
//!
//! ```text
//!  base (block 0) -- write the pre-state, untimed --> block 1 -- execute, propose, commit --> 2
//!     ^---------------------------------- revert -------------------------------------------'
//! ```
//!
//! On a backend that opens partial states, a *witness* bundle is instead executed on the nodes of
//! its witness only, and must reach the post-state root of its header.
//!
//! Bundles come from files, or [`BundleMaker`] makes them from an archive node. Processes share a
//! replay by [`PartSpec`]s.

mod bundle;
mod codes;
mod effects;
mod make;
mod pad;
mod part;
mod remote;
mod seeded;
mod witness;

pub use crate::report::BundleOutcome;
pub use bundle::{BundleReplay, BundleReplayOptions, LiveBundle, ReplayFigures};
pub use codes::settle_code;
pub use effects::{BundleEffects, ExecutedBundle, bundle_effects, execute_bundle};
pub use make::{BundleMaker, MadeBundle};
pub use pad::StatePadding;
pub use part::{NamedBundle, PartError, PartSpec, parse_blocks};
pub use seeded::SeededBundle;
pub use witness::{BlockWitness, CodeProofFigures};
