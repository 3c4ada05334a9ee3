//! What lists of backends have of `lmpt`.

use crate::verify;
use alloc::vec::Vec;
use alloy_primitives::B256;
use retrie_state::{
    HashId, ProofError, StateKey, Value,
    descriptor::{ParamsFacts, ProofFormat, ProofVerifier},
};

/// Name of the backend.
pub(crate) const NAME: &str = "lmpt";
/// Version of its rows and proofs.
pub(crate) const VERSION: u32 = 1;

/// Checks proofs. A root says all that they depend on: there are no parameters to trust.
#[derive(Clone, Copy, Debug)]
struct Verifier;

impl ProofVerifier for Verifier {
    fn params(&self) -> Option<ParamsFacts> {
        None
    }

    fn values(
        &self,
        root: B256,
        keys: &[StateKey],
        as_of: Option<u64>,
        proof: &[u8],
    ) -> Result<Vec<Option<Value>>, ProofError> {
        match as_of {
            None => verify(root, keys, proof),
            Some(_) => Err(ProofFormat::NO_HISTORY),
        }
    }
}

/// Proofs in up to three parts.
pub static PROOF_FORMATS: &[ProofFormat] = &[ProofFormat {
    backend: NAME,
    version: VERSION,
    hash: HashId::Keccak256,
    shows_history: false,
    verifier: Some(&Verifier),
}];

#[cfg(feature = "std")]
pub use backends::BACKENDS;

#[cfg(feature = "std")]
mod backends {
    use super::NAME;
    use crate::{Lmpt, Params};
    use retrie_state::{
        AnyBackend,
        descriptor::{Descriptor, Flag, Flags, MakeError, Making, Purpose, Takes, is},
    };
    use std::sync::Arc;

    const INTERVAL: &str = "lmpt.merge-interval";
    const KEYS: &str = "lmpt.merge-keys";
    const LEAST: &str = "lmpt.merge-least";

    /// They are settled when a datadir is made.
    const FLAGS: &[Flag] = &[
        Flag {
            long: INTERVAL,
            value_name: "BLOCKS",
            help: "Blocks after which `lmpt` freezes its delta trie, and publishes the merge of the \
                   one before. It is settled when a datadir is made. [default: 1000]",
            default: None,
            takes: Takes::Text(is::<u64>),
        },
        Flag {
            long: KEYS,
            value_name: "KEYS",
            help: "Keys of the delta trie of `lmpt` after which it is frozen earlier. It is settled \
                   when a datadir is made. [default: 524288]",
            default: None,
            takes: Takes::Text(is::<u64>),
        },
        Flag {
            long: LEAST,
            value_name: "BLOCKS",
            help: "Blocks of the delta trie of `lmpt` before which its keys do not count: twice the \
                   retention, so that merges are written by many blocks. It is settled when a \
                   datadir is made. [default: 256]",
            default: None,
            takes: Takes::Text(is::<u64>),
        },
    ];

    /// `lmpt`.
    pub static BACKENDS: &[Descriptor] = &[Descriptor {
        flags: FLAGS,
        // There is a boundary every few blocks.
        small_flags: &[(INTERVAL, "5")],
        advice,
        ..Descriptor::plain(
            NAME,
            "LMPT: three tries in layers, merged in background",
            make,
            || {
                let params = Params { interval: 5, ..Params::default() };
                Arc::new(Lmpt::new(params).expect("parameters within their ranges"))
            },
            ["#c26a9b", "#e39cc3"],
        )
    }];

    fn make(making: &Making<'_>) -> Result<Arc<dyn AnyBackend>, MakeError> {
        let params = match making.purpose {
            Purpose::Trial | Purpose::New { .. } => over(making.flags, Params::default())?,
            Purpose::Existing { datadir, layout, .. } => {
                let stamped = layout.parse::<Params>().ok();
                let wanted = over(making.flags, stamped.unwrap_or_default())?;
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
        Ok(Arc::new(Lmpt::new(params).map_err(MakeError::backend)?))
    }

    /// `params`, but for the flags that were given.
    fn over(flags: &Flags, params: Params) -> Result<Params, MakeError> {
        Ok(Params {
            interval: flags.get(INTERVAL)?.unwrap_or(params.interval),
            keys: flags.get(KEYS)?.unwrap_or(params.keys),
            least: flags.get(LEAST)?.unwrap_or(params.least),
        })
    }

    fn advice(error: &MakeError) -> Option<&'static str> {
        match error {
            MakeError::OtherLayout { found, .. } => Some(match found.parse::<Params>() {
                Ok(_) => "leave the flags --lmpt.* away: the datadir knows its parameters",
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
            let mut flags = Flags::default();
            if let Some(flag) = flag {
                flags.set(&FLAGS[0], flag)?;
            }
            let purpose = stamped.map_or(Purpose::Trial, |layout| Purpose::Existing {
                datadir: Path::new("datadir"),
                params: Default::default(),
                layout,
            });
            let made = make(&Making { flags: &flags, purpose, cache: None })?;
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
