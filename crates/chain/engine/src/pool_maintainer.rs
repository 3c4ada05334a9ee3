//! [`PoolMaintainer`]: moves the pool to each new head.

use crate::{
    EngineError, LiveChain, PostState,
    pool::{HeadState, HeadStateProvider, NextBlock, TransactionPool},
};
use alloy_consensus::transaction::Recovered;
use alloy_primitives::{
    Address, B256, Bytes,
    map::{HashMap, HashSet},
};
use parking_lot::Mutex;
use retrie_chainspec::primitives::Transaction;
use retrie_execution::CodeReader;
use retrie_pipeline::{HeadChange, InvalidBlockError, PipelineError};
use retrie_state::{Account, StateError, StateReader, StoreError};
use std::{
    fmt,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};
use tokio::sync::{
    broadcast::{Receiver, error::RecvError},
    watch,
};

impl HeadState for PostState {
    fn sequence(&self) -> u64 {
        self.view().sequence()
    }

    fn account(&self, address: Address) -> Result<Option<Account>, StateError> {
        StateReader::account(self, &address)
    }

    fn code(&self, hash: &B256) -> Result<Option<Bytes>, StateError> {
        CodeReader::code(self, hash)
    }
}

impl HeadStateProvider for LiveChain {
    fn latest(&self) -> Result<Box<dyn HeadState + '_>, StateError> {
        match self.head_state() {
            Ok(state) => Ok(Box::new(state)),
            Err(PipelineError::State(error)) => Err(error),
            Err(error) => Err(StoreError::new("reading the head", error).into()),
        }
    }
}

/// Moves a pool to each new head, on the thread `pool`, until the live chain is dropped.
#[derive(Clone)]
pub struct PoolMaintainer {
    pool: TransactionPool,
    seen: watch::Receiver<B256>,
    /// Held while the pool moves to a head, so that heads are set one after the other.
    advancing: Arc<Mutex<()>>,
}

impl fmt::Debug for PoolMaintainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolMaintainer").field("seen", &*self.seen.borrow()).finish()
    }
}

impl PoolMaintainer {
    /// Starts the thread; the pool is at the present head when this returns.
    ///
    /// # Errors
    /// If the state of the head cannot be read, or the thread cannot be started.
    pub fn start(live: &LiveChain, pool: TransactionPool) -> Result<Self, EngineError> {
        let mut changes = live.subscribe();
        advance(live, &pool, &[])?;
        let (tell, seen) = watch::channel(live.head().hash());
        let live = live.downgrade();
        let advancing = Arc::new(Mutex::new(()));
        let maintainer = Self { pool: pool.clone(), seen, advancing: advancing.clone() };
        let run = move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().build() {
                Ok(runtime) => runtime,
                Err(error) => {
                    tracing::error!(%error, "the pool cannot wait for heads and stays at this one");
                    return;
                }
            };
            loop {
                let mut batch = Vec::new();
                match runtime.block_on(next_event(&mut changes, &pool)) {
                    PoolEvent::Head(change) => batch.push(change),
                    // `advance` reads all accounts again, which covers missed heads.
                    PoolEvent::MissedHeads => {}
                    PoolEvent::JournalGrown => {
                        let Some(live) = live.upgrade() else { return };
                        pool.maybe_rewrite_journal(false, || transactions_in_memory(&live));
                        continue;
                    }
                    PoolEvent::End => return,
                }
                while let Ok(change) = changes.try_recv() {
                    batch.push(change);
                }
                let Some(live) = live.upgrade() else { return };
                let one_by_one = advancing.lock();
                let advanced = advance(&live, &pool, &batch);
                drop(one_by_one);
                if let Err(error) = advanced {
                    tracing::error!(%error, "the pool cannot follow the head");
                }
                // Transactions of durable blocks leave the journal, and blocks that were removed by
                // hand must not return their transactions after a restart.
                let is_dropped = batch.iter().any(|change| change.is_dropped);
                pool.maybe_rewrite_journal(is_dropped, || transactions_in_memory(&live));
                // Also after an error, since `wait_for` may be waiting.
                tell.send_replace(live.head().hash());
            }
        };
        std::thread::Builder::new().name("pool".into()).spawn(run).map_err(EngineError::Thread)?;
        Ok(maintainer)
    }

    /// Reads all accounts again after the state of the head has changed and the head has not (dev
    /// chains). May block.
    pub(crate) fn refresh(&self, live: &LiveChain) -> Result<(), PipelineError> {
        let _one_by_one = self.advancing.lock();
        advance(live, &self.pool, &[])
    }

    /// Whether the thread is alive.
    pub fn is_running(&self) -> bool {
        // The thread holds the sender.
        self.seen.has_changed().is_ok()
    }

    /// Waits until the pool is at `head`.
    pub async fn wait_for(&mut self, head: B256) {
        // It fails only if the live chain is dropped; then there is nothing to wait for.
        let _ = self.seen.wait_for(|seen| *seen == head).await;
    }
}

/// Events of the thread `pool`.
enum PoolEvent {
    Head(Arc<HeadChange>),
    MissedHeads,
    /// The journal is so long that it should be rewritten before the next head.
    JournalGrown,
    /// The live chain was dropped.
    End,
}

async fn next_event(changes: &mut Receiver<Arc<HeadChange>>, pool: &TransactionPool) -> PoolEvent {
    tokio::select! {
        biased;
        change = changes.recv() => match change {
            Ok(change) => PoolEvent::Head(change),
            Err(RecvError::Lagged(_)) => PoolEvent::MissedHeads,
            Err(RecvError::Closed) => PoolEvent::End,
        },
        () = pool.journal_grown() => PoolEvent::JournalGrown,
    }
}

/// The transactions of all canonical blocks that may not be durable yet.
pub(crate) fn transactions_in_memory(live: &LiveChain) -> Vec<Recovered<Transaction>> {
    match live.view() {
        Ok(view) => view.transactions_in_memory(),
        Err(error) => {
            tracing::error!(%error, "the head cannot be read for the journal of the pool");
            Vec::new()
        }
    }
}

/// Moves the pool to the present head; `changes` are the head changes since the last call.
fn advance(
    live: &LiveChain,
    pool: &TransactionPool,
    changes: &[Arc<HeadChange>],
) -> Result<(), PipelineError> {
    let state = live.head_state()?;
    let view = state.view();
    let head = view.head();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let next = NextBlock::after(live.spec(), head, now.max(head.timestamp + 1))
        .map_err(|source| InvalidBlockError::rule(head, source))?;
    // In order, since a block may be reverted and committed again.
    let mut mined = HashSet::<B256>::default();
    let mut reverted = HashMap::<B256, Recovered<Transaction>>::default();
    for change in changes {
        for block in &change.reverted {
            for transaction in block.block.clone_transactions_recovered() {
                mined.remove(transaction.hash());
                if !change.is_dropped {
                    reverted.insert(*transaction.hash(), transaction);
                }
            }
        }
        for block in &change.committed {
            for transaction in &block.block.body().transactions {
                mined.insert(*transaction.hash());
                reverted.remove(transaction.hash());
            }
        }
    }
    let mined: Vec<B256> = mined.into_iter().collect();
    pool.set_head(head, next, &mined, &state, reverted.into_values().collect())?;
    pool.forget_mined(&view.transaction_hashes_in_memory());
    Ok(())
}
