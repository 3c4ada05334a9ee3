//! Blocks on the witnesses that stores make in a format of their own: the file, and its check.

use super::verify::{StatelessError, StatelessOutcome, executable};
use crate::validate_outcome;
use alloy_primitives::{B256, Bytes, U64};
use alloy_rlp::Decodable;
use retrie_chainspec::{
    ChainSpec,
    primitives::{Block, Header},
};
use retrie_execution::execute_on_witness;
use retrie_sources::witness::STATE_WITNESS_MEMBER;
use retrie_state::{BlockRef, KeyForm, StateWitness, descriptor::OpenedWitness};
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use std::sync::Arc;

/// A block, its [`StateWitness`], and what its execution needs besides: a file of `retrie witness make`.
/// A verifier believes none of it. `docs/formats/witnesses.md` describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StateWitnessFile {
    /// [`Self::VERSION`]. No file of another kind has this member.
    #[serde(deserialize_with = "known_version")]
    pub witness_version: u64,
    /// Backend name.
    pub backend: String,
    /// Version of the backend's proofs and witnesses.
    pub version: u32,
    /// Name of the hash function.
    pub hash: String,
    /// Digest of the backend's parameters.
    pub params: B256,
    /// The form of its keys; not in the JSON of plain ones.
    #[serde(with = "key_form", default, skip_serializing_if = "KeyForm::is_plain")]
    pub keys: KeyForm,
    /// Number of the block's parent.
    pub parent: U64,
    /// Hash of the block's parent.
    pub parent_hash: B256,
    /// Root of the parent's state.
    pub root: B256,
    /// Root of the state after the block.
    pub next_root: B256,
    /// RLP of the block.
    pub block: Bytes,
    /// RLP of headers, oldest first: of the parent, and before it those that lead to the oldest hash that
    /// the block reads.
    pub headers: Vec<Bytes>,
    /// The codes that the block reads, by ascending keccak-256.
    pub codes: Vec<Bytes>,
    /// The backend's own bytes.
    pub witness: Bytes,
}

impl StateWitnessFile {
    /// The version of the file.
    pub const VERSION: u64 = 1;
    /// The member that tells such a file from others.
    pub const MARKER: &str = STATE_WITNESS_MEMBER;

    /// The witness in its envelope.
    pub fn envelope(&self) -> StateWitness {
        StateWitness {
            backend: self.backend.clone(),
            version: self.version,
            hash: self.hash.clone(),
            params: self.params,
            keys: self.keys,
            parent: BlockRef::new(self.parent.to(), self.parent_hash),
            root: self.root,
            bytes: self.witness.clone(),
        }
    }

    /// The headers.
    ///
    /// # Errors
    /// [`StatelessError::Header`] if one is no canonical RLP of a header.
    pub fn ancestors(&self) -> Result<Vec<Header>, StatelessError> {
        let decode = |(at, rlp): (usize, &Bytes)| {
            let mut rest = rlp.as_ref();
            let header = Header::decode(&mut rest).ok().filter(|_| rest.is_empty());
            header
                .filter(|header| alloy_rlp::encode(header)[..] == rlp[..])
                .ok_or(StatelessError::Header { at })
        };
        self.headers.iter().enumerate().map(decode).collect()
    }
}

fn known_version<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let known = StateWitnessFile::VERSION;
    match u64::deserialize(from)? {
        version if version == known => Ok(version),
        other => Err(D::Error::custom(format_args!(
            "{} is {other}, and this program reads {known}",
            StateWitnessFile::MARKER
        ))),
    }
}

/// The form of keys in JSON, by its name.
mod key_form {
    use retrie_state::KeyForm;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(form: &KeyForm, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(form.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<KeyForm, D::Error> {
        let name = String::deserialize(from)?;
        KeyForm::from_name(&name)
            .ok_or_else(|| D::Error::custom(format!("`{name}` is no form of keys")))
    }
}

/// A block that was verified on the witness of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateWitnessOutcome {
    /// Roots and gas. The roots are the store's.
    pub outcome: StatelessOutcome,
    /// Whether the header of the parent has the root before the block, so that the hash of the block
    /// binds both roots. Otherwise the root before it is only as good as its source.
    pub is_bound: bool,
}

/// Executes `block` on the witness in `file` alone, compares the outcome with its header, and the root
/// after it with the file's; also with the header's, if the parent's header has the root before it.
/// `witness` is the file's, opened with the file's root.
///
/// # Errors
/// [`StatelessError`] says what is missing or wrong.
pub fn verify_state_witness(
    spec: &Arc<ChainSpec>,
    block: Block,
    file: &StateWitnessFile,
    witness: &dyn OpenedWitness,
) -> Result<StateWitnessOutcome, StatelessError> {
    let block = executable(spec, block)?;
    let parent = BlockRef::new(block.number.saturating_sub(1), block.parent_hash);
    let given = BlockRef::new(file.parent.to(), file.parent_hash);
    if given != parent {
        return Err(StatelessError::OtherParent { given, parent });
    }
    let ancestors = file.ancestors()?;
    let missing = || StatelessError::NoParent { parent: parent.hash };
    let before = ancestors.last().map(|header| header.state_root).ok_or_else(missing)?;
    let spec = spec.for_header(block.header());
    let opened = (witness, file.keys);
    let executed = execute_on_witness(&spec, &block, opened, &file.codes, &ancestors)?;
    validate_outcome(&spec, block.sealed_block(), &executed.outcome, None)
        .map_err(|error| StatelessError::Outcome(Box::new(error)))?;
    let (is_bound, got) = (before == file.root, executed.root);
    if is_bound && got != block.state_root {
        return Err(StatelessError::Root { expected: block.state_root, got });
    }
    if got != file.next_root {
        return Err(StatelessError::NextRoot { expected: file.next_root, got });
    }
    let gas_used = executed.outcome.gas_used;
    let outcome = StatelessOutcome { before: file.root, after: got, gas_used };
    Ok(StateWitnessOutcome { outcome, is_bound })
}
