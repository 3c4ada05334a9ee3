//! Filters: what has changed since a client last asked.
//!
//! A filter of blocks or logs is nothing but the block up to which its client knows the chain. What
//! is new is found by going from there to the head of today, back over blocks that have left the
//! chain and up again. So a filter costs nothing while nobody asks, and misses nothing.

use super::{
    log_filter::LogFilter,
    logs::{self, Found},
};
use crate::{
    RpcContext, RpcError, RpcResult,
    args::{heavy, quick, read},
    convert::{self, RpcTransaction},
    eth_state::{Kind, Known},
};
use alloy_primitives::B256;
use alloy_rpc_types_eth::{Filter, FilterBlockOption, FilterChanges, Log};
use jsonrpsee::RpcModule;
use parking_lot::Mutex;
use retrie_engine::{View, pool::PoolTransaction};
use retrie_pipeline::BlockWithReceipts;
use retrie_state::BlockRef;
use std::{ops::RangeInclusive, sync::Arc};
use tokio::sync::broadcast::{Receiver, error::TryRecvError};

/// What a filter gives.
type Changes = FilterChanges<RpcTransaction>;

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    read(module, "eth_newFilter", |rpc, view, args| {
        let LogFilter(filter) = args.required()?;
        logs::check_future(&filter)?;
        let interest = rpc.eth.filters.admit(rpc.limits.filter_lifetime, Some(&filter))?;
        let kind = Kind::Chain { known: Known::of(&view)?, logs: Some(Arc::new(filter)) };
        Ok(rpc.eth.filters.install(kind, interest))
    });
    read(module, "eth_newBlockFilter", |rpc, view, _| {
        let interest = rpc.eth.filters.admit(rpc.limits.filter_lifetime, None)?;
        let kind = Kind::Chain { known: Known::of(&view)?, logs: None };
        Ok(rpc.eth.filters.install(kind, interest))
    });
    quick(module, "eth_newPendingTransactionFilter", |rpc, args| {
        let is_full = args.optional()?.unwrap_or(false);
        let interest = rpc.eth.filters.admit(rpc.limits.filter_lifetime, None)?;
        let incoming = rpc.pool()?.subscribe();
        Ok(rpc.eth.filters.install(Kind::Pending { incoming, is_full }, interest))
    });
    quick(module, "eth_uninstallFilter", |rpc, args| {
        let id: String = args.required()?;
        args.end()?;
        Ok(rpc.eth.filters.remove(&id))
    });
    heavy(module, "eth_getFilterChanges", |rpc, _, args| {
        let id: String = args.required()?;
        // What has been told is not told again.
        args.end()?;
        changes(rpc, &*rpc.eth.filters.find(rpc.limits.filter_lifetime, &id)?)
    });
    heavy(module, "eth_getFilterLogs", |rpc, view, args| {
        let kind = rpc.eth.filters.find(rpc.limits.filter_lifetime, &args.required::<String>()?)?;
        let filter = match &*kind.lock() {
            Kind::Chain { logs: Some(filter), .. } => filter.clone(),
            Kind::Chain { logs: None, .. } | Kind::Pending { .. } => {
                return Err(RpcError::FilterNotFound);
            }
        };
        logs::search(rpc, &view, &filter)
    });
}

/// What is new since the last time.
fn changes(rpc: &RpcContext, kind: &Mutex<Kind>) -> RpcResult<Changes> {
    loop {
        // The filter is not held while blocks are searched: requests that wait for it would take the
        // threads of others.
        let (known, logs) = match &mut *kind.lock() {
            Kind::Pending { incoming, is_full } => return Ok(pending(incoming, *is_full)),
            Kind::Chain { known, logs } => (known.clone(), logs.clone()),
        };
        // Taken after what is known, so that it is never older.
        let view = rpc.view()?;
        let path = Path::from(&view, &known)?;
        let changes = match logs {
            Some(filter) => FilterChanges::Logs(new_logs(rpc, &view, &filter, path)?),
            None => {
                let hash = |number| view.canonical_hash(number)?.ok_or(RpcError::HeaderNotFound);
                FilterChanges::Hashes(path.added.map(hash).collect::<RpcResult<_>>()?)
            }
        };
        let next = Known::of(&view)?;
        if let Kind::Chain { known: now, .. } = &mut *kind.lock()
            && *now == known
        {
            *now = next;
            return Ok(changes);
        }
        // Another request was quicker and has told it: what is new since then?
    }
}

fn pending(incoming: &mut Receiver<Arc<PoolTransaction>>, is_full: bool) -> Changes {
    let mut arrived = Vec::new();
    loop {
        match incoming.try_recv() {
            Ok(transaction) => arrived.push(transaction),
            Err(TryRecvError::Lagged(_)) => {}
            Err(TryRecvError::Empty | TryRecvError::Closed) => break,
        }
    }
    if is_full {
        let full = |one: &Arc<_>| convert::pool_transaction(one);
        FilterChanges::Transactions(arrived.iter().map(full).collect())
    } else {
        FilterChanges::Hashes(arrived.iter().map(|one| *one.hash()).collect())
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
    fn from(view: &View, known: &Known) -> RpcResult<Self> {
        let mut at = known.head;
        let mut removed = Vec::new();
        while !view.is_canonical(&at.hash)? {
            let Some(header) = view.header(&at.hash)? else {
                at = Self::below_forgotten(view, known, at.number)?;
                break;
            };
            removed.push(at.hash);
            at = BlockRef::new(header.number.saturating_sub(1), header.parent_hash);
        }
        Ok(Self { removed, added: at.number.saturating_add(1)..=view.head().number })
    }

    /// The highest block below `number` that was known and is on the chain. A branch that is forgotten
    /// takes its logs with it, and nobody can say where it began: some blocks may be told twice, but
    /// none is missed.
    fn below_forgotten(view: &View, known: &Known, number: u64) -> RpcResult<BlockRef> {
        let mut lowest = known.head;
        for block in known.below.iter().filter(|block| block.number < number) {
            lowest = *block;
            if view.is_canonical(&block.hash)? {
                return Ok(lowest);
            }
        }
        Ok(BlockRef::new(lowest.number.saturating_sub(1), B256::ZERO))
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
