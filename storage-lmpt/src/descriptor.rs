//! Registration of `lmpt`: flags and the verifier of proofs.

use crate::verify;
use alloc::vec::Vec;
use alloy_primitives::B256;
use retrie_state::{
    BackendKey, HashId, ProofError, StateValue,
    descriptor::{FormatVerifier, ParamsFacts, ProofFormat, ProofVerifier},
};

/// Name of the backend.
pub(crate) const NAME: &str = "lmpt";
/// Version of its rows and proofs.
pub(crate) const VERSION: u32 = 1;

/// Checks proofs. A root determines all that they depend on, so there are no parameters to trust.
#[derive(Clone, Copy, Debug)]
struct LmptVerifier;

impl ProofVerifier for LmptVerifier {
    fn params(&self) -> Option<ParamsFacts> {
        None
    }

    fn values(
        &self,
        root: B256,
        keys: &[BackendKey],
        as_of: Option<u64>,
        proof: &[u8],
    ) -> Result<Vec<Option<StateValue>>, ProofError> {
        match as_of {
            None => verify(root, keys, proof),
            Some(_) => Err(ProofFormat::NO_HISTORY),
        }
    }

    #[cfg(feature = "std")]
    fn open_witness(&self, root: B256, witness: &[u8]) -> retrie_state::descriptor::WitnessResult {
        crate::witness::open(root, witness)
    }
}

/// The format of proofs, which have up to three parts.
pub static PROOF_FORMATS: &[ProofFormat] = &[ProofFormat {
    backend: NAME,
    version: VERSION,
    hash: HashId::Keccak256,
    has_ethereum_root: false,
    shows_history: false,
    verifier: FormatVerifier::Fixed(&LmptVerifier),
}];

#[cfg(feature = "std")]
pub use registration::BACKENDS;

#[cfg(feature = "std")]
mod registration {
    use super::NAME;
    use crate::{Lmpt, LmptParams};
    use retrie_state::{
        AnyBackend,
        descriptor::{
            BackendDescriptor, BackendFlag, ConstructorInput, FlagArgument, FlagValues, MakeError,
            StorePurpose, parses_as,
        },
    };
    use std::sync::Arc;

    const INTERVAL: &str = "lmpt.merge-interval";
    const KEYS: &str = "lmpt.merge-keys";
    const LEAST: &str = "lmpt.merge-least";

    /// Flags of `lmpt`. They take effect when a datadir is created.
    const FLAGS: &[BackendFlag] = &[
        BackendFlag {
            long: INTERVAL,
            value_name: "BLOCKS",
            help: "Blocks after which `lmpt` freezes its delta trie, and publishes the merge of the \
                   one before. It is fixed when a datadir is created. [default: 1000]",
            default: None,
            takes: FlagArgument::Text(parses_as::<u64>),
        },
        BackendFlag {
            long: KEYS,
            value_name: "KEYS",
            help: "Keys of the delta trie of `lmpt` after which it is frozen earlier. It is fixed \
                   when a datadir is created. [default: 524288]",
            default: None,
            takes: FlagArgument::Text(parses_as::<u64>),
        },
        BackendFlag {
            long: LEAST,
            value_name: "BLOCKS",
            help: "Blocks of the delta trie of `lmpt` before which its keys do not count: twice the \
                   retention, so that merges are written by many blocks. It is fixed when a \
                   datadir is created. [default: 256]",
            default: None,
            takes: FlagArgument::Text(parses_as::<u64>),
        },
    ];

    /// The descriptor of `lmpt`.
    pub static BACKENDS: &[BackendDescriptor] = &[BackendDescriptor {
        flags: FLAGS,
        // For tests: a boundary every few blocks.
        small_flags: &[(INTERVAL, "5")],
        advice,
        ..BackendDescriptor::plain(
            NAME,
            "LMPT: three tries in layers, merged in background",
            make,
            || {
                let params = LmptParams { interval: 5, ..LmptParams::default() };
                Arc::new(Lmpt::new(params).expect("parameters within their ranges"))
            },
            ["#c26a9b", "#e39cc3"],
        )
    }];

    fn make(making: &ConstructorInput<'_>) -> Result<Arc<dyn AnyBackend>, MakeError> {
        let params = match making.purpose {
            StorePurpose::Temporary | StorePurpose::New { .. } => {
                with_flags(making.flags, LmptParams::default())?
            }
            StorePurpose::Existing { datadir, layout, .. } => {
                let stamped = layout.parse::<LmptParams>().ok();
                let wanted = with_flags(making.flags, stamped.unwrap_or_default())?;
                if stamped != Some(wanted) {
                    return Err(MakeError::OtherLayout {
                        backend: NAME,
                        datadir: datadir.to_owned(),
                        found: layout.to_owned(),
                        expected: wanted.to_string(),
                    });
                }
                wanted
            }
        };
        let lmpt = Lmpt::new(params).map_err(MakeError::backend)?;
        Ok(Arc::new(match making.flags.cache_bytes() {
            Some(bytes) => lmpt.with_compacted_bytes(bytes),
            None => lmpt,
        }))
    }

    /// `params` with the flags that were given.
    fn with_flags(flags: &FlagValues, params: LmptParams) -> Result<LmptParams, MakeError> {
        Ok(LmptParams {
            interval: flags.get(INTERVAL)?.unwrap_or(params.interval),
            keys: flags.get(KEYS)?.unwrap_or(params.keys),
            least: flags.get(LEAST)?.unwrap_or(params.least),
        })
    }

    fn advice(error: &MakeError) -> Option<&'static str> {
        match error {
            MakeError::OtherLayout { found, .. } => Some(match found.parse::<LmptParams>() {
                Ok(_) => "omit the flags --lmpt.*: the datadir stores its parameters",
                Err(_) => "use a newer program",
            }),
            _ => None,
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use std::path::Path;

        fn made(flag: Option<&str>, stamped: Option<&str>) -> Result<&'static str, MakeError> {
            let mut flags = FlagValues::default();
            if let Some(flag) = flag {
                flags.set(&FLAGS[0], flag)?;
            }
            let purpose =
                stamped.map_or(StorePurpose::Temporary, |layout| StorePurpose::Existing {
                    datadir: Path::new("datadir"),
                    params: Default::default(),
                    layout,
                });
            let made = make(&ConstructorInput { flags: &flags, purpose, cache: None })?;
            Ok(made.identity().layout)
        }

        #[test]
        fn the_parameters_of_a_datadir_win_unless_a_flag_contradicts_them() {
            let default = "interval=1000,keys=524288,least=256";
            let other = "interval=7,keys=3,least=2";
            assert_eq!(made(None, None).unwrap(), default);
            assert_eq!(made(Some("20"), None).unwrap(), "interval=20,keys=524288,least=256");
            assert_eq!(made(None, Some(other)).unwrap(), other);
            assert_eq!(made(Some("7"), Some(other)).unwrap(), other);
            for (flag, stamped) in [(Some("8"), other), (None, "interval=0"), (None, "")] {
                let error = made(flag, Some(stamped)).unwrap_err();
                assert!(matches!(&error, MakeError::OtherLayout { found, .. } if found == stamped));
                assert!(advice(&error).is_some());
            }
            assert!(matches!(made(Some("0"), None), Err(MakeError::Backend { .. })));
            assert!(matches!(made(Some("many"), None), Err(MakeError::Flag { .. })));
        }
    }
}
