//! What a transaction saw of the state that it was executed on, held against another one.

use super::{BlockState, CachedAccount};
use crate::DatabaseError;
use alloy_primitives::{B256, map::AddressMap};

/// Everything that one transaction has read: accounts and slots with their values, codes, and how many
/// hashes of ancestors. Two states that agree in these give the transaction the same outcome.
#[derive(Debug)]
pub(crate) struct Seen {
    accounts: AddressMap<CachedAccount>,
    codes: Vec<B256>,
    block_hashes: u64,
}

impl BlockState<'_> {
    /// What was read so far, of a state that nothing was committed to. Unless `is_all`, the transaction
    /// will be executed elsewhere, and read again what is not kept.
    pub(crate) fn into_seen(self, is_all: bool) -> Seen {
        let keeps_codes = self.database.input().code_cache.is_some();
        let block_hashes = if is_all { self.database.read_counts().block_hashes } else { 0 };
        let mut codes = self.database.into_missed_codes();
        if !is_all && !keeps_codes {
            codes.clear();
        }
        Seen { accounts: self.accounts, codes, block_hashes }
    }

    /// Whether a transaction would read the same here, now. All that it has read counts as read here,
    /// as if it had been executed on this state.
    pub(crate) fn agrees_with(&mut self, seen: &Seen) -> Result<bool, DatabaseError> {
        for (address, account) in &seen.accounts {
            if self.load(*address)?.now != account.before {
                return Ok(false);
            }
            for (index, slot) in &account.slots {
                if self.load_slot(*address, *index)? != slot.now {
                    return Ok(false);
                }
            }
        }
        // Those of this block come from no store.
        let stored = |hash: &&B256| !self.new_codes.contains_key(*hash);
        self.database.count(seen.codes.iter().filter(stored), seen.block_hashes);
        Ok(true)
    }
}
