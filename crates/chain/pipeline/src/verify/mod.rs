//! `retrie db verify`: checks a whole datadir.
//!
//! | part | what is checked | by |
//! |---|---|---|
//! | pages | B-trees and free list of the file | [`DatabaseEnv::check_pages`] |
//! | rows | checksum and order of every row of every table | [`ReadTxn::check_rows`] |
//! | chain | that the chain's tables agree with each other | [`ReadTxn::check_chain`] |
//! | blocks | bodies, senders, receipts and roots against headers | `blocks` |
//! | state | roots from values, undo, flat history, the backend's rows | [`StateStore::check`](retrie_state_store::StateStore::check) |
//!
//! All parts but the pages read one snapshot, so the check may run beside a process that writes.
//! Damage is collected as findings and is not an error. An error means that the check could not
//! continue.

mod blocks;
mod state;

use crate::{ChainSetupError, PipelineError};
use retrie_chainspec::ChainSpec;
use retrie_db::{
    ChainRead, CheckedTable, CorruptRow, DatabaseEnv, DatadirMetadata, DbError, ReadError, ReadTxn,
};
use retrie_state::{AnyBackend, StateError};
use serde::Serialize;
use std::{collections::HashSet, path::Path, sync::Arc};

/// Options of `verify`.
pub struct VerifyOptions<'a> {
    /// Rules and genesis of the chain.
    pub spec: Arc<ChainSpec>,
    /// Returns the backend with this name, if there is one.
    pub backend: &'a dyn Fn(&str) -> Option<Arc<dyn AnyBackend>>,
    /// Number of findings that are listed. Further findings are only counted.
    pub max_findings: usize,
    /// A folder in which a state may be rebuilt for comparison. It needs as much space as the
    /// checked state. What is written there is deleted afterwards.
    pub scratch: &'a Path,
}

impl std::fmt::Debug for VerifyOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VerifyOptions").field("chain", &self.spec.name()).finish_non_exhaustive()
    }
}

/// What was checked, and the findings.
#[derive(Debug, Default, Serialize)]
pub struct VerifyReport {
    /// Rows of each table.
    pub tables: Vec<CheckedTable>,
    /// Stored blocks.
    pub blocks: u64,
    /// Transactions of these blocks.
    pub txs: u64,
    /// States: name of the backend, entries at the tip, blocks read whole, roots computed.
    pub states: Vec<CheckedState>,
    /// The findings, one line each, with table and key.
    pub findings: Vec<String>,
    /// Number of all findings, also of those that are not listed.
    pub count: u64,
}

/// A state that was checked.
#[derive(Debug, Serialize)]
pub struct CheckedState {
    /// Name of its backend.
    pub backend: String,
    /// Entries at the tip.
    pub entries: u64,
    /// Blocks whose state was read whole.
    pub blocks: u64,
    /// Roots computed from values.
    pub roots: u64,
    /// Changes of flat history.
    pub changes: u64,
    /// State files that the tip or a retained block names.
    pub files: u64,
    /// Their bytes.
    pub file_bytes: u64,
    /// Files beside them that no block names. They do no harm.
    pub leftover_files: u64,
    /// Bytes of the leftover files.
    pub leftover_bytes: u64,
}

/// Collects findings. Equal lines are kept once.
struct FindingList {
    lines: Vec<String>,
    seen: HashSet<String>,
    max: usize,
}

impl FindingList {
    fn add(&mut self, line: String) {
        if self.seen.insert(line.clone()) && self.lines.len() < self.max {
            self.lines.push(line);
        }
    }

    fn db(&mut self, error: impl Into<DbError>) {
        self.add(db_line(&error.into()));
    }

    fn state(&mut self, whose: &str, error: &StateError) {
        let line = match error {
            StateError::Corrupt { table, what } => format!("table {table}: {what}"),
            StateError::Store(store) => match store.source.downcast_ref::<DbError>() {
                Some(error) => db_line(error),
                None => store.to_string(),
            },
            other => other.to_string(),
        };
        self.add(format!("state of {whose}: {line}"));
    }
}

fn db_line(error: &DbError) -> String {
    match error {
        DbError::Corrupt(CorruptRow { table, key, what }) if key.is_empty() => {
            format!("table {table}: {what}")
        }
        DbError::Corrupt(CorruptRow { table, key, what }) => {
            format!("table {table}, key {key}: {what}")
        }
        other => other.to_string(),
    }
}

/// Checks everything in `db`. `progress` is called often, with the name of what is being checked.
///
/// # Errors
/// If the check itself fails: [`PipelineError::Check`] if it cannot write to its scratch folder.
/// Damage is not an error, but a finding.
pub fn verify(
    db: &DatabaseEnv,
    options: &VerifyOptions<'_>,
    progress: &mut dyn FnMut(&str, u64),
) -> Result<VerifyReport, PipelineError> {
    let mut report = VerifyReport::default();
    let mut findings =
        FindingList { lines: Vec::new(), seen: HashSet::new(), max: options.max_findings };
    progress("pages", 0);
    for issue in db.check_pages()? {
        findings.add(format!("pages of the database file: {issue}"));
    }
    // If pages of a file do not fit together, its rows cannot be read safely.
    if findings.lines.is_empty() {
        let read = Arc::new(db.begin_read()?);
        report.tables = read.check_rows(
            &mut |table, rows| progress(&format!("table {table}"), rows),
            &mut |damage| findings.db(damage),
        )?;
        check_contents(&read, options, &mut report, &mut findings, progress)?;
    }
    report.count = findings.seen.len() as u64;
    report.findings = findings.lines;
    Ok(report)
}

fn check_contents(
    read: &Arc<ReadTxn>,
    options: &VerifyOptions<'_>,
    report: &mut VerifyReport,
    findings: &mut FindingList,
    progress: &mut dyn FnMut(&str, u64),
) -> Result<(), PipelineError> {
    let metadata = match read.metadata() {
        Ok(Some(metadata)) => metadata,
        Ok(None) => {
            findings.add("table Metadata: the datadir has no identity".into());
            return Ok(());
        }
        Err(error) => {
            findings.db(error);
            return Ok(());
        }
    };
    let spec = &options.spec;
    let expected = (spec.chain_id(), spec.genesis_hash());
    if (metadata.chain_id, metadata.genesis) != expected {
        return Err(ChainSetupError::OtherChain {
            found: metadata.genesis,
            chain: spec.name().to_owned(),
            expected: expected.1,
        }
        .into());
    }
    let Some(backend) = (options.backend)(&metadata.backend) else {
        findings.add(format!("table Metadata: no backend is called {}", metadata.backend));
        return Ok(());
    };
    blocks::check(read, options, &metadata, report, findings, progress)?;
    let mut states = vec![(backend, false)];
    states.extend(referee_of(read, &metadata, options.backend, findings).map(|r| (r, true)));
    for (backend, is_referee) in states {
        let name = backend.identity().name;
        let checked = state::check(read, backend, is_referee, options.scratch, findings, progress)?;
        report.states.push(CheckedState {
            backend: name.to_owned(),
            entries: checked.entries,
            blocks: checked.blocks,
            roots: checked.roots,
            changes: checked.changes,
            files: checked.files,
            file_bytes: checked.file_bytes,
            leftover_files: checked.leftover_files,
            leftover_bytes: checked.leftover_bytes,
        });
    }
    Ok(())
}

/// Name of the datadir's referee: the other backend with a root for the tip. If the datadir was
/// used without the referee for a while, the tip has no root of it, and there is no referee any
/// more.
pub fn referee_name(
    read: &ReadTxn,
    metadata: &DatadirMetadata,
) -> Result<Option<String>, ReadError> {
    let Some(tip) = read.tip()? else { return Ok(None) };
    let mut roots = read.roots(&tip.hash)?.into_iter();
    Ok(roots.find(|(name, _)| *name != metadata.backend).map(|(name, _)| name))
}

fn referee_of(
    read: &ReadTxn,
    metadata: &DatadirMetadata,
    backend: &dyn Fn(&str) -> Option<Arc<dyn AnyBackend>>,
    findings: &mut FindingList,
) -> Option<Arc<dyn AnyBackend>> {
    match referee_name(read, metadata) {
        Ok(name) => {
            let name = name?;
            let found = backend(&name);
            if found.is_none() {
                findings.add(format!("table BackendRoots: no backend is called {name}"));
            }
            found
        }
        Err(error) => {
            findings.db(error);
            None
        }
    }
}
