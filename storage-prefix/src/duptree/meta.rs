//! The row with the size of the tree and its top.

use super::{
    shape::{MAX_LEAVES, TreeShape},
    subtree::NODES,
};
use alloy_primitives::{B256, Bytes};
use retrie_state::{NodeRead, StateError, wire::WireReader};

/// Key of the row, in [`NODES`]; it sorts behind the rows of all nodes.
pub(crate) const META: &[u8] = &[0xff];

/// Number of leaves (8 bytes, BE) and top (32). There is no row while the sentinel is the only
/// leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DupTreeMeta {
    pub(crate) shape: TreeShape,
    pub(crate) top: B256,
}

impl DupTreeMeta {
    /// The row's value.
    pub(crate) fn encode(&self) -> Bytes {
        [&self.shape.leaves.to_be_bytes()[..], &self.top[..]].concat().into()
    }

    fn decode(row: &[u8]) -> Option<Self> {
        let mut reader = WireReader::new(row);
        let (leaves, top) = (reader.u64().ok()?, reader.hash().ok()?);
        reader.finish().ok()?;
        (2..=MAX_LEAVES).contains(&leaves).then_some(Self { shape: TreeShape { leaves }, top })
    }

    /// Reads the row, if there is one.
    ///
    /// # Errors
    /// [`StateError::Corrupt`] if it is malformed.
    pub(crate) fn read(view: &dyn NodeRead) -> Result<Option<Self>, StateError> {
        let Some(row) = view.get(NODES, META)? else { return Ok(None) };
        let meta = Self::decode(&row);
        meta.map(Some).ok_or_else(|| StateError::corrupt(NODES.name, "row ff is malformed"))
    }
}
