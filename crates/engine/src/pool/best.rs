//! The order in which a block takes transactions.

use crate::pool::PoolTransaction;
use alloy_primitives::{Address, map::HashMap};
use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
    sync::Arc,
    vec,
};

/// A transaction with its place in the order: by tip, then by arrival.
#[derive(Debug)]
pub(super) struct Candidate {
    /// What the proposer gets per gas, in wei.
    pub(super) tip: u128,
    /// Number of its arrival.
    pub(super) id: u64,
    pub(super) tx: Arc<PoolTransaction>,
}

impl Candidate {
    const fn key(&self) -> (u128, Reverse<u64>) {
        (self.tip, Reverse(self.id))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Candidate {}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

/// The executable transactions at one moment, best first: by what the proposer gets per gas, then by
/// arrival; those of one sender in the order of their nonces.
///
/// It is a snapshot. The pool goes on meanwhile.
#[derive(Debug, Default)]
pub struct BestTransactions {
    /// The next transaction of each sender.
    heads: BinaryHeap<Candidate>,
    /// What follows it. Senders that are skipped have no entry.
    rest: HashMap<Address, vec::IntoIter<Candidate>>,
    skips_blobs: bool,
}

impl BestTransactions {
    /// Adds the executable transactions of one sender, in the order of their nonces.
    pub(super) fn push(&mut self, sender: Address, chain: Vec<Candidate>) {
        let mut rest = chain.into_iter();
        if let Some(head) = rest.next() {
            self.heads.push(head);
            self.rest.insert(sender, rest);
        }
    }

    /// Skips what is left of a sender, whose last transaction could not be taken.
    pub fn mark_invalid(&mut self, sender: Address) {
        self.rest.remove(&sender);
    }

    /// Skips blob transactions from here on, and what follows them: the block has no room for blobs.
    pub const fn skip_blobs(&mut self) {
        self.skips_blobs = true;
    }
}

impl Iterator for BestTransactions {
    type Item = Arc<PoolTransaction>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let tx = self.heads.pop()?.tx;
            let sender = tx.sender();
            let Some(rest) = self.rest.get_mut(&sender) else { continue };
            if self.skips_blobs && tx.is_blob() {
                self.rest.remove(&sender);
                continue;
            }
            self.heads.extend(rest.next());
            return Some(tx);
        }
    }
}
