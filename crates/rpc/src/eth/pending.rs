//! The pending block of a node that builds blocks only on request of its consensus client. It
//! follows from the head and the clock. Its transactions are not known, so it has none, and its
//! state is the head's.

use crate::{RpcError, RpcResult, convert};
use alloy_consensus::constants::{EMPTY_OMMER_ROOT_HASH, EMPTY_ROOT_HASH};
use alloy_eips::{eip4895::Withdrawals, eip7685::EMPTY_REQUESTS_HASH};
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::B256;
use retrie_chainspec::{
    ChainSpec,
    primitives::{Block, Header, RecoveredBlock, SealedHeader},
};
use retrie_engine::{LiveView, pool::NextBlock};
use serde_json::Value;
use std::time::{SystemTime, UNIX_EPOCH};

/// Fields that only a sealed block has; `null` in a pending block, as in geth.
const ABSENT: [&str; 3] = ["hash", "nonce", "miner"];

/// The pending block as JSON.
pub(super) fn block(view: &LiveView) -> RpcResult<Value> {
    let (spec, head) = (view.live().spec(), view.head());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let header = header(spec, head, now.max(head.timestamp.saturating_add(1)))?;
    let withdrawals = header.withdrawals_root.map(|_| Withdrawals::default());
    let mut block = Block { header, ..Default::default() };
    block.body.withdrawals = withdrawals;
    let block = convert::block(&RecoveredBlock::new_unhashed(block, Vec::new()), false);
    let mut shown = serde_json::to_value(block).map_err(internal)?;
    for field in ABSENT {
        shown[field] = Value::Null;
    }
    Ok(shown)
}

/// Header of an empty child of `head` at `timestamp` (seconds).
fn header(spec: &ChainSpec, head: &SealedHeader, timestamp: u64) -> RpcResult<Header> {
    let next = NextBlock::after(spec, head, timestamp).map_err(internal)?;
    let excess = retrie_consensus::next_excess_blob_gas(spec, head, timestamp).map_err(internal)?;
    let london = next.base_fee.is_some();
    let shanghai = london && spec.is_shanghai_active_at_timestamp(timestamp);
    let cancun = london && spec.is_cancun_active_at_timestamp(timestamp);
    let prague = london && spec.is_prague_active_at_timestamp(timestamp);
    let amsterdam = london && spec.is_amsterdam_active_at_timestamp(timestamp);
    Ok(Header {
        parent_hash: head.hash(),
        state_root: head.state_root,
        difficulty: head.difficulty,
        number: next.number,
        gas_limit: next.gas_limit,
        timestamp,
        base_fee_per_gas: next.base_fee,
        withdrawals_root: shanghai.then_some(EMPTY_ROOT_HASH),
        blob_gas_used: cancun.then_some(0),
        excess_blob_gas: excess.filter(|_| cancun),
        parent_beacon_block_root: cancun.then_some(B256::ZERO),
        requests_hash: prague.then_some(EMPTY_REQUESTS_HASH),
        // Both hashes are of an empty RLP list (EIP-7928).
        block_access_list_hash: amsterdam.then_some(EMPTY_OMMER_ROOT_HASH),
        slot_number: amsterdam.then(|| head.slot_number.map_or(0, |slot| slot.saturating_add(1))),
        ..Default::default()
    })
}

fn internal(error: impl std::fmt::Display) -> RpcError {
    RpcError::Internal(error.to_string())
}
