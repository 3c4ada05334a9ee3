//! Checks the own state, or the referee's, against its values, the chain and the codes.

use super::FindingList;
use crate::{PipelineError, StoreSet};
use alloy_primitives::{B256, KECCAK256_EMPTY};
use retrie_db::{ChainRead, DatabaseEnv, OpenOptions, ReadError, ReadTxn, SyncMode};
use retrie_state::{Account, AnyBackend, BackendKey, StateError, StateValue};
use retrie_state_store::{KvStore, MemoryStore, StateCheck, StateCheckSink, StateId, StateStore};
use std::{collections::HashSet, path::Path, sync::Arc};

/// Checks one state of the snapshot `read`.
pub(super) fn check(
    read: &Arc<ReadTxn>,
    backend: Arc<dyn AnyBackend>,
    is_referee: bool,
    scratch: &Path,
    findings: &mut FindingList,
    progress: &mut dyn FnMut(&str, u64),
) -> Result<StateCheck, PipelineError> {
    let name = backend.identity().name;
    let store = match StoreSet::open_read_only(read, backend, is_referee) {
        Ok(store) => store,
        Err(error) => {
            findings.state(name, &error);
            return Ok(StateCheck::default());
        }
    };
    check_against_chain(read, &store, findings)?;

    let failed = |source: Box<dyn std::error::Error + Send + Sync>| PipelineError::Check {
        folder: scratch.to_owned(),
        source,
    };
    let mut folder = None;
    let rebuilt: Arc<dyn KvStore> = if store.rebuilds() {
        let made = tempfile::Builder::new().prefix("verify-").tempdir_in(scratch);
        let made = folder.insert(made.map_err(|error| failed(error.into()))?);
        let options = OpenOptions { sync: SyncMode::NoSync, ..OpenOptions::default() };
        let db =
            DatabaseEnv::create(made.path(), &options).map_err(|error| failed(error.into()))?;
        db.state_store()
    } else {
        Arc::new(MemoryStore::new())
    };
    let codes = HashSet::new();
    let mut sink = FindingSink { name, findings, progress, codes };
    let checked = store.check(&rebuilt, &mut sink);
    let checked = checked.map_err(|error| failed(error.into()))?;
    for hash in std::mem::take(&mut sink.codes) {
        match read.code(&hash) {
            Ok(Some(_)) => {}
            Ok(None) => findings.add(format!("table Codes, key {hash}: an account has this code")),
            Err(error) => findings.db(error),
        }
    }
    Ok(checked)
}

/// Checks that the state's tip and retained blocks are canonical, with the recorded roots.
fn check_against_chain(
    read: &ReadTxn,
    store: &StateStore,
    findings: &mut FindingList,
) -> Result<(), PipelineError> {
    let name = store.identity().name;
    let tip = match read.tip() {
        Ok(tip) => tip,
        Err(error) => {
            findings.db(error);
            return Ok(());
        }
    };
    let at = store.tip().map(|tip| tip.block);
    if at != tip {
        let show = |at: Option<retrie_state::BlockRef>| {
            at.map_or_else(|| "nothing".to_owned(), |at| at.to_string())
        };
        findings.add(format!("state of {name} is at {}, the chain at {}", show(at), show(tip)));
    }
    for number in store.retained().into_iter().flatten() {
        let recorded = read.canonical_hash(number).and_then(|hash| {
            let Some(hash) = hash else { return Ok(None) };
            Ok(Some((hash, read.root(&hash, name)?)))
        });
        match recorded {
            Err(ReadError::Corrupt(row)) => findings.db(row),
            Err(error) => return Err(error.into()),
            Ok(None) => {
                findings.add(format!("state of {name}: block {number} is not canonical"));
            }
            Ok(Some((hash, root))) => match store.root(StateId::Block(hash)) {
                Ok(found) if Some(found) == root => {}
                Ok(found) => findings.add(format!(
                    "state of {name}: block {number} has root {found}, recorded is {}",
                    root.map_or_else(|| "none".into(), |root| root.to_string())
                )),
                Err(error) => findings.state(name, &error),
            },
        }
    }
    Ok(())
}

struct FindingSink<'a> {
    name: &'static str,
    findings: &'a mut FindingList,
    progress: &'a mut dyn FnMut(&str, u64),
    codes: HashSet<B256>,
}

impl StateCheckSink for FindingSink<'_> {
    fn fault(&mut self, fault: StateError) {
        self.findings.state(self.name, &fault);
    }

    fn entry(&mut self, key: &BackendKey, value: &StateValue) {
        if let BackendKey::Account(_) = key
            && let Some(account) = Account::decode(value)
            && account.code_hash != KECCAK256_EMPTY
        {
            self.codes.insert(account.code_hash);
        }
    }

    fn progress(&mut self, block: u64, entries: u64) {
        (self.progress)(&format!("state of {} at block {block}", self.name), entries);
    }
}
