//! The filters that clients have installed.

use super::{Interest, Interests};
use crate::{RpcError, RpcResult};
use alloy_primitives::map::HashMap;
use alloy_rpc_types_eth::Filter;
use parking_lot::Mutex;
use retrie_engine::{View, pool::PoolTransaction};
use retrie_state::BlockRef;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::broadcast::Receiver;

/// Most filters at once, of all clients.
const MAX_FILTERS: usize = 10_000;

/// Blocks below the head that a filter remembers, by their distance: no reorganisation goes deeper
/// than the last.
const DISTANCES: [u64; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// The filters of all clients, by id.
#[derive(Debug)]
pub(crate) struct Filters {
    by_id: Mutex<HashMap<String, Installed>>,
    all: Arc<Interests>,
}

impl Default for Filters {
    fn default() -> Self {
        Self { by_id: Mutex::default(), all: Interests::new("filters", MAX_FILTERS) }
    }
}

#[derive(Debug)]
struct Installed {
    used: Instant,
    kind: Arc<Mutex<Kind>>,
    _interest: Interest,
}

/// What a filter is of.
#[derive(Debug)]
pub(crate) enum Kind {
    /// Of logs, or of block hashes.
    Chain { known: Known, logs: Option<Arc<Filter>> },
    /// Of transactions that became executable, by hash or in full.
    Pending { incoming: Receiver<Arc<PoolTransaction>>, is_full: bool },
}

impl Filters {
    /// Leave for one more filter, in place of those that have expired.
    pub(crate) fn admit(&self, lifetime: Duration, filter: Option<&Filter>) -> RpcResult<Interest> {
        self.by_id.lock().retain(|_, filter| !filter.has_expired(lifetime));
        self.all.admit(filter)
    }

    /// Keeps a filter; its id.
    pub(crate) fn install(&self, kind: Kind, interest: Interest) -> String {
        let id = format!("{:#x}", rand::random::<u128>());
        let kind = Arc::new(Mutex::new(kind));
        let installed = Installed { used: Instant::now(), kind, _interest: interest };
        self.by_id.lock().insert(id.clone(), installed);
        id
    }

    /// The filter of this id, if it was used within its lifetime.
    pub(crate) fn find(&self, lifetime: Duration, id: &str) -> RpcResult<Arc<Mutex<Kind>>> {
        let mut by_id = self.by_id.lock();
        let found = by_id.get_mut(id).ok_or(RpcError::FilterNotFound)?;
        if found.has_expired(lifetime) {
            by_id.remove(id);
            return Err(RpcError::FilterNotFound);
        }
        found.used = Instant::now();
        Ok(found.kind.clone())
    }

    /// Forgets a filter; whether there was one.
    pub(crate) fn remove(&self, id: &str) -> bool {
        self.by_id.lock().remove(id).is_some()
    }
}

impl Installed {
    fn has_expired(&self, lifetime: Duration) -> bool {
        self.used.elapsed() >= lifetime
    }
}

/// How far a client knows the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) head: BlockRef,
    /// Blocks below it, the highest first: where to go on if the head's branch has been forgotten.
    pub(crate) below: Vec<BlockRef>,
}

impl Known {
    /// The chain up to the head of `view`.
    pub(crate) fn of(view: &View) -> RpcResult<Self> {
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
