//! The history of an address, page by page.

use super::page_size;
use crate::{
    MethodParams, RpcContext, RpcResult,
    address_index::{self, AccountHistory},
    args::register_heavy,
    convert::{self, RpcReceipt, RpcTransaction},
    error::AddressIndexError,
};
use alloy_primitives::{Address, U64};
use jsonrpsee::RpcModule;
use retrie_db::{AccountTransactions, ChainRead};
use retrie_engine::LiveView;
use retrie_pipeline::BlockWithReceipts;
use retrie_state::ScanDirection;
use serde::Serialize;
use std::ops::RangeInclusive;

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    register_heavy(module, "ots_searchTransactionsBefore", |rpc, view, args| {
        before(rpc, &view, args)
    });
    register_heavy(module, "ots_searchTransactionsAfter", |rpc, view, args| {
        after(rpc, &view, args)
    });
}

/// A receipt with the time of its block.
#[derive(Clone, Debug, Serialize)]
struct TimedReceipt {
    #[serde(flatten)]
    receipt: RpcReceipt,
    /// Seconds since 1970.
    timestamp: U64,
}

/// Transactions of an address, the newest first.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct HistoryPage {
    txs: Vec<RpcTransaction>,
    receipts: Vec<TimedReceipt>,
    /// Whether there are no newer ones.
    first_page: bool,
    /// Whether there are no older ones.
    last_page: bool,
    /// The block that the index begins with, if there are older blocks that are not indexed.
    #[serde(skip_serializing_if = "Option::is_none")]
    indexed_from: Option<U64>,
    /// The block from which on all internal calls are indexed, if they are not in older blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    internal_calls_from: Option<U64>,
}

/// `ots_searchTransactionsBefore(address, block, size)`: the newest transactions below a block, or
/// with block 0 up to the head. All of the last block are there, so a page may be longer than `size`.
fn before(
    rpc: &RpcContext,
    view: &LiveView,
    args: &mut MethodParams<'_>,
) -> RpcResult<HistoryPage> {
    let (address, block): (Address, U64) = (args.required()?, args.required()?);
    let size = page_size(args)?;
    let (block, head) = (block.to::<u64>(), view.head().number);
    let last = block.checked_sub(1).unwrap_or(head).min(head);
    let blocks = 0..=last;
    let history = address_index::history(view, &address, blocks, ScanDirection::Backward, size)?;
    let (is_first, is_last) = (last == head, !history.has_more);
    page(rpc, view, history, (is_first, is_last))
}

/// `ots_searchTransactionsAfter(address, block, size)`: the oldest transactions above a block, or with
/// block 0 from the oldest on.
fn after(rpc: &RpcContext, view: &LiveView, args: &mut MethodParams<'_>) -> RpcResult<HistoryPage> {
    let (address, block): (Address, U64) = (args.required()?, args.required()?);
    let size = page_size(args)?;
    let (block, head) = (block.to::<u64>(), view.head().number);
    let blocks: RangeInclusive<u64> = match block {
        0 => 0..=head,
        block => block.saturating_add(1)..=head,
    };
    let mut history = address_index::history(view, &address, blocks, ScanDirection::Forward, size)?;
    history.found.reverse();
    let (is_first, is_last) = (!history.has_more, block == 0);
    page(rpc, view, history, (is_first, is_last))
}

/// The page of transactions whose blocks are in descending order.
fn page(
    rpc: &RpcContext,
    view: &LiveView,
    history: AccountHistory,
    (first_page, last_page): (bool, bool),
) -> RpcResult<HistoryPage> {
    let AccountHistory { found, indexed, .. } = history;
    let (mut txs, mut receipts) = (Vec::new(), Vec::new());
    for AccountTransactions { block: number, indexes } in found {
        let hash = view.canonical_hash(number)?;
        let block = hash.map(|hash| rpc.eth.blocks.get_with_receipts(view, &hash)).transpose()?;
        let Some(BlockWithReceipts { block, receipts: stored }) = block.flatten() else {
            return Err(AddressIndexError::NoBlock { number }.into());
        };
        let timestamp = U64::from(block.timestamp);
        for index in indexes.into_iter().rev().map(|index| index as usize) {
            let shown = convert::receipt(rpc.live.spec(), &block, &stored, index, None);
            let transaction = convert::transaction(&block, index);
            if let Some((transaction, receipt)) = transaction.zip(shown) {
                txs.push(transaction);
                receipts.push(TimedReceipt { receipt, timestamp });
            }
        }
    }
    let first = view.durable().first()?.map_or(0, |first| first.number);
    let traced_from = view.durable().addresses_traced_from()?;
    Ok(HistoryPage {
        txs,
        receipts,
        first_page,
        last_page,
        indexed_from: (*indexed.start() > first).then(|| U64::from(*indexed.start())),
        internal_calls_from: (traced_from > *indexed.start()).then(|| U64::from(traced_from)),
    })
}
