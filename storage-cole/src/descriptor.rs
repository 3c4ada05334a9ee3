//! What lists of backends have of `cole` and `cole-sync`.

use crate::{Params, verify_versions};
use alloc::vec::Vec;
use alloy_primitives::B256;
use core::ops::RangeInclusive;
use retrie_state::{
    HashId, ProofError, StateKey, Value, Version,
    descriptor::{ParamsFacts, ProofFormat, ProofVerifier},
};

const NAME: &str = "cole";

/// Proofs under parameters, which are part of a store's identity: one under others may lie.
pub static PROOF_FORMATS: &[ProofFormat] = &[ProofFormat {
    backend: NAME,
    version: 1,
    hash: HashId::Blake2b256,
    shows_history: true,
    verifier: None,
}];

impl ProofVerifier for Params {
    fn params(&self) -> Option<ParamsFacts> {
        let digest = self.digest();
        Some(ParamsFacts { backend: NAME, digest, has_secret: false, insecure: false })
    }

    fn values(
        &self,
        root: B256,
        keys: &[StateKey],
        as_of: Option<u64>,
        proof: &[u8],
    ) -> Result<Vec<Option<Value>>, ProofError> {
        let at = as_of.unwrap_or(u64::MAX);
        let versions = verify_versions(self, root, keys, at..=at, proof)?.into_iter();
        Ok(versions.map(|all| all.into_iter().next()?.value).collect())
    }

    fn versions(
        &self,
        root: B256,
        keys: &[StateKey],
        blocks: RangeInclusive<u64>,
        proof: &[u8],
    ) -> Result<Vec<Vec<Version>>, ProofError> {
        verify_versions(self, root, keys, blocks, proof)
    }
}

#[cfg(feature = "std")]
pub use backends::BACKENDS;

#[cfg(feature = "std")]
mod backends {
    use super::NAME;
    use crate::{Cole, Params};
    use alloy_primitives::B256;
    use retrie_state::{
        AnyBackend,
        descriptor::{
            Descriptor, Flag, Flags, MakeError, Making, Pins, ProofVerifier, Purpose, Takes, is,
        },
    };
    use std::sync::Arc;

    /// Flags of `cole`; they are settled when a datadir is made.
    const FLAGS: &[Flag] = &[
        Flag {
            long: "cole.async-merge",
            value_name: "BOOL",
            help: "Whether `cole` merges in the background (COLE*), with equal roots on slow and \
                   fast nodes, or while a block waits. [default: true; false for `cole-sync`]",
            default: None,
            takes: Takes::TextOr(is::<bool>, "true"),
        },
        Flag {
            long: "cole.size-ratio",
            value_name: "T",
            help: "Size ratio T between levels of `cole`: how many runs are merged into one. \
                   [default: 4]",
            default: None,
            takes: Takes::Text(is::<u8>),
        },
        Flag {
            long: "cole.fanout",
            value_name: "M",
            help: "Fanout m of the Merkle trees of `cole`. [default: 4]",
            default: None,
            takes: Takes::Text(is::<u8>),
        },
        Flag {
            long: "cole.epsilon",
            value_name: "E",
            help: "How far the models of `cole` may be off, in 64ths of a page. [default: 32]",
            default: None,
            takes: Takes::Text(is::<u8>),
        },
        Flag {
            long: "cole.memory-pairs",
            value_name: "B",
            help: "Pairs that a group of the memory level of `cole` holds, B. [default: 262144]",
            default: None,
            takes: Takes::Text(is::<u64>),
        },
        Flag {
            long: "cole.keep-history",
            value_name: "BLOCKS",
            help: "Let merges of `cole` drop history older than this number of blocks. [default: \
                   all is kept]",
            default: None,
            takes: Takes::Text(is::<u64>),
        },
    ];

    /// Something is flushed or merged every few blocks.
    const SMALL_FLAGS: &[(&str, &str)] = &[("cole.memory-pairs", "50"), ("cole.size-ratio", "2")];

    const PINS: Pins = Pins {
        flags: &[Flag {
            long: "cole-params",
            value_name: "PARAMS",
            help: "Parameters of `cole` that you trust, as `state_backend` of a node you trust names \
                   them: 32 bytes. [default: those that `cole` has without flags, in the background \
                   or not]",
            default: None,
            takes: Takes::Text(|text| trusted(text).map(drop)),
        }],
        verifiers: pinned,
    };

    /// `cole` and `cole-sync`: one store, with and without merges in the background.
    pub static BACKENDS: &[Descriptor] = &[
        Descriptor {
            flags: FLAGS,
            small_flags: SMALL_FLAGS,
            pins: Some(&PINS),
            advice,
            ..Descriptor::plain(
                "cole",
                "COLE*: all states, in runs merged in background",
                |making| make(making, true),
                || small(true),
                ["#009e73", "#2fc79b"],
            )
        },
        Descriptor {
            flags: FLAGS,
            small_flags: SMALL_FLAGS,
            advice,
            ..Descriptor::plain(
                "cole-sync",
                "COLE: the same, merged while a block waits",
                |making| make(making, false),
                || small(false),
                ["#5c8a2e", "#a6d26f"],
            )
        },
    ];

    fn small(async_merge: bool) -> Arc<dyn AnyBackend> {
        let params = Params { async_merge, memory_pairs: 50, size_ratio: 2, ..Params::default() };
        Arc::new(Cole::new(params).expect("parameters within their ranges"))
    }

    /// The backend; with `async_merge` unless its flags say something else.
    fn make(making: &Making<'_>, async_merge: bool) -> Result<Arc<dyn AnyBackend>, MakeError> {
        let params = match making.purpose {
            Purpose::Trial | Purpose::New { .. } => {
                over(making.flags, Params { async_merge, ..Params::default() })?
            }
            Purpose::Existing { datadir, params, .. } => {
                let Some(stamped) = Params::from_digest(&params) else {
                    let datadir = datadir.to_owned();
                    return Err(MakeError::UnknownParams { backend: NAME, datadir, params });
                };
                // `cole-sync` asks for COLE, `cole` for whatever the datadir has.
                let wanted = Params { async_merge: async_merge && stamped.async_merge, ..stamped };
                if over(making.flags, wanted)? != stamped {
                    tracing::warn!(
                        datadir = %datadir.display(),
                        "flags of cole are settled when a datadir is made; those given now are ignored"
                    );
                }
                stamped
            }
        };
        Ok(Arc::new(Cole::new(params).map_err(MakeError::backend)?))
    }

    /// `params`, but for the flags that were given.
    fn over(flags: &Flags, params: Params) -> Result<Params, MakeError> {
        Ok(Params {
            async_merge: flags.get("cole.async-merge")?.unwrap_or(params.async_merge),
            size_ratio: flags.get("cole.size-ratio")?.unwrap_or(params.size_ratio),
            fanout: flags.get("cole.fanout")?.unwrap_or(params.fanout),
            epsilon: flags.get("cole.epsilon")?.unwrap_or(params.epsilon),
            memory_pairs: flags.get("cole.memory-pairs")?.unwrap_or(params.memory_pairs),
            keep_history: flags.get("cole.keep-history")?.unwrap_or(params.keep_history),
        })
    }

    const fn advice(error: &MakeError) -> Option<&'static str> {
        match error {
            MakeError::UnknownParams { .. } => Some("use a newer program"),
            _ => None,
        }
    }

    fn trusted(text: &str) -> Result<Params, String> {
        let digest: B256 = text.parse().map_err(|error| format!("it is not 32 bytes ({error})"))?;
        Params::from_digest(&digest).ok_or_else(|| "these are no parameters of cole".to_owned())
    }

    /// The parameters that are given, or those that `cole` and `cole-sync` have without flags.
    fn pinned(flags: &Flags) -> Result<Vec<Arc<dyn ProofVerifier>>, MakeError> {
        let default = |async_merge| Params { async_merge, ..Params::default() };
        let of = |params: Params| Arc::new(params) as Arc<dyn ProofVerifier>;
        Ok(
            match flags.get::<B256>("cole-params")?.and_then(|digest| Params::from_digest(&digest))
            {
                Some(params) => vec![of(params)],
                None => vec![of(default(true)), of(default(false))],
            },
        )
    }
}
