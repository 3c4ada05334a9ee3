//! A state in [chunks](retrie_state::Chunks): everything below a slot of the account trie, or of a
//! storage trie, with keys as they are and not as they are hashed.
//!
//! `docs/state-sync.md` has the bytes one by one.

mod keys;
mod open;
mod order;
mod serve;

pub use keys::PlainKeys;
pub use open::open;
pub use serve::{answer, server};

use crate::TrieHash;
use alloy_primitives::{Address, B256};
use alloy_trie::{Nibbles, nodes::RlpNode};
use retrie_state::ChunkId;

/// What [`Chunks::format`](retrie_state::Chunks::format) says of them.
pub const FORMAT: &str = "mpt";

/// Entries of a chunk at most. A slot with more below it is split.
pub const MAX_ENTRIES: usize = 4096;
/// Branches that one answer is split by at most.
const MAX_BRANCHES: usize = 1024;

/// What an answer begins with.
const ENTRIES: u8 = 0;
const SPLIT: u8 = 1;

/// A slot of a trie, and the reference of the node that hangs there.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Slot {
    /// Whose storage trie it is; `None` for the account trie.
    trie: Option<Address>,
    path: Nibbles,
    reference: RlpNode,
}

impl Slot {
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

/// The id of all accounts under `root`, in a state whose tries are hashed `with` this function; `None`
/// if there are none.
pub fn whole(with: TrieHash, root: B256) -> Option<ChunkId> {
    let slot = Slot { trie: None, path: Nibbles::new(), reference: RlpNode::word_rlp(&root) };
    slot.id().filter(|_| root != with.empty_root())
}
