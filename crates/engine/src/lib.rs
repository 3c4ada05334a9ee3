//! The live chain: what a running node adds to the pipeline.
//!
//! * [`Engine`]: the thread that changes the chain, and [`EngineHandle`], which talks to it.
//! * [`LiveChain`] and [`View`]: the chain as everybody may read it while it moves, in memory and
//!   on disk.
//! * [`ListedState`]: the whole state after a block, entry by entry.
//! * [`EngineApi`]: what a consensus client calls.
//! * [`PayloadBuilder`]: blocks built from the pool.
//! * [`TestBlock`]: blocks built as a test wants them.
//! * [`DevChain`]: blocks without a consensus client.
//! * [`Follower`]: blocks from another node's JSON-RPC.
//! * [`pool`]: transactions that wait for a block.

mod api;
mod dev;
mod error;
mod follow;
mod listed;
mod live;
mod maintain;
mod orphans;
mod payload;
pub mod pool;
mod reexecute;
mod rejected;
mod service;
mod testing;

pub use api::{CAPABILITIES, EngineApi, EngineApiError};
pub use dev::{DevChain, DevError, NextDevBlock, Sealing};
pub use error::EngineError;
pub use follow::{FollowConfig, FollowError, Follower, Leader};
pub use listed::ListedState;
pub use live::{BlockState, LiveChain, View};
pub use maintain::PoolMaintainer;
pub use payload::{BuilderConfig, BuiltPayload, PayloadBuilder};
pub use reexecute::{ReExecuted, re_execute};
pub use service::{Engine, EngineConfig, EngineHandle, ForkchoiceOutcome, RejectedBlock};
pub use testing::{TestBlock, TestPayload};
