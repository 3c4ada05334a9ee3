//! The transaction pool: transactions that wait for a block.
//!
//! ```text
//!  add -----------> rules of the next block -> sender's account -> other transactions --.
//!   (RPC, network)   (no state, no lock)        (head state)        (lock)              |
//!                     the order of all checks, by what they take: admission.rs          |
//!                                                                                       v
//!  set_head ------> drop mined and stale, judge anew, take back reorganised ----> by sender, by nonce
//!   (each new head)                                                              /      |       \
//!                                                                            best    blobs    subscribe
//! ```
//!
//! # Vocabulary
//! * **executable**: the next block can take it. Its nonce follows those before it, the sender can
//!   pay for all of them, and all pay the fees of the next block.
//! * **sub-pools**: *pending* holds executable transactions, *basefee* those that only wait for lower
//!   fees, *queued* those that wait for a nonce, for funds or for a larger block; *blob* holds all
//!   transactions with blobs, executable or not. Each has a limit; the worst transactions go first.
//! * **local** ([`PoolConfig::is_local`]): of this node's users; exempt from most limits, and never
//!   evicted. When a sub-pool is full of local ones, further ones are refused.
//! * **pending authorization**: one that a pooled transaction carries for another account, or its own
//!   (EIP-7702). It counts against transactions of that account which it can overtake: those from its
//!   nonce on, if it is for this chain and the account has not passed that nonce. Who can use up
//!   which limit, and what that costs: docs/operations.md.
//! * **sidecar**: blobs with commitments and proofs. They stay in memory, also for a while after the
//!   transaction is mined: it may come back with a reorg, and consensus clients ask for its blobs.
//!
//! # Concurrency
//! | work | done by | lock |
//! |---|---|---|
//! | signature, fees, gas, blob proofs, signers of authorizations | the thread that adds | none |
//! | limits, prices, room: refusals | the same | read |
//! | place among the sender's transactions, eviction | the thread that adds | write, O(log n) and what follows in the sender's nonces |
//! | accounts of all senders at a new head | the thread of the live tree | none |
//! | judging all transactions at a new head | the same | write, O(n log n) |
//! | [`Pool::best`] | the thread that builds | read, once; the iteration holds none |
//!
//! # Assumptions
//! Heads are set by one thread, in order. A transaction is judged by the account as the pool knows it.
//! That of a sender who is new here is read from the present head, which may have moved on before the
//! transaction is in its place: a state older than the pool's own head is never believed, since no
//! later head might come to put it right. A newer one is, as its head is on its way here.

mod admission;
mod best;
mod blobs;
mod config;
mod contents;
mod error;
mod journal;
mod rules;
mod sender;
mod subpool;
mod transaction;

pub use best::BestTransactions;
pub use blobs::PooledBlob;
pub use config::{PoolConfig, SubPoolLimit};
pub use contents::PoolCounters;
pub use error::PoolError;
pub use journal::JournalError;
pub use rules::NextBlock;
pub use sender::{HeadState, Heads};
pub use subpool::SubPoolStats;
pub use transaction::{Origin, PendingAuthorization, PoolTransaction, PooledTransaction, Sidecar};

use admission::IncomingTransaction;
use alloy_consensus::{
    Transaction as _,
    transaction::{Recovered, SignerRecoverable},
};
use alloy_primitives::{
    Address, B256,
    map::{HashMap, HashSet},
};
use contents::Contents;
use journal::{Entry as JournalEntry, Journal};
use parking_lot::RwLock;
use retrie_chainspec::{
    ChainSpec,
    primitives::{SealedHeader, Transaction},
};
use retrie_state::StateError;
use rules::Rules;
use sender::{Readiness, Sender, SenderAccount, Slot};
use std::{
    collections::{BTreeMap, BTreeSet, hash_map::Entry},
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};
use subpool::Kind;
use tokio::sync::{Notify, broadcast};

/// Transactions of one sender by nonce.
pub type ByNonce = BTreeMap<u64, Arc<PoolTransaction>>;

/// The transactions of one sender, as `txpool_contentFrom` shows them.
#[derive(Clone, Debug, Default)]
pub struct SenderContent {
    /// Executable ones.
    pub pending: ByNonce,
    /// All others.
    pub queued: ByNonce,
}

/// The transactions of all senders, as `txpool_content` shows them.
#[derive(Clone, Debug, Default)]
pub struct PoolContent {
    /// Executable ones.
    pub pending: BTreeMap<Address, ByNonce>,
    /// All others.
    pub queued: BTreeMap<Address, ByNonce>,
}

/// Numbers of transactions, as `txpool_status` shows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStatus {
    /// Executable ones.
    pub pending: usize,
    /// All others.
    pub queued: usize,
}

/// Figures for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Executable transactions without blobs.
    pub pending: SubPoolStats,
    /// Those that wait for lower fees.
    pub basefee: SubPoolStats,
    /// Those that wait for a nonce, funds or a larger block.
    pub queued: SubPoolStats,
    /// Those with blobs.
    pub blob: SubPoolStats,
    /// Number of senders.
    pub senders: usize,
    /// Bytes of sidecars kept of mined transactions.
    pub mined_blobs_size: usize,
    /// What came and went.
    pub counters: PoolCounters,
}

/// The transaction pool. Clones share it.
#[derive(Clone, Debug)]
pub struct Pool {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: PoolConfig,
    spec: Arc<ChainSpec>,
    contents: RwLock<Contents>,
    pending: broadcast::Sender<Arc<PoolTransaction>>,
    rejected: AtomicU64,
    /// Authorizations whose signers were recovered, and blobs whose proofs were checked.
    recovered: AtomicU64,
    proven: AtomicU64,
    journal: OnceLock<Journal>,
    /// The journal should be written anew before the next head, as it grows fast.
    journal_grown: Notify,
}

impl Pool {
    /// An empty pool at genesis.
    pub fn new(config: PoolConfig, spec: Arc<ChainSpec>) -> Self {
        let head = spec.genesis_header();
        let next = NextBlock::after(&spec, head, head.timestamp).unwrap_or_else(|_| NextBlock {
            number: head.number.saturating_add(1),
            timestamp: head.timestamp,
            gas_limit: head.gas_limit,
            base_fee: head.base_fee_per_gas,
            blob_base_fee: None,
        });
        let contents = Contents::new(&config, head.hash(), Rules::new(&spec, head, next));
        let (pending, _) = broadcast::channel(config.pending_listener_buffer.max(1));
        let shared = Shared {
            config,
            spec,
            contents: RwLock::new(contents),
            pending,
            rejected: AtomicU64::new(0),
            recovered: AtomicU64::new(0),
            proven: AtomicU64::new(0),
            journal: OnceLock::new(),
            journal_grown: Notify::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The configuration.
    pub fn config(&self) -> &PoolConfig {
        &self.shared.config
    }

    /// Follows a change of the canonical chain.
    ///
    /// `next` is the block after `head`, `mined` are the hashes of the transactions of all blocks that
    /// came, `state` is the state of `head`, and `reinserted` are the transactions of all blocks that
    /// went. Those that are in `mined` too are not taken back; the others come as
    /// [`Origin::External`].
    ///
    /// # Errors
    /// [`StateError`] if an account cannot be read. The pool is as before then.
    pub fn set_head(
        &self,
        head: &SealedHeader,
        next: NextBlock,
        mined: &[B256],
        state: &dyn HeadState,
        reinserted: Vec<Recovered<Transaction>>,
    ) -> Result<(), StateError> {
        let Shared { config, spec, contents, .. } = &*self.shared;
        let rules = Rules::new(spec, head, next);
        let mut accounts = HashMap::<Address, SenderAccount>::default();
        let senders: Vec<Address> = contents.read().senders.keys().copied().collect();
        for sender in senders.into_iter().chain(reinserted.iter().map(Recovered::signer)) {
            if let Entry::Vacant(entry) = accounts.entry(sender) {
                entry.insert(SenderAccount::read(state, sender)?);
            }
        }

        let returning = self.returning(reinserted, &accounts);
        let mut contents = contents.write();
        // Senders that came in the meantime.
        for sender in contents.senders.keys() {
            if let Entry::Vacant(entry) = accounts.entry(*sender) {
                entry.insert(SenderAccount::read(state, *sender)?);
            }
        }
        for hash in mined {
            contents.remove_mined(hash);
        }
        let rules = contents.fees.at_head(head.hash(), rules);
        contents.advance(config, rules, state.sequence(), &accounts);

        let mut journalled = Vec::new();
        for tx in returning {
            contents.mined.remove(tx.hash());
            let account = accounts.get(&tx.sender()).copied().unwrap_or_default();
            let admitted = (contents.rules.check(&tx, config))
                .and_then(|()| contents.check(config, &tx, account, false))
                .and_then(|()| contents.check_authorities(config, &tx))
                .and_then(|()| contents.admit(Arc::clone(&tx), account));
            if admitted.is_ok() {
                contents.counters.reinserted += 1;
                journalled.push(tx);
            }
        }
        contents.expire(config);
        contents.evict();
        let fresh = contents.take_fresh();
        drop(contents);
        if let Some(journal) = self.shared.journal.get() {
            let entries = journalled.iter().filter_map(|tx| JournalEntry::of(tx));
            entries.for_each(|entry| journal.append(&entry));
        }
        self.announce(fresh);
        Ok(())
    }

    /// The transactions of blocks that went, as they were in the pool, in the order of their nonces,
    /// but for those whose nonce is used in the new blocks. The signers of authorizations are recovered here, where no thread waits for the lock.
    fn returning(
        &self,
        mut gone: Vec<Recovered<Transaction>>,
        accounts: &HashMap<Address, SenderAccount>,
    ) -> Vec<Arc<PoolTransaction>> {
        gone.sort_by_key(|transaction| transaction.nonce());
        gone.retain(|transaction| {
            let account = accounts.get(&transaction.signer());
            account.is_none_or(|account| transaction.nonce() >= account.nonce)
        });
        let returning: Vec<_> = {
            let contents = self.shared.contents.read();
            gone.into_iter()
                .map(|tx| Arc::new(contents.recalled(tx, &self.shared.config)))
                .collect()
        };
        for tx in &returning {
            tx.authorizations();
        }
        returning
    }

    // -- dev chains -------------------------------------------------------------------------------

    /// Whether there are transactions that nobody has signed; see [`add_unsigned`](Self::add_unsigned).
    pub(crate) fn has_unsigned(&self) -> bool {
        self.shared.contents.read().unsigned > 0
    }

    /// Sets the base fee per gas (wei) of the next block, or takes that back. The next head ends it.
    pub(crate) fn set_next_base_fee(&self, base_fee: Option<u64>) {
        let mut contents = self.shared.contents.write();
        let before = Arc::clone(&contents.rules);
        let rules = contents.fees.set(base_fee, &before);
        contents.set_rules(&self.shared.config, rules);
        contents.evict();
        let fresh = contents.take_fresh();
        drop(contents);
        self.announce(fresh);
    }

    /// Makes this hold exactly `txs`, which it held at some time before, as far as they are valid.
    pub(crate) fn restore(&self, txs: &[Arc<PoolTransaction>], heads: &dyn Heads) {
        let wanted: HashSet<B256> = txs.iter().map(|tx| *tx.hash()).collect();
        for tx in self.pooled() {
            if !wanted.contains(tx.hash()) {
                self.remove(tx.hash());
            }
        }
        for tx in txs {
            let Some(JournalEntry { transaction, origin, sender }) = JournalEntry::of(tx) else {
                continue;
            };
            let incoming =
                IncomingTransaction { transaction, origin, unsigned_by: sender, is_restored: true };
            match self.try_add(incoming, heads) {
                Ok(_) | Err(PoolError::AlreadyKnown) => {}
                Err(error) => tracing::debug!(hash = %tx.hash(), %error, "not taken back"),
            }
        }
    }

    // -- journal ----------------------------------------------------------------------------------

    /// Takes back what the journal in `path` holds, and keeps it from here on. Returns how many
    /// transactions came back; those that are mined, or are valid no more, do not.
    ///
    /// # Errors
    /// [`JournalError`] if the file cannot be read or written.
    pub fn keep_journal(&self, path: &Path, heads: &dyn Heads) -> Result<usize, JournalError> {
        let (journal, entries) = Journal::open(path)?;
        let mut restored = 0;
        for JournalEntry { transaction, origin, sender } in entries {
            let hash = *transaction.tx_hash();
            let incoming =
                IncomingTransaction { transaction, origin, unsigned_by: sender, is_restored: true };
            match self.try_add(incoming, heads) {
                Ok(_) => restored += 1,
                Err(error) => tracing::debug!(%hash, %error, "not taken from the journal"),
            }
        }
        journal.rewrite(|| entries_of(self.pooled()))?;
        // A pool has one journal: a second one is not kept.
        let _ = self.shared.journal.set(journal);
        Ok(restored)
    }

    /// Waits until the journal has grown so long that it should be tidied.
    pub(crate) async fn journal_grown(&self) {
        self.shared.journal_grown.notified().await;
    }

    /// Forgets how mined transactions came here, but for these, whose blocks are not durable yet.
    pub(crate) fn forget_mined(&self, but: &HashSet<B256>) {
        self.shared.contents.write().mined.retain(|hash, _| but.contains(hash));
    }

    /// Writes the journal anew if it has grown too long, or if `must`. `undurable` gives the
    /// transactions of all blocks that a killed process would forget; it is asked for once the
    /// transactions of the pool are taken down, so that none slips through between both.
    pub(crate) fn tidy_journal(
        &self,
        must: bool,
        undurable: impl FnOnce() -> Vec<Recovered<Transaction>>,
    ) {
        let Some(journal) = self.shared.journal.get() else { return };
        if !must && !journal.is_large() {
            return;
        }
        let entries = || {
            let mut all = self.pooled();
            // First those that come first: nonces ascend.
            all.splice(0..0, self.recall(undurable()));
            entries_of(all)
        };
        if let Err(error) = journal.rewrite(entries) {
            tracing::error!(%error, "the journal of the transaction pool stays as it is");
        }
    }

    /// All transactions, those of a sender by nonce.
    pub(crate) fn pooled(&self) -> Vec<Arc<PoolTransaction>> {
        let contents = self.shared.contents.read();
        let slots = contents.senders.values().flat_map(|sender| sender.slots.values());
        slots.map(|slot| Arc::clone(&slot.tx)).collect()
    }

    /// Transactions that were mined, as they were in the pool.
    fn recall(&self, mined: Vec<Recovered<Transaction>>) -> Vec<Arc<PoolTransaction>> {
        let contents = self.shared.contents.read();
        let of = |transaction: Recovered<Transaction>| {
            let is_unsigned =
                transaction.inner().recover_signer().ok() != Some(transaction.signer());
            let tx = contents.recalled(transaction, &self.shared.config);
            Arc::new(if is_unsigned { tx.unsigned() } else { tx })
        };
        mined.into_iter().map(of).collect()
    }

    fn announce(&self, fresh: Vec<Arc<PoolTransaction>>) {
        for tx in fresh {
            // Fails when nobody listens.
            let _ = self.shared.pending.send(tx);
        }
    }

    /// Takes a transaction out. Those that follow it stay and wait.
    pub fn remove(&self, hash: &B256) -> Option<Arc<PoolTransaction>> {
        let mut contents = self.shared.contents.write();
        let tx = contents.remove(hash);
        contents.evict();
        tx
    }

    /// The transaction with this hash.
    pub fn get(&self, hash: &B256) -> Option<Arc<PoolTransaction>> {
        self.shared.contents.read().get(hash).map(|slot| Arc::clone(&slot.tx))
    }

    /// Whether a transaction is here and the next block can take it.
    pub fn is_pending(&self, hash: &B256) -> bool {
        let contents = self.shared.contents.read();
        contents.get(hash).is_some_and(|slot| slot.readiness == Some(Readiness::Executable))
    }

    /// The transactions that a block with these fees (wei) can take, best first, as they are now.
    ///
    /// Without `blob_base_fee` those with blobs are left out.
    pub fn best(&self, base_fee: u64, blob_base_fee: Option<u128>) -> BestTransactions {
        self.shared.contents.read().best(base_fee, blob_base_fee)
    }

    /// All transactions that the next block can take, in no order.
    pub fn executable(&self) -> Vec<Arc<PoolTransaction>> {
        let contents = self.shared.contents.read();
        let slots = contents.senders.values().flat_map(|sender| sender.slots.values());
        let executable = slots.filter(|slot| slot.readiness == Some(Readiness::Executable));
        executable.map(|slot| Arc::clone(&slot.tx)).collect()
    }

    /// The nonce after the pooled transactions of `sender` that follow its account's without a gap.
    /// `None` if none of its transactions are here.
    pub fn nonce(&self, sender: &Address) -> Option<u64> {
        self.shared.contents.read().senders.get(sender).map(Sender::next_nonce)
    }

    /// All transactions.
    pub fn content(&self) -> PoolContent {
        let mut content = PoolContent::default();
        for (address, sender) in &self.shared.contents.read().senders {
            let SenderContent { pending, queued } = content_of(sender);
            if !pending.is_empty() {
                content.pending.insert(*address, pending);
            }
            if !queued.is_empty() {
                content.queued.insert(*address, queued);
            }
        }
        content
    }

    /// The transactions of one sender.
    pub fn content_from(&self, sender: &Address) -> SenderContent {
        self.shared.contents.read().senders.get(sender).map(content_of).unwrap_or_default()
    }

    /// How many transactions there are.
    pub fn status(&self) -> PoolStatus {
        let contents = self.shared.contents.read();
        let pools = Kind::ALL.map(|kind| contents.subpools.get(kind).stats);
        let pending = pools.iter().map(|stats| stats.executable).sum();
        let all: usize = pools.iter().map(|stats| stats.txs).sum();
        PoolStatus { pending, queued: all - pending }
    }

    /// Figures for metrics.
    pub fn stats(&self) -> PoolStats {
        let contents = self.shared.contents.read();
        let stats = |kind| contents.subpools.get(kind).stats;
        PoolStats {
            pending: stats(Kind::Pending),
            basefee: stats(Kind::BaseFee),
            queued: stats(Kind::Queued),
            blob: stats(Kind::Blob),
            senders: contents.senders.len(),
            mined_blobs_size: contents.blobs.mined_size(),
            counters: PoolCounters {
                rejected: self.shared.rejected.load(Ordering::Relaxed),
                authorizations_recovered: self.shared.recovered.load(Ordering::Relaxed),
                blobs_proven: self.shared.proven.load(Ordering::Relaxed),
                ..contents.counters
            },
        }
    }

    /// The blobs with these versioned hashes, of pooled and of recently mined transactions, in the
    /// order asked for.
    pub fn blobs(&self, versioned_hashes: &[B256]) -> Vec<Option<PooledBlob>> {
        let contents = self.shared.contents.read();
        versioned_hashes.iter().map(|versioned| contents.blobs.blob(versioned)).collect()
    }

    /// The sidecar of a pooled or recently mined transaction.
    pub fn sidecar(&self, hash: &B256) -> Option<Arc<Sidecar>> {
        self.shared.contents.read().blobs.sidecar(hash)
    }

    /// Announces every transaction from here on when it first becomes executable, those of
    /// [`Origin::Private`] included. Who reads too slowly loses the oldest.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<PoolTransaction>> {
        self.shared.pending.subscribe()
    }

    /// Senders that are configured as local, and those of local transactions here.
    pub fn local_senders(&self) -> BTreeSet<Address> {
        let contents = self.shared.contents.read();
        let has_local = |sender: &Sender| sender.slots.values().any(|slot| slot.tx.is_local);
        let pooled = contents.senders.iter().filter(|(_, sender)| has_local(sender));
        let configured = self.shared.config.local_senders.iter().copied();
        pooled.map(|(address, _)| *address).chain(configured).collect()
    }

    /// Looks through everything here.
    ///
    /// # Errors
    /// Says what is inconsistent.
    #[cfg(feature = "testkit")]
    pub fn check_invariants(&self) -> Result<(), String> {
        self.shared.contents.read().check_invariants(&self.shared.config)
    }
}

fn entries_of(txs: Vec<Arc<PoolTransaction>>) -> impl Iterator<Item = JournalEntry> {
    txs.into_iter().filter_map(|tx| JournalEntry::of(&tx))
}

fn content_of(sender: &Sender) -> SenderContent {
    let is_pending = |slot: &Slot| slot.readiness == Some(Readiness::Executable);
    let by_nonce = |(nonce, slot): (&u64, &Slot)| (*nonce, Arc::clone(&slot.tx));
    let (pending, queued): (Vec<_>, Vec<_>) =
        sender.slots.iter().partition(|(_, slot)| is_pending(slot));
    SenderContent {
        pending: pending.into_iter().map(by_nonce).collect(),
        queued: queued.into_iter().map(by_nonce).collect(),
    }
}
