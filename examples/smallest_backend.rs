//! The smallest backend with a root: values in the flat state, and a chain of hashes over all
//! changes. The root commits to all changes in order, without proofs. The framework adds forks,
//! reverts and crash safety. `tests/smallest_backend.rs` runs the test-kit on it.

use alloy_primitives::{B256, Bytes, Keccak256};
use retrie_state::{
    ApplyContext, ApplyOutput, Backend, BackendDelta, BackendIdentity, BackendKey, BackendProfile,
    BulkSink, HashId, NodeRead, NodeWrite, RowTable, StateError, StateValue, flat,
};

static IDENTITY: BackendIdentity = BackendIdentity::plain("hash-chain", 1, HashId::Keccak256);
/// Holds one row, the root, because it cannot be computed from the values.
const TABLE: RowTable = RowTable::new(0x01, "HashChain");

/// Each root is the hash of the root before it and of what the block changes.
#[derive(Debug)]
pub struct HashChain;

/// Adds a key and its new value, so that different changes give different bytes.
fn add(hasher: &mut Keccak256, key: &BackendKey, next: Option<&StateValue>) {
    hasher.update(&*key.encode());
    hasher.update(next.map_or(0, |value| value.len() as u64 + 1).to_be_bytes());
    hasher.update(next.map_or(&[][..], |value| value));
}

impl Backend for HashChain {
    type Cache = B256; // the root
    fn identity(&self) -> &BackendIdentity {
        &IDENTITY
    }
    fn profile(&self) -> BackendProfile {
        BackendProfile { tables: &[flat::TABLE, TABLE], ..BackendProfile::default() }
    }
    fn open(&self, view: &dyn NodeRead, _: Option<&std::path::Path>) -> Result<B256, StateError> {
        let Some(row) = view.get(TABLE, b"root")? else { return Ok(B256::ZERO) };
        let (table, what) = (TABLE.name.into(), "the row `root` has not 32 bytes".into());
        B256::try_from(&row[..]).map_err(|_| StateError::Corrupt { table, what })
    }
    fn apply(
        &self,
        _: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        parent: &B256,
        delta: &BackendDelta,
    ) -> Result<ApplyOutput<B256>, StateError> {
        flat::apply(view, delta)?;
        let mut hasher = Keccak256::new();
        hasher.update(parent);
        delta.changes().iter().for_each(|c| add(&mut hasher, &c.key, c.next.as_ref()));
        let root = hasher.finalize();
        view.put(TABLE, b"root", Bytes::copy_from_slice(root.as_slice()))?;
        Ok(ApplyOutput { root, cache: root })
    }
    fn bulk_load(
        &self,
        _: u64,
        entries: &mut dyn Iterator<Item = Result<(BackendKey, StateValue), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        let mut hasher = Keccak256::new();
        hasher.update(B256::ZERO);
        for entry in entries {
            let (key, value) = entry?;
            add(&mut hasher, &key, Some(&value));
            flat::put(sink, &key, &value)?;
        }
        let root = hasher.finalize();
        sink.put(TABLE, b"root", root.as_slice())?;
        Ok(root)
    }
}
