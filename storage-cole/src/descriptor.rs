//! Registration of `cole` and `cole-sync`: flags and the verifier of proofs.

use crate::{ColeParams, verify_versions};
use alloc::{sync::Arc, vec::Vec};
use alloy_primitives::B256;
use core::ops::RangeInclusive;
use retrie_state::{
    BackendKey, HashId, ProofError, StateValue, ValueVersion, WitnessError,
    descriptor::{FormatVerifier, ParamsFacts, ProofFormat, ProofVerifier, WitnessResult},
};

const NAME: &str = "cole";

/// Why there are no block witnesses.
pub(crate) const NO_WITNESS: &str = "a checkpoint puts the root of a whole new run into the state's root, and no root binds how many \
     pairs the memory level holds, which decides when";

/// The format of proofs. The parameters are part of a store's identity: a proof under other
/// parameters may be false.
pub static PROOF_FORMATS: &[ProofFormat] = &[ProofFormat {
    backend: NAME,
    version: 1,
    hash: HashId::Blake2b256,
    has_ethereum_root: false,
    shows_history: true,
    verifier: FormatVerifier::UnderParams(|bytes| {
        Some(Arc::new(ColeParams::from_digest(&B256::try_from(bytes).ok()?)?))
    }),
}];

impl ProofVerifier for ColeParams {
    fn params(&self) -> Option<ParamsFacts> {
        let digest = self.digest();
        Some(ParamsFacts { backend: NAME, digest, has_secret: false, insecure: false })
    }

    fn values(
        &self,
        root: B256,
        keys: &[BackendKey],
        as_of: Option<u64>,
        proof: &[u8],
    ) -> Result<Vec<Option<StateValue>>, ProofError> {
        let at = as_of.unwrap_or(u64::MAX);
        let versions = verify_versions(self, root, keys, at..=at, proof)?.into_iter();
        Ok(versions.map(|all| all.into_iter().next()?.value).collect())
    }

    fn versions(
        &self,
        root: B256,
        keys: &[BackendKey],
        blocks: RangeInclusive<u64>,
        proof: &[u8],
    ) -> Result<Vec<Vec<ValueVersion>>, ProofError> {
        verify_versions(self, root, keys, blocks, proof)
    }

    fn open_witness(&self, _: B256, _: &[u8]) -> WitnessResult {
        Err(WitnessError::Unsupported { why: NO_WITNESS })
    }
}

#[cfg(feature = "std")]
pub use registration::BACKENDS;

#[cfg(feature = "std")]
mod registration {
    use super::NAME;
    use crate::{Cole, ColeParams};
    use alloy_primitives::B256;
    use retrie_state::{
        AnyBackend,
        descriptor::{
            BackendDescriptor, BackendFlag, ConstructorInput, FlagArgument, FlagValues, MakeError,
            ProofVerifier, StorePurpose, TrustedParams, parses_as,
        },
    };
    use std::sync::Arc;

    /// Flags of `cole`. They take effect when a datadir is created.
    const FLAGS: &[BackendFlag] = &[
        BackendFlag {
            long: "cole.async-merge",
            value_name: "BOOL",
            help: "Whether `cole` merges in the background (COLE*), with equal roots on slow and \
                   fast nodes, or while a block waits. [default: true; false for `cole-sync`]",
            default: None,
            takes: FlagArgument::TextOr(parses_as::<bool>, "true"),
        },
        BackendFlag {
            long: "cole.size-ratio",
            value_name: "T",
            help: "Size ratio T between levels of `cole`: how many runs are merged into one. \
                   [default: 4]",
            default: None,
            takes: FlagArgument::Text(parses_as::<u8>),
        },
        BackendFlag {
            long: "cole.fanout",
            value_name: "M",
            help: "Fanout m of the Merkle trees of `cole`. [default: 4]",
            default: None,
            takes: FlagArgument::Text(parses_as::<u8>),
        },
        BackendFlag {
            long: "cole.epsilon",
            value_name: "E",
            help: "How far the models of `cole` may be off, in 64ths of a page. [default: 32]",
            default: None,
            takes: FlagArgument::Text(parses_as::<u8>),
        },
        BackendFlag {
            long: "cole.memory-pairs",
            value_name: "B",
            help: "Pairs that a group of the memory level of `cole` holds, B. [default: 262144]",
            default: None,
            takes: FlagArgument::Text(parses_as::<u64>),
        },
        BackendFlag {
            long: "cole.keep-history",
            value_name: "BLOCKS",
            help: "Let merges of `cole` drop history older than this number of blocks. With \
                   `--cole.version-trees` it may be changed at any time, but what was dropped does \
                   not come back. [default: all is kept]",
            default: None,
            takes: FlagArgument::Text(parses_as::<u64>),
        },
        BackendFlag {
            long: "cole.version-trees",
            value_name: "BOOL",
            help: "Whether runs of `cole` have a tree over the versions of each key (COLE+): what \
                   `--cole.keep-history` drops then leaves its digest, and roots and proofs are \
                   those of a store that keeps all. [default: false]",
            default: None,
            takes: FlagArgument::TextOr(parses_as::<bool>, "true"),
        },
    ];

    /// Flags for tests: a group is flushed or merged every few blocks.
    const SMALL_FLAGS: &[(&str, &str)] = &[("cole.memory-pairs", "50"), ("cole.size-ratio", "2")];

    const PINS: TrustedParams = TrustedParams {
        flags: &[BackendFlag {
            long: "cole-params",
            value_name: "PARAMS",
            help: "Parameters of `cole` that you trust, as `state_backend` of a node you trust names \
                   them: 32 bytes. [default: those that `cole` has without flags, in the background \
                   or not]",
            default: None,
            takes: FlagArgument::Text(|text| trusted(text).map(drop)),
        }],
        verifiers: pinned,
    };

    /// `cole` and `cole-sync`: the same store, with and without merges in the background.
    pub static BACKENDS: &[BackendDescriptor] = &[
        BackendDescriptor {
            flags: FLAGS,
            small_flags: SMALL_FLAGS,
            trusted_params: Some(&PINS),
            advice,
            ..BackendDescriptor::plain(
                "cole",
                "COLE*: all states, in runs merged in background",
                |making| make(making, true),
                || small(true),
                ["#009e73", "#2fc79b"],
            )
        },
        BackendDescriptor {
            flags: FLAGS,
            small_flags: SMALL_FLAGS,
            advice,
            ..BackendDescriptor::plain(
                "cole-sync",
                "COLE: the same, merged while a block waits",
                |making| make(making, false),
                || small(false),
                ["#5c8a2e", "#a6d26f"],
            )
        },
    ];

    fn small(async_merge: bool) -> Arc<dyn AnyBackend> {
        let params =
            ColeParams { async_merge, memory_pairs: 50, size_ratio: 2, ..ColeParams::default() };
        Arc::new(Cole::new(params).expect("parameters within their ranges"))
    }

    /// Makes the backend, with `async_merge` unless a flag says otherwise.
    fn make(
        making: &ConstructorInput<'_>,
        async_merge: bool,
    ) -> Result<Arc<dyn AnyBackend>, MakeError> {
        let params = match making.purpose {
            StorePurpose::Temporary | StorePurpose::New { .. } => {
                with_flags(making.flags, ColeParams { async_merge, ..ColeParams::default() })?
            }
            StorePurpose::Existing { datadir, params, .. } => {
                let Some(stamped) = ColeParams::from_digest(&params) else {
                    let datadir = datadir.to_owned();
                    return Err(MakeError::UnknownParams { backend: NAME, datadir, params });
                };
                let keep = making.flags.get("cole.keep-history")?;
                let keep_history =
                    keep.filter(|_| stamped.version_trees).unwrap_or(stamped.keep_history);
                let stamped = ColeParams { keep_history, ..stamped };
                // `cole-sync` requires COLE; `cole` accepts both.
                let wanted =
                    ColeParams { async_merge: async_merge && stamped.async_merge, ..stamped };
                if with_flags(making.flags, wanted)? != stamped {
                    tracing::warn!(
                        datadir = %datadir.display(),
                        "flags of cole are fixed when a datadir is created; these are ignored"
                    );
                }
                stamped
            }
        };
        Ok(Arc::new(Cole::new(params).map_err(MakeError::backend)?))
    }

    /// `params` with the flags that were given.
    fn with_flags(flags: &FlagValues, params: ColeParams) -> Result<ColeParams, MakeError> {
        Ok(ColeParams {
            async_merge: flags.get("cole.async-merge")?.unwrap_or(params.async_merge),
            size_ratio: flags.get("cole.size-ratio")?.unwrap_or(params.size_ratio),
            fanout: flags.get("cole.fanout")?.unwrap_or(params.fanout),
            epsilon: flags.get("cole.epsilon")?.unwrap_or(params.epsilon),
            memory_pairs: flags.get("cole.memory-pairs")?.unwrap_or(params.memory_pairs),
            keep_history: flags.get("cole.keep-history")?.unwrap_or(params.keep_history),
            version_trees: flags.get("cole.version-trees")?.unwrap_or(params.version_trees),
        })
    }

    const fn advice(error: &MakeError) -> Option<&'static str> {
        match error {
            MakeError::UnknownParams { .. } => Some("use a newer program"),
            _ => None,
        }
    }

    fn trusted(text: &str) -> Result<ColeParams, String> {
        let digest: B256 = text.parse().map_err(|error| format!("it is not 32 bytes ({error})"))?;
        ColeParams::from_digest(&digest).ok_or_else(|| "these are no parameters of cole".to_owned())
    }

    /// The parameters of the flag, or else the default parameters of `cole` and `cole-sync`.
    fn pinned(flags: &FlagValues) -> Result<Vec<Arc<dyn ProofVerifier>>, MakeError> {
        let default = |async_merge| ColeParams { async_merge, ..ColeParams::default() };
        let of = |params: ColeParams| Arc::new(params) as Arc<dyn ProofVerifier>;
        Ok(
            match flags
                .get::<B256>("cole-params")?
                .and_then(|digest| ColeParams::from_digest(&digest))
            {
                Some(params) => vec![of(params)],
                None => vec![of(default(true)), of(default(false))],
            },
        )
    }
}
