//! [`BlockState`]: the state while one block executes, with its cached reads and its changes.
//!
//! revm passes the accounts that a transaction touched to `commit`. This module derives the changes
//! of the state from them (EIP-161, SELFDESTRUCT, creation) and keeps, for every account and slot,
//! the value before the block and the value now. Assumptions, from revm's journal:
//!
//! * `commit` gets the accounts of one transaction at a time, with the present values of slots;
//! * an account that is neither touched nor created nor destroyed is unchanged. revm also clears
//!   the touch of an existing empty account before Spurious Dragon. That account is unchanged too:
//!   without code and nonce it cannot lose a balance;
//! * the storage of an account with the flag `Created` holds every slot its constructor wrote, and
//!   no other slot is set. A contract that was created over an existing account does not have the
//!   flag ([`evm`](crate::evm)).

use crate::{
    DatabaseError, ExecutionInput,
    database::{StateDatabase, account_info},
    deadline::ExecutionDeadline,
};
use alloy_primitives::{
    Address, B256, Bytes, KECCAK256_EMPTY, U256,
    map::{AddressMap, B256Map, HashMap, hash_map::Entry},
};
use core::fmt;
use retrie_state::{Account, DeltaBuilder, StateDelta, StateKey, StateValue, encode_slot};
use revm::{
    Database, DatabaseCommit, DatabaseRef,
    bytecode::Bytecode,
    database_interface::bal::BalState,
    state::{Account as TouchedAccount, AccountInfo, bal::BlockAccessIndex},
};
use std::collections::BTreeMap;

/// Database of the EVM for one block: caches reads, collects changes.
pub struct BlockState<'a> {
    database: StateDatabase<'a>,
    rules: StateRules,
    parent: (u64, B256),
    accounts: AddressMap<CachedAccount>,
    /// Codes set in this block.
    new_codes: B256Map<Bytecode>,
    /// Changes since the observer was last called.
    window: Option<DeltaBuilder>,
    access_list: BalState,
    failure: Option<DatabaseError>,
    /// Block hashes that replace stored ones. If present, unknown hashes are zero instead of an
    /// error.
    pub(crate) hashes: Option<BTreeMap<u64, B256>>,
    pub(crate) deadline: Option<ExecutionDeadline>,
    /// Largest number of slots that clears of whole storages may list, in simulated blocks.
    pub(crate) clear_limit: Option<usize>,
}

/// Rules of the fork for the state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StateRules {
    /// EIP-161: touched accounts that are empty are removed.
    pub(crate) clears_empty: bool,
    /// EIP-7928: accesses are collected.
    pub(crate) has_access_list: bool,
}

/// An account before the block and now.
#[derive(Debug)]
struct CachedAccount {
    before: Option<Account>,
    now: Option<Account>,
    slots: HashMap<U256, CachedSlot>,
    /// The storage was dropped as a whole in this block: slots that are not cached are zero now.
    cleared: bool,
    touched: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct CachedSlot {
    /// Value before the block; `None` if it was never read (only after the storage was cleared).
    before: Option<U256>,
    now: U256,
}

/// A read for the EVM failed; `BlockState::take_failure` has the cause.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the state could not be read")]
pub struct ReadFailure;

impl revm::context::DBErrorMarker for ReadFailure {}

/// What a block has read or written of an account's storage.
#[derive(Clone, Debug, Default)]
pub struct TouchedSlots {
    /// Whether all other slots are zero now, as the block has cleared the storage.
    pub are_all: bool,
    /// Slots with their values now.
    pub slots: Vec<(B256, U256)>,
}

impl<'a> BlockState<'a> {
    /// The state before block `number`, whose parent has hash `parent_hash`.
    pub(crate) fn new(
        input: ExecutionInput<'a>,
        rules: StateRules,
        number: u64,
        parent_hash: B256,
    ) -> Self {
        let access_list = if rules.has_access_list {
            BalState::new().with_bal_builder()
        } else {
            BalState::new()
        };
        Self {
            database: StateDatabase::new(input),
            rules,
            parent: (number.saturating_sub(1), parent_hash),
            accounts: AddressMap::default(),
            new_codes: B256Map::default(),
            window: None,
            access_list,
            failure: None,
            hashes: None,
            deadline: None,
            clear_limit: None,
        }
    }

    /// The same parent state, without reads and changes.
    pub(crate) fn fresh(&self) -> Self {
        let (number, hash) = self.parent;
        Self::new(self.database.input(), self.rules, number.saturating_add(1), hash)
    }

    /// The database underneath, with its counters.
    pub(crate) const fn database(&self) -> &StateDatabase<'a> {
        &self.database
    }

    /// Starts to collect changes for [`take_window`](Self::take_window).
    pub(crate) fn open_window(&mut self) {
        self.window = Some(DeltaBuilder::new());
    }

    /// The changes since the window was opened or last taken.
    pub(crate) fn take_window(&mut self) -> StateDelta {
        self.window.replace(DeltaBuilder::new()).unwrap_or_default().build()
    }

    /// The first failure of a read since the last call, if there was one.
    pub(crate) const fn take_failure(&mut self) -> Option<DatabaseError> {
        self.failure.take()
    }

    /// Sets the block access index (EIP-7928): 0 before the transactions, `index + 1` in a
    /// transaction, `n + 1` after `n` transactions.
    pub(crate) const fn set_access_index(&mut self, index: u64) {
        self.access_list.bal_index = BlockAccessIndex::new(index);
    }

    /// The block access list, if the fork has one.
    pub(crate) fn take_access_list(&mut self) -> Option<crate::BlockAccessList> {
        self.access_list.take_built_alloy_bal()
    }

    /// Moves the whole balance of each of `from` to `to` (the irregular transfer of EIP-779).
    ///
    /// All accounts in `from` exist afterwards, new ones as empty accounts, unless the fork clears
    /// empty accounts.
    pub(crate) fn drain(&mut self, from: &[Address], to: Address) -> Result<(), DatabaseError> {
        for address in from {
            let account = self.load(*address)?.now.unwrap_or_default();
            let drained = account.balance;
            self.set_account(*address, Account { balance: U256::ZERO, ..account })?;
            let beneficiary = self.load(to)?.now.unwrap_or_default();
            let balance = beneficiary.balance.saturating_add(drained);
            self.set_account(to, Account { balance, ..beneficiary })?;
        }
        Ok(())
    }

    /// The account as it is now.
    pub(crate) fn account(&mut self, address: Address) -> Result<Option<Account>, DatabaseError> {
        Ok(self.load(address)?.now)
    }

    /// The slots of `address` that were read or written, with their values now.
    pub(crate) fn touched_slots(&self, address: &Address) -> TouchedSlots {
        let Some(account) = self.accounts.get(address) else { return TouchedSlots::default() };
        let slots = account.slots.iter().map(|(slot, value)| ((*slot).into(), value.now));
        TouchedSlots { are_all: account.cleared, slots: slots.collect() }
    }

    /// Sets an account, and its slots; with `clears` all other slots are dropped.
    pub(crate) fn set(
        &mut self,
        address: Address,
        account: Account,
        clears: bool,
        slots: impl IntoIterator<Item = (U256, U256)>,
    ) -> Result<(), DatabaseError> {
        self.update(address, Some(account), clears, slots)
    }

    /// Adds a code under its hash.
    pub(crate) fn insert_code(&mut self, hash: B256, code: Bytecode) {
        if let Some(window) = &mut self.window {
            window.add_code(hash, code.original_bytes());
        }
        self.new_codes.insert(hash, code);
    }

    /// Whether the account has code now.
    pub(crate) fn has_code(&mut self, address: Address) -> Result<bool, DatabaseError> {
        Ok(self.load(address)?.now.is_some_and(|now| now.code_hash != KECCAK256_EMPTY))
    }

    /// All changes of the block, and the codes it added to the state, which the delta has too.
    pub(crate) fn finish(&mut self) -> Result<(StateDelta, Vec<(B256, Bytes)>), DatabaseError> {
        let mut builder = DeltaBuilder::new();
        let mut may_clear = self.clear_limit;
        for (address, account) in self.accounts.iter().filter(|(_, account)| account.touched) {
            account.changes(address, &self.database, &mut may_clear, &mut builder)?;
            if let Some(hash) = account.new_code_hash()
                && let Some(code) = self.new_codes.get(&hash)
            {
                builder.add_code(hash, code.original_bytes());
                self.database.cache_code(hash, code);
            }
        }
        let delta = builder.build();
        let codes = delta.codes().clone().into_iter().collect();
        Ok((delta, codes))
    }

    fn load(&mut self, address: Address) -> Result<&mut CachedAccount, DatabaseError> {
        Ok(match self.accounts.entry(address) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let account = self.database.account(&address)?;
                entry.insert(CachedAccount {
                    before: account,
                    now: account,
                    slots: HashMap::default(),
                    cleared: false,
                    touched: false,
                })
            }
        })
    }

    fn load_slot(&mut self, address: Address, index: U256) -> Result<U256, DatabaseError> {
        self.load(address)?;
        let Some(account) = self.accounts.get_mut(&address) else {
            return Ok(U256::ZERO); // just loaded
        };
        match account.slots.entry(index) {
            Entry::Occupied(slot) => Ok(slot.get().now),
            Entry::Vacant(_) if account.cleared => Ok(U256::ZERO),
            Entry::Vacant(entry) => {
                let value = self.database.slot(&address, index)?;
                entry.insert(CachedSlot { before: Some(value), now: value });
                Ok(value)
            }
        }
    }

    fn set_account(&mut self, address: Address, account: Account) -> Result<(), DatabaseError> {
        let removed = self.rules.clears_empty && account.is_empty();
        self.update(address, (!removed).then_some(account), removed, [])
    }

    /// Applies the changes of a transaction to an account it touched.
    fn apply(&mut self, address: Address, touched: TouchedAccount) -> Result<(), DatabaseError> {
        if !touched.is_touched() {
            return Ok(());
        }
        let TouchedAccount { info, storage, status, .. } = touched;
        let code_hash = if info.code_hash.is_zero() { KECCAK256_EMPTY } else { info.code_hash };
        let account = Account { nonce: info.nonce, balance: info.balance, code_hash };
        let destroyed = status.contains(revm::state::AccountStatus::SelfDestructed);
        let created = status.contains(revm::state::AccountStatus::Created);
        let removed = destroyed || self.rules.clears_empty && account.is_empty();
        if removed {
            return self.update(address, None, true, []);
        }
        if code_hash != KECCAK256_EMPTY
            && let Some(code) = info.code
            && self.load(address)?.now.is_none_or(|now| now.code_hash != code_hash)
        {
            self.insert_code(code_hash, code);
        }
        let slots = storage
            .into_iter()
            .filter(|(_, slot)| created || slot.is_changed())
            .map(|(key, slot)| (key, slot.present_value));
        self.update(address, Some(account), created, slots)
    }

    /// Sets an account to `next`; `clears` drops its storage first; then writes `slots`.
    fn update(
        &mut self,
        address: Address,
        next: Option<Account>,
        clears: bool,
        slots: impl IntoIterator<Item = (U256, U256)>,
    ) -> Result<(), DatabaseError> {
        self.load(address)?;
        let Some(account) = self.accounts.get_mut(&address) else {
            return Ok(()); // just loaded
        };
        // A touch of an account that does not exist changes nothing.
        if next.is_none() && account.now.is_none() {
            return Ok(());
        }
        account.touched = true;
        if let Some(window) = &mut self.window
            && account.now != next
        {
            window.change(
                StateKey::Account(address),
                account.now.map(|now| now.encode()),
                next.map(|next| next.encode()),
            );
        }
        if clears {
            if let Some(window) = &mut self.window {
                account.clear_in(&address, &self.database, window)?;
            }
            account.cleared = true;
            account.slots.values_mut().for_each(|slot| slot.now = U256::ZERO);
        }
        account.now = next;
        for (key, value) in slots {
            let slot = match account.slots.entry(key) {
                Entry::Occupied(slot) => slot.into_mut(),
                Entry::Vacant(_) if clears && value.is_zero() => continue,
                Entry::Vacant(slot) => slot.insert(CachedSlot::default()),
            };
            if let Some(window) = &mut self.window
                && slot.now != value
            {
                let key = StateKey::Slot(address, key.into());
                window.change(key, encode_slot(slot.now), encode_slot(value));
            }
            slot.now = value;
        }
        Ok(())
    }

    fn find_block_hash(&self, number: u64) -> Result<B256, DatabaseError> {
        if let Some(hash) = self.hashes.as_ref().and_then(|hashes| hashes.get(&number)) {
            return Ok(*hash);
        }
        if number == self.parent.0 {
            return Ok(self.parent.1);
        }
        match self.database.block_hash_ref(number) {
            Err(DatabaseError::MissingBlockHash { .. }) if self.hashes.is_some() => Ok(B256::ZERO),
            hash => hash,
        }
    }

    fn read<T>(&mut self, result: Result<T, DatabaseError>) -> Result<T, ReadFailure> {
        result.map_err(|error| {
            self.failure.get_or_insert(error);
            ReadFailure
        })
    }
}

impl CachedAccount {
    /// The hash of a code the account has now and did not have before the block.
    fn new_code_hash(&self) -> Option<B256> {
        let hash = self.now?.code_hash;
        let had = self.before.map_or(KECCAK256_EMPTY, |before| before.code_hash);
        (hash != had && hash != KECCAK256_EMPTY).then_some(hash)
    }

    /// Adds the changes of this account since before the block.
    fn changes(
        &self,
        address: &Address,
        database: &StateDatabase<'_>,
        may_clear: &mut Option<usize>,
        builder: &mut DeltaBuilder,
    ) -> Result<(), DatabaseError> {
        if self.before != self.now {
            builder.change(
                StateKey::Account(*address),
                self.before.map(|before| before.encode()),
                self.now.map(|now| now.encode()),
            );
        }
        if !self.cleared {
            for (slot, CachedSlot { before, now }) in &self.slots {
                let before = match before {
                    Some(before) => *before,
                    None => database.slot(address, *slot)?,
                };
                if before != *now {
                    let key = StateKey::Slot(*address, (*slot).into());
                    builder.change(key, encode_slot(before), encode_slot(*now));
                }
            }
            return Ok(());
        }
        // Created and destroyed within the block: there was no storage before and is none now.
        if self.before.is_none() && self.now.is_none() {
            return Ok(());
        }
        let listed = match *may_clear {
            None => database.slots_of(address)?,
            Some(limit) => database.some_slots(address, limit.saturating_add(1))?,
        };
        if let (Some(limit), Some(slots)) = (may_clear.as_mut(), &listed) {
            let too_large = DatabaseError::StorageTooLarge { address: *address, limit: *limit };
            *limit = limit.checked_sub(slots.len()).ok_or(too_large)?;
        }
        let is_partial = listed.is_none();
        let mut before: BTreeMap<B256, StateValue> =
            listed.unwrap_or_default().into_iter().collect();
        if is_partial {
            for (slot, value) in self.known_before(address, database)? {
                before.insert(slot, value);
            }
        }
        if !before.is_empty() || is_partial && self.before.is_some() {
            builder.wipe(*address);
        }
        for (slot, value) in before {
            builder.change(StateKey::Slot(*address, slot), Some(value), None);
        }
        for (slot, CachedSlot { now, .. }) in &self.slots {
            if !now.is_zero() {
                // The builder keeps the previous value of a slot that was added above.
                builder.change(StateKey::Slot(*address, (*slot).into()), None, encode_slot(*now));
            }
        }
        Ok(())
    }

    /// Slots that were set before the block, as far as a partial state can read them.
    fn known_before(
        &self,
        address: &Address,
        database: &StateDatabase<'_>,
    ) -> Result<Vec<(B256, StateValue)>, DatabaseError> {
        let mut known = Vec::new();
        for (slot, cached) in &self.slots {
            let before = match cached.before {
                Some(before) => before,
                None => match database.slot(address, *slot) {
                    Ok(before) => before,
                    Err(retrie_state::StateError::MissingWitness { .. }) => continue,
                    Err(error) => return Err(error.into()),
                },
            };
            if let Some(value) = encode_slot(before) {
                known.push(((*slot).into(), value));
            }
        }
        Ok(known)
    }

    /// Records in `window` that every slot set now is dropped.
    fn clear_in(
        &self,
        address: &Address,
        database: &StateDatabase<'_>,
        window: &mut DeltaBuilder,
    ) -> Result<(), DatabaseError> {
        let mut live = BTreeMap::new();
        let mut is_partial = false;
        if !self.cleared {
            match database.slots_of(address)? {
                Some(slots) => live.extend(slots),
                None => is_partial = true,
            }
        }
        for (slot, CachedSlot { now, .. }) in &self.slots {
            match encode_slot(*now) {
                Some(value) => live.insert((*slot).into(), value),
                None => live.remove(&B256::from(*slot)),
            };
        }
        if !live.is_empty() || is_partial && self.now.is_some() {
            window.wipe(*address);
        }
        for (slot, value) in live {
            window.change(StateKey::Slot(*address, slot), Some(value), None);
        }
        Ok(())
    }
}

impl Database for BlockState<'_> {
    type Error = ReadFailure;

    fn basic(&mut self, address: Address) -> Result<Option<AccountInfo>, ReadFailure> {
        let account = self.load(address).map(|account| account.now);
        Ok(self.read(account)?.as_ref().map(account_info))
    }

    fn code_by_hash(&mut self, code_hash: B256) -> Result<Bytecode, ReadFailure> {
        if let Some(code) = self.new_codes.get(&code_hash) {
            return Ok(code.clone());
        }
        let code = self.database.code(code_hash).map_err(|error| match error {
            DatabaseError::MissingCode { hash, address: None } => {
                let owner = self
                    .accounts
                    .iter()
                    .filter(|(_, account)| account.now.is_some_and(|now| now.code_hash == hash))
                    .map(|(address, _)| *address)
                    .min();
                DatabaseError::MissingCode { hash, address: owner }
            }
            error => error,
        });
        self.read(code)
    }

    fn storage(&mut self, address: Address, index: U256) -> Result<U256, ReadFailure> {
        let value = self.load_slot(address, index);
        self.read(value)
    }

    fn block_hash(&mut self, number: u64) -> Result<B256, ReadFailure> {
        let hash = self.find_block_hash(number);
        self.read(hash)
    }
}

/// The same values as the EVM reads, without caching them.
impl DatabaseRef for BlockState<'_> {
    type Error = DatabaseError;

    fn basic_ref(&self, address: Address) -> Result<Option<AccountInfo>, DatabaseError> {
        match self.accounts.get(&address) {
            Some(account) => Ok(account.now.as_ref().map(account_info)),
            None => self.database.basic_ref(address),
        }
    }

    fn code_by_hash_ref(&self, code_hash: B256) -> Result<Bytecode, DatabaseError> {
        match self.new_codes.get(&code_hash) {
            Some(code) => Ok(code.clone()),
            None => self.database.code(code_hash),
        }
    }

    fn storage_ref(&self, address: Address, index: U256) -> Result<U256, DatabaseError> {
        match self.accounts.get(&address) {
            Some(CachedAccount { slots, .. }) if slots.contains_key(&index) => {
                Ok(slots[&index].now)
            }
            Some(CachedAccount { cleared: true, .. }) => Ok(U256::ZERO),
            _ => self.database.storage_ref(address, index),
        }
    }

    fn block_hash_ref(&self, number: u64) -> Result<B256, DatabaseError> {
        self.find_block_hash(number)
    }
}

impl DatabaseCommit for BlockState<'_> {
    fn commit(&mut self, changes: AddressMap<TouchedAccount>) {
        self.commit_iter(&mut changes.into_iter());
    }

    /// Keeps a failure for `take_failure`, since this method cannot return it.
    fn commit_iter(&mut self, changes: &mut dyn Iterator<Item = (Address, TouchedAccount)>) {
        for (address, account) in changes {
            self.access_list.commit_one(address, &account);
            if let Err(error) = self.apply(address, account) {
                self.failure.get_or_insert(error);
            }
        }
    }
}

impl fmt::Debug for BlockState<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockState")
            .field("parent", &self.parent)
            .field("rules", &self.rules)
            .field("accounts", &self.accounts.len())
            .finish_non_exhaustive()
    }
}

/// All reads of one transaction: accounts and slots with their values, codes, and the number of
/// ancestor hashes. On two states with equal values here the transaction has the same outcome.
#[derive(Debug)]
pub(crate) struct TransactionReads {
    accounts: AddressMap<CachedAccount>,
    codes: Vec<B256>,
    block_hashes: u64,
}

impl BlockState<'_> {
    /// The reads so far, on a state without committed changes. Without `is_all` the attempt failed:
    /// the transaction is executed again and repeats its reads, so that only missed codes which are
    /// cached by now are kept here.
    pub(crate) fn into_reads(self, is_all: bool) -> TransactionReads {
        let keeps_codes = self.database.input().code_cache.is_some();
        let block_hashes = if is_all { self.database.read_counts().block_hashes } else { 0 };
        let mut codes = self.database.into_missed_codes();
        if !is_all && !keeps_codes {
            codes.clear();
        }
        TransactionReads { accounts: self.accounts, codes, block_hashes }
    }

    /// Whether a transaction would read the same values here, now. Counts all its reads as reads of
    /// this state, as if it had been executed here.
    pub(crate) fn agrees_with(&mut self, seen: &TransactionReads) -> Result<bool, DatabaseError> {
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
        // Codes of this block are not read from a store.
        let stored = |hash: &&B256| !self.new_codes.contains_key(*hash);
        self.database.count(seen.codes.iter().filter(stored), seen.block_hashes);
        Ok(true)
    }
}
