//! The sub-pools: how much is in each, and which transaction goes first when one is too full.

use crate::pool::{
    NextBlock, PoolConfig, PoolTransaction, SubPoolLimit,
    sender::{Readiness, Sender, Slot},
};
use alloy_consensus::Transaction as _;
use alloy_primitives::{Address, U256, map::HashMap};
use std::{cmp::Reverse, collections::BTreeSet};

/// The place of a transaction in the order of eviction, the worst first: what is far from being
/// executed, then what pays least, then what came last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Worth {
    readiness: Reverse<Readiness>,
    /// Tip per gas of an executable transaction, maximum fee per gas of others, in wei; of one whose
    /// blob fee is too low that share of it which the blob fee is of the one needed. Otherwise blobs
    /// that no block will take could be worth any sum, for nothing.
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
    /// Those among them that the next block can take.
    pub executable: usize,
    /// Size in memory in bytes, blob sidecars included.
    pub size: usize,
}

/// One sub-pool.
#[derive(Debug)]
pub(super) struct SubPool {
    limit: SubPoolLimit,
    pub(super) stats: SubPoolStats,
    /// What may be evicted: all but local transactions.
    order: BTreeSet<Worth>,
}

impl SubPool {
    const fn new(limit: SubPoolLimit) -> Self {
        let stats = SubPoolStats { txs: 0, executable: 0, size: 0 };
        Self { limit, stats, order: BTreeSet::new() }
    }

    pub(super) const fn is_full(&self) -> bool {
        self.limit.is_exceeded(self.stats.txs, self.stats.size)
    }

    /// Whether a transaction of this worth would stay here: the worst go until all fits, and with each
    /// what follows it in its sender's nonces. Where that cannot be told, it would.
    fn keeps(
        &self,
        (kind, tx, worth): (Kind, &PoolTransaction, &Worth),
        senders: &HashMap<Address, Sender>,
    ) -> bool {
        let (mut txs, mut size) = (self.stats.txs + 1, self.stats.size + tx.size());
        // One that it replaces goes, and what follows may get worse by it, or is so already.
        let own = senders.get(&worth.sender).into_iter();
        let behind = own.flat_map(|own| own.slots.range(worth.nonce..));
        for (_, slot) in behind.filter(|(_, slot)| Kind::of(slot) == Some(kind)) {
            txs -= 1;
            size = size.saturating_sub(slot.tx.size());
        }
        // From which nonce on what a sender has here is gone.
        let mut gone = HashMap::<Address, u64>::default();
        for next in &self.order {
            if !self.limit.is_exceeded(txs, size) {
                return true;
            }
            // Then the new one is the next to go.
            if !tx.is_local && next > worth {
                return false;
            }
            if next.sender == worth.sender {
                if next.nonce >= worth.nonce {
                    continue;
                }
                // What it builds on would go: then it waits in another sub-pool, if it may wait.
                return kind != Kind::Blob;
            }
            let from = gone.get(&next.sender).copied().unwrap_or(u64::MAX);
            if next.nonce < from
                && let Some(sender) = senders.get(&next.sender)
            {
                let slots = sender.slots.range(next.nonce..from).map(|(_, slot)| slot);
                for slot in slots.filter(|slot| Kind::of(slot) == Some(kind)) {
                    // A local one with blobs stays, even behind a gap.
                    if kind != Kind::Blob || !slot.tx.is_local {
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

/// Which sub-pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Pending,
    BaseFee,
    Blob,
    Queued,
}

impl Kind {
    /// In the order of eviction: what follows an evicted transaction goes to a later one.
    pub(super) const ALL: [Self; 4] = [Self::Pending, Self::BaseFee, Self::Blob, Self::Queued];

    /// The sub-pool of a transaction; `None` until it has been judged.
    pub(super) fn of(slot: &Slot) -> Option<Self> {
        Some(Self::of_judged(&slot.tx, slot.readiness?))
    }

    const fn of_judged(tx: &PoolTransaction, readiness: Readiness) -> Self {
        match readiness {
            _ if tx.is_blob() => Self::Blob,
            Readiness::Executable => Self::Pending,
            Readiness::Priced => Self::BaseFee,
            Readiness::Blocked | Readiness::Gapped => Self::Queued,
        }
    }
}

/// All sub-pools.
#[derive(Debug)]
pub(super) struct SubPools {
    /// Base fee of the next block in wei, by which tips are reckoned.
    base_fee: u64,
    /// Its blob fee in wei, from Cancun on.
    blob_base_fee: Option<u128>,
    /// By [`Kind`].
    pools: [SubPool; 4],
}

impl SubPools {
    /// Empty ones, for the fees of the next block.
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

    pub(super) const fn get(&self, kind: Kind) -> &SubPool {
        &self.pools[kind as usize]
    }

    fn worth(&self, tx: &PoolTransaction, readiness: Readiness, id: u64) -> Worth {
        let fee_cap = tx.transaction.max_fee_per_gas();
        let fee = match (readiness, tx.transaction.max_fee_per_blob_gas(), self.blob_base_fee) {
            (Readiness::Executable, ..) => tx.tip(self.base_fee).unwrap_or_default(),
            (_, Some(cap), Some(needed)) if cap < needed => {
                let share = U256::from(fee_cap) * U256::from(cap) / U256::from(needed);
                share.saturating_to()
            }
            _ => fee_cap,
        };
        Worth {
            readiness: Reverse(readiness),
            fee,
            id: Reverse(id),
            sender: tx.sender(),
            nonce: tx.nonce(),
        }
    }

    /// Whether a transaction would stay if it came now and were judged to be this far.
    pub(super) fn keeps(
        &self,
        tx: &PoolTransaction,
        readiness: Readiness,
        id: u64,
        senders: &HashMap<Address, Sender>,
    ) -> bool {
        let kind = Kind::of_judged(tx, readiness);
        let worth = self.worth(tx, readiness, id);
        self.get(kind).keeps((kind, tx, &worth), senders)
    }

    /// Enters a transaction that has been judged.
    pub(super) fn insert(&mut self, slot: &Slot) {
        let Some((kind, readiness)) = Kind::of(slot).zip(slot.readiness) else { return };
        let worth = self.worth(&slot.tx, readiness, slot.id);
        let pool = &mut self.pools[kind as usize];
        pool.stats.txs += 1;
        pool.stats.executable += usize::from(readiness == Readiness::Executable);
        pool.stats.size += slot.tx.size();
        if !slot.tx.is_local {
            pool.order.insert(worth);
        }
    }

    /// Takes a transaction out, before it is judged anew or removed.
    pub(super) fn remove(&mut self, slot: &Slot) {
        let Some((kind, readiness)) = Kind::of(slot).zip(slot.readiness) else { return };
        let worth = self.worth(&slot.tx, readiness, slot.id);
        let pool = &mut self.pools[kind as usize];
        pool.stats.txs -= 1;
        pool.stats.executable -= usize::from(readiness == Readiness::Executable);
        pool.stats.size -= slot.tx.size();
        pool.order.remove(&worth);
    }

    /// Whether these, filled one by one, are the same.
    #[cfg(feature = "testkit")]
    pub(super) fn check(&self, expected: &Self) -> Result<(), String> {
        for kind in Kind::ALL {
            let (got, expected) = (self.get(kind), expected.get(kind));
            if got.stats != expected.stats || got.order != expected.order {
                return Err(format!("{kind:?}: {:?}, expected {:?}", got.stats, expected.stats));
            }
        }
        Ok(())
    }
}
