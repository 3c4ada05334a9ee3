//! Flags and registration of the backend `bavl` and of its proof format.

use crate::verify;
use alloc::vec::Vec;
use alloy_primitives::B256;
use retrie_state::{
    BackendKey, HashId, ProofError, StateValue,
    descriptor::{FormatVerifier, ParamsFacts, ProofFormat, ProofVerifier},
};

/// Name of the backend.
pub(crate) const NAME: &str = "bavl";
/// Version of its rows and proofs.
pub(crate) const VERSION: u32 = 1;

/// Checks proofs. A proof contains the chunk size, which the root binds, so there are no parameters
/// to trust.
#[derive(Clone, Copy, Debug)]
struct BavlVerifier;

impl ProofVerifier for BavlVerifier {
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

/// The proof format of `bavl`: multi-proofs of an AVL tree of chunks.
pub static PROOF_FORMATS: &[ProofFormat] = &[ProofFormat {
    backend: NAME,
    version: VERSION,
    hash: HashId::Blake2b256,
    has_ethereum_root: false,
    shows_history: false,
    verifier: FormatVerifier::Fixed(&BavlVerifier),
}];

#[cfg(feature = "std")]
pub use registration::BACKENDS;

#[cfg(feature = "std")]
mod registration {
    use super::NAME;
    use crate::{Bavl, ChunkEntries};
    use retrie_state::{
        AnyBackend,
        descriptor::{
            BackendDescriptor, BackendFlag, ConstructorInput, FlagArgument, MakeError,
            StorePurpose, parses_as,
        },
    };
    use std::sync::Arc;

    const ENTRIES: &str = "bavl.chunk-entries";

    const FLAGS: &[BackendFlag] = &[BackendFlag {
        long: ENTRIES,
        value_name: "ENTRIES",
        help: "Most entries in a chunk of `bavl`, 4 to 4096. Fixed when a datadir is created; \
               roots depend on it. [default: 256]",
        default: None,
        takes: FlagArgument::Text(parses_as::<ChunkEntries>),
    }];

    /// `bavl`.
    pub static BACKENDS: &[BackendDescriptor] = &[BackendDescriptor {
        flags: FLAGS,
        // With the smallest chunks, tests cut and merge them all the time.
        small_flags: &[(ENTRIES, "4")],
        advice,
        ..BackendDescriptor::plain(
            NAME,
            "B+AVL: an AVL tree of self-verifiable chunks",
            make,
            || {
                let entries = ChunkEntries::new(ChunkEntries::LEAST);
                Arc::new(Bavl::new(entries.unwrap_or_default()))
            },
            ["#5b3fa0", "#a48be0"],
        )
    }];

    fn make(making: &ConstructorInput<'_>) -> Result<Arc<dyn AnyBackend>, MakeError> {
        let wanted = making.flags.get::<ChunkEntries>(ENTRIES)?;
        let entries = match making.purpose {
            StorePurpose::Temporary | StorePurpose::New { .. } => wanted.unwrap_or_default(),
            StorePurpose::Existing { datadir, layout, .. } => {
                match ChunkEntries::of_stamp(layout) {
                    Some(stamped) if wanted.is_none_or(|wanted| wanted == stamped) => stamped,
                    _ => {
                        return Err(MakeError::OtherLayout {
                            backend: NAME,
                            datadir: datadir.to_owned(),
                            found: layout.to_owned(),
                            expected: wanted.unwrap_or_default().stamp().to_owned(),
                        });
                    }
                }
            }
        };
        let bavl = Bavl::new(entries);
        Ok(Arc::new(match making.flags.cache_bytes() {
            Some(bytes) => bavl.with_compacted_bytes(bytes),
            None => bavl,
        }))
    }

    fn advice(error: &MakeError) -> Option<&'static str> {
        match error {
            MakeError::OtherLayout { found, .. } => Some(match ChunkEntries::of_stamp(found) {
                Some(_) => "leave out --bavl.chunk-entries: the datadir has its own value",
                None => "use a newer program",
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
        fn the_chunks_of_a_datadir_win_unless_a_flag_contradicts_them() {
            let other = "chunk-entries=17";
            assert_eq!(made(None, None).unwrap(), "chunk-entries=256");
            assert_eq!(made(Some("17"), None).unwrap(), other);
            assert_eq!(made(None, Some(other)).unwrap(), other);
            assert_eq!(made(Some("17"), Some(other)).unwrap(), other);
            for (flag, stamped) in [
                (Some("18"), other),
                (None, "chunk-entries=3"),
                (None, "chunk-entries=017"),
                (None, ""),
            ] {
                let error = made(flag, Some(stamped)).unwrap_err();
                assert!(matches!(&error, MakeError::OtherLayout { found, .. } if found == stamped));
                assert!(advice(&error).is_some());
            }
            for wrong in ["3", "4097", "many", "-1", ""] {
                let error = made(Some(wrong), None).unwrap_err();
                assert!(matches!(error, MakeError::Flag { .. }), "{wrong}");
            }
        }
    }
}
