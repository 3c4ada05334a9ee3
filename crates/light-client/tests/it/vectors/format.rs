//! The files of `vectors/`: `docs/formats/proofs.md` describes them.

use alloy_primitives::{B256, Bytes, U64, hex};
use retrie_light_client::{
    BlockRef, EthProofResponse, LightClientError, ProvenanceResponse, Shown, StateKey, StateProof,
    StateProofResponse, TrustedRoot, Value, Verified, Verifier,
};
use retrie_storage_cole::Params as ColeParams;
use retrie_storage_lvmt::VerifierParams;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct File {
    pub(crate) about: String,
    /// Parameters that are trusted: of `lvmt` the verifier's part, of `cole` their 32 bytes.
    pub(crate) pinned: Vec<Bytes>,
    pub(crate) cases: Vec<Case>,
}

/// What is asked of a verifier. With `of`, all that is not said is as in that case, which comes
/// before.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Case {
    pub(crate) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) of: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trusted: Option<Trusted>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) keys: Option<Vec<Bytes>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) question: Option<Question>,
    /// Fields of the question that are replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) with: Option<BTreeMap<String, Json>>,
    /// Edits of its proof bytes, one after the other: at, how many go, what comes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) edit: Option<Vec<(usize, usize, Bytes)>>,
    pub(crate) expect: Expect,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Trusted {
    Root(B256),
    Checkpoint { block: U64, root: B256 },
    Header { hash: B256, rlp: Bytes },
}

/// JSON of an envelope (of `keys`), of the answer of `state_getProof`, of those of `eth_getProof` and
/// of `state_getProvenance`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Question {
    Proof(Json),
    Answer(Json),
    EthProof(Json),
    Provenance(Json),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Expect {
    /// The canonical values, in the order asked.
    Values(Vec<Option<Bytes>>),
    /// Of provenance, newest first.
    Versions(Vec<Version>),
    /// The class of the error.
    Error(String),
}

/// A canonical value and the block that set it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Version {
    pub(crate) block: U64,
    pub(crate) value: Option<Bytes>,
}

impl Version {
    pub(crate) fn new(block: u64, value: Option<Value>) -> Self {
        Self { block: U64::from(block), value }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    backend: String,
    version: u32,
    hash: String,
    params: B256,
    block: U64,
    block_hash: B256,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    as_of: Option<U64>,
    root: B256,
    proof: Bytes,
}

impl Default for Expect {
    fn default() -> Self {
        Self::Values(Vec::new())
    }
}

impl From<&Trusted> for TrustedRoot {
    fn from(trusted: &Trusted) -> Self {
        match trusted.clone() {
            Trusted::Root(root) => Self::Root(root),
            Trusted::Checkpoint { block, root } => Self::Checkpoint { number: block.to(), root },
            Trusted::Header { hash, rlp } => Self::Header { hash, rlp },
        }
    }
}

impl Question {
    pub(crate) fn proof(proof: &StateProof) -> Self {
        let StateProof { backend, version, hash, params, block, as_of, root, bytes: proof } =
            proof.clone();
        let (block, block_hash) = (U64::from(block.number), block.hash);
        let as_of = as_of.map(U64::from);
        let envelope =
            Envelope { backend, version, hash, params, block, block_hash, as_of, root, proof };
        Self::Proof(serde_json::to_value(envelope).unwrap())
    }

    fn json(&mut self) -> &mut Json {
        match self {
            Self::Proof(json)
            | Self::Answer(json)
            | Self::EthProof(json)
            | Self::Provenance(json) => json,
        }
    }
}

impl File {
    pub(crate) fn path(name: &str) -> PathBuf {
        [env!("CARGO_MANIFEST_DIR"), "vectors", name].iter().collect()
    }

    pub(crate) fn read(name: &str) -> Self {
        let text = std::fs::read_to_string(Self::path(name)).unwrap();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// One line a case.
    pub(crate) fn to_text(&self) -> String {
        fn json(value: &impl Serialize) -> String {
            serde_json::to_string(value).unwrap()
        }
        let cases: Vec<_> = self.cases.iter().map(json).collect();
        format!(
            "{{\n\"about\": {},\n\"pinned\": {},\n\"cases\": [\n{}\n]}}\n",
            json(&self.about),
            json(&self.pinned),
            cases.join(",\n")
        )
    }

    pub(crate) fn verifier(&self) -> Verifier {
        let pin = |verifier: Verifier, bytes: &Bytes| match B256::try_from(&bytes[..]) {
            Ok(digest) => verifier.pin(Arc::new(ColeParams::from_digest(&digest).unwrap())),
            Err(_) => verifier.pin(Arc::new(VerifierParams::from_bytes(bytes).unwrap())),
        };
        self.pinned.iter().fold(Verifier::new(), pin)
    }

    /// The case with everything that it takes from others.
    pub(crate) fn resolve(&self, case: &Case) -> Case {
        let Some(of) = &case.of else { return case.clone().applied() };
        let base = self.cases.iter().find(|base| base.name == *of);
        let base = self.resolve(base.unwrap_or_else(|| panic!("{}: no case {of}", case.name)));
        Case {
            trusted: case.trusted.clone().or(base.trusted),
            keys: case.keys.clone().or(base.keys),
            question: case.question.clone().or(base.question),
            ..case.clone()
        }
        .applied()
    }
}

impl Case {
    fn applied(mut self) -> Self {
        let json = self.question.as_mut().unwrap().json();
        for (field, value) in self.with.take().unwrap_or_default() {
            json[field] = value;
        }
        for (at, gone, put) in self.edit.take().unwrap_or_default() {
            let mut bytes = hex::decode(json["proof"].as_str().unwrap()).unwrap();
            bytes.splice(at..at + gone, put);
            json["proof"] = Bytes::from(bytes).to_string().into();
        }
        self
    }

    /// The verdict on a resolved case.
    pub(crate) fn run(&self, verifier: &Verifier) -> Expect {
        self.shown(verifier).unwrap_or_else(|error| Expect::Error(error.class().into()))
    }

    fn shown(&self, verifier: &Verifier) -> Result<Expect, LightClientError> {
        let trusted = self.trusted.as_ref().unwrap().into();
        match self.question.as_ref().unwrap() {
            Question::Proof(json) => {
                let envelope: Envelope = serde_json::from_value(json.clone()).unwrap();
                let keys = self.keys.iter().flatten();
                let keys: Vec<_> = keys.map(|key| StateKey::decode(key).unwrap()).collect();
                let proof = envelope.into_proof();
                verifier.values(&proof, &keys, &trusted).map(|(values, _)| Expect::Values(values))
            }
            Question::Answer(json) => {
                let answer: StateProofResponse = serde_json::from_value(json.clone()).unwrap();
                verifier.verify_response(&answer, &trusted).map(canonical)
            }
            Question::EthProof(json) => {
                let answer: EthProofResponse = serde_json::from_value(json.clone()).unwrap();
                verifier.verify_eth_proof(&answer, &trusted).map(canonical)
            }
            Question::Provenance(json) => {
                let answer: ProvenanceResponse = serde_json::from_value(json.clone()).unwrap();
                let verified = verifier.verify_provenance(&answer, &trusted)?;
                let shown = verified.versions.iter();
                let versions = shown.map(|(block, shown)| Version::new(*block, value(shown)));
                Ok(Expect::Versions(versions.collect()))
            }
        }
    }
}

impl Envelope {
    fn into_proof(self) -> StateProof {
        StateProof {
            backend: self.backend,
            version: self.version,
            hash: self.hash,
            params: self.params,
            block: BlockRef::new(self.block.to(), self.block_hash),
            as_of: self.as_of.map(|number| number.to()),
            root: self.root,
            bytes: self.proof,
        }
    }
}

fn canonical(verified: Verified) -> Expect {
    Expect::Values(verified.shown.iter().map(value).collect())
}

fn value(shown: &Shown) -> Option<Value> {
    match shown {
        Shown::Account { account, .. } => account.map(|account| account.encode()),
        Shown::Slot { value, .. } => retrie_state::encode_slot(*value),
    }
}
