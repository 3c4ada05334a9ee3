//! State synchronisation of trees in memory, raced as the B+AVL paper does (section V.E): a new peer gets
//! the whole tree from others, some of which lie.
//!
//! Peers are processes on loopback that wait as if they were far away and had thin lines. Both sides of the
//! race have the same peers, lines and requests, and differ in what chunks are:
//!
//! * `bavl`: what chunks hash to comes first, and is checked against the root; then each chunk is checked
//!   when it comes. Who lies is not asked again, and one chunk is fetched again.
//! * `avlplus`: nothing can be checked before all is there. The paper's baseline then drops one random peer
//!   and fetches all again.
//! * `avlplus-rational`: the same tree, from one peer at a time: who gave a wrong one is not asked again.
//!
//! How `retrie node --sync.from` does it, with states of a chain, is `docs/state-sync.md`.
//!
//! | module | what |
//! |---|---|
//! | [`peer`] | a peer's process |
//! | `link` | its line, from the other end |
//! | [`fetch`] | the three ways to get a tree |
//! | [`race`] | all ways, seed after seed |
//! | [`report`] | the results |

pub mod fetch;
mod link;
pub mod peer;
pub mod race;
pub mod report;

use crate::trees::{AvlPlus, Bavl, Tree, elements::Elements};
use std::io;

/// The tree that all peers have.
#[derive(Clone, Copy, Debug)]
pub struct TreeSetting {
    /// Number of elements.
    pub elements: u64,
    /// Bytes of each value.
    pub bytes: usize,
    /// Elements of a chunk at most, and of a message of the baseline.
    pub chunk: usize,
    /// Seed of keys and values.
    pub seed: u64,
}

impl TreeSetting {
    /// Both trees, hashed.
    fn trees(&self) -> (Bavl, AvlPlus) {
        let elements = Elements::new(self.seed, self.bytes);
        let (mut bavl, mut avlplus) = (Bavl::new(self.chunk), AvlPlus::new(self.chunk));
        for n in 0..self.elements {
            bavl.insert(elements.key(n), elements.value(n));
            avlplus.insert(elements.key(n), elements.value(n));
        }
        bavl.root();
        avlplus.root();
        (bavl, avlplus)
    }
}

/// Why a tree could not be synchronised.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SyncError {
    /// A peer cannot be talked to.
    #[error("peer {peer}: {source}")]
    Peer {
        /// Number of the peer.
        peer: usize,
        /// The cause.
        source: io::Error,
    },
    /// All peers lie.
    #[error("all {peers} peers gave wrong chunks")]
    NoPeers {
        /// How many there were.
        peers: usize,
    },
    /// A tree has another root than it must have.
    #[error("chunks that were checked make a tree with another root")]
    WrongTree,
    /// The user stopped it.
    #[error("stopped")]
    Stopped,
}
