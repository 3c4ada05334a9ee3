//! Fees of recent blocks, and suggestions for the next block.

use crate::{
    MethodParams, RpcContext, RpcError, RpcResult,
    args::{register_heavy, register_quick, register_read},
    context::ResolveBlock,
};
use alloy_consensus::{BlockHeader, Transaction as _};
use alloy_eips::{BlockId, BlockNumberOrTag};
use alloy_primitives::{U64, U128, U256};
use alloy_rpc_types_eth::FeeHistory;
use jsonrpsee::RpcModule;
use retrie_chainspec::{
    ChainSpec,
    primitives::{Header, SealedHeader},
};
use retrie_engine::LiveView;
use serde::{
    Deserialize, Deserializer,
    de::{self, Visitor},
};
use std::{fmt, sync::Arc};

/// Most blocks in one fee history.
const MAX_BLOCKS: u64 = 1024;
/// Most percentiles in one fee history.
const MAX_PERCENTILES: usize = 100;
/// Number of blocks that a tip suggestion samples.
const SAMPLED_BLOCKS: usize = 20;
/// Number of transactions sampled per block: those with the lowest tips.
const SAMPLED_TRANSACTIONS: usize = 3;
/// The percentile of the sampled tips that is suggested.
const SAMPLED_PERCENTILE: usize = 60;
/// Tips below this many wei are ignored.
const IGNORED_TIP: u128 = 2;
/// Highest suggestion, in wei.
const MAX_TIP: u128 = 500_000_000_000;
/// Suggestion in wei for a chain without transactions.
const DEFAULT_TIP: u128 = 1_000_000;

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    register_read(module, "eth_gasPrice", |rpc, view, _| gas_price(rpc, &view));
    register_read(module, "eth_maxPriorityFeePerGas", |rpc, view, _| {
        tip(rpc, &view).map(U128::from)
    });
    register_quick(module, "eth_baseFee", |rpc, _| {
        let set = rpc.dev.as_ref().and_then(|dev| dev.chain.next_block().base_fee);
        let next = next_base_fee(rpc.live.spec(), &rpc.live.head())?;
        Ok(set.or(next).map(U64::from))
    });
    register_quick(module, "eth_blobBaseFee", |rpc, _| {
        Ok(blob_fee(rpc.live.spec(), &rpc.live.head()).map(U128::from))
    });
    // Heavy: up to 1,024 blocks with their receipts.
    register_heavy(module, "eth_feeHistory", |_, view, args| fee_history(&view, args));
}

/// A suggested price of gas in wei: the suggested tip, and the base fee of the head.
pub(crate) fn gas_price(rpc: &RpcContext, view: &LiveView) -> RpcResult<U256> {
    let base_fee = view.head().base_fee_per_gas.unwrap_or_default();
    Ok(U256::from(tip(rpc, view)?) + U256::from(base_fee))
}

/// Base fee of the child of `parent`; `None` before London.
pub(crate) fn next_base_fee(spec: &ChainSpec, parent: &SealedHeader) -> RpcResult<Option<u64>> {
    retrie_consensus::next_base_fee(spec, parent)
        .map_err(|error| RpcError::Internal(error.to_string()))
}

/// Blob base fee of a block; `None` before Cancun.
fn blob_fee(spec: &ChainSpec, header: &Header) -> Option<u128> {
    header.blob_fee(spec.blob_params_at_timestamp(header.timestamp)?)
}

/// Blob base fee of the child of `parent`, under the blob parameters at the parent's time.
fn next_blob_fee(spec: &ChainSpec, parent: &Header) -> Option<u128> {
    parent.next_block_blob_fee(spec.blob_params_at_timestamp(parent.timestamp)?)
}

/// A suggested tip in wei: a percentile of the lowest tips in recent blocks, as in geth.
pub(crate) fn tip(rpc: &RpcContext, view: &LiveView) -> RpcResult<u128> {
    let head = view.head().hash();
    let mut last = rpc.eth.tip.lock();
    if let Some((block, tip)) = *last
        && block == head
    {
        return Ok(tip);
    }
    let before = last.map_or(DEFAULT_TIP, |(_, tip)| tip);
    let mut tips = Vec::new();
    let mut at = Some(head);
    let mut sampled = 0;
    // Blocks without usable tips are replaced by older ones, up to a limit.
    while let Some(hash) = at
        && sampled < 2 * SAMPLED_BLOCKS
        && tips.len() < SAMPLED_BLOCKS * SAMPLED_TRANSACTIONS
    {
        let block = match view.block(&hash) {
            Err(error) if error.is_pruned() => break,
            block => block?,
        };
        let Some(block) = block else { break };
        let mut bids: Vec<u128> = block
            .transactions_with_sender()
            .filter(|(sender, _)| **sender != block.beneficiary())
            .filter_map(|(_, one)| one.effective_tip_per_gas(block.base_fee_per_gas().unwrap_or(0)))
            .filter(|tip| *tip >= IGNORED_TIP)
            .collect();
        bids.sort_unstable();
        bids.truncate(SAMPLED_TRANSACTIONS);
        // An empty block accepted any tip, so the previous suggestion counts as its sample.
        if bids.is_empty() && sampled < SAMPLED_BLOCKS {
            bids.push(before);
        }
        tips.append(&mut bids);
        sampled += 1;
        at = (block.number() > 0).then(|| block.parent_hash());
    }
    tips.sort_unstable();
    let at = tips.len().saturating_sub(1) * SAMPLED_PERCENTILE / 100;
    let suggestion = tips.get(at).copied().unwrap_or(before).min(MAX_TIP);
    *last = Some((head, suggestion));
    Ok(suggestion)
}

/// A number as `0x10`, `"16"` or `16`.
struct HexOrDecimal(u64);

impl<'de> Deserialize<'de> for HexOrDecimal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberVisitor;

        impl Visitor<'_> for NumberVisitor {
            type Value = HexOrDecimal;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of 64 bits, decimal or in hexadecimal with 0x")
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<HexOrDecimal, E> {
                Ok(HexOrDecimal(number))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<HexOrDecimal, E> {
                let (digits, radix) = match text.strip_prefix("0x") {
                    Some(digits) => (digits, 16),
                    None => (text, 10),
                };
                let number = u64::from_str_radix(digits, radix);
                let number = number.ok().filter(|_| !digits.starts_with('+'));
                let wrong = || E::invalid_value(de::Unexpected::Str(text), &self);
                number.map(HexOrDecimal).ok_or_else(wrong)
            }
        }
        deserializer.deserialize_any(NumberVisitor)
    }
}

fn fee_history(view: &LiveView, args: &mut MethodParams<'_>) -> RpcResult<FeeHistory> {
    let HexOrDecimal(count) = args.required()?;
    let newest = args.block_number()?;
    let percentiles: Vec<f64> = args.optional()?.unwrap_or_default();
    check_percentiles(&percentiles)?;
    let head = view.head().number;
    if let BlockNumberOrTag::Number(number) = newest
        && number > head
    {
        let message = format!("request beyond head block: requested {number}, head {head}");
        return Err(RpcError::Rejected(message));
    }
    let newest = view.resolve(BlockId::Number(newest))?.number;
    let count = count.min(MAX_BLOCKS).min(newest.saturating_add(1));
    if count == 0 {
        return Ok(FeeHistory::default());
    }
    let spec = view.live().spec().clone();
    let oldest = newest + 1 - count;
    let mut history = FeeHistory { oldest_block: oldest, ..FeeHistory::default() };
    let mut rewards = Vec::new();
    let mut last = None;
    for number in oldest..=newest {
        let header = view.header_by_number(number)?.ok_or(RpcError::HeaderNotFound)?;
        history.base_fee_per_gas.push(header.base_fee_per_gas.unwrap_or_default().into());
        history.gas_used_ratio.push(ratio(header.gas_used, header.gas_limit));
        history.base_fee_per_blob_gas.push(blob_fee(&spec, &header).unwrap_or_default());
        let most_blob_gas = spec
            .blob_params_at_timestamp(header.timestamp)
            .map_or(0, |params| params.max_blob_gas_per_block());
        let blob_gas = header.blob_gas_used.unwrap_or_default();
        history.blob_gas_used_ratio.push(ratio(blob_gas, most_blob_gas));
        if !percentiles.is_empty() {
            rewards.push(block_rewards(view, &header, &percentiles)?);
        }
        last = Some(header);
    }
    if let Some(last) = last {
        let base_fee = next_base_fee(&spec, &last)?;
        history.base_fee_per_gas.push(base_fee.unwrap_or_default().into());
        history.base_fee_per_blob_gas.push(next_blob_fee(&spec, &last).unwrap_or_default());
    }
    history.reward = (!percentiles.is_empty()).then_some(rewards);
    Ok(history)
}

fn check_percentiles(percentiles: &[f64]) -> RpcResult<()> {
    let invalid = |what| Err(RpcError::Rejected(format!("invalid reward percentile: {what}")));
    if percentiles.len() > MAX_PERCENTILES {
        return invalid(format!("over the query limit {MAX_PERCENTILES}"));
    }
    if let Some(wrong) = percentiles.iter().find(|one| !(0.0..=100.0).contains(*one)) {
        return invalid(format!("{wrong:.6}"));
    }
    match percentiles.windows(2).position(|pair| pair[0] >= pair[1]) {
        Some(at) => {
            let (before, after) = (percentiles[at], percentiles[at + 1]);
            invalid(format!("#{at}:{before:.6} >= #{}:{after:.6}", at + 1))
        }
        None => Ok(()),
    }
}

fn ratio(used: u64, limit: u64) -> f64 {
    if limit == 0 { 0.0 } else { used as f64 / limit as f64 }
}

/// The tips at these percentiles of the block's gas, lowest first.
fn block_rewards(
    view: &LiveView,
    header: &SealedHeader,
    percentiles: &[f64],
) -> RpcResult<Vec<u128>> {
    let hash = header.hash();
    let Some(block) = view.block(&hash)? else { return Err(RpcError::HeaderNotFound) };
    if block.body().transactions.is_empty() {
        return Ok(vec![0; percentiles.len()]);
    }
    let receipts: Option<Arc<Vec<_>>> = view.receipts(&hash)?;
    let receipts = receipts.ok_or_else(|| RpcError::no_receipts(view, &hash))?;
    let base_fee = header.base_fee_per_gas.unwrap_or_default();
    let mut gas_before = 0;
    let mut tips: Vec<(u128, u64)> = block
        .body()
        .transactions
        .iter()
        .zip(receipts.iter())
        .map(|(transaction, receipt)| {
            let gas = receipt.cumulative_gas_used.saturating_sub(gas_before);
            gas_before = receipt.cumulative_gas_used;
            (transaction.effective_tip_per_gas(base_fee).unwrap_or_default(), gas)
        })
        .collect();
    tips.sort_unstable_by_key(|(tip, _)| *tip);
    let mut at = 0;
    let mut gas = tips.first().map_or(0, |(_, gas)| *gas);
    let reward = |percentile: &f64| {
        let threshold = (header.gas_used as f64 * percentile / 100.0) as u64;
        while gas < threshold && at + 1 < tips.len() {
            at += 1;
            gas += tips[at].1;
        }
        tips.get(at).map_or(0, |(tip, _)| *tip)
    };
    Ok(percentiles.iter().map(reward).collect())
}
