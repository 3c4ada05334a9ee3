//! The pool follows the chain.

use crate::{
    EngineError, LiveChain, StateAfter,
    pool::{HeadState, Heads, NextBlock, Pool},
};
use alloy_consensus::transaction::Recovered;
use alloy_primitives::{
    Address, B256, Bytes,
    map::{HashMap, HashSet},
};
use parking_lot::Mutex;
use retrie_chainspec::primitives::Transaction;
use retrie_execution::CodeReader;
use retrie_pipeline::{HeadChange, PipelineError};
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

impl HeadState for StateAfter {
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

impl Heads for LiveChain {
    fn latest(&self) -> Result<Box<dyn HeadState + '_>, StateError> {
        let state = self.view().and_then(|view| view.state(&view.head().hash()));
        match state {
            Ok(state) => Ok(Box::new(state)),
            Err(PipelineError::State(error)) => Err(error),
            Err(error) => Err(StoreError::new("reading the head", error).into()),
        }
    }
}

/// Keeps a pool in step with the head, on the thread `pool`, until the live chain is gone.
#[derive(Clone)]
pub struct PoolMaintainer {
    pool: Pool,
    seen: watch::Receiver<B256>,
    /// Held while the pool is brought to a head: heads are set one after the other.
    advancing: Arc<Mutex<()>>,
}

impl fmt::Debug for PoolMaintainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolMaintainer").field("seen", &*self.seen.borrow()).finish()
    }
}

impl PoolMaintainer {
    /// Starts it; the pool is at the present head when this returns.
    ///
    /// # Errors
    /// If the state of the head cannot be read, or no thread be started.
    pub fn start(live: &LiveChain, pool: Pool) -> Result<Self, EngineError> {
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
                    tracing::error!(%error, "the pool cannot wait for heads, and follows none");
                    return;
                }
            };
            loop {
                let mut batch = Vec::new();
                match runtime.block_on(next_event(&mut changes, &pool)) {
                    PoolEvent::Head(change) => batch.push(change),
                    // What was missed is made up for by reading all accounts anew.
                    PoolEvent::MissedHeads => {}
                    PoolEvent::JournalGrown => {
                        let Some(live) = live.upgrade() else { return };
                        pool.tidy_journal(false, || undurable(&live));
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
                // Blocks that are durable need no journal any more, and what was dropped by hand must
                // not come back with a restart.
                let is_dropped = batch.iter().any(|change| change.is_dropped);
                pool.tidy_journal(is_dropped, || undurable(&live));
                // Also after an error, as somebody may wait.
                tell.send_replace(live.head().hash());
            }
        };
        std::thread::Builder::new().name("pool".into()).spawn(run).map_err(EngineError::Thread)?;
        Ok(maintainer)
    }

    /// Reads all accounts anew, as the state of the head has changed though the head has not: on dev
    /// chains. May block.
    pub(crate) fn refresh(&self, live: &LiveChain) -> Result<(), PipelineError> {
        let _one_by_one = self.advancing.lock();
        advance(live, &self.pool, &[])
    }

    /// Whether its thread is alive.
    pub fn is_running(&self) -> bool {
        // The thread has the other end.
        self.seen.has_changed().is_ok()
    }

    /// Waits until the pool has seen that `head` is the head.
    pub async fn wait_for(&mut self, head: B256) {
        // An error means that the live chain is gone: then nobody waits for it.
        let _ = self.seen.wait_for(|seen| *seen == head).await;
    }
}

/// What the thread `pool` waits for.
enum PoolEvent {
    Head(Arc<HeadChange>),
    MissedHeads,
    /// The journal has grown so long that it should be written anew before the next head.
    JournalGrown,
    /// The live chain is gone.
    End,
}

async fn next_event(changes: &mut Receiver<Arc<HeadChange>>, pool: &Pool) -> PoolEvent {
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

/// The transactions of all canonical blocks that need not be durable yet.
pub(crate) fn undurable(live: &LiveChain) -> Vec<Recovered<Transaction>> {
    match live.view() {
        Ok(view) => view.transactions_in_memory(),
        Err(error) => {
            tracing::error!(%error, "the head cannot be read for the journal of the pool");
            Vec::new()
        }
    }
}

/// Brings the pool to the present head, over `changes`.
fn advance(
    live: &LiveChain,
    pool: &Pool,
    changes: &[Arc<HeadChange>],
) -> Result<(), PipelineError> {
    let view = live.view()?;
    let head = view.head();
    let state = view.state(&head.hash())?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let next =
        NextBlock::after(live.spec(), head, now.max(head.timestamp + 1)).map_err(|source| {
            PipelineError::InvalidBlock {
                number: head.number,
                hash: head.hash(),
                source: Box::new(source),
            }
        })?;
    // In order, as a block may go and come again.
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
