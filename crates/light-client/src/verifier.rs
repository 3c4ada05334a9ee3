//! The verifier for all formats: picks the verifier of the backend, and compares the values that an
//! answer states with the values that its proof shows.

use crate::{
    EthProofResponse, LightClientError, ParamsTrust, ProvenValue, ProvenanceResponse,
    StateProofResponse, TrustBasis, TrustedRoot, VerifiedProvenance, VerifiedState, VersionValue,
};
use alloc::{borrow::ToOwned, sync::Arc, vec::Vec};
use alloy_primitives::{B256, KECCAK256_EMPTY, keccak256};
use retrie_backends::{FormatVerifier, ParamsFacts, ProofFormat, ProofVerifier, proof_formats};
use retrie_state::{Account, KeyForm, StateKey, StateProof, StateValue, ValueVersion};
use retrie_storage_mpt::{
    TrieHash,
    verify::{shown_account, shown_slot},
};

/// Verifies proofs of all formats without parameters, and of the other formats under pinned
/// parameters.
#[derive(Clone, Debug, Default)]
pub struct StateVerifier {
    pinned: Vec<Arc<dyn ProofVerifier>>,
    keys: KeyForm,
}

impl StateVerifier {
    /// A verifier without pinned parameters.
    pub const fn new() -> Self {
        Self { pinned: Vec::new(), keys: KeyForm::Plain }
    }

    /// Also accepts proofs under these parameters of a backend. The caller decides by their
    /// [digest](ParamsFacts::digest) whether to trust them: a proof may be forged if their secret
    /// is known, or if they are not the parameters of the store.
    #[must_use]
    pub fn pin(mut self, params: Arc<dyn ProofVerifier>) -> Self {
        self.pinned.push(params);
        self
    }

    /// As [`pin`](Self::pin), of the bytes of parameters of `backend`. `None` if they are not its
    /// parameters, or it has none.
    #[must_use]
    pub fn pin_bytes(self, backend: &str, bytes: &[u8]) -> Option<Self> {
        let mut formats = proof_formats().filter(|format| format.backend == backend);
        let pinned = formats.find_map(|format| match format.verifier {
            FormatVerifier::UnderParams(open) => open(bytes),
            FormatVerifier::Fixed(_) => None,
        });
        Some(self.pin(pinned?))
    }

    /// Trusts roots of stores with hashed keys, instead of plain ones. Only roots that are not
    /// Ethereum's depend on that; a caller that trusts one knows the form of its keys, or could be
    /// shown that a key is absent where only its other form is.
    #[must_use]
    pub const fn hashed_keys(mut self) -> Self {
        self.keys = KeyForm::Hashed;
        self
    }

    /// The accounts and slots of `keys`, as `proof` shows them under the trusted root.
    ///
    /// # Errors
    /// As [`values`](Self::values), and [`LightClientError::Value`].
    pub fn verify(
        &self,
        proof: &StateProof,
        keys: &[StateKey],
        trusted: &TrustedRoot,
    ) -> Result<VerifiedState, LightClientError> {
        let (values, trust) = self.values(proof, keys, trusted)?;
        let shown = keys.iter().zip(values).map(|(key, value)| ProvenValue::of(key, value));
        Ok(VerifiedState { shown: shown.collect::<Result<_, _>>()?, as_of: proof.as_of, trust })
    }

    /// The values of `keys` in the backend's encoding (`None`: absent), as `proof` shows them under
    /// the trusted root, and the basis of trust.
    ///
    /// # Errors
    /// A [`LightClientError`] unless the proof covers exactly these keys (for MPT proofs also in
    /// this order), belongs to the trusted block if one is named, leads to the trusted root, and is
    /// of a known kind.
    pub fn values(
        &self,
        proof: &StateProof,
        keys: &[StateKey],
        trusted: &TrustedRoot,
    ) -> Result<(Vec<Option<StateValue>>, TrustBasis), LightClientError> {
        let (verifier, trust) = self.open(proof, trusted)?;
        let keys = proof.keys.keys(keys);
        Ok((verifier.values(trust.root, &keys, proof.as_of, &proof.bytes)?, trust))
    }

    /// The verifier of the proof's kind, and the basis of trust. The envelope must name the trusted
    /// root, and must not claim a state later than the root's block.
    fn open(
        &self,
        proof: &StateProof,
        trusted: &TrustedRoot,
    ) -> Result<(&dyn ProofVerifier, TrustBasis), LightClientError> {
        let verifier = self.of_format(proof)?;
        let (root, reason) = trusted.open()?;
        reason.check_block(proof)?;
        let proven = proof.block.number;
        if let Some(asked) = proof.as_of.filter(|asked| *asked > proven) {
            return Err(LightClientError::LaterBlock { asked, proven });
        }
        if proof.root != root {
            return Err(LightClientError::OtherRoot { trusted: root, proof: proof.root });
        }
        let params = verifier.params().map(ParamsTrust::from);
        Ok((verifier, TrustBasis { root, reason, params }))
    }

    /// Verifies an answer of `state_getProvenance` under the trusted root: its proof must show what
    /// the answer states. The caller compares key and range with the request.
    ///
    /// # Errors
    /// As [`verify_response`](Self::verify_response); also if the range reaches beyond the block of
    /// the root.
    pub fn verify_provenance(
        &self,
        response: &ProvenanceResponse,
        trusted: &TrustedRoot,
    ) -> Result<VerifiedProvenance, LightClientError> {
        let (key, blocks, proof) = (response.key(), response.blocks(), response.to_proof());
        let (verifier, trust) = self.open(&proof, trusted)?;
        let versions =
            verifier.versions(trust.root, &[proof.keys.key(&key)], blocks.clone(), &proof.bytes)?;
        let shown = versions.into_iter().flatten();
        let shown =
            shown.map(|ValueVersion { block, value }| Ok((block, ProvenValue::of(&key, value)?)));
        let versions = shown.collect::<Result<Vec<_>, LightClientError>>()?;
        let stated = response.versions.iter().map(|claim| (claim.block.to(), claim.value));
        if !stated.eq(versions.iter().map(|(block, shown)| (*block, VersionValue::from(*shown)))) {
            return Err(LightClientError::Claim { key });
        }
        Ok(VerifiedProvenance { key, blocks, versions, trust })
    }

    /// Verifies an answer of `state_getProof` under the trusted root: its proof must show what the
    /// answer states. The caller compares the shown keys with the request.
    ///
    /// # Errors
    /// As [`verify`](Self::verify), and [`LightClientError::Claim`].
    pub fn verify_response(
        &self,
        response: &StateProofResponse,
        trusted: &TrustedRoot,
    ) -> Result<VerifiedState, LightClientError> {
        let keys = response.keys();
        let verified = self.verify(&response.to_proof(), &keys, trusted)?;
        let mut slots = response.storage.iter();
        let is_stated = |shown: &ProvenValue| match shown {
            ProvenValue::Account { account, .. } => *account == response.account.map(Account::from),
            ProvenValue::Slot { value, .. } => {
                slots.next().is_some_and(|slot| slot.value == *value)
            }
        };
        match verified.shown.iter().map(is_stated).position(|stated| !stated) {
            Some(at) => Err(LightClientError::Claim { key: keys[at] }),
            None => Ok(verified),
        }
    }

    /// Verifies an answer of `eth_getProof` (EIP-1186) under the trusted state root: its proof must
    /// show what the answer states. Such an answer names no block.
    ///
    /// # Errors
    /// A [`LightClientError`] if a node of the proof is missing, wrong or not needed, or shows
    /// another value than the answer states.
    pub fn verify_eth_proof(
        &self,
        response: &EthProofResponse,
        trusted: &TrustedRoot,
    ) -> Result<VerifiedState, LightClientError> {
        let (root, reason) = trusted.open()?;
        let address = response.address;
        let shown = shown_account(root, &address, &response.account_proof)?;
        let empty = TrieHash::Keccak256.empty_root();
        // For an absent account nodes return zeros, and for the two hashes zero or the hash of
        // nothing.
        let is_stated = match shown {
            Some((account, storage_root)) => {
                storage_root == response.storage_hash && account == response.account()
            }
            None => {
                let mut stated = response.account();
                if stated.code_hash.is_zero() {
                    stated.code_hash = KECCAK256_EMPTY;
                }
                stated.is_empty() && [empty, B256::ZERO].contains(&response.storage_hash)
            }
        };
        if !is_stated {
            return Err(LightClientError::Claim { key: StateKey::Account(address) });
        }
        let storage_root = shown.map_or(empty, |(_, storage_root)| storage_root);
        let account = shown.map(|(account, _)| account);
        let mut all = Vec::with_capacity(1 + response.storage_proof.len());
        all.push(ProvenValue::Account { address, account });
        for slot in &response.storage_proof {
            let key = StateKey::Slot(address, slot.key.into());
            let value = shown_slot(storage_root, &slot.key.into(), &slot.proof)?;
            let shown = ProvenValue::of(&key, value)?;
            if !matches!(shown, ProvenValue::Slot { value, .. } if value == slot.value) {
                return Err(LightClientError::Claim { key });
            }
            all.push(shown);
        }
        Ok(VerifiedState {
            shown: all,
            as_of: None,
            trust: TrustBasis { root, reason, params: None },
        })
    }

    /// The verifier for the format and the parameters that the envelope names.
    fn of_format(&self, proof: &StateProof) -> Result<&dyn ProofVerifier, LightClientError> {
        let (backend, version, hash) = (&proof.backend, proof.version, &proof.hash);
        let is_named = |format: &&ProofFormat| {
            format.backend == backend && format.version == version && format.hash.name() == hash
        };
        let Some(format) = proof_formats().find(is_named) else {
            let (backend, hash) = (backend.to_owned(), hash.to_owned());
            return Err(LightClientError::UnknownKind { backend, version, hash });
        };
        if proof.keys != self.keys && !format.has_ethereum_root {
            return Err(LightClientError::OtherKeys { trusted: self.keys, proof: proof.keys });
        }
        if proof.as_of.is_some() && !format.shows_history {
            return Err(ProofFormat::NO_HISTORY.into());
        }
        let is_meant =
            |params: ParamsFacts| params.backend == format.backend && params.digest == proof.params;
        let found = match format.verifier.fixed() {
            Some(verifier) => Some(verifier).filter(|_| proof.params.is_zero()),
            None => {
                let mut pinned = self.pinned.iter().map(|pinned| &**pinned);
                pinned.find(|pinned| pinned.params().is_some_and(is_meant))
            }
        };
        let (backend, digest) = (backend.to_owned(), proof.params);
        found.ok_or(LightClientError::UnknownParams { backend, digest })
    }
}

impl From<ParamsFacts> for ParamsTrust {
    fn from(facts: ParamsFacts) -> Self {
        let ParamsFacts { digest, has_secret, insecure, .. } = facts;
        Self { digest, has_secret, insecure }
    }
}

impl EthProofResponse {
    /// The stated account.
    fn account(&self) -> Account {
        let Self { nonce, balance, code_hash, .. } = *self;
        Account { nonce: nonce.to(), balance, code_hash }
    }
}

/// Whether `code` is the code of `account`.
///
/// # Errors
/// [`LightClientError::Code`] if it has another hash.
pub fn verify_code(account: &Account, code: &[u8]) -> Result<(), LightClientError> {
    let (expected, got) = (account.code_hash, keccak256(code));
    if got == expected { Ok(()) } else { Err(LightClientError::Code { expected, got }) }
}
