//! Limits and prices of the pool.

use crate::pool::TransactionOrigin;
use alloy_eips::eip1559::MIN_PROTOCOL_BASE_FEE;
use alloy_primitives::{Address, map::HashSet};
use std::time::Duration;

const MIB: usize = 1 << 20;

/// Size limit of a sub-pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubPoolLimit {
    /// Number of transactions.
    pub max_txs: usize,
    /// Size in memory in bytes, blob sidecars included.
    pub max_size: usize,
}

impl SubPoolLimit {
    /// Whether `txs` transactions with `size` bytes exceed the limit.
    pub const fn is_exceeded(&self, txs: usize, size: usize) -> bool {
        txs > self.max_txs || size > self.max_size
    }
}

impl Default for SubPoolLimit {
    /// 10,000 transactions, 20 MiB.
    fn default() -> Self {
        Self { max_txs: 10_000, max_size: 20 * MIB }
    }
}

/// Configuration of the pool. The defaults and the names of the flags are reth's, unless a field's
/// description says otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// `--txpool.pending-max-count`, `--txpool.pending-max-size`: executable transactions.
    pub pending: SubPoolLimit,
    /// `--txpool.basefee-max-count`, `--txpool.basefee-max-size`: transactions that wait for a
    /// lower base fee.
    pub basefee: SubPoolLimit,
    /// `--txpool.queued-max-count`, `--txpool.queued-max-size`: transactions that wait for a nonce,
    /// for funds or for a larger block.
    pub queued: SubPoolLimit,
    /// `--txpool.blobpool-max-count`, `--txpool.blobpool-max-size`: blob transactions, executable
    /// or not. Sidecars are kept in memory here and count, so the default size is 512 MiB (about
    /// 3,900 blobs), where reth counts 20 MiB without sidecars.
    pub blob: SubPoolLimit,
    /// `--txpool.blob-cache-size`: bytes of sidecars of mined transactions that are kept for
    /// `engine_getBlobs` and for reorgs. Default 128 MiB; reth counts sidecars instead.
    pub mined_blobs_max_size: usize,
    /// `--txpool.disable-blobs-support`: refuse blob transactions.
    pub disable_blobs: bool,
    /// `--txpool.max-account-slots`: transactions of one sender, unless they are local. Default 16.
    pub max_account_slots: usize,
    /// Largest number of transactions of a sender, unless local, that a delegation can overtake:
    /// one that the account has, or one that an authorization in the pool can set (EIP-7702).
    /// Default 1. No flag sets it; reth's is `--txpool.max-inflight-delegated-slots`.
    pub max_inflight_delegated_slots: usize,
    /// `--txpool.pricebump`: percent by which a replacement must pay more. Default 10.
    pub price_bump: u128,
    /// `--blobpool.pricebump`: the same for blob transactions, blob fee included. Default 100.
    pub blob_price_bump: u128,
    /// `--txpool.minimal-protocol-fee`: smallest maximum fee per gas in wei, from London on.
    /// Default 7, below which a base fee never falls by the rules. If the next block's base fee is
    /// lower (on a dev chain), that base fee is the minimum.
    pub minimal_protocol_base_fee: u64,
    /// `--txpool.minimum-priority-fee`: smallest tip per gas in wei, unless local. Default none.
    pub minimum_priority_fee: Option<u128>,
    /// `--txpool.max-tx-input-bytes`: largest transaction encoding (EIP-2718) in bytes, without its
    /// sidecar. Default 128 KiB. A sidecar is bounded by the number of blobs.
    pub max_tx_input_bytes: usize,
    /// `--txpool.max-tx-gas`: largest gas limit of a transaction, besides the rules of the fork.
    pub max_tx_gas_limit: Option<u64>,
    /// `--rpc.txfeecap`: rejects transactions of [`TransactionOrigin::Local`] whose gas may cost
    /// more than this many wei. Default one ether; `None` switches it off.
    pub tx_fee_cap: Option<u128>,
    /// `--txpool.nolocals`: local transactions have no privileges.
    pub no_locals: bool,
    /// `--txpool.locals`: senders whose transactions are always local.
    pub local_senders: HashSet<Address>,
    /// `--txpool.lifetime`: how long a transaction may wait for a nonce or funds, unless local.
    /// Default 3 hours.
    pub max_queued_lifetime: Duration,
    /// `--txpool.max-pending-txns`: announcements kept for a slow subscriber. Default 2048.
    pub pending_listener_buffer: usize,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            pending: SubPoolLimit::default(),
            basefee: SubPoolLimit::default(),
            queued: SubPoolLimit::default(),
            blob: SubPoolLimit { max_txs: 10_000, max_size: 512 * MIB },
            mined_blobs_max_size: 128 * MIB,
            disable_blobs: false,
            max_account_slots: 16,
            max_inflight_delegated_slots: 1,
            price_bump: 10,
            blob_price_bump: 100,
            minimal_protocol_base_fee: MIN_PROTOCOL_BASE_FEE,
            minimum_priority_fee: None,
            max_tx_input_bytes: 128 * 1024,
            max_tx_gas_limit: None,
            tx_fee_cap: Some(1_000_000_000_000_000_000),
            no_locals: false,
            local_senders: HashSet::default(),
            max_queued_lifetime: Duration::from_secs(3 * 60 * 60),
            pending_listener_buffer: 2048,
        }
    }
}

impl PoolConfig {
    /// Whether a transaction is local: no minimum tip, no limit per sender or for delegations,
    /// never evicted, never too old.
    pub fn is_local(&self, origin: TransactionOrigin, sender: &Address) -> bool {
        !self.no_locals
            && (origin == TransactionOrigin::Local || self.local_senders.contains(sender))
    }
}
