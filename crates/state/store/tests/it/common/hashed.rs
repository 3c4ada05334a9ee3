//! A mock backend whose root is the hash of the whole sorted state, and whose proof is the whole
//! state: the simplest backend with a state-determined root and real proofs.

use super::{EntryLevel, decode_level, digest, encode_level};
use alloy_primitives::{B256, Bytes, keccak256};
use retrie_state::{
    AnyCache, ApplyContext, ApplyOutput, Backend, BackendDelta, BackendExtensions, BackendIdentity,
    BackendKey, BackendProfile, BulkSink, HashId, NodeRead, NodeWrite, Prefetcher, ProofError,
    StateError, StateValue, flat,
};
use std::path::Path;

pub(crate) static IDENTITY: BackendIdentity =
    BackendIdentity::plain("mock-hash", 1, HashId::Keccak256);

pub(crate) struct MockHash;

pub(crate) fn whole(view: &dyn NodeRead) -> Result<EntryLevel, StateError> {
    let entries = flat::entries(view, None, usize::MAX)?;
    Ok(entries.into_iter().map(|(key, value)| (key, Some(value))).collect())
}

impl Backend for MockHash {
    type Cache = ();

    fn identity(&self) -> &BackendIdentity {
        &IDENTITY
    }

    fn profile(&self) -> BackendProfile {
        BackendProfile {
            tables: &[flat::TABLE],
            empty_root: digest(&EntryLevel::new()),
            proofs: true,
            absence_proofs: true,
            state_determined_root: true,
            ..BackendProfile::default()
        }
    }

    fn open(&self, _: &dyn NodeRead, _: Option<&Path>) -> Result<(), StateError> {
        Ok(())
    }

    fn apply(
        &self,
        _: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        (): &(),
        delta: &BackendDelta,
    ) -> Result<ApplyOutput<Self::Cache>, StateError> {
        flat::apply(view, delta)?;
        Ok(ApplyOutput { root: digest(&whole(view.as_read())?), cache: () })
    }

    fn bulk_load(
        &self,
        _: u64,
        entries: &mut dyn Iterator<Item = Result<(BackendKey, StateValue), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        let mut level = EntryLevel::new();
        for entry in entries {
            let (key, value) = entry?;
            flat::put(sink, &key, &value)?;
            level.insert(key, Some(value));
        }
        Ok(digest(&level))
    }

    fn prove(&self, view: &dyn NodeRead, (): &(), _: &[BackendKey]) -> Result<Bytes, StateError> {
        Ok(encode_level(&whole(view)?).into())
    }

    fn verify(
        &self,
        root: B256,
        keys: &[BackendKey],
        mut proof: &[u8],
    ) -> Result<Vec<Option<StateValue>>, ProofError> {
        if keccak256(proof) != root {
            return Err(ProofError::RootMismatch);
        }
        let level =
            decode_level(&mut proof).ok_or(ProofError::Malformed { what: "the entries" })?;
        Ok(keys.iter().map(|key| level.get(key).cloned().flatten()).collect())
    }

    fn extensions(&self) -> BackendExtensions<'_> {
        BackendExtensions { prefetcher: Some(self), ..BackendExtensions::default() }
    }
}

/// The root needs nothing beside the values, which the framework reads.
impl Prefetcher for MockHash {
    fn prefetch(&self, _: &dyn NodeRead, _: &AnyCache, _: &[BackendKey]) {}
}
