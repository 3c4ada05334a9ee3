//! Replay: real blocks on a fresh store of any backend, measured.
//!
//! A *bundle* is one block with the state it touches. It stands on a base state (empty, or padded
//! with random accounts so that tries have mainnet's depth) and leaves nothing behind:
//!
//! ```text
//!  base (block 0) -- lay the pre-state down, untimed --> block 1 -- execute, propose, commit --> 2
//!     ^----------------------------------- revert ----------------------------------------------'
//! ```
//!
//! On a backend that opens partial states, a *witness* bundle is instead executed on exactly the
//! nodes of its witness, and must reach the post-state root of its header.
//!
//! Bundles come from files, or are made from an archive node by [`BundleMaker`]. Many processes share a
//! replay by [`Part`]s.

mod bundle;
mod effects;
mod make;
mod pad;
mod part;
mod remote;

pub use crate::report::BundleOutcome;
pub use bundle::{BundleReplay, BundleReplayOptions, LiveBundle, ReplayFigures};
pub use effects::{BundleEffects, ExecutedBundle, bundle_effects, execute_bundle};
pub use make::{BundleMaker, MadeBundle};
pub use pad::{Padding, SLOTS_PER_CONTRACT};
pub use part::{NamedBundle, Part, PartError, parse_blocks};
