//! What a key was over a range of blocks.

use crate::Value;

/// A key's value from one block on, up to its next version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The block that set it.
    pub block: u64,
    /// The value; `None` = deleted.
    pub value: Option<Value>,
}
