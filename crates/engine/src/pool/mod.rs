//! The transaction pool: transactions that wait for a block.
//!
//! ```text
//!  add -----------> rules of the next block -> sender's account -> other transactions --.
//!   (RPC, network)   (no state, no lock)        (head state)        (lock)              |
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
//! * **sidecar**: blobs with commitments and proofs. They stay in memory, also for a while after the
//!   transaction is mined: it may come back with a reorg, and consensus clients ask for its blobs.
//!
//! # Concurrency
//! | work | done by | lock |
//! |---|---|---|
//! | signature, fees, gas, blob proofs, authorities | the thread that adds | none |
//! | place among the sender's transactions, eviction | the thread that adds | write, O(log n) and what follows in the sender's nonces |
//! | accounts of all senders at a new head | the thread of the live tree | none |
//! | judging all transactions at a new head | the same | write, O(n log n) |
//! | [`Pool::best`] | the thread that builds | read, once; the iteration holds none |
//!
//! # Assumptions
//! Heads are set by one thread, in order. A transaction is judged by the account as the pool knows it,
//! or by the state that [`Pool::add`] is given if the sender is new; should that state be older than
//! the pool's head, the next head puts it right.

mod best;
mod blobs;
mod config;
mod contents;
mod error;
mod rules;
mod sender;
mod subpool;
mod transaction;

pub use best::BestTransactions;
pub use blobs::PooledBlob;
pub use config::{PoolConfig, SubPoolLimit};
pub use contents::PoolCounters;
pub use error::PoolError;
pub use rules::NextBlock;
pub use sender::HeadState;
pub use subpool::SubPoolStats;
pub use transaction::{Origin, PoolTransaction, PooledTransaction, Sidecar};

use alloy_consensus::{
    Transaction as _,
    transaction::{Recovered, SignerRecoverable, TxHashRef},
};
use alloy_primitives::{Address, B256, map::HashMap};
use contents::Contents;
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
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use subpool::Kind;
use tokio::sync::broadcast;

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
        let contents = Contents::new(&config, Rules::new(&spec, head, next));
        let (pending, _) = broadcast::channel(config.pending_listener_buffer.max(1));
        let rejected = AtomicU64::new(0);
        let contents = RwLock::new(contents);
        Self { shared: Arc::new(Shared { config, spec, contents, pending, rejected }) }
    }

    /// The configuration.
    pub fn config(&self) -> &PoolConfig {
        &self.shared.config
    }

    /// Adds a transaction; `state` is that of the head. Returns its hash.
    ///
    /// # Errors
    /// [`PoolError`] saying why it is refused.
    pub fn add(
        &self,
        transaction: PooledTransaction,
        origin: Origin,
        state: &dyn HeadState,
    ) -> Result<B256, PoolError> {
        let result = self.try_add(transaction, origin, state);
        if result.is_err() {
            self.shared.rejected.fetch_add(1, Ordering::Relaxed);
        }
        result
    }

    fn try_add(
        &self,
        transaction: PooledTransaction,
        origin: Origin,
        state: &dyn HeadState,
    ) -> Result<B256, PoolError> {
        let Shared { config, contents, .. } = &*self.shared;
        let (transaction, sidecar) = transaction::split(transaction);
        let hash = *transaction.tx_hash();
        let rules = {
            let contents = contents.read();
            if contents.by_hash.contains_key(&hash) {
                return Err(PoolError::AlreadyKnown);
            }
            Arc::clone(&contents.rules)
        };
        let sender = transaction.recover_signer().map_err(|_| PoolError::InvalidSignature)?;
        let tx = Arc::new(PoolTransaction::new(
            Recovered::new_unchecked(transaction, sender),
            sidecar.map(Arc::new),
            origin,
            config.is_local(origin, &sender),
        ));
        rules.check(&tx, config)?;

        // What is cheap goes first: blobs and authorities take milliseconds each.
        let known = contents.read().account(&sender);
        let account = known.map_or_else(|| SenderAccount::read(state, sender), Ok)?;
        account.check(&tx)?;
        tx.authorities();
        if tx.is_blob() {
            contents.read().check(config, &tx, account)?;
            rules::check_proofs(&tx)?;
        }

        let fresh = {
            let mut contents = contents.write();
            if !Arc::ptr_eq(&rules, &contents.rules) {
                contents.rules.check(&tx, config)?;
            }
            let account = contents.account(&sender).unwrap_or(account);
            contents.check(config, &tx, account)?;
            let admitted = contents.admit(tx, account);
            let fresh = contents.take_fresh();
            admitted.map(|()| fresh)
        }?;
        self.announce(fresh);
        Ok(hash)
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
        mut reinserted: Vec<Recovered<Transaction>>,
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
        contents.advance(config, rules, &accounts);

        reinserted.sort_by_key(|transaction| transaction.nonce());
        for transaction in reinserted {
            let sender = transaction.signer();
            let sidecar = contents.blobs.sidecar(transaction.tx_hash());
            let is_local = config.is_local(Origin::External, &sender);
            let tx = PoolTransaction::new(transaction, sidecar, Origin::External, is_local);
            let account = accounts.get(&sender).copied().unwrap_or_default();
            let admitted = (contents.rules.check(&tx, config))
                .and_then(|()| contents.check(config, &tx, account))
                .and_then(|()| contents.admit(Arc::new(tx), account));
            if admitted.is_ok() {
                contents.counters.reinserted += 1;
            }
        }
        contents.expire(config);
        contents.evict();
        let fresh = contents.take_fresh();
        drop(contents);
        self.announce(fresh);
        Ok(())
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

    /// The transactions that a block with these fees (wei) can take, best first, as they are now.
    ///
    /// Without `blob_base_fee` those with blobs are left out.
    pub fn best(&self, base_fee: u64, blob_base_fee: Option<u128>) -> BestTransactions {
        self.shared.contents.read().best(base_fee, blob_base_fee)
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
