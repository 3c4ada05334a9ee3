//! `retrie db`: inspects datadirs.

mod migrate;
mod preimages;

use super::{existing::ExistingDatadir, verify};
use crate::{
    args::{BackendArgs, ChainArgs},
    output::{CommandOutput, grouped, say},
};
use retrie_db::DbStats;
use retrie_pipeline::StoreSet;
use retrie_state::StateError;
use retrie_state_store::{StateId, StateStore};
use serde::Serialize;
use std::{
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
};

/// Subcommands of `retrie db`.
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum DbCommand {
    /// Print the size of every table, and what the state holds.
    Stats(StatsArgs),
    /// Check every table, every block, and the state.
    Verify(verify::DbVerifyArgs),
    /// Make a new datadir of the same chain on another backend.
    Migrate(Box<migrate::MigrateArgs>),
    /// Import and export preimages of hashed keys.
    #[command(subcommand)]
    Preimages(preimages::PreimagesCommand),
}

/// Arguments of `retrie db stats`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct StatsArgs {
    #[command(flatten)]
    chain: ChainArgs,
    #[command(flatten)]
    backends: BackendArgs,
    /// Write the figures as JSON to this file, or `-` for stdout.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// `db stats --json`.
#[derive(Debug, Serialize)]
struct DatadirStats {
    /// Chain id.
    chain_id: u64,
    /// Backend name.
    backend: String,
    /// Meaning of header state roots.
    state_root: String,
    /// Tables and pages.
    #[serde(flatten)]
    db: DbStats,
    /// The state.
    state: StateStats,
}

#[derive(Debug, Serialize)]
struct StateStats {
    block: Option<u64>,
    root: Option<alloy_primitives::B256>,
    live_keys: u64,
    dead_keys: u64,
    rows: Vec<(&'static str, u64)>,
    /// Memory of rows that are in the journal but not yet in the tables.
    pending_bytes: u64,
    journal_rows: u64,
    undo_rows: u64,
    /// Files of the state at the durable tip.
    file_bytes: u64,
    /// Files needed only to revert to earlier blocks.
    retained_file_bytes: u64,
    first_retained: Option<u64>,
    /// First block whose state can be read, from flat history or from the backend's own.
    first_readable: Option<u64>,
}

impl DbCommand {
    /// Whether the command changes nothing.
    pub(crate) const fn only_prints(&self) -> bool {
        match self {
            Self::Stats(_) | Self::Verify(_) => true,
            Self::Migrate(_) => false,
            Self::Preimages(command) => command.only_prints(),
        }
    }

    /// Runs the command.
    pub(crate) fn run(self, stop: &AtomicBool) -> eyre::Result<()> {
        match self {
            Self::Stats(args) => args.run(),
            Self::Verify(args) => args.run(),
            Self::Migrate(args) => args.run(stop),
            Self::Preimages(command) => command.run(stop),
        }
    }
}

impl StatsArgs {
    fn run(self) -> eyre::Result<()> {
        let found = ExistingDatadir::open(&self.chain)?;
        let metadata = found.db.metadata()?;
        let backend = found.backend(&metadata, &self.backends)?;
        let read = Arc::new(found.db.begin_read()?);
        let store = StoreSet::open_read_only(&read, backend, false)?;
        let state = store.stats()?;
        let tip = store.tip();
        let stats = DatadirStats {
            chain_id: metadata.chain_id,
            backend: metadata.backend,
            state_root: metadata.state_root.to_string(),
            db: found.db.stats()?,
            state: StateStats {
                block: tip.map(|tip| tip.block.number),
                root: tip.map(|tip| tip.root),
                live_keys: state.backend.live_keys,
                dead_keys: state.backend.dead_keys,
                rows: state.backend.tables,
                pending_bytes: state.pending_bytes,
                journal_rows: state.journal_rows,
                undo_rows: state.undo_rows,
                file_bytes: state.file_bytes,
                retained_file_bytes: state.retained_file_bytes,
                first_retained: state.first_retained,
                first_readable: first_readable(&store)?,
            },
        };
        let out = CommandOutput::new(self.json)?;
        print_table(&out, &stats)?;
        out.json(&stats)
    }
}

fn first_readable(store: &StateStore) -> Result<Option<u64>, StateError> {
    let flat = store.flat_history_kept(StateId::Tip)?;
    let own = match store.backend().extensions().history {
        Some(_) => store.history_kept()?,
        None => None,
    };
    Ok(flat.into_iter().chain(own).map(|kept| *kept.start()).min())
}

fn print_table(out: &CommandOutput, stats: &DatadirStats) -> eyre::Result<()> {
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / (1 << 20) as f64);
    let number = |block: Option<u64>| block.map_or_else(|| "-".into(), |block| block.to_string());
    let state = &stats.state;
    say!(
        out,
        "chain id {}, backend {} (state root {})",
        stats.chain_id,
        stats.backend,
        stats.state_root
    );
    if let (Some(block), Some(root)) = (state.block, state.root) {
        say!(out, "state at block {block}, root {root}");
    }
    say!(
        out,
        "state keys: {} live, {} dead; reverts back to block {}; states can be read from block {} on",
        grouped(state.live_keys),
        grouped(state.dead_keys),
        number(state.first_retained),
        number(state.first_readable)
    );
    say!(out, "{:<28} {:>14} {:>10} {:>12}", "table", "rows", "pages", "MiB");
    for table in &stats.db.tables {
        let pages = table.branch_pages + table.leaf_pages + table.overflow_pages;
        say!(
            out,
            "{:<28} {:>14} {:>10} {:>12}",
            table.name,
            grouped(table.rows),
            grouped(pages),
            mib(table.bytes)
        );
    }
    say!(
        out,
        "in use {} MiB of {} MiB file, {} free pages; state files {} MiB, {} MiB more for retained \
         blocks; not yet folded {} MiB",
        mib(stats.db.used_bytes),
        mib(stats.db.file_bytes),
        grouped(stats.db.free_pages),
        mib(state.file_bytes),
        mib(state.retained_file_bytes),
        mib(state.pending_bytes)
    );
    Ok(())
}
