//! The installed filters of all clients.

use super::{ClientQuota, QuotaPermit};
use crate::{RpcError, RpcResult};
use alloy_primitives::map::HashMap;
use alloy_rpc_types_eth::Filter;
use parking_lot::Mutex;
use retrie_engine::{LiveView, pool::PoolTransaction};
use retrie_state::BlockRef;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::broadcast::Receiver;

/// Most filters of all clients together.
const MAX_FILTERS: usize = 10_000;

/// Distances below the head of the blocks that a filter remembers. The last one exceeds any
/// expected reorganisation.
const DISTANCES: [u64; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// The installed filters of all clients, by id.
#[derive(Debug)]
pub(crate) struct FilterRegistry {
    by_id: Mutex<HashMap<String, InstalledFilter>>,
    all: Arc<ClientQuota>,
}

impl Default for FilterRegistry {
    fn default() -> Self {
        Self { by_id: Mutex::default(), all: ClientQuota::new("filters", MAX_FILTERS) }
    }
}

#[derive(Debug)]
struct InstalledFilter {
    used: Instant,
    kind: Arc<Mutex<FilterKind>>,
    _interest: QuotaPermit,
}

/// What a filter returns.
#[derive(Debug)]
pub(crate) enum FilterKind {
    /// Logs, or block hashes.
    Chain { known: ChainCursor, logs: Option<Arc<Filter>> },
    /// Transactions that became executable, in full or by hash.
    Pending { incoming: Receiver<Arc<PoolTransaction>>, is_full: bool },
}

impl FilterRegistry {
    /// Takes a place for one more filter; drops expired filters first.
    pub(crate) fn admit(
        &self,
        lifetime: Duration,
        filter: Option<&Filter>,
    ) -> RpcResult<QuotaPermit> {
        self.by_id.lock().retain(|_, filter| !filter.has_expired(lifetime));
        self.all.admit(filter)
    }

    /// Stores a filter and returns its id.
    pub(crate) fn install(&self, kind: FilterKind, interest: QuotaPermit) -> String {
        let id = format!("{:#x}", rand::random::<u128>());
        let kind = Arc::new(Mutex::new(kind));
        let installed = InstalledFilter { used: Instant::now(), kind, _interest: interest };
        self.by_id.lock().insert(id.clone(), installed);
        id
    }

    /// The filter with this id, if it was polled within its lifetime.
    pub(crate) fn find(&self, lifetime: Duration, id: &str) -> RpcResult<Arc<Mutex<FilterKind>>> {
        let mut by_id = self.by_id.lock();
        let found = by_id.get_mut(id).ok_or(RpcError::FilterNotFound)?;
        if found.has_expired(lifetime) {
            by_id.remove(id);
            return Err(RpcError::FilterNotFound);
        }
        found.used = Instant::now();
        Ok(found.kind.clone())
    }

    /// Removes a filter; returns whether it existed.
    pub(crate) fn remove(&self, id: &str) -> bool {
        self.by_id.lock().remove(id).is_some()
    }
}

impl InstalledFilter {
    fn has_expired(&self, lifetime: Duration) -> bool {
        self.used.elapsed() >= lifetime
    }
}

/// The chain up to which a client has polled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChainCursor {
    pub(crate) head: BlockRef,
    /// Blocks below the head, the highest first: where to continue if the head's branch was pruned.
    pub(crate) below: Vec<BlockRef>,
}

impl ChainCursor {
    /// The chain up to the head of `view`.
    pub(crate) fn of(view: &LiveView) -> RpcResult<Self> {
        let head = BlockRef::new(view.head().number, view.head().hash());
        let mut below = Vec::with_capacity(DISTANCES.len());
        for distance in DISTANCES {
            let Some(number) = head.number.checked_sub(distance) else { break };
            let Some(hash) = view.canonical_hash(number)? else { break };
            below.push(BlockRef::new(number, hash));
        }
        Ok(Self { head, below })
    }
}
