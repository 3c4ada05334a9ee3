//! The live chain of a running node: the engine that changes it, the views that read it, and the
//! services around it.
//!
//! ```text
//!  EngineApi (consensus client) --.
//!  ChainFollower (other nodes) ---+--> EngineHandle --> thread `engine` --> LiveChain --> LiveView
//!  DevChain (no client) ----------'                          |                  |
//!                                                   pipeline: BlockTree    TransactionPool,
//!                                                                          PayloadBuilder, RPC
//! ```
//!
//! # Vocabulary
//! * **engine** ([`Engine`], [`EngineHandle`]): the one thread that changes the chain, and the
//!   handle that sends commands to it.
//! * **live chain** ([`LiveChain`]): the canonical chain, its blocks in memory and the durable
//!   chain below them. **View** ([`LiveView`]): a consistent snapshot of it, for readers.
//! * **post-state** ([`PostState`], [`LiveView::state_at`]): the state after a block, to execute
//!   on, to read, or to prove from.
//! * **payload**: a block as the Engine API carries it ([`EngineApi`]); [`PayloadBuilder`] builds
//!   payloads from the pool.
//! * **pool** ([`pool`]): transactions that wait for a block. [`PoolMaintainer`] moves it to each
//!   new head.
//! * **follower** ([`ChainFollower`]): block sync from another node or from peers.
//! * **state server** ([`StateServer`]): hands out states in chunks to other nodes (state sync);
//!   [`RangeServers`]: in ranges, by root.
//! * **dev chain** ([`DevChain`]): seals blocks without a consensus client.
//! * **status** ([`NodeStatus`], [`SyncProgress`], [`BlockSyncWait`]): what RPC and logs show of
//!   the node, and how far it is behind.
//!
//! Also here: [`start_indexer`] keeps the indexes, [`start_history_pruner`] prunes old blocks,
//! [`start_referee_joiner`] lets a referee join, [`NodeWarmUp`] prepares caches at startup,
//! [`re_execute`] checks stored blocks, [`LiveView::execution_witness`] makes their witnesses,
//! [`LiveView::block_delta`] gives what one changed, [`LiveView::walk_back`] what a reorg undid, and
//! [`TestBlock`] serves `testing_buildBlockV1`.

mod api;
mod background;
mod block_delta;
mod deep_branch;
mod dev;
mod error;
mod follow;
mod history_pruner;
mod indexer;
mod invalid_blocks;
mod live;
mod live_table;
mod orphans;
mod participants;
mod payload;
pub mod pool;
mod pool_maintainer;
mod range_server;
mod reexecute;
mod referee_joiner;
mod reorg_walk;
mod service;
mod state;
mod state_server;
mod status;
mod testing;
mod view;
mod warm_up;
mod witness;

pub use api::{ApiFork, BodyRequest, EngineApi, EngineApiError, PayloadEnvelope, block_of_payload};
pub use background::{BackgroundControl, BackgroundThread};
pub use block_delta::DeltaError;
pub use deep_branch::DeepBranch;
pub use dev::{DevChain, DevError, NextDevBlock, SealingMode};
pub use error::EngineError;
pub use follow::{ChainFollower, FollowConfig, FollowError, FollowerHandle, HeadSource};
pub use history_pruner::start_history_pruner;
pub use indexer::{IndexerConfig, start_indexer};
pub use live::LiveChain;
pub use live_table::LiveTable;
pub use payload::{BuilderConfig, BuiltPayload, PayloadBuilder};
pub use pool_maintainer::PoolMaintainer;
pub use range_server::RangeServers;
pub use reexecute::{ReExecutionReport, re_execute};
pub use referee_joiner::{NEAR_REFEREE, start_referee_joiner};
pub use reorg_walk::{ReorgWalk, WalkEnd};
pub use service::{Engine, EngineConfig, EngineHandle, ForkchoiceOutcome};
pub use state::{PostState, StateNeed};
pub use state_server::{StateClient, StateServeError, StateServer};
pub use status::{
    BlockSyncWait, HeapStats, NodeAddress, NodeNetwork, NodeStatus, NodeWait, PeerChange,
    PeerStatus, SizeClass, SyncProgress, WaitReason,
};
pub use testing::{TestBlock, TestPayload};
pub use view::LiveView;
pub use warm_up::{NodeWarmUp, WarmUpProgress};
pub use witness::RecordedExecution;
