//! `retrie import`: imports block files into a datadir.

#[cfg(feature = "lab")]
use crate::limit::of_import as of_limit;
use crate::{
    args::{ChainArgs, DbArgs, HttpArgs, StateArgs, TracingArgs},
    output::{CommandOutput, grouped, say},
    progress::{ImportProgress, LINE_EVERY},
};
use eyre::{Context, bail};
use retrie_db::StateRootMode;
#[cfg(not(feature = "lab"))]
use retrie_db::SyncMode;
use retrie_pipeline::{
    ChainOptions, ChainStore, ImportEnd, ImportOptions, ImportOutcome, RootCheckMode, import,
    report::ImportReport,
};
use retrie_sources::{BlockSource, SourceLocation};
use retrie_telemetry::{Metrics, MetricsServer, spans::OtlpConfig};
use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
    time::Instant,
};

/// Arguments of `retrie import`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ImportArgs {
    #[command(flatten)]
    chain: ChainArgs,
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    db: DbArgs,
    /// First block to import. Earlier blocks in the files are skipped.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    from: u64,
    /// Last block to import.
    #[arg(long, value_name = "NUMBER", default_value_t = u64::MAX)]
    to: u64,
    /// Check the state roots in receipts before Byzantium; each transaction then gets a proposal of
    /// its own.
    #[arg(long)]
    check_receipt_roots: bool,
    /// Which state roots to compute and check: those of `every` block, or only of the last block of
    /// each `batch` of up to 128. A batch needs a backend that supports it (`mpt`, `raw`), and
    /// blocks more than `--retention` below the last block of the files. All other checks are done
    /// for every block. Headers are linked by hash, so use `batch` for files whose last block is
    /// trusted. If a root is wrong, the batch runs again with every root, and the error names the
    /// block. During such an import the chain can be reverted only to the end of a batch.
    #[arg(long, value_enum, value_name = "WHICH", default_value_t = CheckRootsArg::Every)]
    check_roots: CheckRootsArg,
    /// Write the figures as JSON to this file, or `-` for stdout.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Serve Prometheus metrics on this address.
    #[arg(long, value_name = "ADDR:PORT", help_heading = "Metrics")]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    http: HttpArgs,
    #[command(flatten)]
    tracing: TracingArgs,
    /// Block files (.rlp, .rlp.gz, .era1, .ere) or folders of them, imported in this order: paths, or
    /// URLs of object stores and web servers (s3://, gs://, http://, https://).
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// Values of `--check-roots`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum CheckRootsArg {
    Every,
    Batch,
}

impl ImportArgs {
    /// Where the flags export spans to, if they do.
    pub(crate) fn span_export(&self) -> Option<OtlpConfig> {
        self.tracing.export()
    }

    /// Runs the command.
    pub(crate) fn run(self, stop: &Arc<AtomicBool>) -> eyre::Result<()> {
        let metrics = Metrics::new().wrap_err("registering the metrics")?;
        let _server = self
            .metrics
            .map(|address| MetricsServer::start(address, metrics.clone()))
            .transpose()?;
        let sources = open_sources(&self.http.stores(stop).locate_all(&self.paths)?)?;
        let (spec, datadir) = self.chain.resolve()?;
        let options = self.state.chain_options(spec, &datadir, self.db.options())?;
        let checkers = [Some(&options.backend), options.referee.as_ref()];
        if self.check_receipt_roots
            && !checkers.into_iter().flatten().any(|b| b.profile().ethereum_root)
        {
            bail!(
                "--check-receipt-roots needs Ethereum's state roots, which backend {} does not \
                 compute: run --referee mpt beside it",
                options.backend.identity().name
            );
        }
        let chain = self.open(options, stop)?;
        chain.register_metrics(&metrics);
        if chain.root_mode() == StateRootMode::Shadow {
            let by = match &self.state.referee {
                Some(referee) => format!("the referee {referee} checks them"),
                None => "they are not checked".into(),
            };
            tracing::info!(
                "header state roots belong to another backend; {by}, and the root of {} is stored \
                 beside",
                chain.state().identity().name
            );
        }
        let check_roots = match self.check_roots {
            CheckRootsArg::Every => RootCheckMode::Every,
            CheckRootsArg::Batch => RootCheckMode::Batch,
        };
        if check_roots == RootCheckMode::Batch && !chain.states().applies_batches() {
            tracing::info!(
                "every root is computed: the roots of {} depend on more than the state, or its history \
                 is kept for each block",
                chain.state().identity().name
            );
        }
        let mut progress = ImportProgress::new(total_blocks(&sources));
        let import_options = ImportOptions {
            intermediate_roots: self.check_receipt_roots,
            check_roots,
            ..Default::default()
        };
        let outcome = import(
            &chain,
            sources,
            self.from..=self.to,
            import_options,
            &metrics,
            stop,
            &mut |report| progress.update(report),
        );
        progress.finish();
        self.print(&chain, outcome?)
    }

    fn open(&self, options: ChainOptions, stop: &AtomicBool) -> eyre::Result<ChainStore> {
        if !self.state.referee_joins {
            return Ok(ChainStore::open(options)?);
        }
        let mut told = Instant::now();
        let mut report = |step| {
            if told.elapsed() >= LINE_EVERY {
                told = Instant::now();
                tracing::info!("the referee joins: {step}");
            }
        };
        let (chain, joining) = ChainStore::open_joined(options, None, stop, &mut report)?;
        if joining.is_some() {
            bail!("stopped before the referee was at the tip; the same command goes on");
        }
        Ok(chain)
    }

    /// Prints the outcome, and writes its figures as JSON.
    fn print(self, chain: &ChainStore, mut outcome: ImportOutcome) -> eyre::Result<()> {
        let out = CommandOutput::new(self.json)?;
        print_report(&out, &outcome.report)?;
        outcome.report.of_limit = of_limit(&out, chain, &outcome, self.db.options().sync)?;
        out.json(&outcome.report)?;
        match outcome.end? {
            ImportEnd::Complete => Ok(()),
            ImportEnd::Stopped => bail!(
                "stopped at block {}; run the same command again to go on",
                outcome.report.tip.number
            ),
        }
    }
}

/// No limits are known without the feature `lab`.
#[cfg(not(feature = "lab"))]
fn of_limit(
    _: &CommandOutput,
    _: &ChainStore,
    _: &ImportOutcome,
    _: SyncMode,
) -> eyre::Result<Option<f64>> {
    Ok(None)
}

fn print_report(out: &CommandOutput, report: &ImportReport) -> eyre::Result<()> {
    say!(
        out,
        "imported {} blocks, {} txs, {:.1} Mgas in {:.2} s ({:.0} blocks/s); {} state roots checked; \
         head {} ({})",
        grouped(report.blocks),
        grouped(report.txs),
        report.gas as f64 / 1e6,
        report.seconds,
        report.blocks as f64 / report.seconds.max(1e-9),
        grouped(report.roots_checked),
        report.tip.number,
        report.tip.hash,
    );
    for (n, what) in [
        (report.known_blocks, "were known"),
        (report.side_blocks, "are side blocks"),
        (report.reorgs, "reorged the chain"),
    ] {
        if n > 0 {
            say!(out, "{} blocks {what}", grouped(n));
        }
    }
    Ok(())
}

/// Opens block files in this order.
pub(crate) fn open_sources<P>(places: &[P]) -> eyre::Result<Vec<BlockSource>>
where
    for<'a> &'a P: Into<SourceLocation>,
{
    Ok(places.iter().map(BlockSource::open).collect::<Result<_, _>>()?)
}

/// Number of blocks in all files, if every format states it.
pub(crate) fn total_blocks(sources: &[BlockSource]) -> Option<u64> {
    sources.iter().flat_map(BlockSource::files).map(|file| file.block_count).sum()
}
