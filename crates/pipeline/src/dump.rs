//! The state of a datadir as a [dump](retrie_sources::state_dump): [`dump_state`].

use crate::{PipelineError, chain::state_folder};
use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY};
use retrie_db::{ChainRead, ReadTxn};
use retrie_sources::StateDumpWriter;
use retrie_state::{
    Account, At, Backend, BlockRef, PastState, StateError, StateKey, StateStore, StoreOptions,
    Value, decode_slot,
};
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// Entries read at a time.
const PAGE: usize = 1 << 16;

/// What was dumped.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dumped {
    /// Accounts so far.
    pub accounts: u64,
    /// Their slots.
    pub slots: u64,
}

/// Writes the state after the canonical `block` of the snapshot `read`, made by `backend`, to
/// `file`, in key order. It must be the tip, a block that can be reverted to, or one that the
/// backend itself keeps. `progress` is called after each account, and `stop` looked at.
///
/// # Errors
/// If the state of the block is not kept, reading or writing fails, or `stop` was set; there is no
/// file then.
pub fn dump_state(
    read: &Arc<ReadTxn>,
    backend: Arc<dyn Backend>,
    block: BlockRef,
    file: &Path,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&Dumped),
) -> Result<Dumped, PipelineError> {
    let header = read.header(&block.hash)?.ok_or(StateError::UnknownBlock { hash: block.hash })?;
    let dir = Some(state_folder(read.datadir(), false));
    let options = StoreOptions { dir, read_only: true, ..StoreOptions::default() };
    let store = StateStore::open(backend, read.state_store(), options)?;
    let state = State::of(&store, block)?;
    let mut writer = StateDumpWriter::create(file, header.state_root)?;
    let mut accounts = Cursor::new(&state, None);
    let mut slots = Cursor::new(&state, Some(StateKey::Slot(Address::ZERO, B256::ZERO)));
    let mut dumped = Dumped::default();
    while let Some((StateKey::Account(address), value)) = accounts.next()? {
        if stop.load(Ordering::Relaxed) {
            return Err(StateError::from(stopped(file)).into());
        }
        let account = Account::decode(&value)
            .ok_or_else(|| damaged(format!("account {address} is not canonical")))?;
        let code = code_of(read, &account)?;
        writer.account(&address, account.nonce, account.balance, &code)?;
        dumped.accounts += 1;
        while let Some((key, value)) = slots.next_if(&address)? {
            let StateKey::Slot(_, slot) = key else { continue };
            let value =
                decode_slot(&value).ok_or_else(|| damaged(format!("{key} is not canonical")))?;
            writer.slot(&slot, value)?;
            dumped.slots += 1;
        }
        progress(&dumped);
    }
    if let Some((key, _)) = slots.next()? {
        return Err(damaged(format!("{key} belongs to no account")).into());
    }
    writer.finish()?;
    Ok(dumped)
}

fn damaged(what: String) -> StateError {
    StateError::corrupt("state", what)
}

fn stopped(file: &Path) -> retrie_state::StoreError {
    let action = format!("dumping the state to {}", file.display());
    retrie_state::StoreError::new(action, "it was stopped, and there is no file")
}

fn code_of(read: &ReadTxn, account: &Account) -> Result<Bytes, PipelineError> {
    if account.code_hash == KECCAK256_EMPTY {
        return Ok(Bytes::new());
    }
    let lost = || StateError::corrupt("Codes", format!("code {} is missing", account.code_hash));
    Ok(read.code(&account.code_hash)?.ok_or_else(lost)?)
}

type Entry = (StateKey, Value);

/// One state, in whatever way it is kept.
enum State<'a> {
    Retained(&'a StateStore, B256),
    Past(PastState),
}

impl<'a> State<'a> {
    fn of(store: &'a StateStore, block: BlockRef) -> Result<Self, StateError> {
        if store.retained().is_some_and(|kept| kept.contains(&block.number)) {
            return Ok(Self::Retained(store, block.hash));
        }
        if store.backend().history().is_some() {
            return Ok(Self::Past(store.history(block.number)?));
        }
        Err(store.beyond_retention(block.number))
    }

    fn entries(&self, start: Option<&StateKey>) -> Result<Vec<Entry>, StateError> {
        match self {
            Self::Retained(store, hash) => store.entries(At::Block(*hash), start, PAGE),
            Self::Past(state) => state.entries(start, PAGE),
        }
    }
}

/// Entries of a state in key order.
struct Cursor<'a> {
    state: &'a State<'a>,
    page: std::iter::Peekable<std::vec::IntoIter<Entry>>,
    /// Where the next page starts; its first entry was given already if `last` is set.
    start: Option<StateKey>,
    last: Option<StateKey>,
    is_over: bool,
}

impl<'a> Cursor<'a> {
    fn new(state: &'a State<'a>, start: Option<StateKey>) -> Self {
        let page = Vec::new().into_iter().peekable();
        Self { state, page, start, last: None, is_over: false }
    }

    fn peek(&mut self) -> Result<Option<&Entry>, StateError> {
        if self.page.peek().is_none() && !self.is_over {
            let mut entries = self.state.entries(self.start.as_ref())?;
            self.is_over = entries.len() < PAGE;
            if self.last.is_some() && entries.first().map(|(key, _)| *key) == self.last {
                entries.remove(0);
            }
            self.last = entries.last().map(|(key, _)| *key);
            self.start = self.last;
            self.page = entries.into_iter().peekable();
        }
        Ok(self.page.peek())
    }

    fn next(&mut self) -> Result<Option<Entry>, StateError> {
        self.peek()?;
        Ok(self.page.next())
    }

    /// The next entry, if it is one of `address`.
    fn next_if(&mut self, address: &Address) -> Result<Option<Entry>, StateError> {
        match self.peek()? {
            Some((key, _)) if key.address() == address => self.next(),
            _ => Ok(None),
        }
    }
}
