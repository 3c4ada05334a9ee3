//! What a key was over a range of blocks, and proofs of that: the faculty [`Provenance`].

use crate::Value;

/// A key's value from one block on, up to its next version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The block that set it.
    pub block: u64,
    /// The value; `None` = deleted.
    pub value: Option<Value>,
}

#[cfg(feature = "std")]
pub use faculty::*;

#[cfg(feature = "std")]
mod faculty {
    use super::Version;
    use crate::{At, Cache, NodeRead, ProofError, StateError, StateKey, StateProof, StateStore};
    use alloy_primitives::{B256, Bytes};
    use std::ops::RangeInclusive;

    /// The optional faculty of a backend to show, under one root, what keys were over a range of
    /// older blocks (COLE 6.2).
    ///
    /// The *versions* of a key in a range of blocks are those set at its blocks but the first, and
    /// the one in force at the first, if the key ever had a value up to there; newest first. Each
    /// [change](crate::Change) of a block sets one. The range `n..=n` gives the state after block n.
    pub trait Provenance: Send + Sync {
        /// The versions of each of `keys` in `blocks`, and the proof of all of them together. The
        /// proof leads to the root of the state that `view` and `cache` show.
        fn versions(
            &self,
            view: &dyn NodeRead,
            cache: &Cache,
            keys: &[StateKey],
            blocks: RangeInclusive<u64>,
        ) -> Result<(Vec<Vec<Version>>, Bytes), StateError>;

        /// The pure verifier: the versions of each of `keys` in `blocks` under `root`, which must be
        /// that of a block not before the end of the range.
        fn verify_versions(
            &self,
            root: B256,
            keys: &[StateKey],
            blocks: RangeInclusive<u64>,
            proof: &[u8],
        ) -> Result<Vec<Vec<Version>>, ProofError>;
    }

    impl StateStore {
        /// What each of `keys` was over `blocks`, newest version first, as the state `at` shows it,
        /// and the proof of all of that under its root. `at` must be a block (durable or sealed).
        ///
        /// # Errors
        /// [`StateError::Unsupported`] if the backend has no [`Provenance`],
        /// [`StateError::NoBlocks`] if the range is empty, [`StateError::NotInHistory`] if it ends
        /// above the block of `at`, or begins before the first one kept.
        pub fn versions(
            &self,
            at: At<'_>,
            keys: &[StateKey],
            blocks: RangeInclusive<u64>,
        ) -> Result<(Vec<Vec<Version>>, StateProof), StateError> {
            let backend = self.backend();
            let unsupported =
                || StateError::Unsupported { backend: backend.identity().name, what: "provenance" };
            let provenance = backend.provenance().ok_or_else(unsupported)?;
            let (from, to) = blocks.into_inner();
            if from > to {
                return Err(StateError::NoBlocks { from, to });
            }
            self.prove_by(at, |state| {
                let kept = match (backend.history(), state.at) {
                    (Some(history), _) => history.kept(&state.view)?,
                    (None, at) => at.map(|(number, ..)| 0..=number),
                };
                let is_kept = |number| kept.as_ref().is_some_and(|kept| kept.contains(&number));
                if let Some(number) = [to, from].into_iter().find(|number| !is_kept(*number)) {
                    return Err(StateError::NotInHistory { number, kept });
                }
                provenance.versions(&state.view, &state.cache, keys, from..=to)
            })
        }
    }
}
