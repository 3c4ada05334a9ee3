//! The state of a datadir as a [dump](retrie_sources::state_dump): [`dump_state`]; and opened to be
//! exported otherwise: [`open_state`].

use crate::{
    MissingPreimages, PipelineError, StoreSet,
    entries::{PagedEntries, first_slot, listed_state},
    preimages::PlainKeys,
};
use alloy_primitives::{B256, Bytes, KECCAK256_EMPTY};
use retrie_db::{ChainRead, ReadTxn};
use retrie_sources::{DumpedName, StateDumpWriter};
use retrie_state::{Account, AnyBackend, BackendKey, BlockRef, StateError, decode_slot};
use retrie_state_store::StateProvider;
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// What has been dumped so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct DumpProgress {
    /// Accounts so far.
    pub accounts: u64,
    /// Their slots.
    pub slots: u64,
    /// Those that are dumped by their hashes, as their preimages are not known.
    pub hashed: MissingPreimages,
}

/// Opens the state after the canonical `block` of the snapshot `read`, made by `backend`. The block
/// must be the tip, a block that can be reverted to, or one whose state the backend itself keeps.
///
/// # Errors
/// If the state of the block is not kept, or cannot be opened.
pub fn open_state(
    read: &Arc<ReadTxn>,
    backend: Arc<dyn AnyBackend>,
    block: BlockRef,
) -> Result<StateProvider, PipelineError> {
    let store = StoreSet::open_read_only(read, backend, false)?;
    Ok(listed_state(&store, block)?)
}

/// Writes the state after the canonical `block` of the snapshot `read`, made by `backend`, to
/// `file`, in key order. Hashed keys get their plain form as far as it is known. The block must be the tip, a block that can be reverted to, or one whose
/// state the backend itself keeps. After each account, `progress` is called and `stop` is checked.
///
/// # Errors
/// If the state of the block is not kept, reading or writing fails, or `stop` was set. Then there
/// is no file.
pub fn dump_state(
    read: &Arc<ReadTxn>,
    backend: Arc<dyn AnyBackend>,
    block: BlockRef,
    file: &Path,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&DumpProgress),
) -> Result<DumpProgress, PipelineError> {
    let header = read.header(&block.hash)?.ok_or(StateError::UnknownBlock { hash: block.hash })?;
    let state = open_state(read, backend, block)?;
    let mut writer = StateDumpWriter::create(file, header.state_root)?;
    let mut accounts = PagedEntries::new(&state, None);
    let mut slots = PagedEntries::new(&state, Some(first_slot(state.keys())));
    let mut plain = PlainKeys::new(read);
    let mut dumped = DumpProgress::default();
    while let Some((BackendKey::Account(account_key), value)) = accounts.next().transpose()? {
        if stop.load(Ordering::Relaxed) {
            return Err(StateError::from(stopped(file)).into());
        }
        let account = Account::decode(&value)
            .ok_or_else(|| damaged(format!("account {account_key} is not canonical")))?;
        let code = code_of(read, &account.code_hash)?;
        let name = match plain.account(&account_key)? {
            Some(address) => DumpedName::Address(address),
            None => DumpedName::Hash(B256::from_slice(&account_key)),
        };
        dumped.hashed.accounts += u64::from(matches!(name, DumpedName::Hash(_)));
        writer.account(&name, account.nonce, account.balance, &code)?;
        dumped.accounts += 1;
        // Slots that are known come first.
        let mut hashed = Vec::new();
        while let Some((key, value)) = slots.next_if(|key| *key.account() == account_key)? {
            let BackendKey::Slot(_, slot) = key else { continue };
            let value =
                decode_slot(&value).ok_or_else(|| damaged(format!("{key} is not canonical")))?;
            match plain.slot(&account_key, &slot)? {
                Some(slot) => writer.slot(&slot, value)?,
                None => hashed.push((slot, value)),
            }
            dumped.slots += 1;
        }
        for (hash, value) in &hashed {
            writer.hashed_slot(hash, *value)?;
        }
        dumped.hashed.slots += hashed.len() as u64;
        progress(&dumped);
    }
    if let Some((key, _)) = slots.next().transpose()? {
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

/// The code with this hash. An account has it, so it must exist.
pub(crate) fn code_of(read: &ReadTxn, hash: &B256) -> Result<Bytes, PipelineError> {
    if *hash == KECCAK256_EMPTY {
        return Ok(Bytes::new());
    }
    let lost = || StateError::corrupt("Codes", format!("code {hash} is missing"));
    Ok(read.code(hash)?.ok_or_else(lost)?)
}
