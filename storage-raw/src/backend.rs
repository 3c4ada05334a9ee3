//! The contract over the flat state.

use alloy_primitives::{B256, Bytes};
use retrie_state::{
    Applied, ApplyContext, Backend, BackendStats, BulkSink, Capabilities, HashId, Identity,
    NodeRead, NodeWrite, ProofError, StateDelta, StateError, StateKey, Table, Value, flat,
};
use std::path::Path;

static IDENTITY: Identity = Identity::plain("raw", 1, HashId::None);

/// Flat state without authentication.
#[derive(Clone, Copy, Debug, Default)]
pub struct Raw;

impl Backend for Raw {
    type Cache = ();

    fn identity(&self) -> &Identity {
        &IDENTITY
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            proofs: false,
            absence_proofs: false,
            state_determined_root: true,
            ethereum_root: false,
        }
    }

    fn tables(&self) -> Vec<Table> {
        vec![flat::TABLE]
    }

    fn empty_root(&self) -> B256 {
        B256::ZERO
    }

    fn open(&self, _: &dyn NodeRead, _: Option<&Path>) -> Result<(), StateError> {
        Ok(())
    }

    fn apply(
        &self,
        _: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        (): &(),
        delta: &StateDelta,
    ) -> Result<Applied<()>, StateError> {
        flat::apply(view, delta)?;
        Ok(Applied { root: B256::ZERO, cache: () })
    }

    fn bulk_load(
        &self,
        _: u64,
        entries: &mut dyn Iterator<Item = Result<(StateKey, Value), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        for entry in entries {
            let (key, value) = entry?;
            flat::put(sink, &key, &value)?;
        }
        Ok(B256::ZERO)
    }

    fn prove(&self, _: &dyn NodeRead, (): &(), _: &[StateKey]) -> Result<Bytes, StateError> {
        Err(StateError::Unsupported { backend: IDENTITY.name, what: "proofs" })
    }

    fn verify(&self, _: B256, _: &[StateKey], _: &[u8]) -> Result<Vec<Option<Value>>, ProofError> {
        Err(ProofError::WrongKind { what: "backend raw has no proofs" })
    }

    fn stats(&self, view: &dyn NodeRead, (): &()) -> Result<BackendStats, StateError> {
        let stats = BackendStats::count(view, &[flat::TABLE])?;
        Ok(BackendStats { live_keys: stats.rows(flat::TABLE), ..stats })
    }
}
