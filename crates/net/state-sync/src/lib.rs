//! State sync: downloads the whole state of one block from nodes that are not trusted
//! (`docs/state-sync.md`).
//!
//! ```text
//!  trusted hash or root                                     backend of the new node
//!         |                                                        ^
//!         v                                                        | entries, codes: FetchedState
//!    SyncTarget -----block, root---------------------------> StateFetcher <--> answers on disk
//!         ^                                                        ^
//!         '--headers-- StatePeer: HttpPeer, SnapshotMirror, ConnectedPeers, SnapPeerSet --chunks, codes
//! ```
//!
//! | module | what |
//! |---|---|
//! | `target` | the block whose state is downloaded, and its headers |
//! | `format` | how the state is cut into chunks: by its backend, or as ranges of Ethereum's tries |
//! | `peer` | nodes that are asked: over JSON-RPC, and over connections of `retrie-p2p` |
//! | `access_lists` | what blocks changed, for a state that catches up with a later block |
//! | `serve` | answers to requests of `snap` |
//! | `snapshot` | states as static objects: written, and read as a peer |
//! | `download` | the download: whom to ask for what, checks, answers on disk |
//!
//! # Vocabulary
//!
//! * **Chunk**: everything below one node of the backend's tree. Its **id**
//!   ([`ChunkId`](retrie_state::ChunkId)) is the place of the node and its hash. An answer has the
//!   entries below the node, or **splits** it into lower nodes.
//! * **Item**: a chunk or a contract code that is wanted.
//! * **Standing** of a peer: how it has behaved in this sync. **Banned**: never asked again.
//! * **Spool**: the file that keeps checked answers for a restart.
//! * **Snapshot**: a state as static objects, with all answers. **Mirror**: a place that has one.
//!
//! # Assumptions
//!
//! * The root, or the hash of the block that has it, is trusted, and nothing else. What
//!   [`StateFormat`] accepts is part of that state, whichever peer sent it. The spool is trusted no
//!   more than a peer.
//! * One honest peer that has the state is enough. Without one the sync ends with a reason for each
//!   peer, and never with another state.
//! * A peer answers in bounded time and bounded bytes: the implementations of [`StatePeer`] see to
//!   it.

mod access_lists;
mod answer;
mod download;
mod format;
mod peer;
mod serve;
mod snapshot;
mod target;

pub use access_lists::fetch_changes;
pub use download::{
    FetchedCodes, FetchedState, SpoolError, StateFetcher, StateSyncError, StateSyncOptions,
    StateSyncProgress, remove_sync_dir, sync_dir,
};
pub use format::StateFormat;
pub use peer::{ConnectedPeers, HttpPeer, PeerSource, SnapPeerSet, StatePeer, StatePeerError};
pub use serve::{MAX_SNAP_BYTES, MAX_SNAP_LOOKUPS, answer_snap};
pub use snapshot::{
    BlockLookup, CodeLookup, ExportOptions, ExportProgress, ExportedBlocks, SnapshotBlocks,
    SnapshotError, SnapshotExport, SnapshotManifest, SnapshotMirror, SnapshotSource,
    SnapshotSubject,
};
pub use target::{SyncTarget, SyncTargetError, fetch_headers};
