//! The way into the pool: what is checked, and in which order.
//!
//! A transaction that is refused has cost its sender nothing but its bytes. So whatever can refuse it
//! comes before whatever takes longer:
//!
//! | | checked | takes | lock |
//! |---|---|---|---|
//! | 1 | whether it is known by its hash | 1 us | read |
//! | 2 | size, type, chain, nonce, gas limit, fees; of blobs their number, the hashes of their commitments, the form of the sidecar | some us | none |
//! | 3 | its signature | 50 to 100 us | none |
//! | 4 | intrinsic gas, in which every authorization has its price (EIP-7702); smallest tip, largest fee | some us | none |
//! | 5 | its sender's account: code, nonce, balance | reads of the head state, unless the sender has transactions here | none |
//! | 6 | its place: blobs or not, delegations, gaps, debts, price of a replacement, slots | O(log n) | read |
//! | 7 | if 8 or 9 are to come: room, as a full sub-pool may drop it again | what it would push out | read |
//! | 8 | signers of its authorizations | 50 to 100 us each | none |
//! | 9 | proofs of its blobs | 50 to 105 ms | none |
//! | 10 | 5 and 6 again, as others came meanwhile; then whether its authorities have transactions here | O(log n) | write |
//!
//! What is left that strangers get for nothing: 8, for transactions that the account can pay for and
//! that have a place, if an authority turns out to be reserved. It is bounded by the gas of one
//! transaction (671 signatures with EIP-7825), and 9 by the blobs of one; wrong proofs are told to be
//! a fault of the peer that sent them. How often a peer may ask is for the network to say.

use super::{
    Heads, Origin, Pool, PoolError, PoolTransaction, PooledTransaction, Shared, contents::Contents,
    journal::Entry as JournalEntry, rules, sender::SenderAccount, transaction,
};
use alloy_consensus::{
    Transaction as _,
    transaction::{Recovered, SignerRecoverable},
};
use alloy_primitives::{Address, B256};
use std::sync::{Arc, atomic::Ordering};

/// A transaction on its way in.
pub(super) struct IncomingTransaction {
    pub(super) transaction: PooledTransaction,
    pub(super) origin: Origin,
    /// Of one that nobody has signed.
    pub(super) unsigned_by: Option<Address>,
    /// Whether it was accepted before, by a process that has ended. What it was accepted for may
    /// stand in a block that is not there again yet: it may wait for funds, and for those before it.
    pub(super) is_restored: bool,
}

impl Pool {
    /// Adds a transaction. Returns its hash.
    ///
    /// # Errors
    /// [`PoolError`] saying why it is refused.
    pub fn add(
        &self,
        transaction: PooledTransaction,
        origin: Origin,
        heads: &dyn Heads,
    ) -> Result<B256, PoolError> {
        self.add_incoming(
            IncomingTransaction { transaction, origin, unsigned_by: None, is_restored: false },
            heads,
        )
    }

    /// Adds a transaction that nobody has signed, as one of `sender`: for impersonated accounts of
    /// dev chains, which may be contracts.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn add_unsigned(
        &self,
        transaction: PooledTransaction,
        sender: Address,
        heads: &dyn Heads,
    ) -> Result<B256, PoolError> {
        let (origin, unsigned_by) = (Origin::Local, Some(sender));
        self.add_incoming(
            IncomingTransaction { transaction, origin, unsigned_by, is_restored: false },
            heads,
        )
    }

    fn add_incoming(
        &self,
        incoming: IncomingTransaction,
        heads: &dyn Heads,
    ) -> Result<B256, PoolError> {
        let result = self.try_add(incoming, heads);
        match &result {
            Ok(tx) => {
                // Before anybody is told that it was taken.
                if let Some(journal) = self.shared.journal.get()
                    && let Some(entry) = JournalEntry::of(tx)
                {
                    journal.append(&entry);
                    if journal.is_large() {
                        self.shared.journal_grown.notify_one();
                    }
                }
            }
            Err(_) => {
                self.shared.rejected.fetch_add(1, Ordering::Relaxed);
            }
        }
        result.map(|tx| *tx.hash())
    }

    pub(super) fn try_add(
        &self,
        incoming: IncomingTransaction,
        heads: &dyn Heads,
    ) -> Result<Arc<PoolTransaction>, PoolError> {
        let Shared { config, contents, .. } = &*self.shared;
        let IncomingTransaction { transaction, origin, unsigned_by, is_restored } = incoming;
        let (transaction, sidecar) = transaction::split(transaction);
        let rules = {
            let contents = contents.read();
            if contents.by_hash.contains_key(transaction.tx_hash()) {
                return Err(PoolError::AlreadyKnown);
            }
            Arc::clone(&contents.rules)
        };
        rules.check_form(&transaction, sidecar.as_ref(), config)?;
        let recovered = unsigned_by.map_or_else(|| transaction.recover_signer(), Ok);
        let sender = recovered.map_err(|_| PoolError::InvalidSignature)?;
        let is_local = config.is_local(origin, &sender);
        let transaction = Recovered::new_unchecked(transaction, sender);
        let tx = PoolTransaction::new(transaction, sidecar.map(Arc::new), origin, is_local);
        let tx = Arc::new(if unsigned_by.is_some() { tx.unsigned() } else { tx });
        rules.check_signed(&tx, config)?;

        let mut read = None;
        let may_wait = is_restored;
        self.at_head(&sender, &mut read, heads, |contents, account| {
            contents.check(config, &tx, account, may_wait)?;
            if tx.is_costly() { contents.check_room(&tx, account) } else { Ok(()) }
        })?;
        self.check_costly(&tx, is_restored)?;

        loop {
            let mut contents = contents.write();
            let Some(account) = contents.account(&sender, read) else {
                drop(contents);
                read = Some(SenderAccount::read(&*heads.latest()?, sender)?);
                continue;
            };
            if !Arc::ptr_eq(&rules, &contents.rules) {
                contents.rules.check(&tx, config)?;
            }
            contents.check(config, &tx, account, may_wait)?;
            contents.check_authorities(config, &tx)?;
            let has_room = !cfg!(debug_assertions) || contents.check_room(&tx, account).is_ok();
            let admitted = contents.admit(Arc::clone(&tx), account);
            debug_assert!(has_room || admitted.is_err(), "there was room for {}", tx.hash());
            let fresh = contents.take_fresh();
            drop(contents);
            self.announce(fresh);
            return admitted.map(|()| tx);
        }
    }

    /// Does what takes long, without a lock: proofs of blobs, which one that was accepted before need
    /// not show again, and signers of authorizations, which are needed from here on.
    fn check_costly(&self, tx: &PoolTransaction, is_restored: bool) -> Result<(), PoolError> {
        let Shared { recovered, proven, .. } = &*self.shared;
        if let Some(signed) = tx.transaction.authorization_list() {
            recovered.fetch_add(signed.len() as u64, Ordering::Relaxed);
            tx.authorizations();
        }
        if let Some(hashes) = tx.transaction.blob_versioned_hashes()
            && !is_restored
        {
            proven.fetch_add(hashes.len() as u64, Ordering::Relaxed);
            rules::check_proofs(tx)?;
        }
        Ok(())
    }

    /// Does `work` with the sender's account as it is at the pool's head, or at a later one. `read`
    /// is what was read of the account last.
    fn at_head<T>(
        &self,
        sender: &Address,
        read: &mut Option<SenderAccount>,
        heads: &dyn Heads,
        work: impl FnOnce(&Contents, SenderAccount) -> Result<T, PoolError>,
    ) -> Result<T, PoolError> {
        loop {
            let contents = self.shared.contents.read();
            if let Some(account) = contents.account(sender, *read) {
                return work(&contents, account);
            }
            drop(contents);
            *read = Some(SenderAccount::read(&*heads.latest()?, *sender)?);
        }
    }
}
