//! Log search.

use super::log_filter::LogFilter;
use crate::{
    RpcContext, RpcError, RpcResult,
    args::register_heavy,
    context::ResolveBlock,
    convert::{self, LogPosition},
};
use alloy_eips::{BlockId, BlockNumberOrTag};
use alloy_primitives::B256;
use alloy_rpc_types_eth::{Filter, FilterBlockOption, FilterSet, Log};
use jsonrpsee::RpcModule;
use retrie_chainspec::primitives::{Receipt, SealedHeader};
use retrie_db::{ChainRead, LogQuery};
use retrie_engine::LiveView;
use retrie_pipeline::BlockWithReceipts;
use std::{convert::Infallible, ops::RangeInclusive, sync::Arc};

/// Most addresses in one filter.
const MAX_ADDRESSES: usize = 1000;
/// Most alternatives for one topic.
const MAX_TOPICS: usize = 1000;

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    register_heavy(module, "eth_getLogs", |rpc, view, args| {
        let LogFilter(filter) = args.required()?;
        search(rpc, &view, &filter)
    });
}

/// Rejects filters with too many addresses or topics, which are expensive and have no use.
pub(super) fn check(filter: &Filter) -> RpcResult<()> {
    let topics = filter.topics.iter().map(|topic| topic.len()).max().unwrap_or_default();
    if filter.address.len() > MAX_ADDRESSES || topics > MAX_TOPICS {
        let message = "exceed max addresses or topics per search position";
        return Err(RpcError::Rejected(message.into()));
    }
    Ok(())
}

/// As [`check`], and rejects ranges in which no future log can lie.
pub(super) fn check_future(filter: &Filter) -> RpcResult<()> {
    use BlockNumberOrTag::{Earliest, Latest, Number, Pending};

    check(filter)?;
    let FilterBlockOption::Range { from_block, to_block } = filter.block_option else {
        return Ok(());
    };
    match (from_block.unwrap_or_default(), to_block.unwrap_or_default()) {
        (Pending, _) | (_, Pending) => Err(pending_unsupported()),
        (Latest | Earliest | Number(_), Latest) | (Earliest, Number(_)) => Ok(()),
        (Number(from), Number(to)) if from <= to => Ok(()),
        _ => Err(invalid_range()),
    }
}

fn pending_unsupported() -> RpcError {
    RpcError::InvalidParams("pending logs are not supported".into())
}

fn invalid_range() -> RpcError {
    RpcError::InvalidParams("invalid block range params".into())
}

/// All matching logs of the canonical blocks in the filter's range, or of one block named by its
/// hash.
pub(crate) fn search(rpc: &RpcContext, view: &LiveView, filter: &Filter) -> RpcResult<Vec<Log>> {
    check(filter)?;
    let mut found = FoundLogs::new(rpc);
    match filter.block_option {
        FilterBlockOption::AtBlockHash(hash) => {
            found.search_block(view, filter, &named_block(view, &hash)?)?;
        }
        FilterBlockOption::Range { from_block, to_block } => {
            let range = range(view, from_block, to_block)?;
            found.search_range(view, filter, range)?;
        }
    }
    Ok(found.logs)
}

/// The block that a filter names by its hash, canonical or not.
pub(super) fn named_block(view: &LiveView, hash: &B256) -> RpcResult<SealedHeader> {
    view.header(hash)?.ok_or_else(|| RpcError::Rejected("unknown block".into()))
}

/// The canonical blocks in the filter's range. A range that begins below the first block with receipts
/// is an error.
pub(super) fn range(
    view: &LiveView,
    from: Option<BlockNumberOrTag>,
    to: Option<BlockNumberOrTag>,
) -> RpcResult<RangeInclusive<u64>> {
    let head = view.head().number;
    let first = view.durable().receipts_pruned_below()?;
    let number = |tag: Option<BlockNumberOrTag>| match tag.unwrap_or_default() {
        // The first block with logs, which may be above the first one with a body.
        BlockNumberOrTag::Earliest => {
            let earliest = view.resolve(BlockId::Number(BlockNumberOrTag::Earliest));
            earliest.map(|header| header.number.max(first.min(head)))
        }
        BlockNumberOrTag::Number(number) => Ok(number),
        BlockNumberOrTag::Latest => Ok(head),
        BlockNumberOrTag::Pending => Err(pending_unsupported()),
        tag => view.resolve(BlockId::Number(tag)).map(|header| header.number),
    };
    let (from, to) = (number(from)?, number(to)?);
    if from > to {
        return Err(invalid_range());
    }
    // As in geth, whether or not the dropped blocks had such logs.
    if from < first {
        return Err(RpcError::PrunedReceipts { number: from, first });
    }
    if to > head {
        let message = "block range extends beyond current head block";
        return Err(RpcError::InvalidParams(message.into()));
    }
    Ok(from..=to)
}

/// The logs found so far, within the limits of one response.
#[derive(Debug)]
pub(super) struct FoundLogs {
    pub(super) logs: Vec<Log>,
    most_logs: usize,
    most_blocks: u64,
}

impl FoundLogs {
    pub(super) fn new(rpc: &RpcContext) -> Self {
        let most = |limit: u64| if limit == 0 { u64::MAX } else { limit };
        Self {
            logs: Vec::new(),
            most_logs: most(rpc.limits.max_logs_per_response as u64) as usize,
            most_blocks: most(rpc.limits.max_blocks_per_filter),
        }
    }

    /// Rejects a range of more blocks than one request may search.
    pub(super) fn check_range(&self, range: &RangeInclusive<u64>) -> RpcResult<()> {
        let blocks = range.end().saturating_sub(*range.start()).saturating_add(1);
        if blocks > self.most_blocks {
            return Err(RpcError::InvalidParams(format!(
                "query exceeds max block range {}",
                self.most_blocks
            )));
        }
        Ok(())
    }

    /// Adds the matching logs of a range of canonical blocks.
    pub(super) fn search_range(
        &mut self,
        view: &LiveView,
        filter: &Filter,
        range: RangeInclusive<u64>,
    ) -> RpcResult<()> {
        self.check_range(&range)?;
        let query =
            LogQuery::new(filter.address.iter(), filter.topics.each_ref().map(FilterSet::iter));
        for number in view.log_candidates(&query, range)? {
            let header = view.header_by_number(number?)?.ok_or(RpcError::HeaderNotFound)?;
            self.search_block(view, filter, &header)?;
        }
        Ok(())
    }

    /// Adds the matching logs of one block, and returns the receipts that it read: those of a block
    /// whose bloom matches.
    pub(super) fn search_block(
        &mut self,
        view: &LiveView,
        filter: &Filter,
        header: &SealedHeader,
    ) -> RpcResult<Option<Arc<Vec<Receipt>>>> {
        let Some((receipts, found)) = logs_in(view, filter, header)? else { return Ok(None) };
        self.take(found)?;
        Ok(Some(receipts))
    }

    /// Adds the matching logs of one block.
    pub(super) fn add(
        &mut self,
        block: &BlockWithReceipts,
        filter: &Filter,
        is_removed: bool,
    ) -> RpcResult<()> {
        self.take(matching(block, filter, is_removed))
    }

    /// Adds logs of one block.
    fn take(&mut self, mut logs: Vec<Log>) -> RpcResult<()> {
        let is_first = self.logs.is_empty();
        self.logs.append(&mut logs);
        // A single block cannot be split into smaller requests, so its logs are never too many.
        if self.logs.len() > self.most_logs && !is_first {
            return Err(RpcError::InvalidParams(format!(
                "query exceeds max results {}, retry with fewer blocks",
                self.most_logs
            )));
        }
        Ok(())
    }
}

/// The receipts of a block, and the matching logs in them.
pub(super) type ReceiptsWithLogs = (Arc<Vec<Receipt>>, Vec<Log>);

/// The receipts of a known block and the matching logs in them; `None` if its bloom does not match.
pub(super) fn logs_in(
    view: &LiveView,
    filter: &Filter,
    header: &SealedHeader,
) -> RpcResult<Option<ReceiptsWithLogs>> {
    if !filter.matches_bloom(header.logs_bloom) {
        return Ok(None);
    }
    let hash = header.hash();
    let Some(receipts) = view.receipts(&hash)? else {
        // If the body is pruned too, reading it returns the more specific error.
        view.block(&hash)?;
        return Err(RpcError::no_receipts(view, &hash));
    };
    // Reads only the hashes of transactions that have matching logs.
    let transaction = |index: usize| {
        let found = view.transaction_hash(&hash, index as u32)?;
        found.ok_or_else(|| RpcError::Internal(format!("transaction {index} of {hash} is missing")))
    };
    let found = matching_in(header, &receipts, filter, false, transaction)?;
    Ok(Some((receipts, found)))
}

/// The matching logs of one block.
pub(super) fn matching(block: &BlockWithReceipts, filter: &Filter, is_removed: bool) -> Vec<Log> {
    let header = block.block.sealed_header();
    let transactions = &block.block.body().transactions;
    let hash = |index: usize| Ok::<_, Infallible>(*transactions[index].tx_hash());
    let Ok(logs) = matching_in(header, &block.receipts, filter, is_removed, hash);
    logs
}

/// The matching logs in a block's receipts; `transaction` gives the hash of a transaction.
fn matching_in<E>(
    header: &SealedHeader,
    receipts: &[Receipt],
    filter: &Filter,
    is_removed: bool,
    transaction: impl Fn(usize) -> Result<B256, E>,
) -> Result<Vec<Log>, E> {
    let mut found = Vec::new();
    let mut index = 0;
    for (at, receipt) in receipts.iter().enumerate() {
        let mut hash = None;
        for log in &receipt.logs {
            if filter.matches(log) {
                let transaction = match hash {
                    Some(hash) => hash,
                    None => *hash.insert(transaction(at)?),
                };
                let position =
                    LogPosition { transaction, transaction_index: at, index, is_removed };
                found.push(convert::log(log.clone(), header, position));
            }
            index += 1;
        }
    }
    Ok(found)
}
