//! Blocks, backend identities and the typed proof envelope.

use crate::KeyForm;
use alloc::string::String;
use alloy_primitives::{B256, Bytes};
use core::fmt;

/// A block by number and hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockRef {
    /// Height.
    pub number: u64,
    /// keccak-256 of the header.
    pub hash: B256,
}

impl BlockRef {
    /// Block `number` with `hash`.
    pub const fn new(number: u64, hash: B256) -> Self {
        Self { number, hash }
    }
}

impl fmt::Display for BlockRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{} ({})", self.number, self.hash)
    }
}

/// The hash function under a backend's root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HashId {
    /// None: the backend authenticates nothing.
    None,
    /// keccak-256.
    Keccak256,
    /// BLAKE2b with 256 bits of output.
    Blake2b256,
    /// BLAKE3.
    Blake3,
    /// Poseidon2 over the KoalaBear field, an algebraic hash.
    Poseidon2,
}

impl HashId {
    /// Its name as stamped into datadirs and envelopes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Keccak256 => "keccak256",
            Self::Blake2b256 => "blake2b-256",
            Self::Blake3 => "blake3",
            Self::Poseidon2 => "poseidon2-koalabear",
        }
    }
}

/// What a backend is: stamped into the datadir, where it wins over flags, and into every proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendIdentity {
    /// Name as in `--state-backend`.
    pub name: &'static str,
    /// Version of its persisted format and of its proofs.
    pub version: u32,
    /// Hash function under the root.
    pub hash: HashId,
    /// Digest of its parameters (zero if it has none).
    pub params: B256,
    /// Other choices that were fixed when the datadir was created, such as how rows are laid out;
    /// empty if there was no choice. Stamped into the datadir, but not into proofs: a verifier does
    /// not need it, though roots may depend on it (the roots of `lmpt` depend on when it merges).
    pub layout: &'static str,
}

impl BackendIdentity {
    /// An identity without parameters and with one layout.
    pub const fn plain(name: &'static str, version: u32, hash: HashId) -> Self {
        Self { name, version, hash, params: B256::ZERO, layout: "" }
    }
}

/// A proof of the values of some keys, with all a verifier needs to choose how to check it.
///
/// The proof does not show that `root` belongs to `block`: a header or a checkpoint does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateProof {
    /// Backend name.
    pub backend: String,
    /// Backend format version.
    pub version: u32,
    /// Name of the hash function.
    pub hash: String,
    /// Digest of the backend's parameters.
    pub params: B256,
    /// The form of the keys that it is about.
    pub keys: KeyForm,
    /// The block whose state is proven.
    pub block: BlockRef,
    /// The older block whose state is shown; `None` if it is `block` itself. The proof always leads
    /// to the root of `block`.
    pub as_of: Option<u64>,
    /// The root the proof leads to.
    pub root: B256,
    /// The backend's own proof bytes.
    pub bytes: Bytes,
}

impl StateProof {
    /// Wraps the proof `bytes` of a backend whose keys have this form.
    pub fn of(
        identity: &BackendIdentity,
        keys: KeyForm,
        block: BlockRef,
        root: B256,
        bytes: Bytes,
    ) -> Self {
        Self {
            backend: identity.name.into(),
            version: identity.version,
            hash: identity.hash.name().into(),
            params: identity.params,
            keys,
            block,
            as_of: None,
            root,
            bytes,
        }
    }

    /// Marks the proof as one of the state of the older block `number`.
    #[must_use]
    pub fn as_of(self, number: u64) -> Self {
        Self { as_of: Some(number), ..self }
    }

    /// Fails unless a backend with `identity` made this proof.
    pub fn check_kind(&self, identity: &BackendIdentity) -> Result<(), crate::ProofError> {
        let what = if self.backend != identity.name {
            "backend"
        } else if self.version != identity.version {
            "version"
        } else if self.hash != identity.hash.name() {
            "hash function"
        } else if self.params != identity.params {
            "parameters"
        } else {
            return Ok(());
        };
        Err(crate::ProofError::WrongKind { what })
    }
}
