//! Values of a key over a range of blocks.

use crate::StateValue;

/// A key's value from one block on, up to its next version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueVersion {
    /// The block that set it.
    pub block: u64,
    /// The value; `None` = deleted.
    pub value: Option<StateValue>,
}
