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
/// Fewer keys are not worth a prefetch.
const FEWEST: usize = 16;

/// Waiting blocks by hash, with their prefetch; `None` if a block has too few keys.
pub(super) type PrefetchedBlocks = VecDeque<(B256, Option<PrefetchHandle>)>;

/// Keys that a block will access, if they are worth a prefetch.
fn known_keys(block: &RecoveredBlock, list: Option<&BlockAccessList>) -> Option<Vec<StateKey>> {
    let keys = match list {
        Some(list) => keys_of_list(list, block.gas_limit).collect(),
        None => keys_of_body(block),
    };
    (keys.len() >= FEWEST).then_some(keys)
}

impl BlockTree<'_> {
    /// Starts to read the keys that the blocks `coming`, which wait to be executed, will access.
    /// Calling it again for the same blocks costs nothing.
    pub fn prefetch<'b>(&mut self, coming: impl IntoIterator<Item = &'b PreparedBlock>) {
        for block in coming.into_iter().take(PREFETCH_BLOCKS) {
            if !self.is_prefetched(&block.hash()) {
                let keys = known_keys(&block.block, block.access_list.as_deref());
                let ahead = keys.and_then(|keys| {
                    // If this state is gone, the execution will return the error.
                    let state = self.state_of(self.head.block()).ok()?;
                    let session = self.begin(state.at()).ok()?;
                    Some(session.own().prefetch_and(keys, self.reads_codes()))
                });
                self.prefetched.push_back((block.hash(), ahead));
            }
        }
        while self.prefetched.len() > 2 * PREFETCH_BLOCKS {
            self.prefetched.pop_front();
        }
    }

    /// A block is executed: reads that still run for it come too late, so its prefetch is dropped.
    pub(super) fn no_longer_coming(&mut self, hash: &B256) {
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
        let keys = known_keys(block, list)?;
        Some(session.own().prefetch_and(keys, self.reads_codes()))
    }

    /// An observer that reads the code of a contract once its account was read.
    fn reads_codes(&self) -> PrefetchObserver {
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
