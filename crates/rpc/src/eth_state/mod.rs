//! What methods of `eth` keep between requests, whatever transport these come by. It knows nothing of
//! methods, nor of what they have at hand: they share it through their context.

mod filters;
mod interests;
mod proofs;

pub(crate) use filters::{Filters, Kind, Known};
pub(crate) use interests::{Interest, Interests};
pub(crate) use proofs::Permits;

use alloy_primitives::B256;
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use std::{fmt, sync::Arc};

/// Blocks before Byzantium whose intermediate roots are kept.
const BLOCKS_KEPT: usize = 256;
/// Most subscriptions at once, of all clients.
const MAX_SUBSCRIPTIONS: usize = 50_000;

/// What methods of `eth` keep between requests.
pub(crate) struct EthState {
    pub(crate) filters: Filters,
    /// The block and the wei of the last suggested tip, which holds as long as the block is the head.
    pub(crate) tip: Mutex<Option<(B256, u128)>>,
    /// Proofs that are being built.
    pub(crate) proofs: Permits,
    /// State roots after each transaction, of blocks before Byzantium, by block hash.
    pub(crate) roots: Cache<B256, Arc<[B256]>>,
    /// The subscriptions of all clients.
    pub(crate) subscriptions: Arc<Interests>,
    /// Held while a transaction of this node's accounts gets its nonce and goes into the pool.
    pub(crate) sending: Mutex<()>,
}

impl Default for EthState {
    fn default() -> Self {
        Self {
            filters: Filters::default(),
            tip: Mutex::default(),
            proofs: Permits::default(),
            roots: Cache::new(BLOCKS_KEPT),
            subscriptions: Interests::new("subscriptions", MAX_SUBSCRIPTIONS),
            sending: Mutex::default(),
        }
    }
}

impl fmt::Debug for EthState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EthState").field("filters", &self.filters).finish_non_exhaustive()
    }
}
