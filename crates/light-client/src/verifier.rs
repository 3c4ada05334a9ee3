//! The verifier of everything: picks the one of the backend, and compares what an answer states
//! with what its proof shows.

use crate::{
    EthProofResponse, LightClientError, ParamsTrust, ProvenanceResponse, Shown, StateProofResponse,
    Trust, TrustedRoot, Verified, VerifiedProvenance, VersionValue,
};
use alloc::{borrow::ToOwned, sync::Arc, vec::Vec};
use alloy_primitives::{B256, KECCAK256_EMPTY, keccak256};
use retrie_backends::{ParamsFacts, ProofFormat, ProofVerifier, proof_formats};
use retrie_state::{Account, StateKey, StateProof, Value, Version};
use retrie_storage_mpt::{
    TrieHash,
    verify::{shown_account, shown_slot},
};

/// Verifies proofs of every format that takes no parameters, and of the others under those that are
/// pinned.
#[derive(Clone, Debug, Default)]
pub struct Verifier {
    pinned: Vec<Arc<dyn ProofVerifier>>,
}

impl Verifier {
    /// A verifier without pinned parameters.
    pub const fn new() -> Self {
        Self { pinned: Vec::new() }
    }

    /// The same, which also takes proofs under these parameters of a backend. Whether they are to be
    /// trusted is the caller's to decide, by their [digest](ParamsFacts::digest): under parameters
    /// whose secret is known, or under others than the store's, a proof may lie.
    #[must_use]
    pub fn pin(mut self, params: Arc<dyn ProofVerifier>) -> Self {
        self.pinned.push(params);
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
    ) -> Result<Verified, LightClientError> {
        let (values, trust) = self.values(proof, keys, trusted)?;
        let shown = keys.iter().zip(values).map(|(key, value)| Shown::of(key, value));
        Ok(Verified { shown: shown.collect::<Result<_, _>>()?, as_of: proof.as_of, trust })
    }

    /// The values of `keys` as the backend has them (`None`: absent), as `proof` shows them under
    /// the trusted root, and what that rests on.
    ///
    /// # Errors
    /// A [`LightClientError`] unless the proof is of exactly these keys (for MPT proofs also in this
    /// order), of the trusted block as far as one is named, under the trusted root, and of a kind
    /// known here.
    pub fn values(
        &self,
        proof: &StateProof,
        keys: &[StateKey],
        trusted: &TrustedRoot,
    ) -> Result<(Vec<Option<Value>>, Trust), LightClientError> {
        let (verifier, trust) = self.open(proof, trusted)?;
        Ok((verifier.values(trust.root, keys, proof.as_of, &proof.bytes)?, trust))
    }

    /// The verifier of a proof's kind, and the trusted root, which the envelope names. What the proof
    /// shows may be as of a block that is not later than the root's.
    fn open(
        &self,
        proof: &StateProof,
        trusted: &TrustedRoot,
    ) -> Result<(&dyn ProofVerifier, Trust), LightClientError> {
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
        Ok((verifier, Trust { root, reason, params }))
    }

    /// What an answer of `state_getProvenance` proves under the trusted root, which is also what it
    /// states. That it answers the question is for the caller to see from key and range.
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
        let versions = verifier.versions(trust.root, &[key], blocks.clone(), &proof.bytes)?;
        let shown = versions.into_iter().flatten();
        let shown = shown.map(|Version { block, value }| Ok((block, Shown::of(&key, value)?)));
        let versions = shown.collect::<Result<Vec<_>, LightClientError>>()?;
        let stated = response.versions.iter().map(|claim| (claim.block.to(), claim.value));
        if !stated.eq(versions.iter().map(|(block, shown)| (*block, VersionValue::from(*shown)))) {
            return Err(LightClientError::Claim { key });
        }
        Ok(VerifiedProvenance { key, blocks, versions, trust })
    }

    /// What an answer of `state_getProof` proves under the trusted root, which is also what it
    /// states. That it answers the question is for the caller to see from the keys shown.
    ///
    /// # Errors
    /// As [`verify`](Self::verify), and [`LightClientError::Claim`].
    pub fn verify_response(
        &self,
        response: &StateProofResponse,
        trusted: &TrustedRoot,
    ) -> Result<Verified, LightClientError> {
        let keys = response.keys();
        let verified = self.verify(&response.to_proof(), &keys, trusted)?;
        let mut slots = response.storage.iter();
        let is_stated = |shown: &Shown| match shown {
            Shown::Account { account, .. } => *account == response.account.map(Account::from),
            Shown::Slot { value, .. } => slots.next().is_some_and(|slot| slot.value == *value),
        };
        match verified.shown.iter().map(is_stated).position(|stated| !stated) {
            Some(at) => Err(LightClientError::Claim { key: keys[at] }),
            None => Ok(verified),
        }
    }

    /// What an answer of `eth_getProof` (EIP-1186) proves under the trusted state root, which is
    /// also what it states. Such an answer names no block.
    ///
    /// # Errors
    /// A [`LightClientError`] if a node of the proof is missing, wrong or not needed, or shows
    /// something else than the answer states.
    pub fn verify_eth_proof(
        &self,
        response: &EthProofResponse,
        trusted: &TrustedRoot,
    ) -> Result<Verified, LightClientError> {
        let (root, reason) = trusted.open()?;
        let address = response.address;
        let shown = shown_account(root, &address, &response.account_proof)?;
        let empty = TrieHash::Keccak256.empty_root();
        // Of an account that is not there, nodes give zeros, and either hash of nothing or zero.
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
        all.push(Shown::Account { address, account });
        for slot in &response.storage_proof {
            let key = StateKey::Slot(address, slot.key.into());
            let value = shown_slot(storage_root, &slot.key.into(), &slot.proof)?;
            let shown = Shown::of(&key, value)?;
            if !matches!(shown, Shown::Slot { value, .. } if value == slot.value) {
                return Err(LightClientError::Claim { key });
            }
            all.push(shown);
        }
        Ok(Verified { shown: all, as_of: None, trust: Trust { root, reason, params: None } })
    }

    /// What checks proofs of the format that the envelope names, under the parameters it names.
    fn of_format(&self, proof: &StateProof) -> Result<&dyn ProofVerifier, LightClientError> {
        let (backend, version, hash) = (&proof.backend, proof.version, &proof.hash);
        let is_named = |format: &&ProofFormat| {
            format.backend == backend && format.version == version && format.hash.name() == hash
        };
        let Some(format) = proof_formats().find(is_named) else {
            let (backend, hash) = (backend.to_owned(), hash.to_owned());
            return Err(LightClientError::UnknownKind { backend, version, hash });
        };
        if proof.as_of.is_some() && !format.shows_history {
            return Err(ProofFormat::NO_HISTORY.into());
        }
        let is_meant =
            |params: ParamsFacts| params.backend == format.backend && params.digest == proof.params;
        let found = match format.verifier {
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
    /// The account as it is stated.
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
