//! Block sync: blocks from peers, for the follower of the engine. It has the same interface as every
//! other source of blocks ([`BlockFetcher`](retrie_sources::BlockFetcher)).
//!
//! ```text
//!  follower --head's header--> HeaderSkeleton: headers downwards, by parent hash
//!     ^  |                             ^--- HeaderScheduler: in pieces, from all peers at once
//!     |  '--blocks upwards-------> BodyScheduler: ahead of the follower, from all peers at once
//!     |                               |  ^
//!     '-----------blocks--------------'  '-- each body is checked against its header
//! ```
//!
//! | thread | work |
//! |---|---|
//! | the follower's | asks for headers and waits for them; wants bodies, and waits for the one it needs |
//! | tasks of the runtime, one for each request | wait for the peer, check the answer against the headers |
//!
//! # Vocabulary
//!
//! * **Skeleton**: the headers below one head, without bodies. A **segment** is 1,024 of them, a
//!   **span** such headers as one request may ask for.
//! * **Flight**: a request that a peer has not answered yet.
//! * **Standing** of a peer: how many headers and bodies a second it has given.
//! * **Hedge**: the same request to a second peer, while the first one is late.
//! * **Figures**: counters, for metrics.
//!
//! # Assumptions
//!
//! **No peer is trusted.** The hash of the head comes from the consensus client. A header counts if
//! the one above names its hash and its number is one less. A body counts if it matches the roots
//! in its header. So peers cannot make this node import anything but the chain of that head, and a
//! peer that sends something else is reported.
//!
//! **No peer is waited for.** What a peer can do is to send nothing, little, or late. `standing`
//! measures how many items a second each peer gives. What is needed first is asked of the fastest
//! peer, and then of a second peer, once that one would have been faster. A peer that several times
//! in a row gives less than it has is reported. So block sync is as fast as the fastest peer.
//!
//! Memory:
//!
//! | what | at most |
//! |---|---|
//! | headers | 32 segments of 1,024 and the highest one; 40 bytes for each further segment |
//! | headers that no trusted header has named yet | 15 pieces of 1,024 |
//! | bodies | 4,096, of about 64 MiB ([`BlockSyncOptions::most_bytes`]) |
//! | requests | 2 for headers and 2 for bodies to each peer |
//!
//! # Rooms
//!
//! | module | what |
//! |---|---|
//! | [`PeerBlocks`] | the source of blocks: the skeletons, and the calls that wait |
//! | `shared` | sending requests, taking answers, waking who waits |
//! | `headers`, `bodies` | schedulers: what is wanted, whom to ask for it, what an answer is worth. They do no I/O |
//! | `skeleton` | linked headers below a head |
//! | `standing` | speed and faults of each peer |

mod bodies;
mod error;
mod headers;
mod peer_blocks;
mod shared;
#[cfg(test)]
mod simulation;
mod skeleton;
mod standing;
#[cfg(test)]
mod tests;

pub use peer_blocks::PeerBlocks;

use std::{sync::atomic::AtomicU64, time::Duration};

/// Options of block sync.
#[derive(Clone, Copy, Debug)]
pub struct BlockSyncOptions {
    /// How long to wait for one peer, at most, before another one is asked for the same.
    pub patience: Duration,
    /// How long nothing useful may come from any peer before the follower gets an error.
    pub stalled: Duration,
    /// Maximum bytes of bodies that are here and not taken yet, approximately.
    pub most_bytes: usize,
}

impl Default for BlockSyncOptions {
    /// 2 s, 30 s and 64 MiB.
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(2),
            stalled: Duration::from_secs(30),
            most_bytes: 64 << 20,
        }
    }
}

/// Counters of block sync.
#[derive(Debug, Default)]
pub struct BlockSyncFigures {
    /// Headers that were linked to the head.
    pub headers: AtomicU64,
    /// Bodies that matched their headers.
    pub bodies: AtomicU64,
    /// Their bytes.
    pub body_bytes: AtomicU64,
    /// Wrong answers.
    pub wrong: AtomicU64,
    /// Requests without a useful answer.
    pub failed: AtomicU64,
}
