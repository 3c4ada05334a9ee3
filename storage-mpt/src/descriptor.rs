//! Registration of the backends `mpt` and `mpt-archive` and of their proof formats.

use crate::{TrieHash, verify::verify_with};
use alloc::vec::Vec;
use alloy_primitives::B256;
use retrie_state::{
    BackendKey, ProofError, StateValue,
    descriptor::{FormatVerifier, ParamsFacts, ProofFormat, ProofVerifier},
};

/// Checks proofs of a trie hashed with this function. Tries have no parameters.
#[derive(Clone, Copy, Debug)]
struct MptVerifier(TrieHash);

impl ProofVerifier for MptVerifier {
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
            None => verify_with(self.0, root, keys, proof),
            Some(_) => Err(ProofFormat::NO_HISTORY),
        }
    }

    #[cfg(feature = "std")]
    fn open_witness(&self, root: B256, witness: &[u8]) -> retrie_state::descriptor::WitnessResult {
        crate::block_witness::open(self.0, root, witness)
    }
}

/// The proof format of the backend `backend`, whose proofs are nodes of tries hashed with `hash`.
pub const fn proof_format(backend: &'static str, hash: TrieHash) -> ProofFormat {
    let verifier: &'static dyn ProofVerifier = match hash {
        TrieHash::Keccak256 => &MptVerifier(TrieHash::Keccak256),
        TrieHash::Blake2b256 => &MptVerifier(TrieHash::Blake2b256),
    };
    ProofFormat {
        backend,
        version: 1,
        hash: hash.id(),
        has_ethereum_root: matches!(hash, TrieHash::Keccak256),
        shows_history: false,
        verifier: FormatVerifier::Fixed(verifier),
    }
}

/// The proof formats of `mpt` and `mpt-archive`: trie nodes, as in EIP-1186.
pub static PROOF_FORMATS: &[ProofFormat] = &[
    proof_format("mpt", TrieHash::Keccak256),
    proof_format("mpt-archive", TrieHash::Keccak256),
    proof_format("mpt-archive", TrieHash::Blake2b256),
];

#[cfg(feature = "std")]
pub use registration::BACKENDS;

#[cfg(feature = "std")]
mod registration {
    use crate::{Mpt, MptArchive, PrunedMpt, TrieHash, archive::DEFAULT_CACHE};
    use retrie_state::{
        AnyBackend, HashId,
        descriptor::{
            BackendDescriptor, BackendFlag, ConstructorInput, FlagArgument, FlagValues,
            HashVariant, MakeError, StorePurpose,
        },
    };
    use std::sync::Arc;

    const ARCHIVE: &str = "mpt-archive";
    const PRUNE: BackendFlag = BackendFlag {
        long: "mpt-archive.prune",
        value_name: "",
        help: "Let `mpt-archive` delete the nodes that a block replaces: the trie that LVMT and \
               LMPT are compared with. Older states are kept as long as --retention says. Fixed \
               when a datadir is created.",
        default: None,
        takes: FlagArgument::Nothing,
    };

    /// The limit of caches that flags set, or the default.
    fn cache_bytes(flags: &FlagValues) -> u64 {
        flags.cache_bytes().unwrap_or(DEFAULT_CACHE)
    }

    fn archive(with: TrieHash) -> Arc<dyn AnyBackend> {
        Arc::new(MptArchive::new(with))
    }

    fn make(
        with: TrieHash,
        making: &ConstructorInput<'_>,
    ) -> Result<Arc<dyn AnyBackend>, MakeError> {
        let is_wanted = making.flags.has(PRUNE.long);
        let prunes = match making.purpose {
            StorePurpose::Temporary | StorePurpose::New { .. } => is_wanted,
            StorePurpose::Existing { layout: PrunedMpt::LAYOUT, .. } => true,
            StorePurpose::Existing { layout: "", .. } if !is_wanted => false,
            StorePurpose::Existing { datadir, layout, .. } => {
                let name = |prunes| if prunes { PrunedMpt::LAYOUT } else { "archive" };
                return Err(MakeError::OtherLayout {
                    backend: ARCHIVE,
                    datadir: datadir.to_owned(),
                    found: if layout.is_empty() { name(false) } else { layout }.to_owned(),
                    expected: name(is_wanted).to_owned(),
                });
            }
        };
        let bytes = cache_bytes(making.flags);
        Ok(match prunes {
            true => Arc::new(PrunedMpt::with_cache(with, bytes)),
            false => Arc::new(MptArchive::with_cache(with, bytes)),
        })
    }

    fn advice(error: &MakeError) -> Option<&'static str> {
        match error {
            MakeError::OtherLayout { found, .. } if found == "archive" => {
                Some("leave out --mpt-archive.prune, or import into a fresh datadir")
            }
            MakeError::OtherLayout { .. } => Some("use a newer program"),
            _ => None,
        }
    }

    /// `mpt` and `mpt-archive`.
    pub static BACKENDS: &[BackendDescriptor] = &[
        BackendDescriptor::plain(
            "mpt",
            "Ethereum's trie, latest state, nodes by path",
            |making| {
                Ok(Arc::new(match making.flags.cache_bytes() {
                    Some(bytes) => Mpt::with_cache(bytes),
                    None => Mpt::new(),
                }))
            },
            || Arc::new(Mpt::new()),
            ["#0072b2", "#4ba3dd"],
        ),
        BackendDescriptor {
            flags: &[PRUNE],
            hashes: &[HashVariant {
                hash: HashId::Blake2b256,
                make: |making| make(TrieHash::Blake2b256, making),
                small: || archive(TrieHash::Blake2b256),
            }],
            advice,
            ..BackendDescriptor::plain(
                ARCHIVE,
                "Ethereum's trie, all versions, nodes by hash",
                |making| make(TrieHash::Keccak256, making),
                || archive(TrieHash::Keccak256),
                ["#2a90cb", "#a5d8f6"],
            )
        },
    ];

    #[cfg(test)]
    mod tests {
        use super::*;
        use std::path::Path;

        fn made(prune: bool, stamped: Option<&str>) -> Result<&'static str, MakeError> {
            let mut flags = FlagValues::default();
            if prune {
                flags.set(&PRUNE, "")?;
            }
            let params = Default::default();
            let purpose = stamped.map_or(StorePurpose::Temporary, |layout| {
                StorePurpose::Existing { datadir: Path::new("datadir"), params, layout }
            });
            let making = ConstructorInput { flags: &flags, purpose, cache: None };
            let one = (BACKENDS[1].make)(&making)?;
            let other = (BACKENDS[1].hashes[0].make)(&making)?;
            assert_eq!(one.identity().layout, other.identity().layout, "with each hash function");
            assert_eq!(other.identity().hash, HashId::Blake2b256);
            Ok(one.identity().layout)
        }

        #[test]
        fn a_datadir_goes_on_as_it_was_created() {
            for (prune, stamped, layout) in [
                (false, None, ""),
                (true, None, "pruned"),
                (false, Some(""), ""),
                (false, Some("pruned"), "pruned"),
                (true, Some("pruned"), "pruned"),
            ] {
                assert_eq!(made(prune, stamped).unwrap(), layout, "{prune}, {stamped:?}");
            }
            for (prune, stamped) in [(true, ""), (false, "third"), (true, "third")] {
                let error = made(prune, Some(stamped)).unwrap_err();
                assert!(matches!(error, MakeError::OtherLayout { .. }) && advice(&error).is_some());
            }
        }
    }
}
