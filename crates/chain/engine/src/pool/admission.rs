//! Admission to the pool: the checks of a new transaction, and their order.
//!
//! A refused transaction costs its sender only its bytes. So cheap checks come before expensive
//! ones:
//!
//! | | check | cost | lock |
//! |---|---|---|---|
//! | 1 | whether its hash is known | 1 us | read |
//! | 2 | size, type, chain, nonce, gas limit, fees; number of blobs, hashes of their commitments, form of the sidecar | some us | none |
//! | 3 | signature | 50 to 100 us | none |
//! | 4 | intrinsic gas, including that of each authorization (EIP-7702); smallest tip, largest fee | some us | none |
//! | 5 | the sender's account: code, nonce, balance | reads of the head state, unless the sender has pooled transactions | none |
//! | 6 | place among the sender's transactions: blobs or not, delegations, gaps, funds, price of a replacement, slots | O(log n) | read |
//! | 7 | only if 8 or 9 follow: room, since a full sub-pool may evict it again | the transactions it would evict | read |
//! | 8 | signers of its authorizations | 50 to 100 us each | none |
//! | 9 | proofs of its blobs | 50 to 105 ms | none |
//! | 10 | 5 and 6 again, since the pool may have changed; then whether its authorities have pooled transactions | O(log n) | write |
//!
//! Two costs remain that strangers can cause for free. Check 8, for transactions that the account
//! can pay for and that have a place, if an authority turns out to be reserved; the gas of one
//! transaction bounds it (671 signatures with EIP-7825). And check 9 for a peer's replacement that
//! pays too little, so that false blobs count against their sender; one blob a second, over all peers.
//! Otherwise check 9 is bounded by the blobs of one transaction. The p2p crate limits how often a peer
//! may send transactions.

use super::{
    HeadStateProvider, PoolConflictError, PoolError, PoolShared, PoolTransaction,
    PooledTransaction, SidecarError, TransactionError, TransactionOrigin, TransactionPool,
    inner::PoolInner, journal::JournalEntry, rules, sender::SenderAccount, transaction,
};
use alloy_consensus::{
    Transaction as _,
    transaction::{Recovered, SignerRecoverable},
};
use alloy_primitives::{Address, B256};
use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

/// Time between two checks of blobs whose transaction is refused all the same, for each blob of the
/// first.
const VAIN_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A transaction to be admitted.
pub(super) struct IncomingTransaction {
    pub(super) transaction: PooledTransaction,
    pub(super) origin: TransactionOrigin,
    /// Sender of an unsigned transaction.
    pub(super) unsigned_by: Option<Address>,
    /// Whether it was accepted before (journal, snapshot). Its funds or the transactions before it
    /// may be in a block that is not imported again yet, so it may wait for them.
    pub(super) is_restored: bool,
}

impl TransactionPool {
    /// Adds a transaction. Returns its hash.
    ///
    /// # Errors
    /// [`PoolError`], the reason of the refusal.
    pub fn add(
        &self,
        transaction: PooledTransaction,
        origin: TransactionOrigin,
        heads: &dyn HeadStateProvider,
    ) -> Result<B256, PoolError> {
        self.add_incoming(
            IncomingTransaction { transaction, origin, unsigned_by: None, is_restored: false },
            heads,
        )
    }

    /// Adds an unsigned transaction of `sender`: for impersonated accounts of dev chains, which may
    /// be contracts.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn add_unsigned(
        &self,
        transaction: PooledTransaction,
        sender: Address,
        heads: &dyn HeadStateProvider,
    ) -> Result<B256, PoolError> {
        let (origin, unsigned_by) = (TransactionOrigin::Local, Some(sender));
        self.add_incoming(
            IncomingTransaction { transaction, origin, unsigned_by, is_restored: false },
            heads,
        )
    }

    fn add_incoming(
        &self,
        incoming: IncomingTransaction,
        heads: &dyn HeadStateProvider,
    ) -> Result<B256, PoolError> {
        let result = self.try_add(incoming, heads);
        match &result {
            Ok(tx) => {
                // Before the caller learns that it was accepted.
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
        heads: &dyn HeadStateProvider,
    ) -> Result<Arc<PoolTransaction>, PoolError> {
        let PoolShared { config, contents, .. } = &*self.shared;
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
        let sender = recovered.map_err(|_| TransactionError::InvalidSignature)?;
        let is_local = config.is_local(origin, &sender);
        let transaction = Recovered::new_unchecked(transaction, sender);
        let tx = PoolTransaction::new(transaction, sidecar.map(Arc::new), origin, is_local);
        let tx = Arc::new(if unsigned_by.is_some() { tx.unsigned() } else { tx });
        rules.check_signed(&tx, config)?;

        let mut read = None;
        let may_wait = is_restored;
        let place = self.at_head(&sender, &mut read, heads, |contents, account| {
            contents.check(config, &tx, account, may_wait)?;
            if tx.is_costly() {
                contents.check_room(&tx, account)?;
            }
            Ok(())
        });
        if let Err(PoolError::Conflict(PoolConflictError::ReplacementUnderpriced)) = &place
            && (origin, is_restored) == (TransactionOrigin::External, false)
            && tx.sidecar.is_some()
            && self.may_check_in_vain(&tx)
        {
            // A peer that sends false blobs is to be known for it.
            self.check_blobs(&tx).map_err(TransactionError::from)?;
        }
        place?;
        self.check_costly(&tx, is_restored).map_err(TransactionError::from)?;

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
            admitted?;
            return Ok(tx);
        }
    }

    /// Does the expensive checks, without a lock: proofs of blobs (not again for a restored
    /// transaction), and signers of authorizations, which all later steps need.
    fn check_costly(&self, tx: &PoolTransaction, is_restored: bool) -> Result<(), SidecarError> {
        if let Some(signed) = tx.transaction.authorization_list() {
            self.shared.recovered.fetch_add(signed.len() as u64, Ordering::Relaxed);
            tx.authorizations();
        }
        if is_restored { Ok(()) } else { self.check_blobs(tx) }
    }

    /// Checks the proofs of a transaction's blobs, if it has some.
    fn check_blobs(&self, tx: &PoolTransaction) -> Result<(), SidecarError> {
        let Some(hashes) = tx.transaction.blob_versioned_hashes() else { return Ok(()) };
        self.shared.proven.fetch_add(hashes.len() as u64, Ordering::Relaxed);
        rules::check_proofs(tx)
    }

    /// Whether there is time to check the proofs of a transaction that is refused all the same.
    fn may_check_in_vain(&self, tx: &PoolTransaction) -> bool {
        let blobs = tx.transaction.blob_versioned_hashes().map_or(0, <[_]>::len);
        let (mut next, now) = (self.shared.next_vain_check.lock(), Instant::now());
        let may = *next <= now;
        if may {
            *next = now + VAIN_CHECK_INTERVAL * u32::try_from(blobs).unwrap_or(u32::MAX);
        }
        may
    }

    /// Calls `work` with the sender's account at the pool's head, or at a later head. `read` is the
    /// account as it was last read.
    fn at_head<T>(
        &self,
        sender: &Address,
        read: &mut Option<SenderAccount>,
        heads: &dyn HeadStateProvider,
        work: impl FnOnce(&PoolInner, SenderAccount) -> Result<T, PoolError>,
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
