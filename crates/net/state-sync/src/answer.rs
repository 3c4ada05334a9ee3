//! Answers and their short names, by which files find them.

use alloy_primitives::Keccak256;
use retrie_state::ChunkId;

/// What an answer is: a chunk or a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum AnswerKind {
    Chunk = 0,
    Code = 1,
}

/// The first 16 bytes of the keccak-256 of the kind (a byte) and the id: that of a chunk, or the
/// hash of a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct AnswerKey(pub(crate) [u8; Self::LEN]);

impl AnswerKey {
    pub(crate) const LEN: usize = 16;

    pub(crate) fn new(kind: AnswerKind, id: &[u8]) -> Self {
        let mut hasher = Keccak256::new();
        hasher.update([kind as u8]);
        hasher.update(id);
        let mut front = [0; Self::LEN];
        front.copy_from_slice(&hasher.finalize()[..Self::LEN]);
        Self(front)
    }

    pub(crate) fn of_chunk(id: &ChunkId) -> Self {
        Self::new(AnswerKind::Chunk, id.bytes())
    }
}
