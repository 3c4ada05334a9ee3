//! Prefetch: keys that blocks are known to access are read before their execution. This holds for
//! the block that is executed next and for the blocks that wait behind it.
//!
//! A waiting block will be executed on a state that does not exist yet. Its keys are read from the
//! head's state, which has the same value for most of them. A wrong value does no harm, as
//! prefetched values are not returned to the execution: they only warm the caches. The stores read
//! on their own threads, and only as far as reads wait for the disk
//! ([`StateSession::prefetch`](retrie_state_store::StateSession::prefetch)).

use super::BlockTree;
use crate::{PreparedBlock, SessionSet};
use alloy_primitives::{B256, KECCAK256_EMPTY};
use retrie_chainspec::primitives::RecoveredBlock;
use retrie_db::{ChainRead, DatabaseEnv};
use retrie_execution::{BlockAccessList, CodeCache, keys_of_body, keys_of_list};
use retrie_state::{Account, StateKey};
use retrie_state_store::{PrefetchHandle, PrefetchObserver};
use std::{collections::VecDeque, sync::Arc};

/// Number of waiting blocks whose keys are prefetched.
pub const PREFETCH_BLOCKS: usize = 8;
/// Smallest number of keys that is worth a prefetch.
const MIN_KEYS: usize = 16;

/// Waiting blocks by hash, with their prefetch; `None` if a block has too few keys.
pub(super) type PrefetchedBlocks = VecDeque<(B256, Option<PrefetchHandle>)>;

/// Keys that a block will access, as far as its list or its body names them; `None` if they are too
/// few.
fn keys_to_prefetch(
    block: &RecoveredBlock,
    list: Option<&BlockAccessList>,
) -> Option<Vec<StateKey>> {
    let keys = match list {
        Some(list) => keys_of_list(list, block.gas_limit).collect(),
        None => keys_of_body(block),
    };
    (keys.len() >= MIN_KEYS).then_some(keys)
}

impl BlockTree<'_> {
    /// Starts to read the keys that the blocks `waiting`, which are executed next, will access.
    /// Calling it again for the same blocks costs nothing.
    pub fn prefetch<'b>(&mut self, waiting: impl IntoIterator<Item = &'b PreparedBlock>) {
        for block in waiting.into_iter().take(PREFETCH_BLOCKS) {
            if !self.is_prefetched(&block.hash()) {
                let keys = keys_to_prefetch(&block.block, block.access_list.as_deref());
                let handle = keys.and_then(|keys| {
                    // If this state is gone, the execution will return the error.
                    let state = self.state_of(self.head.block()).ok()?;
                    let session = self.begin(state.at()).ok()?;
                    Some(session.own().prefetch_and(keys, self.code_prefetcher()))
                });
                self.prefetched.push_back((block.hash(), handle));
            }
        }
        while self.prefetched.len() > 2 * PREFETCH_BLOCKS {
            self.prefetched.pop_front();
        }
    }

    /// Stops the prefetch of a block that has been executed: reads that still run for it come too
    /// late.
    pub(super) fn stop_prefetch(&mut self, hash: &B256) {
        self.prefetched.retain(|(of, _)| of != hash);
    }

    /// Whether a block was prefetched while it waited.
    fn is_prefetched(&self, hash: &B256) -> bool {
        self.prefetched.iter().any(|(of, _)| of == hash)
    }

    /// Starts to read the keys of a block from the states of `session`, unless the block was
    /// prefetched while it waited.
    pub(super) fn prefetch_block(
        &self,
        session: &SessionSet<'_>,
        block: &RecoveredBlock,
        list: Option<&BlockAccessList>,
    ) -> Option<PrefetchHandle> {
        if self.is_prefetched(&block.hash()) {
            return None;
        }
        let keys = keys_to_prefetch(block, list)?;
        Some(session.own().prefetch_and(keys, self.code_prefetcher()))
    }

    /// An observer that reads the code of a contract once its account was read.
    fn code_prefetcher(&self) -> PrefetchObserver {
        let (db, codes): (DatabaseEnv, Arc<CodeCache>) =
            (self.chain.db.clone(), self.codes.clone());
        Arc::new(move |key, value| {
            let StateKey::Account(_) = key else { return };
            let Some(Account { code_hash, .. }) = Account::decode(value) else { return };
            if code_hash == KECCAK256_EMPTY || codes.contains(&code_hash) {
                return;
            }
            // If the code cannot be read, the execution will return the error.
            if let Ok(read) = db.begin_read() {
                drop(read.code(&code_hash));
            }
        })
    }
}
