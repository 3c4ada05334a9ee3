//! The `Backend` implementation over the flat state.

use alloy_primitives::B256;
use retrie_state::{
    ApplyContext, ApplyOutput, Backend, BackendDelta, BackendExtensions, BackendIdentity,
    BackendKey, BackendProfile, BulkSink, HashId, NodeRead, NodeWrite, StateError, StateValue,
    WitnessSupport, flat,
};
use std::path::Path;

static IDENTITY: BackendIdentity = BackendIdentity::plain("raw", 1, HashId::None);

/// Flat state without authentication.
#[derive(Clone, Copy, Debug, Default)]
pub struct Raw;

impl Backend for Raw {
    type Cache = ();

    fn identity(&self) -> &BackendIdentity {
        &IDENTITY
    }

    fn profile(&self) -> BackendProfile {
        BackendProfile {
            tables: &[flat::TABLE],
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
    ) -> Result<ApplyOutput<()>, StateError> {
        flat::apply(view, delta)?;
        Ok(ApplyOutput { root: B256::ZERO, cache: () })
    }

    fn bulk_load(
        &self,
        _: u64,
        entries: &mut dyn Iterator<Item = Result<(BackendKey, StateValue), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        for entry in entries {
            let (key, value) = entry?;
            flat::put(sink, &key, &value)?;
        }
        Ok(B256::ZERO)
    }

    fn extensions(&self) -> BackendExtensions<'_> {
        BackendExtensions {
            witnesses: WitnessSupport::Unsupported("it authenticates nothing"),
            ..BackendExtensions::default()
        }
    }
}
