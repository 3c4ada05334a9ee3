//! The files of `vectors/`: `docs/formats/proofs.md` describes them.

use alloy_primitives::{B256, Bytes, U64, hex};
use retrie_light_client::{
    BlockRef, EthProofResponse, KeyForm, LightClientError, ProvenValue, ProvenanceResponse,
    StateProof, StateProofResponse, StateValue, StateVerifier, TrustedRoot, VerifiedState,
};
use retrie_state::BackendKey;
use retrie_storage_cole::ColeParams;
use retrie_storage_lvmt::VerifierParams;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct VectorFile {
    pub(crate) about: String,
    /// Trusted parameters: for `lvmt` the verifier's part, for `cole` their 32 bytes.
    pub(crate) pinned: Vec<Bytes>,
    /// The form of the keys of the stores whose roots are trusted; plain if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) keys: Option<String>,
    pub(crate) cases: Vec<VectorCase>,
}

/// One question to a verifier. With `of`, missing fields are taken from that earlier case.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct VectorCase {
    pub(crate) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) of: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trusted: Option<VectorTrust>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) keys: Option<Vec<Bytes>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) question: Option<VectorQuestion>,
    /// Fields of the question that are replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) with: Option<BTreeMap<String, Json>>,
    /// Edits of the proof bytes, in order: offset, number of removed bytes, inserted bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) edit: Option<Vec<(usize, usize, Bytes)>>,
    pub(crate) expect: ExpectedVerdict,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum VectorTrust {
    Root(B256),
    Checkpoint { block: U64, root: B256 },
    Header { hash: B256, rlp: Bytes },
}

/// JSON of a proof envelope (for `keys`), or of an answer of `state_getProof`, `eth_getProof` or
/// `state_getProvenance`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum VectorQuestion {
    Proof(Json),
    Answer(Json),
    EthProof(Json),
    Provenance(Json),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ExpectedVerdict {
    /// The canonical values, in the order asked.
    Values(Vec<Option<Bytes>>),
    /// The versions of a provenance, newest first.
    Versions(Vec<ExpectedVersion>),
    /// The class of the error.
    Error(String),
}

/// A canonical value and the block that set it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ExpectedVersion {
    pub(crate) block: U64,
    pub(crate) value: Option<Bytes>,
}

impl ExpectedVersion {
    pub(crate) fn new(block: u64, value: Option<StateValue>) -> Self {
        Self { block: U64::from(block), value }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ProofEnvelope {
    backend: String,
    version: u32,
    hash: String,
    params: B256,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    keys: Option<String>,
    block: U64,
    block_hash: B256,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    as_of: Option<U64>,
    root: B256,
    proof: Bytes,
}

impl Default for ExpectedVerdict {
    fn default() -> Self {
        Self::Values(Vec::new())
    }
}

impl From<&VectorTrust> for TrustedRoot {
    fn from(trusted: &VectorTrust) -> Self {
        match trusted.clone() {
            VectorTrust::Root(root) => Self::Root(root),
            VectorTrust::Checkpoint { block, root } => {
                Self::Checkpoint { number: block.to(), root }
            }
            VectorTrust::Header { hash, rlp } => Self::Header { hash, rlp },
        }
    }
}

impl VectorQuestion {
    pub(crate) fn proof(proof: &StateProof) -> Self {
        let StateProof { backend, version, hash, params, keys, block, as_of, root, bytes: proof } =
            proof.clone();
        let keys = (!keys.is_plain()).then(|| keys.name().to_owned());
        let (block, block_hash) = (U64::from(block.number), block.hash);
        let as_of = as_of.map(U64::from);
        let envelope = ProofEnvelope {
            backend,
            version,
            hash,
            params,
            keys,
            block,
            block_hash,
            as_of,
            root,
            proof,
        };
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

impl VectorFile {
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
        let keys = self.keys.iter().map(|keys| format!("\"keys\": {},\n", json(keys)));
        format!(
            "{{\n\"about\": {},\n\"pinned\": {},\n{}\"cases\": [\n{}\n]}}\n",
            json(&self.about),
            json(&self.pinned),
            keys.collect::<String>(),
            cases.join(",\n")
        )
    }

    pub(crate) fn verifier(&self) -> StateVerifier {
        let pin = |verifier: StateVerifier, bytes: &Bytes| match B256::try_from(&bytes[..]) {
            Ok(digest) => verifier.pin(Arc::new(ColeParams::from_digest(&digest).unwrap())),
            Err(_) => verifier.pin(Arc::new(VerifierParams::from_bytes(bytes).unwrap())),
        };
        let verifier = match self.keys.as_deref().map(|name| KeyForm::from_name(name).unwrap()) {
            Some(KeyForm::Hashed) => StateVerifier::new().hashed_keys(),
            Some(KeyForm::Plain) | None => StateVerifier::new(),
        };
        self.pinned.iter().fold(verifier, pin)
    }

    /// The case, with the fields that it takes from other cases.
    pub(crate) fn resolve(&self, case: &VectorCase) -> VectorCase {
        let Some(of) = &case.of else { return case.clone().applied() };
        let base = self.cases.iter().find(|base| base.name == *of);
        let base = self.resolve(base.unwrap_or_else(|| panic!("{}: no case {of}", case.name)));
        VectorCase {
            trusted: case.trusted.clone().or(base.trusted),
            keys: case.keys.clone().or(base.keys),
            question: case.question.clone().or(base.question),
            ..case.clone()
        }
        .applied()
    }
}

impl VectorCase {
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
    pub(crate) fn run(&self, verifier: &StateVerifier) -> ExpectedVerdict {
        self.shown(verifier).unwrap_or_else(|error| ExpectedVerdict::Error(error.class().into()))
    }

    fn shown(&self, verifier: &StateVerifier) -> Result<ExpectedVerdict, LightClientError> {
        let trusted = self.trusted.as_ref().unwrap().into();
        match self.question.as_ref().unwrap() {
            VectorQuestion::Proof(json) => {
                let envelope: ProofEnvelope = serde_json::from_value(json.clone()).unwrap();
                let keys = self.keys.iter().flatten();
                let keys: Vec<_> =
                    keys.map(|key| BackendKey::decode(key).unwrap().plain().unwrap()).collect();
                let proof = envelope.into_proof();
                verifier
                    .values(&proof, &keys, &trusted)
                    .map(|(values, _)| ExpectedVerdict::Values(values))
            }
            VectorQuestion::Answer(json) => {
                let answer: StateProofResponse = serde_json::from_value(json.clone()).unwrap();
                verifier.verify_response(&answer, &trusted).map(canonical)
            }
            VectorQuestion::EthProof(json) => {
                let answer: EthProofResponse = serde_json::from_value(json.clone()).unwrap();
                verifier.verify_eth_proof(&answer, &trusted).map(canonical)
            }
            VectorQuestion::Provenance(json) => {
                let answer: ProvenanceResponse = serde_json::from_value(json.clone()).unwrap();
                let verified = verifier.verify_provenance(&answer, &trusted)?;
                let shown = verified.versions.iter();
                let versions =
                    shown.map(|(block, shown)| ExpectedVersion::new(*block, value(shown)));
                Ok(ExpectedVerdict::Versions(versions.collect()))
            }
        }
    }
}

impl ProofEnvelope {
    fn into_proof(self) -> StateProof {
        StateProof {
            backend: self.backend,
            version: self.version,
            hash: self.hash,
            params: self.params,
            keys: self.keys.map_or(KeyForm::Plain, |name| KeyForm::from_name(&name).unwrap()),
            block: BlockRef::new(self.block.to(), self.block_hash),
            as_of: self.as_of.map(|number| number.to()),
            root: self.root,
            bytes: self.proof,
        }
    }
}

fn canonical(verified: VerifiedState) -> ExpectedVerdict {
    ExpectedVerdict::Values(verified.shown.iter().map(value).collect())
}

fn value(shown: &ProvenValue) -> Option<StateValue> {
    match shown {
        ProvenValue::Account { account, .. } => account.map(|account| account.encode()),
        ProvenValue::Slot { value, .. } => retrie_state::encode_slot(*value),
    }
}
