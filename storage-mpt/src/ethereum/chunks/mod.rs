//! A state in [chunks](retrie_state::StateChunks), for state sync. A chunk has all entries below a
//! slot of the account trie or of a storage trie, with plain keys.
//!
//! `docs/state-sync.md` documents the bytes.

mod keys;
mod open;
mod order;
mod serve;

pub use keys::PlainKeys;
pub use open::open;
pub(super) use serve::link_at;
pub use serve::{answer, server};

use crate::TrieHash;
use alloy_primitives::{Address, B256};
use alloy_trie::{Nibbles, nodes::RlpNode};
use retrie_state::ChunkId;

/// The name of this [chunk format](retrie_state::StateChunks::format).
pub const FORMAT: &str = "mpt";

/// Upper bound of entries in a chunk. A slot with more entries below it is split.
pub const MAX_ENTRIES: usize = 4096;
/// Upper bound of branches in a split answer.
const MAX_BRANCHES: usize = 1024;

/// First byte of an answer.
const ENTRIES: u8 = 0;
const SPLIT: u8 = 1;

/// A slot of a trie, and the reference of the node that hangs there.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ChunkSlot {
    /// The account whose storage trie it is in; `None` for the account trie.
    trie: Option<Address>,
    path: Nibbles,
    reference: RlpNode,
}

impl ChunkSlot {
    /// `00`, or `01` and the address; number of nibbles (1), each of them (1); the reference.
    fn id(&self) -> Option<ChunkId> {
        let mut id = vec![self.trie.is_some().into()];
        id.extend(self.trie.iter().flatten());
        id.push(self.path.len() as u8);
        id.extend(self.path.to_vec());
        id.extend_from_slice(&self.reference);
        ChunkId::new(id)
    }

    fn of(id: &ChunkId) -> Option<Self> {
        let (tag, mut rest) = id.bytes().split_first()?;
        let trie = match tag {
            0 => None,
            1 => {
                let (address, behind) = rest.split_at_checked(20)?;
                rest = behind;
                Some(Address::from_slice(address))
            }
            _ => return None,
        };
        let (len, rest) = rest.split_first()?;
        let (path, reference) = rest.split_at_checked(usize::from(*len))?;
        if path.len() > 64 || path.iter().any(|nibble| *nibble > 0x0f) {
            return None;
        }
        let path = Nibbles::from_nibbles(path);
        Some(Self { trie, path, reference: RlpNode::from_raw(reference)? })
    }
}

/// The id of the chunk of all accounts under `root`, in a state whose tries are hashed `with` this
/// function; `None` if the state is empty.
pub fn whole(with: TrieHash, root: B256) -> Option<ChunkId> {
    let slot = ChunkSlot { trie: None, path: Nibbles::new(), reference: RlpNode::word_rlp(&root) };
    slot.id().filter(|_| root != with.empty_root())
}
