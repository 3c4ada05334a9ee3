//! [`StateDatabase`]: revm's database over the readers of one state.

use crate::{DatabaseError, ExecutionInput};
use alloy_primitives::{Address, B256, KECCAK256_EMPTY, U256, map::B256Set};
use core::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};
use parking_lot::Mutex;
use retrie_state::{Account, StateError, StateValue};
use revm::{Database, DatabaseRef, bytecode::Bytecode, state::AccountInfo};
use std::time::Instant;

/// revm's [`Database`] over an [`ExecutionInput`]: stateless, every call is one read.
///
/// Put a cache above it (revm's `CacheDB` or `State`) to run calls and traces; block execution has
/// its own cache. It counts and times the reads.
#[derive(Debug)]
pub(crate) struct StateDatabase<'a> {
    input: ExecutionInput<'a>,
    counters: AtomicReadCounts,
}

#[derive(Debug, Default)]
struct AtomicReadCounts {
    accounts: AtomicU64,
    slots: AtomicU64,
    listings: AtomicU64,
    block_hashes: AtomicU64,
    /// Codes that were not in the cache.
    missed_codes: Mutex<Vec<B256>>,
    nanoseconds: AtomicU64,
}

/// Number of reads from the state, the codes and the block hashes, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadCounts {
    /// Accounts.
    pub accounts: u64,
    /// Single storage slots.
    pub slots: u64,
    /// Listings of the whole storage of an account.
    pub listings: u64,
    /// Codes that were not in the cache: each code once; without a cache, every read of a code. In
    /// parallel execution the number depends on which thread fills the cache first, and may differ
    /// a little.
    pub codes: u64,
    /// Hashes of ancestors.
    pub block_hashes: u64,
}

impl<'a> StateDatabase<'a> {
    /// A database over `input`, with counters at zero.
    pub(crate) fn new(input: ExecutionInput<'a>) -> Self {
        Self { input, counters: AtomicReadCounts::default() }
    }

    pub(crate) const fn input(&self) -> ExecutionInput<'a> {
        self.input
    }

    /// Reads so far.
    pub(crate) fn read_counts(&self) -> ReadCounts {
        let AtomicReadCounts {
            accounts,
            slots,
            listings,
            block_hashes,
            missed_codes,
            nanoseconds: _,
        } = &self.counters;
        let missed = missed_codes.lock();
        let codes = match self.input.code_cache {
            Some(_) => missed.iter().copied().collect::<B256Set>().len(),
            None => missed.len(),
        };
        ReadCounts {
            accounts: accounts.load(Relaxed),
            slots: slots.load(Relaxed),
            listings: listings.load(Relaxed),
            codes: codes as u64,
            block_hashes: block_hashes.load(Relaxed),
        }
    }

    /// The codes that were not in the cache, in the order in which they were read.
    pub(crate) fn into_missed_codes(self) -> Vec<B256> {
        self.counters.missed_codes.into_inner()
    }

    /// Adds the reads of another database of this block.
    pub(crate) fn count<'h>(&self, codes: impl Iterator<Item = &'h B256>, block_hashes: u64) {
        self.counters.missed_codes.lock().extend(codes);
        self.counters.block_hashes.fetch_add(block_hashes, Relaxed);
    }

    /// Time spent in the readers so far.
    pub(crate) fn read_time(&self) -> Duration {
        Duration::from_nanos(self.counters.nanoseconds.load(Relaxed))
    }

    fn timed<T>(&self, counter: &AtomicU64, read: impl FnOnce() -> T) -> T {
        counter.fetch_add(1, Relaxed);
        self.timed_read(read)
    }

    fn timed_read<T>(&self, read: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = read();
        self.counters.nanoseconds.fetch_add(start.elapsed().as_nanos() as u64, Relaxed);
        result
    }

    pub(crate) fn account(&self, address: &Address) -> Result<Option<Account>, StateError> {
        self.timed(&self.counters.accounts, || self.input.state.account(address))
    }

    pub(crate) fn slot(&self, address: &Address, slot: U256) -> Result<U256, StateError> {
        let slot = B256::from(slot);
        self.timed(&self.counters.slots, || self.input.state.slot(address, &slot))
    }

    /// Slots of `address`, at most `limit`; `None` if the state cannot list them: it is partial, or
    /// its keys are hashed.
    pub(crate) fn some_slots(
        &self,
        address: &Address,
        limit: usize,
    ) -> Result<Option<Vec<(B256, StateValue)>>, StateError> {
        let listed = || self.input.state.some_slots(address, limit);
        match self.timed(&self.counters.listings, listed) {
            Ok(slots) => Ok(Some(slots)),
            Err(StateError::MissingWitness { .. } | StateError::HashedKeys { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All slots of `address`; `None` if the state cannot list them: it is partial, or
    /// its keys are hashed.
    pub(crate) fn slots_of(
        &self,
        address: &Address,
    ) -> Result<Option<Vec<(B256, StateValue)>>, StateError> {
        match self.timed(&self.counters.listings, || self.input.state.slots_of(address)) {
            Ok(slots) => Ok(Some(slots)),
            Err(StateError::MissingWitness { .. } | StateError::HashedKeys { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn code(&self, hash: B256) -> Result<Bytecode, DatabaseError> {
        if hash == KECCAK256_EMPTY {
            return Ok(Bytecode::default());
        }
        if let Some(code) = self.input.code_cache.and_then(|cache| cache.get(&hash)) {
            return Ok(code);
        }
        self.counters.missed_codes.lock().push(hash);
        let code = self
            .timed_read(|| self.input.codes.code(&hash))?
            .ok_or(DatabaseError::MissingCode { hash, address: None })?;
        // Code that starts like an EIP-7702 designator but is none runs as plain code.
        let code =
            Bytecode::new_raw_checked(code.clone()).unwrap_or_else(|_| Bytecode::new_legacy(code));
        if let Some(cache) = self.input.code_cache {
            cache.insert(hash, code.clone());
        }
        Ok(code)
    }

    pub(crate) fn cache_code(&self, hash: B256, code: &Bytecode) {
        if let Some(cache) = self.input.code_cache {
            cache.insert(hash, code.clone());
        }
    }
}

/// The EVM's view of an account. Code is loaded when it is first needed.
pub(crate) fn account_info(account: &Account) -> AccountInfo {
    let code = (account.code_hash == KECCAK256_EMPTY).then(Bytecode::default);
    AccountInfo {
        balance: account.balance,
        nonce: account.nonce,
        code_hash: account.code_hash,
        code,
        ..AccountInfo::default()
    }
}

impl DatabaseRef for StateDatabase<'_> {
    type Error = DatabaseError;

    fn basic_ref(&self, address: Address) -> Result<Option<AccountInfo>, DatabaseError> {
        Ok(self.account(&address)?.as_ref().map(account_info))
    }

    fn code_by_hash_ref(&self, code_hash: B256) -> Result<Bytecode, DatabaseError> {
        self.code(code_hash)
    }

    fn storage_ref(&self, address: Address, index: U256) -> Result<U256, DatabaseError> {
        Ok(self.slot(&address, index)?)
    }

    fn block_hash_ref(&self, number: u64) -> Result<B256, DatabaseError> {
        self.timed(&self.counters.block_hashes, || self.input.hashes.block_hash(number))?
            .ok_or(DatabaseError::MissingBlockHash { number })
    }
}

impl Database for StateDatabase<'_> {
    type Error = DatabaseError;

    fn basic(&mut self, address: Address) -> Result<Option<AccountInfo>, DatabaseError> {
        self.basic_ref(address)
    }

    fn code_by_hash(&mut self, code_hash: B256) -> Result<Bytecode, DatabaseError> {
        self.code_by_hash_ref(code_hash)
    }

    fn storage(&mut self, address: Address, index: U256) -> Result<U256, DatabaseError> {
        self.storage_ref(address, index)
    }

    fn block_hash(&mut self, number: u64) -> Result<B256, DatabaseError> {
        self.block_hash_ref(number)
    }
}
