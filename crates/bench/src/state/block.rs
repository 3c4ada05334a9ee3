//! What one commit does.

use retrie_state::{StateKey, Value};

/// One operation on a key. Each reads the key first, in the state before the block: a state store
/// has to know what it replaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Only reads it.
    Read(StateKey),
    /// Reads it, then sets it to a value.
    Write(StateKey, Value),
    /// Reads it, then removes it.
    Delete(StateKey),
}

impl Op {
    /// The key.
    pub const fn key(&self) -> &StateKey {
        match self {
            Self::Read(key) | Self::Write(key, _) | Self::Delete(key) => key,
        }
    }

    /// What the key is to hold afterwards, if the operation changes it: `Some(None)` is nothing.
    pub fn next(&self) -> Option<Option<&Value>> {
        match self {
            Self::Read(_) => None,
            Self::Write(_, value) => Some(Some(value)),
            Self::Delete(_) => Some(None),
        }
    }
}

/// The operations of one commit. Of several writes to one key the last one counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// In the order they are done.
    pub ops: Vec<Op>,
    /// How many of the keys read have a value.
    pub present: u64,
}

impl Block {
    /// Keys read: one an operation.
    pub const fn reads(&self) -> u64 {
        self.ops.len() as u64
    }

    /// Keys written or deleted.
    pub fn writes(&self) -> u64 {
        self.ops.iter().filter(|op| op.next().is_some()).count() as u64
    }
}
