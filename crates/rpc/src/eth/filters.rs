//! Filters: what has changed since the client's last poll.
//!
//! A filter of blocks or logs only stores the block up to which its client knows the chain. A poll
//! walks from that block to the current head: back over blocks that were reorganised out, then
//! forward over the new ones. So a filter costs nothing between polls, and no block is missed.

use super::{
    log_filter::LogFilter,
    logs::{self, FoundLogs},
};
use crate::{
    RpcContext, RpcError, RpcResult,
    args::{register_heavy, register_quick, register_read},
    convert::{self, RpcTransaction},
    eth_state::{ChainCursor, FilterKind},
};
use alloy_primitives::B256;
use alloy_rpc_types_eth::{Filter, FilterBlockOption, FilterChanges, Log};
use jsonrpsee::RpcModule;
use parking_lot::Mutex;
use retrie_engine::{LiveView, ReorgWalk, WalkEnd, pool::PoolTransaction};
use retrie_pipeline::BlockWithReceipts;
use retrie_state::BlockRef;
use std::{ops::RangeInclusive, sync::Arc};
use tokio::sync::broadcast::{Receiver, error::TryRecvError};

/// The response of a poll.
type RpcFilterChanges = FilterChanges<RpcTransaction>;

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    register_read(module, "eth_newFilter", |rpc, view, args| {
        let LogFilter(filter) = args.required()?;
        logs::check_future(&filter)?;
        let interest = rpc.eth.filters.admit(rpc.limits.filter_lifetime, Some(&filter))?;
        let kind =
            FilterKind::Chain { known: ChainCursor::of(&view)?, logs: Some(Arc::new(filter)) };
        Ok(rpc.eth.filters.install(kind, interest))
    });
    register_read(module, "eth_newBlockFilter", |rpc, view, _| {
        let interest = rpc.eth.filters.admit(rpc.limits.filter_lifetime, None)?;
        let kind = FilterKind::Chain { known: ChainCursor::of(&view)?, logs: None };
        Ok(rpc.eth.filters.install(kind, interest))
    });
    register_quick(module, "eth_newPendingTransactionFilter", |rpc, args| {
        let is_full = args.optional()?.unwrap_or(false);
        let interest = rpc.eth.filters.admit(rpc.limits.filter_lifetime, None)?;
        let incoming = rpc.pool()?.subscribe();
        Ok(rpc.eth.filters.install(FilterKind::Pending { incoming, is_full }, interest))
    });
    register_quick(module, "eth_uninstallFilter", |rpc, args| {
        let id: String = args.required()?;
        args.end()?;
        Ok(rpc.eth.filters.remove(&id))
    });
    register_heavy(module, "eth_getFilterChanges", |rpc, _, args| {
        let id: String = args.required()?;
        // Checked before the poll, because changes are returned only once.
        args.end()?;
        changes(rpc, &*rpc.eth.filters.find(rpc.limits.filter_lifetime, &id)?)
    });
    register_heavy(module, "eth_getFilterLogs", |rpc, view, args| {
        let kind = rpc.eth.filters.find(rpc.limits.filter_lifetime, &args.required::<String>()?)?;
        let filter = match &*kind.lock() {
            FilterKind::Chain { logs: Some(filter), .. } => filter.clone(),
            FilterKind::Chain { logs: None, .. } | FilterKind::Pending { .. } => {
                return Err(RpcError::FilterNotFound);
            }
        };
        logs::search(rpc, &view, &filter)
    });
}

/// What has changed since the last poll.
fn changes(rpc: &RpcContext, kind: &Mutex<FilterKind>) -> RpcResult<RpcFilterChanges> {
    loop {
        // The lock is not held while blocks are searched: requests that wait for it would occupy
        // threads.
        let (known, logs) = match &mut *kind.lock() {
            FilterKind::Pending { incoming, is_full } => return Ok(pending(incoming, *is_full)),
            FilterKind::Chain { known, logs } => (known.clone(), logs.clone()),
        };
        // Taken after the cursor, so that it is never older than the cursor.
        let view = rpc.view()?;
        let path = ReorgPath::from(&view, &known)?;
        let changes = match logs {
            Some(filter) => FilterChanges::Logs(new_logs(rpc, &view, &filter, path)?),
            None => {
                let hash = |number| view.canonical_hash(number)?.ok_or(RpcError::HeaderNotFound);
                FilterChanges::Hashes(path.added.map(hash).collect::<RpcResult<_>>()?)
            }
        };
        let next = ChainCursor::of(&view)?;
        if let FilterKind::Chain { known: now, .. } = &mut *kind.lock()
            && *now == known
        {
            *now = next;
            return Ok(changes);
        }
        // A concurrent poll has returned these changes: repeat from the new cursor.
    }
}

fn pending(incoming: &mut Receiver<Arc<PoolTransaction>>, is_full: bool) -> RpcFilterChanges {
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

/// The path from a former head to the current head.
struct ReorgPath {
    /// Blocks that have left the canonical chain, the highest first.
    removed: Vec<B256>,
    /// Numbers of the new canonical blocks.
    added: RangeInclusive<u64>,
}

impl ReorgPath {
    fn from(view: &LiveView, known: &ChainCursor) -> RpcResult<Self> {
        let ReorgWalk { undone, end } = view.walk_back(known.head)?;
        let at = match end {
            WalkEnd::Canonical(block) => block,
            WalkEnd::Forgotten(block) => Self::below_forgotten(view, known, block.number)?,
        };
        let removed = undone.iter().map(|block| block.hash).collect();
        Ok(Self { removed, added: at.number.saturating_add(1)..=view.head().number })
    }

    /// The highest canonical block below `number` that the cursor remembers. A pruned branch has
    /// lost its logs and its fork point. So some blocks may be returned twice, but none is missed.
    fn below_forgotten(view: &LiveView, known: &ChainCursor, number: u64) -> RpcResult<BlockRef> {
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

fn new_logs(
    rpc: &RpcContext,
    view: &LiveView,
    filter: &Filter,
    path: ReorgPath,
) -> RpcResult<Vec<Log>> {
    let mut found = FoundLogs::new(rpc);
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

/// Whether the block lies in the filter's range.
fn is_wanted(filter: &Filter, block: &BlockWithReceipts) -> bool {
    filter.matches_block_range(block.block.number)
}
