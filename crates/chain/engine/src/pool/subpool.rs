//! Sub-pools: their size, and the order in which transactions are evicted.

use crate::pool::{
    NextBlock, PoolConfig, PoolTransaction, SubPoolLimit,
    sender::{PoolSender, PoolSlot, TxReadiness},
};
use alloy_consensus::Transaction as _;
use alloy_primitives::{Address, U256, map::HashMap};
use std::{cmp::Reverse, collections::BTreeSet};

/// The rank of a transaction in the order of eviction, the worst first: by readiness, then the
/// lowest fee, then the latest arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct EvictionRank {
    readiness: Reverse<TxReadiness>,
    /// Tip per gas of an executable transaction, maximum fee per gas of others, in wei. If the blob
    /// fee is too low, the fee is scaled by its ratio to the needed blob fee. Otherwise a blob
    /// transaction that no block includes could have any rank for free.
    fee: u128,
    id: Reverse<u64>,
    sender: Address,
    nonce: u64,
}

/// Number and size of the transactions in a sub-pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubPoolStats {
    /// Number of transactions.
    pub txs: usize,
    /// Number of executable transactions.
    pub executable: usize,
    /// Size in memory in bytes, blob sidecars included.
    pub size: usize,
}

/// One sub-pool.
#[derive(Debug)]
pub(super) struct SubPool {
    limit: SubPoolLimit,
    pub(super) stats: SubPoolStats,
    /// Transactions that may be evicted: all except local ones.
    order: BTreeSet<EvictionRank>,
}

impl SubPool {
    const fn new(limit: SubPoolLimit) -> Self {
        let stats = SubPoolStats { txs: 0, executable: 0, size: 0 };
        Self { limit, stats, order: BTreeSet::new() }
    }

    pub(super) const fn is_full(&self) -> bool {
        self.limit.is_exceeded(self.stats.txs, self.stats.size)
    }

    /// Whether a transaction of this rank would stay: the worst transactions are evicted until the
    /// limit holds, each together with the later nonces of its sender. Returns `true` where this
    /// cannot be determined.
    fn keeps(
        &self,
        (kind, tx, worth): (SubPoolKind, &PoolTransaction, &EvictionRank),
        senders: &HashMap<Address, PoolSender>,
    ) -> bool {
        let (mut txs, mut size) = (self.stats.txs + 1, self.stats.size + tx.size());
        // The replaced transaction is removed, and later nonces may get worse, or are already.
        let own = senders.get(&worth.sender).into_iter();
        let behind = own.flat_map(|own| own.slots.range(worth.nonce..));
        for (_, slot) in behind.filter(|(_, slot)| SubPoolKind::of(slot) == Some(kind)) {
            txs -= 1;
            size = size.saturating_sub(slot.tx.size());
        }
        // For each sender the first evicted nonce.
        let mut gone = HashMap::<Address, u64>::default();
        for next in &self.order {
            if !self.limit.is_exceeded(txs, size) {
                return true;
            }
            // The new transaction is the next to be evicted.
            if !tx.is_local && next > worth {
                return false;
            }
            if next.sender == worth.sender {
                if next.nonce >= worth.nonce {
                    continue;
                }
                // A transaction before it would be evicted: then it waits in another sub-pool,
                // unless it has blobs.
                return kind != SubPoolKind::Blob;
            }
            let from = gone.get(&next.sender).copied().unwrap_or(u64::MAX);
            if next.nonce < from
                && let Some(sender) = senders.get(&next.sender)
            {
                let slots = sender.slots.range(next.nonce..from).map(|(_, slot)| slot);
                for slot in slots.filter(|slot| SubPoolKind::of(slot) == Some(kind)) {
                    // A local blob transaction stays, even behind a gap.
                    if kind != SubPoolKind::Blob || !slot.tx.is_local {
                        txs = txs.saturating_sub(1);
                        size = size.saturating_sub(slot.tx.size());
                    }
                }
                gone.insert(next.sender, next.nonce);
            }
        }
        !self.limit.is_exceeded(txs, size)
    }

    /// Sender and nonce of the transaction to evict next.
    pub(super) fn worst(&self) -> Option<(Address, u64)> {
        self.order.first().map(|worth| (worth.sender, worth.nonce))
    }
}

/// The kind of a sub-pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SubPoolKind {
    Pending,
    BaseFee,
    Blob,
    Queued,
}

impl SubPoolKind {
    /// In the order of eviction: later nonces of an evicted transaction move to a later sub-pool.
    pub(super) const ALL: [Self; 4] = [Self::Pending, Self::BaseFee, Self::Blob, Self::Queued];

    /// The sub-pool of a transaction; `None` until its readiness is computed.
    pub(super) fn of(slot: &PoolSlot) -> Option<Self> {
        Some(Self::of_judged(&slot.tx, slot.readiness?))
    }

    const fn of_judged(tx: &PoolTransaction, readiness: TxReadiness) -> Self {
        match readiness {
            _ if tx.is_blob() => Self::Blob,
            TxReadiness::Executable => Self::Pending,
            TxReadiness::Priced => Self::BaseFee,
            TxReadiness::Blocked | TxReadiness::Gapped => Self::Queued,
        }
    }
}

/// All sub-pools.
#[derive(Debug)]
pub(super) struct SubPoolSet {
    /// Base fee of the next block in wei, to compute tips.
    base_fee: u64,
    /// Blob fee of the next block in wei, from Cancun on.
    blob_base_fee: Option<u128>,
    /// By [`SubPoolKind`].
    pools: [SubPool; 4],
}

impl SubPoolSet {
    /// Empty sub-pools, for the fees of the next block.
    pub(super) fn new(config: &PoolConfig, next: &NextBlock) -> Self {
        let PoolConfig { pending, basefee, blob, queued, .. } = config;
        let pools = [
            SubPool::new(*pending),
            SubPool::new(*basefee),
            SubPool::new(*blob),
            SubPool::new(*queued),
        ];
        let base_fee = next.base_fee.unwrap_or_default();
        Self { base_fee, blob_base_fee: next.blob_base_fee, pools }
    }

    pub(super) const fn get(&self, kind: SubPoolKind) -> &SubPool {
        &self.pools[kind as usize]
    }

    fn worth(&self, tx: &PoolTransaction, readiness: TxReadiness, id: u64) -> EvictionRank {
        let fee_cap = tx.transaction.max_fee_per_gas();
        let fee = match (readiness, tx.transaction.max_fee_per_blob_gas(), self.blob_base_fee) {
            (TxReadiness::Executable, ..) => tx.tip(self.base_fee).unwrap_or_default(),
            (_, Some(cap), Some(needed)) if cap < needed => {
                let share = U256::from(fee_cap) * U256::from(cap) / U256::from(needed);
                share.saturating_to()
            }
            _ => fee_cap,
        };
        EvictionRank {
            readiness: Reverse(readiness),
            fee,
            id: Reverse(id),
            sender: tx.sender(),
            nonce: tx.nonce(),
        }
    }

    /// Whether a new transaction with this readiness would stay.
    pub(super) fn keeps(
        &self,
        tx: &PoolTransaction,
        readiness: TxReadiness,
        id: u64,
        senders: &HashMap<Address, PoolSender>,
    ) -> bool {
        let kind = SubPoolKind::of_judged(tx, readiness);
        let worth = self.worth(tx, readiness, id);
        self.get(kind).keeps((kind, tx, &worth), senders)
    }

    /// Adds a transaction whose readiness is computed.
    pub(super) fn insert(&mut self, slot: &PoolSlot) {
        let Some((kind, readiness)) = SubPoolKind::of(slot).zip(slot.readiness) else { return };
        let worth = self.worth(&slot.tx, readiness, slot.id);
        let pool = &mut self.pools[kind as usize];
        pool.stats.txs += 1;
        pool.stats.executable += usize::from(readiness == TxReadiness::Executable);
        pool.stats.size += slot.tx.size();
        if !slot.tx.is_local {
            pool.order.insert(worth);
        }
    }

    /// Removes a transaction, before its readiness is updated or it leaves the pool.
    pub(super) fn remove(&mut self, slot: &PoolSlot) {
        let Some((kind, readiness)) = SubPoolKind::of(slot).zip(slot.readiness) else { return };
        let worth = self.worth(&slot.tx, readiness, slot.id);
        let pool = &mut self.pools[kind as usize];
        pool.stats.txs -= 1;
        pool.stats.executable -= usize::from(readiness == TxReadiness::Executable);
        pool.stats.size -= slot.tx.size();
        pool.order.remove(&worth);
    }

    /// Checks that the sub-pools equal `expected`.
    #[cfg(feature = "testkit")]
    pub(super) fn check(&self, expected: &Self) -> Result<(), String> {
        for kind in SubPoolKind::ALL {
            let (got, expected) = (self.get(kind), expected.get(kind));
            if got.stats != expected.stats || got.order != expected.order {
                return Err(format!("{kind:?}: {:?}, expected {:?}", got.stats, expected.stats));
            }
        }
        Ok(())
    }
}
