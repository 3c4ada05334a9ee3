//! Synchronisation of in-memory trees between peers, raced as in the B+AVL paper (section V.E): a
//! new peer fetches the whole tree from other peers, some of which lie.
//!
//! Peers are processes on loopback with simulated delay and bandwidth. All methods use the same
//! peers, lines and requests, and differ in the contents of chunks:
//!
//! * `bavl`: the hashes of all chunks come first, and are checked against the root. Then each chunk
//!   is checked when it arrives. A peer with a wrong chunk gets no more requests, and this chunk is
//!   fetched again.
//! * `avlplus`, the baseline: nothing can be checked before the whole tree has arrived. Of a wrong
//!   root the paper says that everything is fetched again, and not from whom; one liar costs twice
//!   as many chunks there. So the baseline runs with each of these policies:
//!
//! | policy | after a wrong root |
//! |---|---|
//! | `avlplus:refetch` | everything again from all peers but one that has lied. An oracle names it, so each liar costs one round: the least that fits the paper's words |
//! | `avlplus:drop-random` | everything again from all peers but a random one, again and again |
//! | `avlplus:rational` | everything from one peer at a time, so a wrong root names the liar: no oracle, and at most one round for each liar and one more |
//!
//! `docs/state-sync.md` describes state sync of `retrie node --sync.from`.
//!
//! | module | what |
//! |---|---|
//! | [`peer`] | the process of a peer |
//! | `link` | the connection to a peer |
//! | [`fetch`] | the methods to fetch a tree |
//! | [`race`] | races all methods, seed after seed |
//! | [`report`] | the results |

pub mod fetch;
mod link;
pub mod peer;
pub mod race;
pub mod report;

use crate::trees::{AuthenticatedTree, AvlPlusTree, BavlTree, elements::ElementGenerator};
use std::io;

/// The tree that all peers serve.
#[derive(Clone, Copy, Debug)]
pub struct ServedTreeConfig {
    /// Number of elements.
    pub elements: u64,
    /// Bytes of each value.
    pub bytes: usize,
    /// Largest number of elements in a chunk, and in a message of the baseline.
    pub chunk: usize,
    /// Seed of keys and values.
    pub seed: u64,
}

impl ServedTreeConfig {
    /// Builds both trees and hashes them.
    fn trees(&self) -> (BavlTree, AvlPlusTree) {
        let elements = ElementGenerator::new(self.seed, self.bytes);
        let (mut bavl, mut avlplus) = (BavlTree::new(self.chunk), AvlPlusTree::new(self.chunk));
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
pub enum TreeSyncError {
    /// The connection to a peer failed.
    #[error("peer {peer}: {source}")]
    Peer {
        /// Number of the peer.
        peer: usize,
        /// The cause.
        source: io::Error,
    },
    /// All peers have sent wrong chunks.
    #[error("all {peers} peers gave wrong chunks")]
    NoPeers {
        /// Number of peers.
        peers: usize,
    },
    /// The fetched tree has a wrong root, although its chunks were checked, or all peers are honest.
    #[error("honest chunks make a tree with another root")]
    WrongTree,
    /// The user asked to stop.
    #[error("stopped")]
    Stopped,
}
