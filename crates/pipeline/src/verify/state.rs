//! The state of a datadir, or its referee's, against values, chain and code.

use super::Findings;
use crate::{
    PipelineError,
    chain::{referee_names, state_folder},
};
use alloy_primitives::{B256, KECCAK256_EMPTY};
use retrie_db::{ChainRead, Db, DbError, OpenOptions, ReadTxn, SyncMode};
use retrie_state::{
    Account, At, Backend, StateCheck, StateCheckSink, StateError, StateKey, StateStore,
    StoreOptions, Value,
};
use std::{collections::HashSet, sync::Arc};

/// Checks one state of the snapshot `read`.
pub(super) fn check(
    read: &Arc<ReadTxn>,
    backend: Arc<dyn Backend>,
    is_referee: bool,
    findings: &mut Findings,
    progress: &mut dyn FnMut(&str, u64),
) -> Result<StateCheck, PipelineError> {
    let name = backend.identity().name;
    let mut kv = read.state_store();
    if is_referee {
        kv = referee_names(&*backend).store(kv);
    }
    let dir = state_folder(read.datadir(), is_referee);
    let options = StoreOptions { dir: Some(dir), read_only: true, ..StoreOptions::default() };
    let store = match StateStore::open(backend, kv, options) {
        Ok(store) => store,
        Err(error) => {
            findings.state(name, &error);
            return Ok(StateCheck::default());
        }
    };
    check_against_chain(read, &store, findings)?;

    let folder = tempfile::tempdir().map_err(|source| PipelineError::Io {
        action: "creating a temporary folder for the check of the state".into(),
        source,
    })?;
    let options = OpenOptions { sync: SyncMode::NoSync, ..OpenOptions::default() };
    let scratch = Db::create(folder.path(), &options)?;
    let codes = HashSet::new();
    let mut sink = Sink { name, findings, progress, codes };
    let checked = match store.check(&scratch.state_store(), &mut sink) {
        Ok(checked) => checked,
        Err(error) => {
            sink.findings.state(name, &error);
            StateCheck::default()
        }
    };
    for hash in std::mem::take(&mut sink.codes) {
        match read.code(&hash) {
            Ok(Some(_)) => {}
            Ok(None) => findings.add(format!("table Codes, key {hash}: an account has this code")),
            Err(error) => findings.db(&error),
        }
    }
    Ok(checked)
}

/// Tip and retained blocks of the state are canonical blocks, with the roots recorded there.
fn check_against_chain(
    read: &ReadTxn,
    store: &StateStore,
    findings: &mut Findings,
) -> Result<(), PipelineError> {
    let name = store.identity().name;
    let tip = match read.tip() {
        Ok(tip) => tip,
        Err(error) => {
            findings.db(&error);
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
            Err(error @ DbError::Corrupt { .. }) => findings.db(&error),
            Err(error) => return Err(error.into()),
            Ok(None) => {
                findings.add(format!("state of {name}: block {number} is not canonical"));
            }
            Ok(Some((hash, root))) => match store.root(At::Block(hash)) {
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

struct Sink<'a> {
    name: &'static str,
    findings: &'a mut Findings,
    progress: &'a mut dyn FnMut(&str, u64),
    codes: HashSet<B256>,
}

impl StateCheckSink for Sink<'_> {
    fn fault(&mut self, fault: StateError) {
        self.findings.state(self.name, &fault);
    }

    fn entry(&mut self, key: &StateKey, value: &Value) {
        if let StateKey::Account(_) = key
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
