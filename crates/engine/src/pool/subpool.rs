//! The sub-pools: how much is in each, and which transaction goes first when one is too full.

use crate::pool::{
    PoolConfig, SubPoolLimit,
    sender::{Readiness, Slot},
};
use alloy_primitives::Address;
use std::{cmp::Reverse, collections::BTreeSet};

/// The place of a transaction in the order of eviction, the worst first: what is far from being
/// executed, then what pays least, then what came last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Worth {
    readiness: Reverse<Readiness>,
    /// Tip per gas of an executable transaction, maximum fee per gas of others, in wei.
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
        Some(match slot.readiness? {
            _ if slot.tx.is_blob() => Self::Blob,
            Readiness::Executable => Self::Pending,
            Readiness::Priced => Self::BaseFee,
            Readiness::Blocked | Readiness::Gapped => Self::Queued,
        })
    }
}

/// All sub-pools.
#[derive(Debug)]
pub(super) struct SubPools {
    /// Base fee of the next block in wei, by which tips are reckoned.
    base_fee: u64,
    /// By [`Kind`].
    pools: [SubPool; 4],
}

impl SubPools {
    /// Empty ones, for a base fee.
    pub(super) const fn new(config: &PoolConfig, base_fee: u64) -> Self {
        let PoolConfig { pending, basefee, blob, queued, .. } = config;
        let pools = [
            SubPool::new(*pending),
            SubPool::new(*basefee),
            SubPool::new(*blob),
            SubPool::new(*queued),
        ];
        Self { base_fee, pools }
    }

    pub(super) const fn get(&self, kind: Kind) -> &SubPool {
        &self.pools[kind as usize]
    }

    fn worth(&self, slot: &Slot, readiness: Readiness) -> Worth {
        use alloy_consensus::Transaction as _;
        let fee = match readiness {
            Readiness::Executable => slot.tx.tip(self.base_fee).unwrap_or_default(),
            _ => slot.tx.transaction.max_fee_per_gas(),
        };
        Worth {
            readiness: Reverse(readiness),
            fee,
            id: Reverse(slot.id),
            sender: slot.tx.sender(),
            nonce: slot.tx.nonce(),
        }
    }

    /// Enters a transaction that has been judged.
    pub(super) fn insert(&mut self, slot: &Slot) {
        let Some((kind, readiness)) = Kind::of(slot).zip(slot.readiness) else { return };
        let worth = self.worth(slot, readiness);
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
        let worth = self.worth(slot, readiness);
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
