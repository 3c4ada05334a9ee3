//! Filters: what has changed since a client last asked.
//!
//! A filter of blocks or logs is nothing but the block up to which its client knows the chain. What
//! is new is found by going from there to the head of today, back over blocks that have left the
//! chain and up again. So a filter costs nothing while nobody asks, and misses nothing.

use super::{
    convert::{self, RpcTransaction},
    logs::{self, Found},
};
use crate::{
    RpcContext, RpcError, RpcResult,
    args::{heavy, quick},
};
use alloy_primitives::{B256, map::HashMap};
use alloy_rpc_types_eth::{Filter, FilterBlockOption, FilterChanges, Log};
use jsonrpsee::RpcModule;
use parking_lot::Mutex;
use retrie_engine::{View, pool::PoolTransaction};
use retrie_pipeline::BlockWithReceipts;
use retrie_state::BlockRef;
use std::{
    ops::RangeInclusive,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::broadcast::{Receiver, error::TryRecvError};

/// Most filters at once, of all clients.
const MAX_FILTERS: usize = 10_000;

/// What a filter gives.
type Changes = FilterChanges<RpcTransaction>;

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    quick(module, "eth_newFilter", |rpc, args| {
        let filter: Box<Filter> = args.required()?;
        logs::check(&filter)?;
        let known = head(&rpc.view()?);
        rpc.shared.filters.install(rpc, Kind::Logs { filter, known })
    });
    quick(module, "eth_newBlockFilter", |rpc, _| {
        let known = head(&rpc.view()?);
        rpc.shared.filters.install(rpc, Kind::Blocks { known })
    });
    quick(module, "eth_newPendingTransactionFilter", |rpc, args| {
        let is_full = args.optional()?.unwrap_or(false);
        let incoming = rpc.pool()?.subscribe();
        rpc.shared.filters.install(rpc, Kind::Pending { incoming, is_full })
    });
    quick(module, "eth_uninstallFilter", |rpc, args| {
        let id: String = args.required()?;
        Ok(rpc.shared.filters.by_id.lock().remove(&id).is_some())
    });
    heavy(module, "eth_getFilterChanges", |rpc, view, args| {
        let filter = rpc.shared.filters.find(&args.required::<String>()?)?;
        filter.lock().changes(rpc, &view)
    });
    heavy(module, "eth_getFilterLogs", |rpc, view, args| {
        let found = rpc.shared.filters.find(&args.required::<String>()?)?;
        let filter = match &*found.lock() {
            Kind::Logs { filter, .. } => filter.clone(),
            Kind::Blocks { .. } | Kind::Pending { .. } => return Err(RpcError::FilterNotFound),
        };
        logs::search(rpc, &view, &filter)
    });
}

fn head(view: &View) -> BlockRef {
    BlockRef::new(view.head().number, view.head().hash())
}

/// The filters of all clients, by id.
#[derive(Debug, Default)]
pub(super) struct Filters {
    by_id: Mutex<HashMap<String, Installed>>,
}

#[derive(Debug)]
struct Installed {
    used: Instant,
    kind: Arc<Mutex<Kind>>,
}

#[derive(Debug)]
enum Kind {
    /// Of logs; the client knows the chain up to `known`.
    Logs { filter: Box<Filter>, known: BlockRef },
    /// Of block hashes.
    Blocks { known: BlockRef },
    /// Of transactions that became executable, by hash or in full.
    Pending { incoming: Receiver<Arc<PoolTransaction>>, is_full: bool },
}

impl Filters {
    fn install(&self, rpc: &RpcContext, kind: Kind) -> RpcResult<String> {
        let mut by_id = self.by_id.lock();
        drop_expired(&mut by_id, rpc.limits.filter_lifetime);
        if by_id.len() >= MAX_FILTERS {
            return Err(RpcError::Rejected(format!(
                "there are {MAX_FILTERS} filters; uninstall some, or subscribe"
            )));
        }
        let id = format!("{:#x}", rand::random::<u128>());
        let kind = Arc::new(Mutex::new(kind));
        by_id.insert(id.clone(), Installed { used: Instant::now(), kind });
        Ok(id)
    }

    fn find(&self, id: &str) -> RpcResult<Arc<Mutex<Kind>>> {
        let mut by_id = self.by_id.lock();
        let found = by_id.get_mut(id).ok_or(RpcError::FilterNotFound)?;
        found.used = Instant::now();
        Ok(found.kind.clone())
    }
}

fn drop_expired(by_id: &mut HashMap<String, Installed>, lifetime: Duration) {
    by_id.retain(|_, filter| filter.used.elapsed() < lifetime);
}

impl Kind {
    /// What is new since the last time.
    fn changes(&mut self, rpc: &RpcContext, view: &View) -> RpcResult<Changes> {
        match self {
            Self::Blocks { known } => {
                let path = Path::from(view, *known)?;
                let hash = |number| view.canonical_hash(number)?.ok_or(RpcError::HeaderNotFound);
                let hashes: Vec<B256> = path.added.map(hash).collect::<RpcResult<_>>()?;
                *known = head(view);
                Ok(FilterChanges::Hashes(hashes))
            }
            Self::Logs { filter, known } => {
                let path = Path::from(view, *known)?;
                let logs = new_logs(rpc, view, filter, path)?;
                *known = head(view);
                Ok(FilterChanges::Logs(logs))
            }
            Self::Pending { incoming, is_full } => {
                let mut arrived = Vec::new();
                loop {
                    match incoming.try_recv() {
                        Ok(transaction) => arrived.push(transaction),
                        Err(TryRecvError::Lagged(_)) => {}
                        Err(TryRecvError::Empty | TryRecvError::Closed) => break,
                    }
                }
                Ok(if *is_full {
                    let full = |one: &Arc<_>| convert::pool_transaction(one);
                    FilterChanges::Transactions(arrived.iter().map(full).collect())
                } else {
                    FilterChanges::Hashes(arrived.iter().map(|one| *one.hash()).collect())
                })
            }
        }
    }
}

/// The way from a block that once was the head to the head of today.
struct Path {
    /// Blocks that have left the chain, the highest first.
    removed: Vec<B256>,
    /// Numbers of the blocks that have come.
    added: RangeInclusive<u64>,
}

impl Path {
    fn from(view: &View, known: BlockRef) -> RpcResult<Self> {
        let mut at = known;
        let mut removed = Vec::new();
        while !view.is_canonical(&at.hash)? {
            // A branch that is forgotten altogether takes its logs with it.
            let Some(header) = view.header(&at.hash)? else { break };
            removed.push(at.hash);
            at = BlockRef::new(header.number.saturating_sub(1), header.parent_hash);
        }
        Ok(Self { removed, added: at.number.saturating_add(1)..=view.head().number })
    }
}

fn new_logs(rpc: &RpcContext, view: &View, filter: &Filter, path: Path) -> RpcResult<Vec<Log>> {
    let mut found = Found::new(rpc);
    for hash in path.removed {
        let block = view.block_with_receipts(&hash)?;
        let Some(block) = block.filter(|block| is_wanted(filter, block)) else { continue };
        let before = found.logs.len();
        found.add(&block, filter, true)?;
        found.logs[before..].reverse();
    }
    let (first, last) = match filter.block_option {
        FilterBlockOption::Range { from_block, to_block } => (
            from_block.and_then(|tag| tag.as_number()).unwrap_or_default(),
            to_block.and_then(|tag| tag.as_number()).unwrap_or(u64::MAX),
        ),
        FilterBlockOption::AtBlockHash(_) => (0, u64::MAX),
    };
    let wanted = first.max(*path.added.start())..=last.min(*path.added.end());
    if !wanted.is_empty() {
        found.search_range(view, filter, wanted)?;
    }
    Ok(found.logs)
}

/// Whether the filter is of the range in which this block lies.
fn is_wanted(filter: &Filter, block: &BlockWithReceipts) -> bool {
    filter.matches_block_range(block.block.number)
}
