//! `eth_getLogsWithCursor`: the logs of `eth_getLogs` in pages, over reorganisations.
//!
//! A page ends at the limits of one response, which are errors of `eth_getLogs`: logs, bytes, blocks.
//! Its cursor names the block that it ended at. If that block is no longer canonical when the next
//! page is asked for, the page names the blocks that were undone since, and goes on above the last
//! block that is still canonical.

use super::{
    log_cursor::{FilterDigest, LogCursor, LogCursorError},
    log_filter::LogFilter,
    logs,
};
use crate::{
    MethodParams, RpcContext, RpcError, RpcResult,
    args::{reason, register_heavy},
};
use alloy_primitives::{B256, U64};
use alloy_rpc_types_eth::{Filter, FilterBlockOption, FilterSet, Log};
use jsonrpsee::RpcModule;
use retrie_chainspec::primitives::SealedHeader;
use retrie_db::LogQuery;
use retrie_engine::{LiveView, ReorgWalk, WalkEnd};
use retrie_state::BlockRef;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Bytes of a log in JSON, beside its data and topics.
const LOG_BYTES: usize = 640;

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    register_heavy(module, "eth_getLogsWithCursor", |rpc, view, args| {
        PageRequest::take(args)?.page(rpc, &view)
    });
}

/// Fields of the filter that belong to paging.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PagingFields {
    cursor: Option<String>,
    log_limit: Option<LogLimit>,
}

/// A number of logs, as a JSON number or in hexadecimal.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged)]
enum LogLimit {
    Plain(u64),
    Hex(U64),
}

/// The parameters.
#[derive(Debug)]
struct PageRequest {
    filter: Filter,
    cursor: Option<String>,
    /// Most logs that the caller wants.
    most: Option<u64>,
}

/// The answer.
#[derive(Clone, Debug, Serialize)]
struct LogPage {
    logs: Vec<Log>,
    /// Absent if the range is complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
    /// Blocks of earlier pages that are no longer canonical, the highest first.
    undone: Vec<UndoneBlock>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct UndoneBlock {
    number: U64,
    hash: B256,
}

impl PageRequest {
    fn take(args: &mut MethodParams<'_>) -> RpcResult<Self> {
        let raw: &RawValue = args.required()?;
        let LogFilter(filter) = parse(raw)?;
        let PagingFields { cursor, log_limit } = parse(raw)?;
        let second: Option<String> = args.optional()?;
        let cursor = match (cursor, second) {
            (Some(first), Some(second)) if first != second => {
                let message = "two cursors were given, in the filter and beside it";
                return Err(RpcError::InvalidParams(message.into()));
            }
            (first, second) => first.or(second),
        };
        let most = log_limit.map(|limit| match limit {
            LogLimit::Plain(limit) => limit,
            LogLimit::Hex(limit) => limit.to(),
        });
        if most == Some(0) {
            return Err(RpcError::InvalidParams("logLimit is 0, must be at least 1".into()));
        }
        Ok(Self { filter, cursor, most })
    }

    fn page(&self, rpc: &RpcContext, view: &LiveView) -> RpcResult<LogPage> {
        let filter = &self.filter;
        logs::check(filter)?;
        let digest = FilterDigest::of(&rpc.live.spec().genesis_hash(), filter);
        let cursor =
            self.cursor.as_deref().map(|text| LogCursor::decode(text, digest)).transpose()?;
        let mut page = PageBuilder::new(rpc, self.most);
        let (end, undone) = match filter.block_option {
            FilterBlockOption::AtBlockHash(hash) => {
                let header = logs::named_block(view, &hash)?;
                (page.add_block(view, filter, digest, cursor, &header)?, Vec::new())
            }
            FilterBlockOption::Range { from_block, to_block } => {
                let place = match cursor {
                    Some(cursor) => PagePlace::after(view, cursor)?,
                    None => {
                        let range = logs::range(view, from_block, to_block)?;
                        PagePlace::first(digest, *range.start(), *range.end())
                    }
                };
                let end = page.add_range(rpc, view, filter, &place)?;
                (end, place.undone)
            }
        };
        let undone = undone
            .into_iter()
            .map(|block| UndoneBlock { number: U64::from(block.number), hash: block.hash });
        Ok(LogPage {
            logs: page.logs,
            cursor: end.map(|cursor| cursor.encode()),
            undone: undone.collect(),
        })
    }
}

fn parse<'a, T: Deserialize<'a>>(raw: &'a RawValue) -> RpcResult<T> {
    serde_json::from_str(raw.get())
        .map_err(|error| RpcError::InvalidParams(format!("invalid argument 0: {}", reason(&error))))
}

/// Where a page of a range begins.
struct PagePlace {
    filter: FilterDigest,
    /// The range of the query.
    first: u64,
    last: u64,
    /// The block to begin with, and the index of its first log that is still to come.
    start: u64,
    next: u32,
    undone: Vec<BlockRef>,
}

impl PagePlace {
    const fn first(filter: FilterDigest, first: u64, last: u64) -> Self {
        Self { filter, first, last, start: first, next: 0, undone: Vec::new() }
    }

    /// The place after the page that ended at `cursor`.
    fn after(view: &LiveView, cursor: LogCursor) -> RpcResult<Self> {
        let LogCursor { filter, first, last, block, next } = cursor;
        // Callers can name any block by any number.
        if view.block_number(&block.hash)?.is_some_and(|number| number != block.number) {
            return Err(LogCursorError::ForeignBlock(block).into());
        }
        let ReorgWalk { mut undone, end } = view.walk_back(block)?;
        let base = match end {
            WalkEnd::Canonical(base) => base.number,
            WalkEnd::Forgotten(unknown) => return Err(LogCursorError::UnknownBlock(unknown).into()),
        };
        let is_whole = !undone.is_empty() || next == LogCursor::ALL;
        let (start, next) = if is_whole { (base.saturating_add(1), 0) } else { (base, next) };
        undone.retain(|block| block.number >= first);
        // A page can end below the range if the chain has become shorter.
        let (start, next) = if start < first { (first, 0) } else { (start, next) };
        Ok(Self { filter, first, last, start, next, undone })
    }

    const fn cursor(&self, block: BlockRef, next: u32) -> LogCursor {
        let Self { filter, first, last, .. } = *self;
        LogCursor { filter, first, last, block, next }
    }
}

/// A page under construction.
struct PageBuilder {
    logs: Vec<Log>,
    most: usize,
    /// Bytes that are left.
    room: usize,
}

impl PageBuilder {
    fn new(rpc: &RpcContext, asked: Option<u64>) -> Self {
        let limit = match rpc.limits.max_logs_per_response {
            0 => usize::MAX,
            limit => limit,
        };
        let asked = asked.map_or(usize::MAX, |asked| usize::try_from(asked).unwrap_or(usize::MAX));
        Self { logs: Vec::new(), most: limit.min(asked), room: rpc.limits.max_response_size }
    }

    /// Adds logs of one block from index `next` on. Returns the index of the first one that does not
    /// fit.
    fn add(&mut self, found: Vec<Log>, next: u32) -> Option<u32> {
        for log in found {
            let index = u32::try_from(log.log_index.unwrap_or_default()).unwrap_or(u32::MAX);
            if index < next {
                continue;
            }
            let data = &log.inner.data;
            let bytes = LOG_BYTES + 70 * data.topics().len() + 2 * data.data.len();
            let is_full = self.logs.len() >= self.most || bytes > self.room;
            if is_full && !self.logs.is_empty() {
                return Some(index);
            }
            self.room = self.room.saturating_sub(bytes);
            self.logs.push(log);
        }
        None
    }

    /// Adds the logs of the block that a filter names. Returns the cursor, unless they are complete.
    fn add_block(
        &mut self,
        view: &LiveView,
        filter: &Filter,
        digest: FilterDigest,
        cursor: Option<LogCursor>,
        header: &SealedHeader,
    ) -> RpcResult<Option<LogCursor>> {
        let block = BlockRef::new(header.number, header.hash());
        let next = match cursor {
            Some(cursor) if cursor.block != block => {
                return Err(LogCursorError::ForeignBlock(cursor.block).into());
            }
            Some(cursor) => cursor.next,
            None => 0,
        };
        let found = logs::logs_in(view, filter, header)?.map_or_else(Vec::new, |(_, found)| found);
        let place = PagePlace::first(digest, block.number, block.number);
        Ok(self.add(found, next).map(|next| place.cursor(block, next)))
    }

    /// Adds the logs of a range from `place` on. Returns the cursor, unless the range is complete.
    fn add_range(
        &mut self,
        rpc: &RpcContext,
        view: &LiveView,
        filter: &Filter,
        place: &PagePlace,
    ) -> RpcResult<Option<LogCursor>> {
        let most_blocks = match rpc.limits.max_blocks_per_filter {
            0 => u64::MAX,
            limit => limit,
        };
        let limit = place.start.saturating_add(most_blocks - 1);
        let until = place.last.min(view.head().number).min(limit);
        if place.start <= until {
            let topics = filter.topics.each_ref().map(FilterSet::iter);
            let query = LogQuery::new(filter.address.iter(), topics);
            for number in view.log_candidates(&query, place.start..=until)? {
                let number = number?;
                let header = view.header_by_number(number)?.ok_or(RpcError::HeaderNotFound)?;
                let Some((_, found)) = logs::logs_in(view, filter, &header)? else { continue };
                let next = if number == place.start { place.next } else { 0 };
                if let Some(next) = self.add(found, next) {
                    return Ok(Some(place.cursor(BlockRef::new(number, header.hash()), next)));
                }
            }
        }
        if until >= place.last {
            return Ok(None);
        }
        let hash = view.canonical_hash(until)?.ok_or(RpcError::HeaderNotFound)?;
        Ok(Some(place.cursor(BlockRef::new(until, hash), LogCursor::ALL)))
    }
}
