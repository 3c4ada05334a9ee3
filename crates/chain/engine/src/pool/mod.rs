//! [`TransactionPool`]: transactions that wait for a block.
//!
//! ```text
//!  add -----------> rules of the next block -> sender's account -> other transactions
//!   (RPC, network)   (no state, no lock)        (head state)        (lock)     |
//!                     order of all checks, cheapest first: admission.rs        |
//!                                                                              v
//!  set_head ------> drop mined and stale, update readiness,       ----> by sender, by nonce
//!   (each new head)  reinsert from reverted blocks                       /     |       \
//!                                                                    best    blobs    subscribe
//! ```
//!
//! # Vocabulary
//! * **executable**: the next block can include the transaction. No nonce before it is missing, the
//!   sender can pay for it and all transactions before it, and all of them pay the next block's
//!   fees.
//! * **sub-pools**: *pending* holds executable transactions, *basefee* transactions that only wait
//!   for lower fees, *queued* transactions that wait for a nonce, for funds or for a larger block;
//!   *blob* holds all transactions with blobs, executable or not. Each has a limit; the worst
//!   transactions are evicted first.
//! * **local** ([`PoolConfig::is_local`]): a transaction of this node's users, exempt from most
//!   limits and never evicted. When a sub-pool is full of local transactions, it refuses further
//!   ones.
//! * **pending authorization** ([`PendingAuthorization`]): an authorization (EIP-7702) in a pooled
//!   transaction, for another account or the sender's own. It counts against the transactions of
//!   that account that it can overtake: those from its nonce on, if it is for this chain and the
//!   account's nonce is not higher. docs/operations.md lists which limits strangers can use up, and
//!   at what cost.
//! * **sidecar** ([`BlobSidecar`]): blobs with commitments and proofs. They stay in memory, also
//!   for a while after the transaction is mined, since a reorg may bring it back and consensus
//!   clients request its blobs.
//!
//! # Concurrency
//! | work | done by | lock |
//! |---|---|---|
//! | signature, fees, gas, blob proofs, signers of authorizations | the thread that calls `add` | none |
//! | limits, prices, room: refusals | the same | read |
//! | insertion among the sender's transactions, eviction | the same | write, O(log n) plus the sender's later nonces |
//! | reading the accounts of all senders at a new head | the thread `pool` ([`PoolMaintainer`](crate::PoolMaintainer)) | none |
//! | readiness of all transactions at a new head | the same | write, O(n log n) |
//! | [`TransactionPool::best`] | the thread that builds | read, once; the iteration holds none |
//!
//! # Assumptions
//! One thread sets heads, in order. The pool checks a transaction against its own record of the
//! sender's account. The account of a new sender is read from the present head, which may change
//! before the transaction is inserted. A state older than the pool's head is not used, since there
//! may be no later head to correct it. A newer state is used, since the pool will soon move to its
//! head.

mod admission;
mod best;
mod blobs;
mod cells;
mod config;
mod error;
mod inner;
mod journal;
mod rules;
mod sender;
mod subpool;
mod transaction;

pub use best::BestTransactions;
pub use blobs::PooledBlob;
pub use config::{PoolConfig, SubPoolLimit};
pub use error::{PoolConflictError, PoolError, SenderError, SidecarError, TransactionError};
pub use inner::PoolCounters;
pub use journal::JournalError;
pub use retrie_chainspec::CellMask;
pub use rules::NextBlock;
pub use sender::{HeadState, HeadStateProvider};
pub use subpool::SubPoolStats;
pub use transaction::{
    BlobSidecar, PendingAuthorization, PoolTransaction, PooledTransaction, TransactionOrigin,
};

use admission::IncomingTransaction;
use alloy_consensus::{
    Transaction as _,
    transaction::{Recovered, SignerRecoverable},
};
use alloy_eips::eip4844::BlobCellsAndProofsV1;
use alloy_primitives::{
    Address, B256,
    map::{HashMap, HashSet},
};
use cells::CellCache;
use inner::PoolInner;
use journal::{JournalEntry, PoolJournal};
use parking_lot::{Mutex, RwLock};
use rayon::iter::{IndexedParallelIterator, IntoParallelRefIterator, ParallelIterator};
use retrie_chainspec::{
    ChainSpec,
    primitives::{SealedHeader, Transaction},
};
use retrie_state::StateError;
use rules::PoolRules;
use sender::{PoolSender, PoolSlot, SenderAccount, TxReadiness};
use std::{
    collections::{BTreeMap, BTreeSet, hash_map::Entry},
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};
use subpool::SubPoolKind;
use tokio::sync::{Notify, broadcast};

/// Transactions of one sender by nonce.
pub type TransactionsByNonce = BTreeMap<u64, Arc<PoolTransaction>>;

/// The transactions of one sender, as `txpool_contentFrom` shows them.
#[derive(Clone, Debug, Default)]
pub struct SenderContent {
    /// Executable transactions.
    pub pending: TransactionsByNonce,
    /// All other transactions.
    pub queued: TransactionsByNonce,
}

/// The transactions of all senders, as `txpool_content` shows them.
#[derive(Clone, Debug, Default)]
pub struct PoolContent {
    /// Executable transactions.
    pub pending: BTreeMap<Address, TransactionsByNonce>,
    /// All other transactions.
    pub queued: BTreeMap<Address, TransactionsByNonce>,
}

/// Numbers of transactions, as `txpool_status` shows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStatus {
    /// Executable transactions.
    pub pending: usize,
    /// All other transactions.
    pub queued: usize,
}

/// Figures for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolMetrics {
    /// Executable transactions without blobs.
    pub pending: SubPoolStats,
    /// Transactions that wait for lower fees.
    pub basefee: SubPoolStats,
    /// Transactions that wait for a nonce, funds or a larger block.
    pub queued: SubPoolStats,
    /// Transactions with blobs.
    pub blob: SubPoolStats,
    /// Number of senders.
    pub senders: usize,
    /// Bytes of the sidecars of mined transactions.
    pub mined_blobs_size: usize,
    /// Counters since the start.
    pub counters: PoolCounters,
}

/// The transaction pool. Clones share it.
#[derive(Clone, Debug)]
pub struct TransactionPool {
    shared: Arc<PoolShared>,
}

#[derive(Debug)]
struct PoolShared {
    config: PoolConfig,
    spec: Arc<ChainSpec>,
    contents: RwLock<PoolInner>,
    cells: CellCache,
    pending: broadcast::Sender<Arc<PoolTransaction>>,
    rejected: AtomicU64,
    /// Number of authorizations whose signers were recovered, and of blobs whose proofs were
    /// checked.
    recovered: AtomicU64,
    proven: AtomicU64,
    /// Not before then are proofs checked of a transaction that is refused all the same.
    next_vain_check: Mutex<Instant>,
    journal: OnceLock<PoolJournal>,
    /// Signals that the journal grows fast and should be rewritten before the next head.
    journal_grown: Notify,
}

impl TransactionPool {
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
        let contents = PoolInner::new(&config, head.hash(), PoolRules::new(&spec, head, next));
        let (pending, _) = broadcast::channel(config.pending_listener_buffer.max(1));
        let shared = PoolShared {
            config,
            spec,
            contents: RwLock::new(contents),
            cells: CellCache::default(),
            pending,
            rejected: AtomicU64::new(0),
            recovered: AtomicU64::new(0),
            proven: AtomicU64::new(0),
            next_vain_check: Mutex::new(Instant::now()),
            journal: OnceLock::new(),
            journal_grown: Notify::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The configuration.
    pub fn config(&self) -> &PoolConfig {
        &self.shared.config
    }

    /// Moves the pool to a new head.
    ///
    /// `next` is the block after `head`, `mined` are the hashes of the transactions in all
    /// committed blocks, `state` is the state of `head`, and `reinserted` are the transactions of
    /// all reverted blocks. Transactions that are also in `mined` are not reinserted; the others
    /// come in as [`TransactionOrigin::External`].
    ///
    /// # Errors
    /// [`StateError`] if an account cannot be read. The pool is unchanged then.
    pub fn set_head(
        &self,
        head: &SealedHeader,
        next: NextBlock,
        mined: &[B256],
        state: &dyn HeadState,
        reinserted: Vec<Recovered<Transaction>>,
    ) -> Result<(), StateError> {
        let PoolShared { config, spec, contents, .. } = &*self.shared;
        let rules = PoolRules::new(spec, head, next);
        let mut accounts = HashMap::<Address, SenderAccount>::default();
        let senders: Vec<Address> = contents.read().senders.keys().copied().collect();
        for sender in senders.into_iter().chain(reinserted.iter().map(Recovered::signer)) {
            if let Entry::Vacant(entry) = accounts.entry(sender) {
                entry.insert(SenderAccount::read(state, sender)?);
            }
        }

        let returning = self.returning(reinserted, &accounts);
        let mut contents = contents.write();
        // Senders that were added in the meantime.
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
            if contents.admit_returning(config, &tx, account).is_ok() {
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

    /// The transactions of reverted blocks as they were in the pool, in the order of their nonces,
    /// without those whose nonce is used in the new blocks. Recovers the signers of authorizations
    /// here, before the lock is taken.
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
                .map(|tx| Arc::new(contents.as_pooled(tx, &self.shared.config)))
                .collect()
        };
        for tx in &returning {
            tx.authorizations();
        }
        returning
    }

    // -- dev chains -------------------------------------------------------------------------------

    /// Whether the pool has unsigned transactions; see [`add_unsigned`](Self::add_unsigned).
    pub(crate) fn has_unsigned(&self) -> bool {
        self.shared.contents.read().unsigned > 0
    }

    /// Sets or clears the base fee per gas (wei) of the next block. The next head clears it.
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

    /// Restores the content of the pool to `txs`, an earlier content, as far as they are still
    /// valid.
    pub(crate) fn restore(&self, txs: &[Arc<PoolTransaction>], heads: &dyn HeadStateProvider) {
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

    /// Loads the transactions of the journal in `path`, and writes to this journal from now on.
    /// Returns the number of restored transactions; mined and invalid ones are not restored.
    ///
    /// # Errors
    /// [`JournalError`] if the file cannot be read or written.
    pub fn keep_journal(
        &self,
        path: &Path,
        heads: &dyn HeadStateProvider,
    ) -> Result<usize, JournalError> {
        let (journal, entries) = PoolJournal::open(path)?;
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
        // A pool has one journal: a second one is ignored.
        let _ = self.shared.journal.set(journal);
        Ok(restored)
    }

    /// Waits until the journal has grown so long that it should be rewritten.
    pub(crate) async fn journal_grown(&self) {
        self.shared.journal_grown.notified().await;
    }

    /// Forgets the origin of mined transactions, except of `but`, whose blocks are not durable yet.
    pub(crate) fn forget_mined(&self, but: &HashSet<B256>) {
        self.shared.contents.write().mined.retain(|hash, _| but.contains(hash));
    }

    /// Rewrites the journal if it has grown too long, or if `must`. `undurable` gives the
    /// transactions of all blocks that a killed process would lose. It is called after the pool's
    /// transactions are listed, so that a transaction which moves into a block in between is not
    /// missed.
    pub(crate) fn maybe_rewrite_journal(
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
            // Mined transactions first, so that nonces ascend.
            all.splice(0..0, self.pooled_forms(undurable()));
            entries_of(all)
        };
        if let Err(error) = journal.rewrite(entries) {
            tracing::error!(%error, "the journal of the transaction pool stays as it is");
        }
    }

    /// All transactions; those of one sender in the order of their nonces.
    pub(crate) fn pooled(&self) -> Vec<Arc<PoolTransaction>> {
        let contents = self.shared.contents.read();
        let slots = contents.senders.values().flat_map(|sender| sender.slots.values());
        slots.map(|slot| Arc::clone(&slot.tx)).collect()
    }

    /// Mined transactions, as they were in the pool.
    fn pooled_forms(&self, mined: Vec<Recovered<Transaction>>) -> Vec<Arc<PoolTransaction>> {
        let contents = self.shared.contents.read();
        let of = |transaction: Recovered<Transaction>| {
            let is_unsigned =
                transaction.inner().recover_signer().ok() != Some(transaction.signer());
            let tx = contents.as_pooled(transaction, &self.shared.config);
            Arc::new(if is_unsigned { tx.unsigned() } else { tx })
        };
        mined.into_iter().map(of).collect()
    }

    fn announce(&self, fresh: Vec<Arc<PoolTransaction>>) {
        for tx in fresh {
            // It fails without subscribers, and may be ignored.
            let _ = self.shared.pending.send(tx);
        }
    }

    /// Removes a transaction. Later nonces of its sender stay and wait.
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

    /// Whether a transaction is in the pool and executable.
    pub fn is_pending(&self, hash: &B256) -> bool {
        let contents = self.shared.contents.read();
        contents.get(hash).is_some_and(|slot| slot.readiness == Some(TxReadiness::Executable))
    }

    /// The transactions that a block with these fees (wei) can include, best first: a snapshot.
    ///
    /// Without `blob_base_fee` transactions with blobs are left out.
    pub fn best(&self, base_fee: u64, blob_base_fee: Option<u128>) -> BestTransactions {
        self.shared.contents.read().best(base_fee, blob_base_fee)
    }

    /// All executable transactions, in no particular order.
    pub fn executable(&self) -> Vec<Arc<PoolTransaction>> {
        let contents = self.shared.contents.read();
        let slots = contents.senders.values().flat_map(|sender| sender.slots.values());
        let executable = slots.filter(|slot| slot.readiness == Some(TxReadiness::Executable));
        executable.map(|slot| Arc::clone(&slot.tx)).collect()
    }

    /// The next nonce of `sender`: the first one, from its account's nonce on, without a pooled
    /// transaction. `None` if the pool has no transaction of this sender.
    pub fn nonce(&self, sender: &Address) -> Option<u64> {
        self.shared.contents.read().senders.get(sender).map(PoolSender::next_nonce)
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

    /// Numbers of transactions.
    pub fn status(&self) -> PoolStatus {
        let contents = self.shared.contents.read();
        let pools = SubPoolKind::ALL.map(|kind| contents.subpools.get(kind).stats);
        let pending = pools.iter().map(|stats| stats.executable).sum();
        let all: usize = pools.iter().map(|stats| stats.txs).sum();
        PoolStatus { pending, queued: all - pending }
    }

    /// Figures for metrics.
    pub fn stats(&self) -> PoolMetrics {
        let contents = self.shared.contents.read();
        let stats = |kind| contents.subpools.get(kind).stats;
        PoolMetrics {
            pending: stats(SubPoolKind::Pending),
            basefee: stats(SubPoolKind::BaseFee),
            queued: stats(SubPoolKind::Queued),
            blob: stats(SubPoolKind::Blob),
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
    /// order of the hashes.
    pub fn blobs(&self, versioned_hashes: &[B256]) -> Vec<Option<PooledBlob>> {
        let contents = self.shared.contents.read();
        versioned_hashes.iter().map(|versioned| contents.blobs.blob(versioned)).collect()
    }

    /// Cells of the blobs with these versioned hashes, as [`blobs`](Self::blobs) finds them: those
    /// of the mask, in ascending order of their indices, with their proofs. Blobs with one proof
    /// count as unknown.
    ///
    /// Takes milliseconds for each blob that it extends, and uses all cores.
    pub fn blob_cells(
        &self,
        versioned_hashes: &[B256],
        mask: CellMask,
    ) -> Vec<Option<BlobCellsAndProofsV1>> {
        let blobs = versioned_hashes.par_iter().zip(self.blobs(versioned_hashes));
        blobs.map(|(hash, blob)| self.shared.cells.of_blob(hash, &blob?, mask)).collect()
    }

    /// How many of these blobs [`blob_cells`](Self::blob_cells) would extend.
    pub fn blobs_to_extend(&self, versioned_hashes: &[B256]) -> usize {
        let cells = &self.shared.cells;
        versioned_hashes.iter().filter(|hash| !cells.has_extension(hash)).count()
    }

    /// The sidecar of a pooled or recently mined transaction.
    pub fn sidecar(&self, hash: &B256) -> Option<Arc<BlobSidecar>> {
        self.shared.contents.read().blobs.sidecar(hash)
    }

    /// Subscribes to transactions: each is announced when it first becomes executable, those of
    /// [`TransactionOrigin::Private`] included. A slow subscriber loses the oldest announcements.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<PoolTransaction>> {
        self.shared.pending.subscribe()
    }

    /// Senders that are configured as local, and senders of local transactions in the pool.
    pub fn local_senders(&self) -> BTreeSet<Address> {
        let contents = self.shared.contents.read();
        let has_local = |sender: &PoolSender| sender.slots.values().any(|slot| slot.tx.is_local);
        let pooled = contents.senders.iter().filter(|(_, sender)| has_local(sender));
        let configured = self.shared.config.local_senders.iter().copied();
        pooled.map(|(address, _)| *address).chain(configured).collect()
    }

    /// Checks that all indexes of the pool are consistent.
    ///
    /// # Errors
    /// A description of the inconsistency.
    #[cfg(feature = "testkit")]
    pub fn check_invariants(&self) -> Result<(), String> {
        self.shared.contents.read().check_invariants(&self.shared.config)
    }
}

fn entries_of(txs: Vec<Arc<PoolTransaction>>) -> impl Iterator<Item = JournalEntry> {
    txs.into_iter().filter_map(|tx| JournalEntry::of(&tx))
}

fn content_of(sender: &PoolSender) -> SenderContent {
    let is_pending = |slot: &PoolSlot| slot.readiness == Some(TxReadiness::Executable);
    let by_nonce = |(nonce, slot): (&u64, &PoolSlot)| (*nonce, Arc::clone(&slot.tx));
    let (pending, queued): (Vec<_>, Vec<_>) =
        sender.slots.iter().partition(|(_, slot)| is_pending(slot));
    SenderContent {
        pending: pending.into_iter().map(by_nonce).collect(),
        queued: queued.into_iter().map(by_nonce).collect(),
    }
}
