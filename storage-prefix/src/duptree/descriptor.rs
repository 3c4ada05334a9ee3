//! What lists of backends have of `duptree`.

use super::verify;
use alloc::vec::Vec;
use alloy_primitives::B256;
use retrie_state::{
    HashId, ProofError, StateKey, Value,
    descriptor::{ParamsFacts, ProofFormat, ProofVerifier},
};

/// Name of the backend.
pub(super) const NAME: &str = "duptree";
/// Version of its rows and proofs.
pub(super) const VERSION: u32 = 1;

/// Checks proofs. There are no parameters; layouts do not show in proofs.
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

/// Multi-proofs of a dense tree.
pub const FORMAT: ProofFormat = ProofFormat {
    backend: NAME,
    version: VERSION,
    hash: HashId::Blake2b256,
    shows_history: false,
    verifier: Some(&Verifier),
};

#[cfg(feature = "std")]
pub use backend::DESCRIPTOR;

#[cfg(feature = "std")]
mod backend {
    use super::NAME;
    use crate::duptree::{DupTree, Layout};
    use retrie_state::{
        AnyBackend,
        descriptor::{Descriptor, Flag, MakeError, Making, Purpose, Takes, is},
    };
    use std::sync::Arc;

    const LAYOUT: &str = "duptree.layout";

    /// `duptree`.
    pub const DESCRIPTOR: Descriptor = Descriptor {
        flags: &[Flag {
            long: LAYOUT,
            value_name: "LAYOUT",
            help: "How `duptree` lays out its nodes: `naive` (a row a node), `dup` (the paths of a \
                   subtree, a row each) or `blocked` (a row a subtree). It is settled when a \
                   datadir is made; roots and proofs do not depend on it. [default: blocked]",
            default: None,
            takes: Takes::Text(is::<Layout>),
        }],
        advice,
        ..Descriptor::plain(
            NAME,
            "DupTree++: a dense binary tree over indexed leaves",
            make,
            || Arc::new(DupTree::new(Layout::default())),
            ["#8f6b12", "#c9a653"],
        )
    };

    fn make(making: &Making<'_>) -> Result<Arc<dyn AnyBackend>, MakeError> {
        let wanted = making.flags.get::<Layout>(LAYOUT)?;
        let layout = match making.purpose {
            Purpose::Trial | Purpose::New { .. } => wanted.unwrap_or_default(),
            Purpose::Existing { datadir, layout, .. } => {
                let stamped = layout.parse::<Layout>().ok();
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
        Ok(Arc::new(DupTree::new(layout)))
    }

    fn advice(error: &MakeError) -> Option<&'static str> {
        match error {
            MakeError::OtherLayout { found, .. } => Some(match found.parse::<Layout>() {
                Ok(_) => "leave --duptree.layout away: the datadir knows its layout",
                Err(_) => "use a newer program",
            }),
            _ => None,
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use retrie_state::descriptor::Flags;
        use std::path::Path;

        fn made(flag: Option<&str>, stamped: Option<&str>) -> Result<&'static str, MakeError> {
            let mut flags = Flags::default();
            if let Some(flag) = flag {
                flags.set(&DESCRIPTOR.flags[0], flag)?;
            }
            let params = Default::default();
            let purpose = stamped.map_or(Purpose::Trial, |layout| Purpose::Existing {
                datadir: Path::new("datadir"),
                params,
                layout,
            });
            let made = make(&Making { flags: &flags, purpose, cache: None })?;
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
