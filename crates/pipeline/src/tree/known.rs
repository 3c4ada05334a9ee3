//! Keys that blocks are known to access, read ahead of their execution: those of the block that is
//! executed next, and of blocks that wait behind it, which come while it is.
//!
//! A block that waits is executed on a state that is not there yet. What it will read is looked up in
//! the state of the head: most of it is the same there, and where it is not, nobody has been told
//! anything. The states do the reading, on threads of theirs, and only as far as it waits for the disk
//! ([`Session::read_ahead`](retrie_state::Session::read_ahead)).

use super::Tree;
use crate::{PreparedBlock, StatesSession};
use alloy_primitives::{B256, KECCAK256_EMPTY};
use retrie_chainspec::primitives::RecoveredBlock;
use retrie_db::{ChainRead, Db};
use retrie_execution::{BlockAccessList, CodeCache, keys_of_body, keys_of_list};
use retrie_state::{Account, OnRead, ReadAhead, StateKey};
use std::{collections::VecDeque, sync::Arc};

/// Blocks beyond the one that is executed whose keys it pays to read ahead.
pub const COMING: usize = 8;
/// Keys below which it does not pay.
const FEWEST: usize = 16;

/// What is read ahead for blocks that have not been executed, by their hashes; nothing if there is too
/// little of it.
pub(super) type Coming = VecDeque<(B256, Option<ReadAhead>)>;

/// What a block will ask for, if that is worth reading ahead.
fn known_keys(block: &RecoveredBlock, list: Option<&BlockAccessList>) -> Option<Vec<StateKey>> {
    let keys = match list {
        Some(list) => keys_of_list(list, block.gas_limit).collect(),
        None => keys_of_body(block),
    };
    (keys.len() >= FEWEST).then_some(keys)
}

impl Tree<'_> {
    /// Begins to read what `coming`, the blocks that wait to be executed, will ask for, as far as it is
    /// known. To be told of the same blocks again costs nothing.
    pub fn read_ahead<'b>(&mut self, coming: impl IntoIterator<Item = &'b PreparedBlock>) {
        for block in coming.into_iter().take(COMING) {
            if !self.is_read_ahead(&block.hash()) {
                let keys = known_keys(&block.block, block.access_list.as_deref());
                let ahead = keys.and_then(|keys| {
                    // If there is no such state any more, whoever needs it will be told.
                    let state = self.state_of(self.head.block()).ok()?;
                    let session = self.begin(state.at()).ok()?;
                    Some(session.own().read_ahead_and(keys, self.reads_codes()))
                });
                self.coming.push_back((block.hash(), ahead));
            }
        }
        while self.coming.len() > 2 * COMING {
            self.coming.pop_front();
        }
    }

    /// A block waits no more: what is still being read for it comes too late.
    pub(super) fn no_longer_coming(&mut self, hash: &B256) {
        self.coming.retain(|(of, _)| of != hash);
    }

    /// Whether a block was told of while it waited.
    fn is_read_ahead(&self, hash: &B256) -> bool {
        self.coming.iter().any(|(of, _)| of == hash)
    }

    /// Begins to read what a block will ask for of the states of `session`, unless that has been done
    /// while it waited.
    pub(super) fn read_ahead_of(
        &self,
        session: &StatesSession<'_>,
        block: &RecoveredBlock,
        list: Option<&BlockAccessList>,
    ) -> Option<ReadAhead> {
        if self.is_read_ahead(&block.hash()) {
            return None;
        }
        let keys = known_keys(block, list)?;
        Some(session.own().read_ahead_and(keys, self.reads_codes()))
    }

    /// What reads the code of a contract once its account was read.
    fn reads_codes(&self) -> OnRead {
        let (db, codes): (Db, Arc<CodeCache>) = (self.chain.db.clone(), self.codes.clone());
        Arc::new(move |key, value| {
            let StateKey::Account(_) = key else { return };
            let Some(Account { code_hash, .. }) = Account::decode(value) else { return };
            if code_hash == KECCAK256_EMPTY || codes.contains(&code_hash) {
                return;
            }
            // What cannot be read is told to whoever needs it.
            if let Ok(read) = db.begin_read() {
                drop(read.code(&code_hash));
            }
        })
    }
}
