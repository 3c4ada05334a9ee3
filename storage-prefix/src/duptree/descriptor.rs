//! Flags and registration of the backend `duptree`, and its proof format.

use super::{verify, witness};
use alloc::vec::Vec;
use alloy_primitives::B256;
use retrie_state::{
    BackendKey, HashId, ProofError, StateValue,
    descriptor::{FormatVerifier, ParamsFacts, ProofFormat, ProofVerifier, WitnessResult},
};

/// Name of the backend.
pub(super) const NAME: &str = "duptree";
/// Version of its rows and proofs.
pub(super) const VERSION: u32 = 1;

/// Checks proofs. There are no parameters, and proofs do not depend on the layout.
#[derive(Clone, Copy, Debug)]
struct DupTreeVerifier;

impl ProofVerifier for DupTreeVerifier {
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

    fn open_witness(&self, root: B256, witness: &[u8]) -> WitnessResult {
        witness::open(root, witness)
    }
}

/// The proof format of `duptree`: multi-proofs of a dense tree.
pub const FORMAT: ProofFormat = ProofFormat {
    backend: NAME,
    version: VERSION,
    hash: HashId::Blake2b256,
    has_ethereum_root: false,
    shows_history: false,
    verifier: FormatVerifier::Fixed(&DupTreeVerifier),
};

#[cfg(feature = "std")]
pub(crate) use registration::DESCRIPTOR;

#[cfg(feature = "std")]
mod registration {
    use super::NAME;
    use crate::duptree::{
        DupTree, DupTreeLayout,
        cache::{MAX_CACHED_SUBTREES, cached_subtrees},
    };
    use retrie_state::{
        AnyBackend,
        descriptor::{
            BackendDescriptor, BackendFlag, ConstructorInput, FlagArgument, MakeError,
            StorePurpose, parses_as,
        },
    };
    use std::sync::Arc;

    const LAYOUT: &str = "duptree.layout";

    /// The backend `duptree`.
    pub(crate) const DESCRIPTOR: BackendDescriptor = BackendDescriptor {
        flags: &[BackendFlag {
            long: LAYOUT,
            value_name: "LAYOUT",
            help: "How `duptree` lays out its nodes: `naive` (a row a node), `dup` (the paths of a \
                   subtree, a row each) or `blocked` (a row a subtree). Fixed when a datadir is \
                   created; roots and proofs do not depend on it. [default: blocked]",
            default: None,
            takes: FlagArgument::Text(parses_as::<DupTreeLayout>),
        }],
        advice,
        ..BackendDescriptor::plain(
            NAME,
            "DupTree++: a dense binary tree over indexed leaves",
            make,
            || Arc::new(DupTree::new(DupTreeLayout::default())),
            ["#8f6b12", "#c9a653"],
        )
    };

    fn make(making: &ConstructorInput<'_>) -> Result<Arc<dyn AnyBackend>, MakeError> {
        let wanted = making.flags.get::<DupTreeLayout>(LAYOUT)?;
        let layout = match making.purpose {
            StorePurpose::Temporary | StorePurpose::New { .. } => wanted.unwrap_or_default(),
            StorePurpose::Existing { datadir, layout, .. } => {
                let stamped = layout.parse::<DupTreeLayout>().ok();
                match stamped {
                    Some(stamped) if wanted.is_none_or(|wanted| wanted == stamped) => stamped,
                    _ => {
                        return Err(MakeError::OtherLayout {
                            backend: NAME,
                            datadir: datadir.to_owned(),
                            found: layout.to_owned(),
                            expected: wanted.unwrap_or_default().name().to_owned(),
                        });
                    }
                }
            }
        };
        let most = making.flags.cache_bytes().map_or(MAX_CACHED_SUBTREES, cached_subtrees);
        Ok(Arc::new(DupTree::with_cache(layout, most)))
    }

    fn advice(error: &MakeError) -> Option<&'static str> {
        match error {
            MakeError::OtherLayout { found, .. } => Some(match found.parse::<DupTreeLayout>() {
                Ok(_) => "leave out --duptree.layout: the datadir has its own layout",
                Err(_) => "use a newer program",
            }),
            _ => None,
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use retrie_state::descriptor::FlagValues;
        use std::path::Path;

        fn made(flag: Option<&str>, stamped: Option<&str>) -> Result<&'static str, MakeError> {
            let mut flags = FlagValues::default();
            if let Some(flag) = flag {
                flags.set(&DESCRIPTOR.flags[0], flag)?;
            }
            let params = Default::default();
            let purpose = stamped.map_or(StorePurpose::Temporary, |layout| {
                StorePurpose::Existing { datadir: Path::new("datadir"), params, layout }
            });
            let made = make(&ConstructorInput { flags: &flags, purpose, cache: None })?;
            Ok(made.identity().layout)
        }

        #[test]
        fn the_layout_of_a_datadir_wins_unless_a_flag_contradicts_it() {
            assert_eq!(made(None, None).unwrap(), "blocked");
            for layout in ["naive", "dup", "blocked"] {
                assert_eq!(made(Some(layout), None).unwrap(), layout);
                assert_eq!(made(None, Some(layout)).unwrap(), layout);
                assert_eq!(made(Some(layout), Some(layout)).unwrap(), layout);
            }
            for (flag, stamped) in
                [(Some("dup"), "naive"), (None, "third"), (Some("dup"), "third"), (None, "")]
            {
                let error = made(flag, Some(stamped)).unwrap_err();
                assert!(matches!(&error, MakeError::OtherLayout { found, .. } if found == stamped));
                assert!(advice(&error).is_some());
            }
            assert!(matches!(made(Some("third"), None), Err(MakeError::Flag { .. })));
        }
    }
}
