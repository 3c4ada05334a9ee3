//! Preimages of hashed keys: which ones a datadir has, needs, takes from a file, and gives to one.

use crate::{
    PipelineError, PreimageError, StoreSet,
    entries::{PagedEntries, first_slot, listed_state},
};
use alloy_primitives::{Address, B256};
use retrie_db::{ChainRead, DatabaseEnv, DbError, KeyPreimage, ReadError, ReadTxn, WriteTxn};
use retrie_sources::{FilePreimage, PreimageFile, PreimageWriter};
use retrie_state::{
    AccountKey, AnyBackend, BackendKey, BlockRef, KeyForm, StateDelta, StateError, StateKey,
};
use retrie_state_store::{EntrySorter, StateProvider};
use std::{
    fmt,
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

/// Preimages that are committed at a time.
const BATCH: usize = 1 << 20;
/// Entries between two checks of the stop flag.
const STEP: u64 = 1 << 12;

// -- of blocks --------------------------------------------------------------------------------------

/// Preimages of the keys that a block or a batch writes. They are hashed when they are first asked
/// for, which is usually on the thread that commits the block.
#[derive(Debug, Default)]
pub(crate) struct DeltaPreimages {
    deltas: Vec<Arc<StateDelta>>,
    hashed: OnceLock<Vec<(B256, KeyPreimage)>>,
}

impl DeltaPreimages {
    pub(crate) const fn new(deltas: Vec<Arc<StateDelta>>) -> Self {
        Self { deltas, hashed: OnceLock::new() }
    }

    /// All of them, in the order of their hashes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (B256, KeyPreimage)> {
        self.hashed().iter().copied()
    }

    /// The preimage of `hash`.
    pub(crate) fn get(&self, hash: &B256) -> Option<KeyPreimage> {
        let hashed = self.hashed();
        let at = hashed.binary_search_by_key(hash, |(hash, _)| *hash).ok()?;
        Some(hashed[at].1)
    }

    fn hashed(&self) -> &[(B256, KeyPreimage)] {
        self.hashed.get_or_init(|| {
            let changes = self.deltas.iter().flat_map(|delta| delta.changes());
            let mut all: Vec<_> = changes.flat_map(|change| KeyPreimage::of(&change.key)).collect();
            all.sort_unstable();
            all.dedup();
            let mut hashed: Vec<_> = all.into_iter().map(|one| (one.hash(), one)).collect();
            hashed.sort_unstable_by_key(|(hash, _)| *hash);
            hashed
        })
    }
}

// -- of states --------------------------------------------------------------------------------------

/// Preimages of a whole state, sorted on disk in the order of their table.
pub(crate) struct PreimageSorter {
    /// `None` if they are not kept.
    sorter: Option<EntrySorter>,
    last: Option<Address>,
}

impl PreimageSorter {
    /// Sorts in the folder `dir`; without one it drops what it gets.
    pub(crate) fn new(dir: Option<&Path>) -> Self {
        Self { sorter: dir.map(EntrySorter::new), last: None }
    }

    /// Adds the preimages of `key`.
    pub(crate) fn put(&mut self, key: &StateKey) -> Result<(), StateError> {
        let Some(sorter) = &mut self.sorter else { return Ok(()) };
        let is_known = self.last.replace(*key.address()) == Some(*key.address());
        for preimage in KeyPreimage::of(key).skip(usize::from(is_known)) {
            let key = BackendKey::Account(AccountKey::hashed(preimage.hash()));
            sorter.put(&key, preimage.as_ref())?;
        }
        Ok(())
    }

    /// Writes all of them.
    pub(crate) fn write(self, txn: &mut WriteTxn) -> Result<(), PipelineError> {
        let Some(mut sorter) = self.sorter else { return Ok(()) };
        for entry in sorter.entries()? {
            let (key, bytes) = entry?;
            if let Some(preimage) = KeyPreimage::from_slice(&bytes) {
                txn.insert_preimages([(B256::from_slice(key.account()), preimage)])?;
            }
        }
        Ok(())
    }
}

/// Gives keys of a store their plain form, as far as it is known.
pub(crate) struct PlainKeys<'a> {
    read: &'a ReadTxn,
    /// The last account. The slots of one come together.
    last: Option<(AccountKey, Option<Address>)>,
}

impl<'a> PlainKeys<'a> {
    pub(crate) const fn new(read: &'a ReadTxn) -> Self {
        Self { read, last: None }
    }

    /// The address of an account.
    pub(crate) fn account(&mut self, account: &AccountKey) -> Result<Option<Address>, ReadError> {
        if let Some((last, address)) = &self.last
            && last == account
        {
            return Ok(*address);
        }
        let address = match account.address() {
            Some(address) => Some(address),
            None => {
                let preimage = self.read.preimage(&B256::from_slice(account))?;
                preimage.and_then(|preimage| preimage.address())
            }
        };
        self.last = Some((*account, address));
        Ok(address)
    }

    /// The slot that the key of a slot of `account` names.
    pub(crate) fn slot(
        &self,
        account: &AccountKey,
        slot: &B256,
    ) -> Result<Option<B256>, ReadError> {
        if !account.is_hashed() {
            return Ok(Some(*slot));
        }
        Ok(self.read.preimage(slot)?.and_then(|preimage| preimage.slot()))
    }

    /// The key that the client has for `key`.
    pub(crate) fn key(&mut self, key: &BackendKey) -> Result<Option<StateKey>, ReadError> {
        let Some(address) = self.account(key.account())? else { return Ok(None) };
        Ok(match key {
            BackendKey::Account(_) => Some(StateKey::Account(address)),
            BackendKey::Slot(account, slot) => {
                self.slot(account, slot)?.map(|slot| StateKey::Slot(address, slot))
            }
        })
    }
}

/// How many keys of a state have no known preimage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MissingPreimages {
    /// Accounts whose address is not known.
    pub accounts: u64,
    /// Slots that are not known, whether the account's address is or not.
    pub slots: u64,
}

impl MissingPreimages {
    /// Whether all preimages are known.
    pub const fn is_none(&self) -> bool {
        self.accounts == 0 && self.slots == 0
    }

    /// Counts them in one pass over `state`.
    pub(crate) fn of(
        read: &ReadTxn,
        state: &StateProvider,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self, PipelineError> {
        let (mut missing, mut entries) = (Self::default(), 0);
        if state.keys().is_plain() {
            return Ok(missing);
        }
        let mut plain = PlainKeys::new(read);
        for entry in PagedEntries::new(state, None) {
            match entry?.0 {
                BackendKey::Account(account) => {
                    missing.accounts += u64::from(plain.account(&account)?.is_none());
                }
                BackendKey::Slot(account, slot) => {
                    missing.slots += u64::from(plain.slot(&account, &slot)?.is_none());
                }
            }
            entries += 1;
            if entries % STEP == 0 {
                check_stop(stop)?;
                progress(entries);
            }
        }
        Ok(missing)
    }
}

impl fmt::Display for MissingPreimages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} accounts and {} slots of the state", self.accounts, self.slots)
    }
}

/// Counts the keys of the latest state whose preimages are not known. `progress` gets the number of
/// entries so far.
///
/// # Errors
/// If the state cannot be read, or `stop` was set.
pub fn missing_preimages(
    read: &Arc<ReadTxn>,
    backend: Arc<dyn AnyBackend>,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(u64),
) -> Result<MissingPreimages, PipelineError> {
    let store = StoreSet::open_read_only(read, backend, false)?;
    let Some(tip) = store.tip() else { return Ok(MissingPreimages::default()) };
    MissingPreimages::of(read, &listed_state(&store, tip.block)?, stop, progress)
}

fn check_stop(stop: &AtomicBool) -> Result<(), PreimageError> {
    if stop.load(Ordering::Relaxed) { Err(PreimageError::Stopped) } else { Ok(()) }
}

// -- files ------------------------------------------------------------------------------------------

/// What was imported from a preimage file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImportedPreimages {
    /// Accounts in the file.
    pub accounts: u64,
    /// Their slots.
    pub slots: u64,
    /// Addresses and slots that the datadir did not have yet.
    pub new: u64,
}

/// Stores the preimages of a file of EIP-8347 in the datadir of `db`, which must have hashed keys.
/// Each is stored under its own hash, so a wrong one cannot be given to a key. Some are committed at
/// a time; after an error or a stop those are kept, and the same file can be imported again.
///
/// # Errors
/// [`PreimageError`]; errors of the database.
pub fn import_preimages(
    db: &DatabaseEnv,
    file: &Path,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&ImportedPreimages),
) -> Result<ImportedPreimages, PipelineError> {
    if KeyForm::from(db.metadata()?.keys).is_plain() {
        return Err(PreimageError::PlainKeys { datadir: db.datadir().to_owned() }.into());
    }
    let mut done = ImportedPreimages::default();
    let mut batch = Vec::new();
    // `Err(None)`: it was stopped.
    let mut end = Ok(());
    for preimage in PreimageFile::open(file)? {
        match preimage {
            _ if stop.load(Ordering::Relaxed) => end = Err(None),
            Ok(FilePreimage::Account(hash, address)) => {
                done.accounts += 1;
                batch.push((hash, KeyPreimage::Account(address)));
            }
            Ok(FilePreimage::Slot(hash, slot)) => {
                done.slots += 1;
                batch.push((hash, KeyPreimage::Slot(slot)));
            }
            Err(source) => end = Err(Some(Box::new(source))),
        }
        if end.is_err() {
            break;
        }
        if batch.len() >= BATCH {
            done.new += store(db, &mut batch)?;
            progress(&done);
        }
    }
    done.new += store(db, &mut batch)?;
    match end {
        Ok(()) => Ok(done),
        Err(None) => Err(PreimageError::Stopped.into()),
        Err(Some(source)) => Err(PreimageError::File { source, before: done }.into()),
    }
}

/// Commits a batch; returns how many the datadir did not have.
fn store(db: &DatabaseEnv, batch: &mut Vec<(B256, KeyPreimage)>) -> Result<u64, DbError> {
    batch.sort_unstable();
    batch.dedup();
    let mut txn = db.begin_write()?;
    let new = txn.insert_preimages(batch.drain(..))?;
    txn.commit()?;
    Ok(new)
}

/// What was exported to a preimage file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportedPreimages {
    /// Accounts.
    pub accounts: u64,
    /// Their slots.
    pub slots: u64,
    /// Length of the file in bytes.
    pub bytes: u64,
    /// keccak-256 of the file.
    pub digest: B256,
}

/// Writes the preimage file (EIP-8347) of the state after the canonical `block` of the snapshot
/// `read`, made by `backend`. With hashed keys all preimages must be known. Temporary files go into
/// `scratch`.
///
/// # Errors
/// [`PreimageError::Missing`], before anything is written; if the state of the block is not kept,
/// reading or writing fails, or `stop` was set. Then there is no file.
pub fn export_preimages(
    read: &Arc<ReadTxn>,
    backend: Arc<dyn AnyBackend>,
    block: BlockRef,
    file: &Path,
    scratch: &Path,
    stop: &AtomicBool,
) -> Result<ExportedPreimages, PipelineError> {
    let store = StoreSet::open_read_only(read, backend, false)?;
    let state = listed_state(&store, block)?;
    let missing = MissingPreimages::of(read, &state, stop, &mut |_| {})?;
    if !missing.is_none() {
        return Err(PreimageError::Missing { block, missing }.into());
    }
    let writer = PreimageWriter::create(file)?;
    let slots = PagedEntries::new(&state, Some(first_slot(state.keys())));
    match state.keys() {
        KeyForm::Hashed => {
            let mut plain = PlainKeys::new(read);
            let accounts = CountedAccounts::new(&state).map(|account| {
                let (account, count) = account?;
                Ok((account, plain.account(&account)?.ok_or_else(gone)?, count))
            });
            let plain = PlainKeys::new(read);
            let slots = slots.map(|slot| {
                let BackendKey::Slot(account, slot) = slot?.0 else { return Err(gone().into()) };
                Ok((account, plain.slot(&account, &slot)?.ok_or_else(gone)?))
            });
            write(writer, accounts, slots, stop)
        }
        KeyForm::Plain => {
            let (mut by_hash, mut slots_by_hash) =
                (EntrySorter::new(scratch), EntrySorter::new(scratch));
            for account in CountedAccounts::new(&state) {
                let (account, count) = account?;
                let address = account.address().ok_or_else(gone)?;
                let value = [&account[..], &count.to_be_bytes()].concat();
                by_hash.put(&KeyForm::Hashed.key(&StateKey::Account(address)), &value)?;
            }
            for slot in slots {
                check_stop(stop)?;
                let key = slot?.0.plain().ok_or_else(gone)?;
                let StateKey::Slot(_, slot) = key else { continue };
                slots_by_hash.put(&KeyForm::Hashed.key(&key), slot.as_slice())?;
            }
            let accounts = by_hash.entries()?.map(|entry| {
                let (key, value) = entry?;
                let (address, count) = value.split_last_chunk::<4>().ok_or_else(gone)?;
                let address = Address::try_from(address).map_err(|_| gone())?;
                Ok((*key.account(), address, u32::from_be_bytes(*count)))
            });
            let slots = slots_by_hash.entries()?.map(|entry| {
                let (key, value) = entry?;
                Ok((*key.account(), B256::try_from(&value[..]).map_err(|_| gone())?))
            });
            write(writer, accounts, slots, stop)
        }
    }
}

fn gone() -> StateError {
    StateError::corrupt("state", "an entry or its preimage is not there any more")
}

/// Writes accounts (each with its address and the number of its slots) and all their slots, both in
/// the order of their hashes.
fn write(
    mut writer: PreimageWriter,
    accounts: impl Iterator<Item = Result<(AccountKey, Address, u32), PipelineError>>,
    slots: impl Iterator<Item = Result<(AccountKey, B256), PipelineError>>,
    stop: &AtomicBool,
) -> Result<ExportedPreimages, PipelineError> {
    let (mut done, mut all_slots) = ((0, 0), slots.peekable());
    for account in accounts {
        check_stop(stop)?;
        let (account, address, count) = account?;
        writer.account(&address, count)?;
        done.0 += 1;
        for _ in 0..count {
            let (of, slot) = all_slots.next().ok_or_else(gone)??;
            if of != account {
                return Err(gone().into());
            }
            writer.slot(&slot)?;
            done.1 += 1;
        }
    }
    if all_slots.next().transpose()?.is_some() {
        return Err(StateError::corrupt("state", "a slot belongs to no account").into());
    }
    let (bytes, digest) = writer.finish()?;
    Ok(ExportedPreimages { accounts: done.0, slots: done.1, bytes, digest })
}

/// The accounts of a state, each with the number of its slots, in the order of the store.
struct CountedAccounts<'a> {
    accounts: PagedEntries<'a>,
    slots: PagedEntries<'a>,
}

impl<'a> CountedAccounts<'a> {
    fn new(state: &'a StateProvider) -> Self {
        let slots = PagedEntries::new(state, Some(first_slot(state.keys())));
        Self { accounts: PagedEntries::new(state, None), slots }
    }

    fn next_account(&mut self) -> Result<Option<(AccountKey, u32)>, PipelineError> {
        let is_account = |key: &BackendKey| matches!(key, BackendKey::Account(_));
        let Some((key, _)) = self.accounts.next_if(is_account)? else { return Ok(None) };
        let (account, mut count) = (*key.account(), 0_u32);
        while self.slots.next_if(|key| *key.account() == account)?.is_some() {
            let more = count.checked_add(1);
            count = more.ok_or(PreimageError::TooManySlots { account })?;
        }
        Ok(Some((account, count)))
    }
}

impl Iterator for CountedAccounts<'_> {
    type Item = Result<(AccountKey, u32), PipelineError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_account().transpose()
    }
}
