//! The files of `vectors/`: `docs/formats/proofs.md` describes them.

use alloy_primitives::{B256, Bytes, U64, hex};
use retrie_light_client::{
    BlockRef, EthProofResponse, LightClientError, Shown, StateKey, StateProof, StateProofResponse,
    TrustedRoot, Value, Verified, Verifier, VerifierParams,
};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use std::{collections::BTreeMap, path::PathBuf};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct File {
    pub(crate) about: String,
    /// Parameters of `lvmt` that are trusted: the verifier's part.
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

/// JSON of an envelope (of `keys`), of the answer of `state_getProof`, of that of `eth_getProof`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Question {
    Proof(Json),
    Answer(Json),
    EthProof(Json),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Expect {
    /// The canonical values, in the order asked.
    Values(Vec<Option<Bytes>>),
    /// The class of the error.
    Error(String),
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
        let StateProof { backend, version, hash, params, block, root, bytes } = proof.clone();
        let (block, block_hash) = (U64::from(block.number), block.hash);
        let envelope =
            Envelope { backend, version, hash, params, block, block_hash, root, proof: bytes };
        Self::Proof(serde_json::to_value(envelope).unwrap())
    }

    fn json(&mut self) -> &mut Json {
        match self {
            Self::Proof(json) | Self::Answer(json) | Self::EthProof(json) => json,
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
        let params = |bytes: &Bytes| VerifierParams::from_bytes(bytes).unwrap();
        self.pinned.iter().map(params).fold(Verifier::new(), Verifier::pin_lvmt)
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
        match self.values(verifier) {
            Ok(values) => Expect::Values(values),
            Err(error) => Expect::Error(error.class().into()),
        }
    }

    fn values(&self, verifier: &Verifier) -> Result<Vec<Option<Value>>, LightClientError> {
        let trusted = self.trusted.as_ref().unwrap().into();
        match self.question.as_ref().unwrap() {
            Question::Proof(json) => {
                let envelope: Envelope = serde_json::from_value(json.clone()).unwrap();
                let keys = self.keys.iter().flatten();
                let keys: Vec<_> = keys.map(|key| StateKey::decode(key).unwrap()).collect();
                let Envelope { backend, version, hash, params, block, block_hash, root, proof } =
                    envelope;
                let block = BlockRef::new(block.to(), block_hash);
                let proof =
                    StateProof { backend, version, hash, params, block, root, bytes: proof };
                verifier.values(&proof, &keys, &trusted).map(|(values, _)| values)
            }
            Question::Answer(json) => {
                let answer: StateProofResponse = serde_json::from_value(json.clone()).unwrap();
                verifier.verify_response(&answer, &trusted).map(canonical)
            }
            Question::EthProof(json) => {
                let answer: EthProofResponse = serde_json::from_value(json.clone()).unwrap();
                verifier.verify_eth_proof(&answer, &trusted).map(canonical)
            }
        }
    }
}

fn canonical(verified: Verified) -> Vec<Option<Value>> {
    let value = |shown: Shown| match shown {
        Shown::Account { account, .. } => account.map(|account| account.encode()),
        Shown::Slot { value, .. } => retrie_state::encode_slot(value),
    };
    verified.shown.into_iter().map(value).collect()
}
