//! State that methods of `eth` keep between requests, shared by all transports through the context.
//! This module depends neither on methods nor on the context.

mod blocks;
mod filters;
mod proofs;
mod quota;

pub(crate) use blocks::BlockCache;
pub(crate) use filters::{ChainCursor, FilterKind, FilterRegistry};
pub(crate) use proofs::ProofPermits;
pub(crate) use quota::{ClientQuota, QuotaPermit};

use alloy_primitives::B256;
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use std::{fmt, sync::Arc};

/// Number of blocks before Byzantium whose intermediate roots are cached.
const BLOCKS_KEPT: usize = 256;
/// Most subscriptions of all clients together.
const MAX_SUBSCRIPTIONS: usize = 50_000;
/// Most traces of chains of all clients together: each holds a heavy permit most of the time.
const MAX_CHAIN_TRACES: usize = 4;

/// State that methods of `eth` keep between requests.
pub(crate) struct EthState {
    pub(crate) filters: FilterRegistry,
    /// The last suggested tip (wei) and its block; valid while that block is the head.
    pub(crate) tip: Mutex<Option<(B256, u128)>>,
    /// Permits for building proofs.
    pub(crate) proofs: ProofPermits,
    /// Cached blocks with their receipts.
    pub(crate) blocks: BlockCache,
    /// Cached state roots after each transaction, for blocks before Byzantium, by block hash.
    pub(crate) roots: Cache<B256, Arc<[B256]>>,
    /// The quota of all clients' subscriptions.
    pub(crate) subscriptions: Arc<ClientQuota>,
    /// The quota of all clients' traces of chains.
    pub(crate) chain_traces: Arc<ClientQuota>,
    /// Held while a transaction of this node's accounts gets its nonce and enters the pool.
    pub(crate) sending: Mutex<()>,
}

impl Default for EthState {
    fn default() -> Self {
        Self {
            filters: FilterRegistry::default(),
            tip: Mutex::default(),
            proofs: ProofPermits::default(),
            blocks: BlockCache::default(),
            roots: Cache::new(BLOCKS_KEPT),
            subscriptions: ClientQuota::new("subscriptions", MAX_SUBSCRIPTIONS),
            chain_traces: ClientQuota::new("traces of chains", MAX_CHAIN_TRACES),
            sending: Mutex::default(),
        }
    }
}

impl fmt::Debug for EthState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EthState").field("filters", &self.filters).finish_non_exhaustive()
    }
}
