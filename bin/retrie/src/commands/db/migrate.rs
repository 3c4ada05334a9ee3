//! `retrie db migrate`: copies the chain of a datadir into a new one on another backend.

use crate::{
    args::{
        self, BackendArgs, ChainArgs, DEFAULT_RETENTION, DbArgs, HashChoice, KeyFormChoice,
        PruneArgs, StateArgs,
    },
    commands::existing::ExistingDatadir,
    output::{CommandOutput, grouped, say},
    progress::{ImportProgress, LINE_EVERY},
};
use eyre::{Context, bail};
use retrie_db::{DatadirMetadata, StateRootMode};
use retrie_pipeline::{
    ChainMigration, ChainOptions, ImportEnd, MigrationOutcome, MigrationStep, UnfinishedMigration,
    verify::referee_name,
};
use retrie_state::AnyBackend;
use retrie_telemetry::{Metrics, MetricsServer};
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
    time::Instant,
};

/// Value of `--referee` for a new datadir without a referee.
const NO_REFEREE: &str = "none";

/// Arguments of `retrie db migrate`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct MigrateArgs {
    #[command(flatten)]
    chain: ChainArgs,
    /// The state store of the new datadir; `retrie import --help` lists them.
    #[arg(long, value_name = "BACKEND")]
    to: String,
    /// Execute all blocks again, so that the new datadir has the same states as after an import.
    /// Without this flag only the latest state is copied, and the new chain cannot be reverted
    /// below it.
    #[arg(long)]
    history: bool,
    /// Last block of the new chain [default: the head]. With --history this helps a node whose
    /// consensus client has chosen a branch that forks off deeper than --retention.
    #[arg(long, value_name = "NUMBER")]
    until: Option<u64>,
    /// Hash function of the new state store, for comparison only; `mpt-archive` and `pbt` have
    /// the choice.
    #[arg(long, value_name = "HASH")]
    hash: Option<HashChoice>,
    /// Form of the keys in the new datadir, `plain` or `hashed` [default: that of the old one]. Hashed
    /// keys become plain only if all their preimages are known, or with --history from genesis on.
    #[arg(long, value_name = "FORM")]
    keys: Option<KeyFormChoice>,
    /// Keep the preimages of hashed keys in the new datadir [default: true if the old one keeps
    /// them].
    #[arg(
        long,
        value_name = "BOOL",
        action = clap::ArgAction::Set,
        num_args = 0..=1,
        default_missing_value = "true"
    )]
    preimages: Option<bool>,
    /// What header state roots mean in the new datadir [default: `native` for a native chain,
    /// `header` for backends with Ethereum's roots, else `shadow`].
    #[arg(long, value_name = "MODE")]
    state_root: Option<StateRootMode>,
    /// The backend that checks header state roots in the new datadir, or `none` [default: the old
    /// datadir's, unless the new backend has Ethereum's roots itself; a continued migration keeps
    /// its own].
    #[arg(long, value_name = "BACKEND")]
    referee: Option<String>,
    /// How many blocks can be reverted in the new datadir [default: 128].
    #[arg(long, value_name = "BLOCKS")]
    retention: Option<u64>,
    #[command(flatten)]
    prune: PruneArgs,
    #[command(flatten)]
    backends: BackendArgs,
    #[command(flatten)]
    db: DbArgs,
    /// Serve Prometheus metrics on this address.
    #[arg(long, value_name = "ADDR:PORT", help_heading = "Metrics")]
    metrics: Option<SocketAddr>,
    /// The new datadir.
    #[arg(value_name = "NEW_DATA_DIR")]
    new: PathBuf,
}

impl MigrateArgs {
    /// Runs the command. The old datadir is only read. If the command is interrupted, the new
    /// datadir is marked as incomplete.
    pub(crate) fn run(self, stop: &AtomicBool) -> eyre::Result<()> {
        let start = Instant::now();
        let metrics = Metrics::new().wrap_err("registering the metrics")?;
        let _server = self
            .metrics
            .map(|address| MetricsServer::start(address, metrics.clone()))
            .transpose()?;
        let old = ExistingDatadir::open(&self.chain)?;
        let metadata = old.db.metadata()?;
        let from = Arc::new(old.db.begin_read()?);
        let backend = old.backend(&metadata, &self.backends)?;
        let had = referee_name(&from, &metadata)?;
        let begun = if self.history { UnfinishedMigration::read(&self.new, &from)? } else { None };
        let keeps = from.keeps_preimages()?;
        let to = self.options(&old, &metadata, had, begun, keeps)?;
        let (checks, name) = (to.referee.is_some(), to.backend.identity().name);
        let (history, until) = (self.history, self.until);
        let migration = ChainMigration { from: &from, backend, to, history, until };
        let mut shown = MigrateProgress::default();
        let migrated = migration.run(&metrics, stop, &mut |step| shown.update(step));
        shown.finish();
        let migrated = migrated?;
        if migrated.end == ImportEnd::Stopped {
            bail!(
                "stopped; {} is not whole yet: run the same command again to go on",
                self.new.display()
            );
        }
        report(&self.new, name, &migrated, start)?;
        if migrated.roots_checked == 0 && !checks && metadata.state_root == StateRootMode::Header {
            tracing::info!(
                "no state root was compared with a header's, as {name} does not compute Ethereum's"
            );
        }
        Ok(())
    }

    /// Options of the new datadir: the flags, else those of the migration that was `begun`, else
    /// those of the old datadir, whose referee is `had`, and which keeps preimages or not.
    fn options(
        &self,
        old: &ExistingDatadir,
        metadata: &DatadirMetadata,
        had: Option<String>,
        begun: Option<UnfinishedMigration>,
        keeps_preimages: bool,
    ) -> eyre::Result<ChainOptions> {
        let is_given = self.referee.is_some();
        let native =
            (metadata.state_root == StateRootMode::Native).then_some(StateRootMode::Native);
        let keys = self.keys.map_or_else(|| metadata.keys.into(), |KeyFormChoice(form)| form);
        let args = StateArgs {
            state_backend: Some(self.to.clone()),
            hash: self.hash,
            keys: Some(KeyFormChoice(keys)),
            preimages: self.preimages.or_else(|| (!keys.is_plain()).then_some(keeps_preimages)),
            state_root: self.state_root.or(native),
            referee: self.referee.clone().or(had).filter(|name| name != NO_REFEREE),
            referee_joins: false,
            retention: self.retention,
            default_retention: DEFAULT_RETENTION,
            prune: self.prune.clone(),
            backends: self.backends.clone(),
        };
        let mut options = args.chain_options(old.spec()?, &self.new, self.db.options())?;
        if is_given {
            return Ok(options);
        }
        if let Some(begun) = begun {
            options.referee = begun.referee.as_deref().map(args::referee).transpose()?;
        } else if options.spec.binary_tree_time().is_some() {
            options.referee = other_tree(&options, metadata)?;
        } else if options.backend.profile().ethereum_root {
            options.referee = None;
        }
        Ok(options)
    }
}

/// The referee on a chain that switches to the binary tree: of the old datadir's backends, the one
/// with the roots that the new backend does not have.
fn other_tree(
    options: &ChainOptions,
    metadata: &DatadirMetadata,
) -> eyre::Result<Option<Arc<dyn AnyBackend>>> {
    let kinds = |backend: &dyn AnyBackend| {
        let profile = backend.profile();
        (profile.ethereum_root, profile.binary_root)
    };
    let own = kinds(&*options.backend);
    if let Some(referee) = options.referee.as_ref().filter(|referee| kinds(&***referee) != own) {
        return Ok(Some(referee.clone()));
    }
    let old = args::referee(&metadata.backend).ok();
    Ok(old.filter(|old| options.referee.is_some() && kinds(&**old) != own))
}

fn report(new: &Path, name: &str, migrated: &MigrationOutcome, start: Instant) -> eyre::Result<()> {
    let out = CommandOutput::default();
    let MigrationOutcome { first_state, entries, roots_checked, executed, tip, roots, .. } =
        migrated;
    let root = roots.map(|roots| roots.own).unwrap_or_default();
    say!(
        out,
        "{}: backend {name}, states from block {} to block {tip}, root {root}; {} entries loaded, {} \
         blocks executed, {} state roots checked; {:.1} s",
        new.display(),
        first_state.number,
        grouped(*entries),
        grouped(executed.blocks),
        grouped(*roots_checked),
        start.elapsed().as_secs_f64()
    );
    Ok(())
}

/// Shows the progress.
#[derive(Default)]
struct MigrateProgress {
    blocks: Option<ImportProgress>,
    told: Option<Instant>,
}

impl MigrateProgress {
    fn update(&mut self, step: MigrationStep<'_>) {
        let line = match step {
            MigrationStep::Blocks { report, total } => {
                return self
                    .blocks
                    .get_or_insert_with(|| ImportProgress::new(Some(total)))
                    .update(report);
            }
            MigrationStep::Rows { done, total } => {
                format!("copied {} of {} blocks", grouped(done), grouped(total))
            }
            MigrationStep::Codes { accounts } => {
                format!("copied the code of {} accounts", grouped(accounts))
            }
            MigrationStep::Preimages { entries } => {
                format!("looked up the preimages of {} entries", grouped(entries))
            }
            MigrationStep::Entries { entries } => format!("loaded {} entries", grouped(entries)),
        };
        if self.told.get_or_insert_with(Instant::now).elapsed() >= LINE_EVERY {
            self.told = Some(Instant::now());
            tracing::info!("{line}");
        }
    }

    fn finish(&self) {
        if let Some(blocks) = &self.blocks {
            blocks.finish();
        }
    }
}
