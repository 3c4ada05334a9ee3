//! The live chain: what a running node adds to the pipeline.
//!
//! * [`Engine`]: the thread that changes the chain, and [`EngineHandle`], which talks to it.
//! * [`LiveChain`] and [`View`]: the chain as everybody may read it while it moves, in memory and
//!   on disk.
//! * [`View::state_at`]: the state after any block of it, to read and to prove from.
//! * [`StateServer`]: states in parts, for other nodes to fetch.
//! * [`EngineApi`]: what a consensus client calls.
//! * [`PayloadBuilder`]: blocks built from the pool.
//! * [`TestBlock`]: blocks built as a test wants them.
//! * [`DevChain`]: blocks without a consensus client.
//! * [`Follower`]: blocks of another node.
//! * [`LogIndexer`]: the index of logs follows the chain.
//! * [`NodeStatus`]: what a node tells of itself; [`SyncProgress`]: how far it is behind, and
//!   [`SyncWait`]: what for.
//! * [`pool`]: transactions that wait for a block.

mod api;
mod deep;
mod dev;
mod error;
mod follow;
mod live;
mod log_indexer;
mod maintain;
mod orphans;
mod payload;
pub mod pool;
mod reexecute;
mod rejected;
mod service;
mod state;
mod states;
mod status;
mod testing;
mod view;
mod warm_up;

pub use api::{CAPABILITIES, EngineApi, EngineApiError, block_of_payload};
pub use deep::DeepBranch;
pub use dev::{DevChain, DevError, NextDevBlock, Sealing};
pub use error::EngineError;
pub use follow::{FollowConfig, FollowError, Follower, Following, Leader};
pub use live::LiveChain;
pub use log_indexer::LogIndexer;
pub use maintain::PoolMaintainer;
pub use payload::{BuilderConfig, BuiltPayload, PayloadBuilder};
pub use reexecute::{ReExecuted, re_execute};
pub use service::{Engine, EngineConfig, EngineHandle, ForkchoiceOutcome, RejectedBlock};
pub use state::{Need, StateAfter};
pub use states::{StateClient, StateServer, StatesError};
pub use status::{
    HeapStats, NodeAddress, NodeNetwork, NodeStatus, NodeWait, PeerStatus, SizeClass, SyncProgress,
    SyncWait, WaitReason,
};
pub use testing::{TestBlock, TestPayload};
pub use view::View;
pub use warm_up::{WarmUp, WarmUpProgress};
