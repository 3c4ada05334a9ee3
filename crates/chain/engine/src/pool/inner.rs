//! [`PoolInner`]: the content of the pool, behind its lock.

use crate::pool::{
    BestTransactions, PendingAuthorization, PoolConfig, PoolConflictError, PoolError,
    PoolTransaction, TransactionError, TransactionOrigin,
    best::RankedTransaction,
    blobs::BlobStore,
    rules::{self, PoolRules},
    sender::{PoolSender, PoolSlot, SenderAccount, TxReadiness, check_replacement},
    subpool::{SubPoolKind, SubPoolSet},
};
use alloy_consensus::transaction::{Recovered, TxHashRef};
use alloy_primitives::{Address, B256, map::HashMap};
use retrie_chainspec::primitives::Transaction;
use std::{collections::BTreeMap, sync::Arc, time::Instant};

/// Counters of the pool since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCounters {
    /// Added transactions, replacements included.
    pub added: u64,
    /// Replacements.
    pub replaced: u64,
    /// Refused transactions.
    pub rejected: u64,
    /// Evicted for better transactions.
    pub evicted: u64,
    /// Dropped for their age.
    pub expired: u64,
    /// Mined transactions.
    pub mined: u64,
    /// Made invalid by a block: nonce used, sender with code, rules changed.
    pub invalidated: u64,
    /// Reinserted from reverted blocks.
    pub reinserted: u64,
    /// Authorizations (EIP-7702) of submitted transactions whose signers were recovered.
    pub authorizations_recovered: u64,
    /// Blobs of submitted transactions whose proofs were checked.
    pub blobs_proven: u64,
}

/// The base fee of the next block: from the head, or set by the user of a dev chain.
#[derive(Debug)]
pub(super) struct NextBaseFee {
    /// The present head.
    head: B256,
    /// Base fee that follows from the head, in wei; `None` before London.
    by_head: Option<u64>,
    /// Base fee that the user of a dev chain has set, in wei.
    by_user: Option<u64>,
}

impl NextBaseFee {
    /// Moves to a head. Returns `rules`, with the user's base fee if it was set at the same head.
    pub(super) fn at_head(&mut self, head: B256, rules: PoolRules) -> PoolRules {
        let by_user = self.by_user.filter(|_| head == self.head);
        *self = Self { head, by_head: rules.next.base_fee, by_user };
        if by_user.is_some() { rules.with_base_fee(by_user) } else { rules }
    }

    /// Sets or clears the user's base fee. Returns `rules` with the resulting base fee.
    pub(super) fn set(&mut self, by_user: Option<u64>, rules: &PoolRules) -> PoolRules {
        self.by_user = by_user;
        rules.with_base_fee(by_user.or(self.by_head))
    }
}

/// The content of the pool.
#[derive(Debug)]
pub(super) struct PoolInner {
    pub(super) rules: Arc<PoolRules>,
    pub(super) fees: NextBaseFee,
    /// Sequence number of the pool's head; see [`HeadState::sequence`](super::HeadState::sequence).
    pub(super) sequence: u64,
    pub(super) senders: HashMap<Address, PoolSender>,
    pub(super) by_hash: HashMap<B256, (Address, u64)>,
    /// Number of pooled transactions with an authorization (EIP-7702) of an account for a nonce. An
    /// authorization for a used nonce stays counted until its transaction is removed.
    authorities: BTreeMap<(Address, u64), usize>,
    /// Number of unsigned transactions.
    pub(super) unsigned: usize,
    pub(super) subpools: SubPoolSet,
    pub(super) blobs: BlobStore,
    /// Origin of mined transactions whose blocks may not be durable yet.
    pub(super) mined: HashMap<B256, TransactionOrigin>,
    pub(super) counters: PoolCounters,
    /// Transactions that became executable and are not announced yet.
    fresh: Vec<Arc<PoolTransaction>>,
    arrivals: u64,
}

impl PoolInner {
    pub(super) fn new(config: &PoolConfig, head: B256, rules: PoolRules) -> Self {
        Self {
            subpools: SubPoolSet::new(config, &rules.next),
            fees: NextBaseFee { head, by_head: rules.next.base_fee, by_user: None },
            rules: Arc::new(rules),
            sequence: 0,
            senders: HashMap::default(),
            by_hash: HashMap::default(),
            authorities: BTreeMap::new(),
            unsigned: 0,
            blobs: BlobStore::new(config.mined_blobs_max_size),
            mined: HashMap::default(),
            counters: PoolCounters::default(),
            fresh: Vec::new(),
            arrivals: 0,
        }
    }

    pub(super) fn get(&self, hash: &B256) -> Option<&PoolSlot> {
        let (sender, nonce) = self.by_hash.get(hash)?;
        self.senders.get(sender)?.slots.get(nonce)
    }

    /// The account of a sender. For a sender without pooled transactions it is `read`, unless that
    /// is older than the pool's head: the sender's last pooled transaction may have been mined
    /// since, and with the old account the next one would wait for its nonce for ever.
    pub(super) fn account(
        &self,
        sender: &Address,
        read: Option<SenderAccount>,
    ) -> Option<SenderAccount> {
        let known = self.senders.get(sender).map(|sender| sender.account);
        known.or_else(|| read.filter(|account| account.sequence >= self.sequence))
    }

    /// A mined transaction as it was in the pool.
    pub(super) fn as_pooled(
        &self,
        transaction: Recovered<Transaction>,
        config: &PoolConfig,
    ) -> PoolTransaction {
        let (origin, sidecar) = {
            let hash = transaction.tx_hash();
            (self.mined.get(hash).copied(), self.blobs.sidecar(hash))
        };
        let origin = origin.unwrap_or(TransactionOrigin::External);
        let is_local = config.is_local(origin, &transaction.signer());
        PoolTransaction::new(transaction, sidecar, origin, is_local)
    }

    /// Checks a transaction against its sender's account and the other pooled transactions, without
    /// the [costly](PoolTransaction::is_costly) checks. One that `may_wait` was accepted before: it
    /// need not have the funds yet, and the limit per account does not apply.
    pub(super) fn check(
        &self,
        config: &PoolConfig,
        tx: &PoolTransaction,
        account: SenderAccount,
        may_wait: bool,
    ) -> Result<(), PoolError> {
        if self.by_hash.contains_key(tx.hash()) {
            return Err(PoolError::AlreadyKnown);
        }
        account.check(tx, may_wait)?;
        let (nonce, cost, balance) = (tx.nonce(), tx.cost(), account.balance);
        let sender = self.senders.get(&tx.sender());
        if sender.is_some_and(|sender| sender.has_blobs() != tx.is_blob()) {
            return Err(PoolConflictError::AddressReserved.into());
        }
        self.check_delegated(config, tx, account)?;

        if tx.is_blob() {
            let next = sender.map_or(account.nonce, PoolSender::next_nonce);
            if nonce > next {
                return Err(PoolConflictError::NonceTooHigh { got: nonce, next }.into());
            }
            let queued = sender.map(|sender| sender.cost_without(nonce)).unwrap_or_default();
            if queued.saturating_add(cost) > balance && !may_wait {
                return Err(
                    PoolConflictError::InsufficientFundsForQueue { balance, queued, cost }.into()
                );
            }
        }
        let Some(sender) = sender else { return Ok(()) };
        if let Some(old) = sender.slots.get(&nonce) {
            let bump = if tx.is_blob() { config.blob_price_bump } else { config.price_bump };
            return Ok(check_replacement(&old.tx, tx, bump)?);
        }
        let pooled = sender.slots.len();
        if !tx.is_local && !may_wait && pooled >= config.max_account_slots {
            return Err(PoolConflictError::AccountLimitExceeded { pooled }.into());
        }
        Ok(())
    }

    /// Limits the transactions of a delegated account (EIP-7702), since a delegation can empty the
    /// account or use up its nonces at any time. The same limit applies to transactions that an
    /// authorization in the pool can overtake.
    fn check_delegated(
        &self,
        config: &PoolConfig,
        tx: &PoolTransaction,
        account: SenderAccount,
    ) -> Result<(), PoolConflictError> {
        // Local transactions are exempt. geth keeps such a transaction aside and tries again later.
        if tx.is_local {
            return Ok(());
        }
        let Some(from) = self.delegated_from(tx, account) else { return Ok(()) };
        let sender = self.senders.get(&tx.sender());
        let in_flight = sender.map_or(0, |sender| {
            let slots = sender.slots.range(from..).map(|(_, slot)| slot);
            slots.filter(|slot| slot.readiness < Some(TxReadiness::Gapped)).count()
        });
        if sender.is_some_and(|sender| sender.slots.contains_key(&tx.nonce())) {
            return Ok(());
        }
        if in_flight >= config.max_inflight_delegated_slots {
            return Err(PoolConflictError::InFlightLimitReached);
        }
        if tx.nonce() != sender.map_or(account.nonce, PoolSender::next_nonce) {
            return Err(PoolConflictError::OutOfOrderDelegated);
        }
        Ok(())
    }

    /// The first nonce of the sender that a delegation can overtake, if this transaction's nonce is
    /// not below it. An authorization only applies at its own nonce: it cannot overtake lower
    /// nonces, and none at all once the account's nonce is higher.
    fn delegated_from(&self, tx: &PoolTransaction, account: SenderAccount) -> Option<u64> {
        if account.is_delegated {
            return Some(account.nonce);
        }
        // Authorizations do not apply to contracts; a contract that sends is impersonated (dev
        // chains).
        if account.contract.is_some() || account.nonce > tx.nonce() {
            return None;
        }
        let reachable = (tx.sender(), account.nonce)..=(tx.sender(), tx.nonce());
        self.authorities.range(reachable).next().map(|((_, nonce), _)| *nonce)
    }

    /// Checks that each account whose code a transaction sets has few enough pooled transactions
    /// that this could overtake. Recovers the signers of its authorizations unless that was done
    /// before.
    pub(super) fn check_authorities(
        &self,
        config: &PoolConfig,
        tx: &PoolTransaction,
    ) -> Result<(), PoolConflictError> {
        let is_reserved = |one: &PendingAuthorization| {
            let Some(sender) = self.senders.get(&one.authority) else { return false };
            if sender.account.contract.is_some() || sender.account.nonce > one.nonce {
                return false;
            }
            let overtaken = sender.slots.range(one.nonce..).count();
            overtaken > config.max_inflight_delegated_slots || sender.has_blobs() && overtaken > 0
        };
        if !tx.is_local && tx.authorizations().iter().any(is_reserved) {
            return Err(PoolConflictError::AuthorityReserved);
        }
        Ok(())
    }

    /// Checks that a transaction that passed [`Self::check`] would stay: a full sub-pool evicts its
    /// worst transaction, which may be the new one. Call it before the costly checks.
    pub(super) fn check_room(
        &self,
        tx: &PoolTransaction,
        account: SenderAccount,
    ) -> Result<(), PoolConflictError> {
        let new = PoolSender::new(account);
        let sender = self.senders.get(&tx.sender()).unwrap_or(&new);
        let (readiness, _) = sender.walk(tx.nonce()).step(tx, &self.rules);
        if self.subpools.keeps(tx, readiness, self.arrivals, &self.senders) {
            return Ok(());
        }
        Err(PoolConflictError::PoolFull)
    }

    /// Inserts a transaction that passed all checks, and evicts transactions above the limits. That
    /// may be the transaction itself.
    pub(super) fn admit(
        &mut self,
        tx: Arc<PoolTransaction>,
        account: SenderAccount,
    ) -> Result<(), PoolConflictError> {
        let hash = *tx.hash();
        let replaces = self.insert(tx, account);
        self.evict();
        let kind = self.get(&hash).and_then(SubPoolKind::of).ok_or(PoolConflictError::PoolFull)?;
        // The sub-pool is full of local transactions, which are never evicted. A replacement needs
        // no extra room.
        if self.subpools.get(kind).is_full() && !replaces {
            self.remove(&hash);
            // Later nonces wait again, maybe in a sub-pool without room for them.
            self.evict();
            return Err(PoolConflictError::PoolFull);
        }
        Ok(())
    }

    /// Admits a transaction of a reverted block if it passes the checks again.
    pub(super) fn admit_returning(
        &mut self,
        config: &PoolConfig,
        tx: &Arc<PoolTransaction>,
        account: SenderAccount,
    ) -> Result<(), PoolError> {
        self.rules.check(tx, config)?;
        self.check(config, tx, account, false)?;
        self.check_authorities(config, tx)?;
        Ok(self.admit(Arc::clone(tx), account)?)
    }

    /// Inserts a transaction, and replaces one of the same nonce. Returns whether it replaced one.
    fn insert(&mut self, tx: Arc<PoolTransaction>, account: SenderAccount) -> bool {
        let (address, nonce) = (tx.sender(), tx.nonce());
        for PendingAuthorization { authority, nonce } in tx.authorizations() {
            *self.authorities.entry((*authority, *nonce)).or_default() += 1;
        }
        self.by_hash.insert(*tx.hash(), (address, nonce));
        self.unsigned += usize::from(tx.is_unsigned);
        self.blobs.insert(&tx);
        let slot = PoolSlot::new(tx, self.arrivals);
        self.arrivals += 1;
        let sender = self.senders.entry(address).or_insert_with(|| PoolSender::new(account));
        let old = sender.slots.insert(nonce, slot);
        if let Some(old) = &old {
            self.unlink(old);
            self.blobs.remove(old.tx.hash());
            self.counters.replaced += 1;
        }
        self.update_readiness(address, nonce);
        self.counters.added += 1;
        old.is_some()
    }

    /// Removes a transaction from all indexes; its slot and its sidecar stay.
    fn unlink(&mut self, slot: &PoolSlot) {
        self.by_hash.remove(slot.tx.hash());
        self.unsigned -= usize::from(slot.tx.is_unsigned);
        self.subpools.remove(slot);
        for PendingAuthorization { authority, nonce } in slot.tx.authorizations() {
            let key = (*authority, *nonce);
            if let Some(count) = self.authorities.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    self.authorities.remove(&key);
                }
            }
        }
    }

    /// Removes a transaction, and keeps its sidecar.
    fn take(&mut self, address: Address, nonce: u64) -> Option<Arc<PoolTransaction>> {
        let sender = self.senders.get_mut(&address)?;
        let slot = sender.slots.remove(&nonce)?;
        if sender.slots.is_empty() {
            self.senders.remove(&address);
        }
        self.unlink(&slot);
        self.update_readiness(address, nonce);
        Some(slot.tx)
    }

    /// Removes a transaction. Later nonces of its sender stay and wait.
    pub(super) fn remove(&mut self, hash: &B256) -> Option<Arc<PoolTransaction>> {
        let (address, nonce) = *self.by_hash.get(hash)?;
        let tx = self.take(address, nonce)?;
        self.blobs.remove(hash);
        Some(tx)
    }

    /// Removes a transaction that was mined.
    pub(super) fn remove_mined(&mut self, hash: &B256) {
        if let Some((address, nonce)) = self.by_hash.get(hash).copied()
            && let Some(tx) = self.take(address, nonce)
        {
            self.mined.insert(*hash, tx.origin);
            self.blobs.retire(*hash);
            self.counters.mined += 1;
        }
    }

    /// Updates the readiness of a sender's transactions from nonce `from` on, until one is
    /// unchanged.
    fn update_readiness(&mut self, address: Address, from: u64) {
        let Some(sender) = self.senders.get_mut(&address) else { return };
        let mut walk = sender.walk(from);
        for slot in sender.slots.range_mut(from..).map(|(_, slot)| slot) {
            let (readiness, spent) = walk.step(&slot.tx, &self.rules);
            if slot.readiness == Some(readiness) && slot.spent == spent {
                break;
            }
            self.subpools.remove(slot);
            slot.readiness = Some(readiness);
            slot.spent = spent;
            let waits = readiness >= TxReadiness::Blocked;
            slot.waits_since = waits.then(|| slot.waits_since.unwrap_or_else(Instant::now));
            if readiness == TxReadiness::Executable && !slot.is_announced {
                slot.is_announced = true;
                self.fresh.push(Arc::clone(&slot.tx));
            }
            self.subpools.insert(slot);
        }
    }

    /// Moves to a new head: sets its rules and the accounts of all senders, drops invalid
    /// transactions and updates the readiness of all others.
    ///
    /// `accounts` has at least all pooled senders.
    pub(super) fn advance(
        &mut self,
        config: &PoolConfig,
        rules: PoolRules,
        sequence: u64,
        accounts: &HashMap<Address, SenderAccount>,
    ) {
        let forked = !self.rules.same_fork(&rules);
        let mut invalid = Vec::new();
        for (address, sender) in &mut self.senders {
            // The sender's account may have been read from a later head, for a transaction that was
            // added in the meantime.
            if let Some(account) = accounts.get(address)
                && account.sequence >= sender.account.sequence
            {
                sender.account = *account;
            }
            let SenderAccount { nonce, contract, .. } = sender.account;
            let is_invalid = |slot: &PoolSlot| {
                // A gas limit above the block's only makes the transaction wait.
                let check = || match rules.check(&slot.tx, config) {
                    Ok(()) | Err(TransactionError::ExceedsBlockGasLimit) => true,
                    Err(_) => false,
                };
                slot.tx.nonce() < nonce
                    || contract.is_some() && !slot.tx.is_unsigned
                    || forked && !check()
            };
            invalid.extend(
                sender.slots.values().filter(|slot| is_invalid(slot)).map(|slot| *slot.tx.hash()),
            );
        }
        for hash in &invalid {
            self.remove(hash);
        }
        self.counters.invalidated += invalid.len() as u64;

        self.sequence = sequence;
        self.set_rules(config, rules);
    }

    /// Updates the readiness of all transactions for these rules. Drops none.
    pub(super) fn set_rules(&mut self, config: &PoolConfig, rules: PoolRules) {
        self.subpools = SubPoolSet::new(config, &rules.next);
        self.rules = Arc::new(rules);
        let mut addresses = Vec::with_capacity(self.senders.len());
        for (address, sender) in &mut self.senders {
            addresses.push(*address);
            for slot in sender.slots.values_mut() {
                slot.readiness = None;
            }
        }
        for address in addresses {
            self.update_readiness(address, 0);
        }
    }

    /// Drops transactions that have waited too long.
    pub(super) fn expire(&mut self, config: &PoolConfig) {
        let now = Instant::now();
        let is_old = |slot: &&PoolSlot| {
            let waited = slot.waits_since.map(|since| now.saturating_duration_since(since));
            !slot.tx.is_local && waited.is_some_and(|waited| waited >= config.max_queued_lifetime)
        };
        let slots = self.senders.values().flat_map(|sender| sender.slots.values());
        let old: Vec<B256> = slots.filter(is_old).map(|slot| *slot.tx.hash()).collect();
        for hash in &old {
            self.remove(hash);
        }
        self.counters.expired += old.len() as u64;
    }

    /// Evicts the worst transactions of each sub-pool above its limit. Only local transactions can
    /// keep a sub-pool above its limit.
    pub(super) fn evict(&mut self) {
        for kind in SubPoolKind::ALL {
            while self.subpools.get(kind).is_full()
                && let Some((address, nonce)) = self.subpools.get(kind).worst()
                && let Some(tx) = self.take(address, nonce)
            {
                self.blobs.remove(tx.hash());
                self.counters.evicted += 1;
            }
        }
    }

    /// Takes the transactions that became executable since the last call and are still in the pool.
    pub(super) fn take_fresh(&mut self) -> Vec<Arc<PoolTransaction>> {
        let mut fresh = std::mem::take(&mut self.fresh);
        fresh.retain(|tx| self.by_hash.contains_key(tx.hash()));
        fresh
    }

    /// The executable transactions at these fees (wei).
    pub(super) fn best(&self, base_fee: u64, blob_base_fee: Option<u128>) -> BestTransactions {
        let mut best = BestTransactions::default();
        for (address, sender) in &self.senders {
            let chain = (sender.slots.values())
                .take_while(|slot| slot.readiness <= Some(TxReadiness::Priced))
                .take_while(|slot| rules::pays(&slot.tx, base_fee, blob_base_fee))
                .map(|slot| RankedTransaction {
                    tip: slot.tx.tip(base_fee).unwrap_or_default(),
                    id: slot.id,
                    tx: Arc::clone(&slot.tx),
                });
            best.push(*address, chain.collect());
        }
        best
    }

    /// Checks consistency and describes the first problem.
    #[cfg(feature = "testkit")]
    pub(super) fn check_invariants(&self, config: &PoolConfig) -> Result<(), String> {
        let mut subpools = SubPoolSet::new(config, &self.rules.next);
        let mut authorities = BTreeMap::<(Address, u64), usize>::new();
        let mut blobs = std::collections::BTreeSet::new();
        let mut count = 0;
        for (address, sender) in &self.senders {
            if sender.slots.is_empty() {
                return Err(format!("sender {address} has no transactions"));
            }
            let mut walk = sender.walk(0);
            for (nonce, slot) in &sender.slots {
                let tx = &slot.tx;
                let name = format!("{address} nonce {nonce}");
                if self.by_hash.get(tx.hash()) != Some(&(*address, *nonce)) {
                    return Err(format!("{name} is not indexed"));
                }
                if (tx.sender(), tx.nonce()) != (*address, *nonce) || *nonce < sender.account.nonce
                {
                    return Err(format!("{name} is out of place"));
                }
                if tx.is_blob() != sender.has_blobs() {
                    return Err(format!("{name}: blob transactions and others"));
                }
                let judged = walk.step(tx, &self.rules);
                if (slot.readiness, slot.spent) != (Some(judged.0), judged.1) {
                    return Err(format!("{name} is {:?}, not {judged:?}", slot.readiness));
                }
                if slot.waits_since.is_some() != (judged.0 >= TxReadiness::Blocked) {
                    return Err(format!("{name} waits, or does not"));
                }
                if judged.0 == TxReadiness::Executable && !slot.is_announced {
                    return Err(format!("{name} is not announced"));
                }
                subpools.insert(slot);
                for PendingAuthorization { authority, nonce } in tx.authorizations() {
                    *authorities.entry((*authority, *nonce)).or_default() += 1;
                }
                if tx.is_blob() {
                    blobs.insert(*tx.hash());
                }
                count += 1;
            }
        }
        if count != self.by_hash.len() || authorities != self.authorities {
            return Err("hashes or authorities of no transaction".into());
        }
        for kind in SubPoolKind::ALL {
            let pool = self.subpools.get(kind);
            if pool.is_full() && pool.worst().is_some() {
                return Err(format!("{kind:?} is above its limit: {:?}", pool.stats));
            }
        }
        self.subpools.check(&subpools)?;
        self.blobs.check(&blobs)
    }
}
