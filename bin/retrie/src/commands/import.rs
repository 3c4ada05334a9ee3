//! `retrie import`: block files into a datadir.

use crate::{
    args::{ChainArgs, DbArgs, HttpArgs, StateArgs},
    output::{Output, grouped, say},
    progress::Progress,
};
use eyre::{Context, bail};
use retrie_db::StateRootMode;
use retrie_pipeline::{Chain, CheckRoots, End, ImportOptions, import};
use retrie_sources::{BlockSource, Location};
use retrie_telemetry::{Metrics, MetricsServer};
use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
};

/// Arguments of `retrie import`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    chain: ChainArgs,
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    db: DbArgs,
    /// First block to import; earlier ones in the files are passed over.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    from: u64,
    /// Last block to import.
    #[arg(long, value_name = "NUMBER", default_value_t = u64::MAX)]
    to: u64,
    /// Check the state roots in receipts before Byzantium, with a proposal per transaction.
    #[arg(long)]
    check_receipt_roots: bool,
    /// Which state roots to compute and check: of `every` block, or of the last one of a `batch` of up to
    /// 128, where the backend allows it (`mpt`, `raw`) and deeper below the last block of the files than
    /// `--retention`. Everything else is checked of every block. Headers are linked by hash, so this is
    /// for files whose last block is trusted. If a root is wrong its batch runs again with every root,
    /// and the error names the block. In the middle of such an import one can go back to the last batch
    /// only.
    #[arg(long, value_enum, value_name = "WHICH", default_value_t = RootsChecked::Every)]
    check_roots: RootsChecked,
    /// Write the figures as JSON to this file, or `-` for stdout.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Serve Prometheus metrics on this address.
    #[arg(long, value_name = "ADDR:PORT", help_heading = "Metrics")]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    http: HttpArgs,
    /// Block files (.rlp, .rlp.gz, .era1) or folders of them, in the order given: paths, or URLs of
    /// object stores and web servers (s3://, gs://, http://, https://).
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// `--check-roots`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum RootsChecked {
    Every,
    Batch,
}

impl Args {
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
            && !checkers.into_iter().flatten().any(|b| b.capabilities().ethereum_root)
        {
            bail!(
                "--check-receipt-roots needs Ethereum's state roots, which backend {} does not \
                 compute: run --referee mpt beside it",
                options.backend.identity().name
            );
        }
        let chain = Chain::open(options)?;
        chain.show_in(&metrics);
        if chain.root_mode() == StateRootMode::Shadow {
            let by = match &self.state.referee {
                Some(referee) => format!("the referee {referee} checks them"),
                None => "they are not checked".into(),
            };
            tracing::info!(
                "header state roots belong to the MPT; {by}, and the root of {} is stored beside",
                chain.state().identity().name
            );
        }
        let check_roots = match self.check_roots {
            RootsChecked::Every => CheckRoots::Every,
            RootsChecked::Batch => CheckRoots::Batch,
        };
        if check_roots == CheckRoots::Batch && !chain.states().apply_runs() {
            tracing::info!(
                "every root is computed: those of {} depend on more than the state, or its history \
                 is kept block by block",
                chain.state().identity().name
            );
        }
        let mut progress = Progress::new(total_blocks(&sources));
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
        let outcome = outcome?;
        let report = &outcome.report;
        let out = Output::new(self.json)?;
        say!(
            out,
            "imported {} blocks, {} txs, {:.1} Mgas in {:.2} s ({:.0} blocks/s); {} state roots \
             checked; head {} ({})",
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
        out.json(report)?;
        match outcome.end? {
            End::Complete => Ok(()),
            End::Stopped => {
                bail!("stopped at block {}; run the same command again to go on", report.tip.number)
            }
        }
    }
}

/// Opens block files in the order given.
pub(crate) fn open_sources<P>(places: &[P]) -> eyre::Result<Vec<BlockSource>>
where
    for<'a> &'a P: Into<Location>,
{
    Ok(places.iter().map(BlockSource::open).collect::<Result<_, _>>()?)
}

/// Number of blocks in all files, where every format tells.
pub(crate) fn total_blocks(sources: &[BlockSource]) -> Option<u64> {
    sources.iter().flat_map(BlockSource::files).map(|file| file.block_count).sum()
}
