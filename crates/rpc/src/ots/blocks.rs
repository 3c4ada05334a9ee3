//! Blocks as Otterscan's pages show them: without what they do not show.

use super::page_size;
use crate::{
    MethodParams, RpcContext, RpcError, RpcResult,
    args::register_read,
    context::ResolveBlock,
    convert::{self, RpcBlock},
};
use alloy_consensus::Transaction as _;
use alloy_eips::BlockId;
use alloy_evm::block::calc::{base_block_reward, block_reward, ommer_reward};
use alloy_primitives::{U64, U256};
use alloy_rpc_types_eth::BlockTransactions;
use jsonrpsee::RpcModule;
use retrie_chainspec::primitives::{Receipt, RecoveredBlock};
use retrie_engine::LiveView;
use retrie_pipeline::BlockWithReceipts;
use serde::Serialize;
use serde_json::{Value, json};

/// Bytes of a transaction's input on a page: the selector of the called function.
const SELECTOR: usize = 4;

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    register_read(module, "ots_getBlockDetails", |rpc, view, args| {
        details(rpc, &view, args.lenient_block()?)
    });
    register_read(module, "ots_getBlockDetailsByHash", |rpc, view, args| {
        details(rpc, &view, args.hash()?.into())
    });
    register_read(module, "ots_getBlockTransactions", |rpc, view, args| {
        transactions(rpc, &view, args)
    });
    register_read(module, "erigon_getHeaderByNumber", |_, view, args| {
        let found = view.find(args.lenient_block()?)?;
        Ok(found.map(|header| convert::header(&header, None)))
    });
}

/// New ether of a block, before the merge.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct BlockIssuance {
    block_reward: U256,
    uncle_reward: U256,
    issuance: U256,
}

impl BlockIssuance {
    fn of(rpc: &RpcContext, block: &RecoveredBlock) -> Self {
        let spec = rpc.live.spec().for_header(block.header());
        let (mut own, mut of_ommers) = (0, 0_u128);
        if let Some(base) = base_block_reward(&*spec, block.number) {
            let ommers = &block.body().ommers;
            own = block_reward(base, ommers.len());
            let reward = |number| ommer_reward(base, block.number, number);
            of_ommers = ommers.iter().map(|ommer| reward(ommer.number)).sum();
        }
        Self {
            block_reward: U256::from(own),
            uncle_reward: U256::from(of_ommers),
            issuance: U256::from(own + of_ommers),
        }
    }
}

/// A block without its transactions, what it issued, and all fees, those that were burnt included.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct BlockDetails {
    block: Value,
    issuance: BlockIssuance,
    total_fees: U256,
}

fn details(rpc: &RpcContext, view: &LiveView, id: BlockId) -> RpcResult<Option<BlockDetails>> {
    let Some(BlockWithReceipts { block, receipts }) = find(rpc, view, id)? else {
        return Ok(None);
    };
    let mut gas_before = 0;
    let mut total_fees = U256::ZERO;
    for (transaction, receipt) in block.body().transactions.iter().zip(&*receipts) {
        let gas = receipt.cumulative_gas_used.saturating_sub(gas_before);
        gas_before = receipt.cumulative_gas_used;
        let price = transaction.effective_gas_price(block.base_fee_per_gas);
        total_fees += U256::from(gas) * U256::from(price);
    }
    let shown = RpcBlock {
        // Left out.
        transactions: BlockTransactions::Uncle,
        ..convert::block(&block, false)
    };
    let mut shown = in_json(&shown)?;
    complete(&mut shown, view, &block)?;
    let issuance = BlockIssuance::of(rpc, &block);
    Ok(Some(BlockDetails { block: shown, issuance, total_fees }))
}

/// A page of a block's transactions and their receipts.
#[derive(Clone, Debug, Serialize)]
struct BlockTransactionsPage {
    fullblock: Value,
    receipts: Vec<Value>,
}

/// `ots_getBlockTransactions(block, page, size)`. Page 0 has the last transactions of the block, and
/// each page is in the order of the block.
fn transactions(
    rpc: &RpcContext,
    view: &LiveView,
    args: &mut MethodParams<'_>,
) -> RpcResult<Option<BlockTransactionsPage>> {
    let (id, number): (_, U64) = (args.lenient_block()?, args.required()?);
    let size = page_size(args)?;
    let Some(BlockWithReceipts { block, receipts }) = find(rpc, view, id)? else {
        return Ok(None);
    };
    let skipped = usize::try_from(number.to::<u64>()).unwrap_or(usize::MAX).saturating_mul(size);
    let end = block.body().transactions.len().saturating_sub(skipped);
    let page = end.saturating_sub(size)..end;
    let mut fullblock = in_json(&RpcBlock {
        transactions: BlockTransactions::Full(
            page.clone().filter_map(|index| convert::transaction(&block, index)).collect(),
        ),
        ..convert::block(&block, false)
    })?;
    for transaction in fullblock["transactions"].as_array_mut().into_iter().flatten() {
        if let Some(Value::String(input)) = transaction.get_mut("input") {
            input.truncate(2 + 2 * SELECTOR);
        }
    }
    complete(&mut fullblock, view, &block)?;
    // Logs are long, and no page shows them.
    let without_logs = |receipt: &Receipt| Receipt {
        tx_type: receipt.tx_type,
        success: receipt.success,
        cumulative_gas_used: receipt.cumulative_gas_used,
        logs: Vec::new(),
    };
    let receipts: Vec<Receipt> = receipts.iter().map(without_logs).collect();
    let shown = convert::receipts(rpc.live.spec(), &block, &receipts, None);
    let mut receipts = Vec::with_capacity(page.len());
    for receipt in shown.get(page).unwrap_or_default() {
        let mut receipt = in_json(receipt)?;
        receipt["logs"] = Value::Null;
        receipt["logsBloom"] = Value::Null;
        receipts.push(receipt);
    }
    Ok(Some(BlockTransactionsPage { fullblock, receipts }))
}

/// Adds the number of transactions and the total difficulty, and takes out the bloom.
fn complete(shown: &mut Value, view: &LiveView, block: &RecoveredBlock) -> RpcResult<()> {
    shown["transactionCount"] = json!(block.body().transactions.len());
    shown["totalDifficulty"] = json!(view.total_difficulty(&block.hash())?);
    shown["logsBloom"] = Value::Null;
    Ok(())
}

/// The block with its receipts; `None` if there is none.
fn find(rpc: &RpcContext, view: &LiveView, id: BlockId) -> RpcResult<Option<BlockWithReceipts>> {
    match view.find(id)? {
        Some(header) => rpc.eth.blocks.get_with_receipts(view, &header.hash()),
        None => Ok(None),
    }
}

fn in_json(value: &impl Serialize) -> RpcResult<Value> {
    serde_json::to_value(value).map_err(|error| RpcError::Internal(error.to_string()))
}
