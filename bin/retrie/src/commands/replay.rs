//! `retrie replay`: real blocks, or a built-in chain, on fresh stores, measured.

mod built_in;
mod padded;

use super::import::{open_sources, total_blocks};
use crate::{
    args::{BackendArgs, Hash, check_names, make, witness_opener},
    output::{Output, ReportArgs, command_line, grouped, say},
    progress::Progress,
};
use eyre::{Context, bail};
use retrie_backends::{Purpose, find, names};
use retrie_chainspec::{ChainSpec, parse_chain};
use retrie_db::{Db, OpenOptions, StateRootMode, SyncMode};
use retrie_pipeline::{
    ChainOptions, ImportOptions, chain_replay_result, import, import_below,
    replay::{BundleOutcome, BundleReplay, BundleReplayOptions},
    report::{ReplayReport, ReplayResult, machine},
};
use retrie_sources::{BundleFile, detect, list_bundles};
use retrie_state::{AnyBackend, StateStore, StoreOptions};
use retrie_telemetry::Metrics;
use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// Arguments of `retrie replay`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The chain of the files: mainnet (the default), sepolia, holesky, hoodi, dev, or a genesis
    /// JSON file.
    #[arg(long, value_name = "CHAIN_OR_PATH", requires = "paths")]
    chain: Option<String>,
    /// The state stores, one after the other, separated by commas; `mpt` if absent, or every one
    /// with the built-in chain.
    #[arg(long, value_name = "BACKENDS", value_delimiter = ',')]
    state_backend: Vec<String>,
    /// Hash function of the state stores that have the choice (`mpt-archive`), for comparison only.
    #[arg(long, value_name = "HASH")]
    hash: Option<Hash>,
    /// First block to replay. Of a chain, those before it run too, but are not measured.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    from: u64,
    /// Last block to replay.
    #[arg(long, value_name = "NUMBER", default_value_t = u64::MAX)]
    to: u64,
    #[command(flatten)]
    backends: BackendArgs,
    #[command(flatten)]
    pad: padded::PadArgs,
    /// `durable`: each commit is synced to disk. `none`: commits are left to the system.
    #[arg(long, value_name = "MODE", default_value = "durable")]
    sync: String,
    /// How many blocks can be reverted; bundles need two at least.
    #[arg(long, value_name = "BLOCKS", default_value_t = 128)]
    retention: u64,
    #[command(flatten)]
    report: ReportArgs,
    /// Bundles, block files, or folders of either. Without any, a built-in chain is made from a
    /// seed: transfers, ERC-20 calls and swaps.
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// A backend under the name it was asked for.
struct Lane<'a> {
    name: &'a str,
    backend: Arc<dyn AnyBackend>,
}

/// Blocks of one chain in files.
struct ChainFiles {
    spec: Arc<ChainSpec>,
    paths: Vec<PathBuf>,
    /// How many blocks are to be replayed, where that is known.
    total: Option<u64>,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self, stop: &AtomicBool) -> eyre::Result<()> {
        let sync = match self.sync.as_str() {
            "durable" => SyncMode::Durable,
            "none" => SyncMode::NoSync,
            other => bail!("--sync is `durable` or `none`, not `{other}`"),
        };
        let mut bundles = Vec::new();
        let mut chains = Vec::new();
        for path in &self.paths {
            if detect(path)?.has_blocks() {
                chains.push(path.clone());
            } else {
                bundles.extend(list_bundles(path)?);
            }
        }
        bundles.retain(|bundle| (self.from..=self.to).contains(&bundle.number));
        bundles.sort();
        if !bundles.is_empty() && !chains.is_empty() {
            bail!(
                "give either bundles or block files: a bundle stands alone, a chain from genesis"
            );
        }
        if bundles.is_empty() && chains.is_empty() && !self.paths.is_empty() {
            bail!("no bundle lies within blocks {} to {}", self.from, self.to);
        }
        if !bundles.is_empty() && self.retention < 2 {
            bail!("--retention must be 2 at least: a bundle's pre-state and block are taken back");
        }
        let backends = match &self.state_backend[..] {
            [] if self.paths.is_empty() => names(),
            [] => vec!["mpt"],
            given => given.iter().map(String::as_str).collect(),
        };
        check_names(&backends, self.hash)?;
        let made = |name| -> eyre::Result<Lane<'_>> {
            let flags = self.backends.flags();
            Ok(Lane { name, backend: make(find(name)?, self.hash, flags, Purpose::Trial)? })
        };
        let lanes: Vec<_> = backends.into_iter().map(made).collect::<Result<_, _>>()?;
        let out = Output::open(&self.report)?;
        let made = match self.paths.is_empty() {
            true => Some(built_in::make(self.from, self.to, &out, stop)?),
            false => None,
        };
        let spec = match &made {
            Some(made) => parse_chain(&made.genesis)?,
            None => parse_chain(self.chain.as_deref().unwrap_or("mainnet"))?,
        };
        let chain = ChainFiles {
            spec,
            total: made.as_ref().map(|made| made.replayed),
            paths: made.as_ref().map_or(chains, |made| vec![made.blocks.clone()]),
        };
        let mut report = ReplayReport {
            machine: machine(),
            version: env!("CARGO_PKG_VERSION").into(),
            command: command_line(),
            complete: true,
            results: Vec::new(),
        };
        say!(
            out,
            "hash: by backend; sync {}; retention {}; cache: journal and page cache; {}",
            self.sync,
            self.retention,
            report.machine
        );
        for lane in lanes {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let mut result = if chain.paths.is_empty() {
                self.replay_bundles(&out, &chain.spec, &lane, &bundles, sync, stop)?
            } else {
                self.replay_chain(&out, &chain, &lane.backend, sync, stop)?
            };
            // What a datadir stores is not enough: `cole-sync` is `cole` there.
            result.backend = lane.name.to_owned();
            report.results.push(result);
        }
        report.complete = !stop.load(Ordering::Relaxed);
        print_summary(&out, &report.results)?;
        out.report(&report)?;
        if !report.complete {
            bail!("stopped before the end");
        }
        match report.results.iter().flat_map(|result| &result.failures).next() {
            Some(failure) => bail!("not all checks held: {failure}"),
            None => Ok(()),
        }
    }

    fn replay_bundles(
        &self,
        out: &Output,
        spec: &Arc<ChainSpec>,
        lane: &Lane<'_>,
        bundles: &[BundleFile],
        sync: SyncMode,
        stop: &AtomicBool,
    ) -> eyre::Result<ReplayResult> {
        let Lane { name, backend } = lane;
        let folder = self.pad.base_state(backend)?;
        let db = Db::open(folder.path(), &db_options(sync))?;
        let kv = db.state_store();
        let files = padded::state_files(folder.path());
        let store_options =
            StoreOptions { retention: self.retention, dir: Some(files), ..StoreOptions::default() };
        let store = StateStore::open(backend.clone(), kv.clone(), store_options)?;
        let opener = witness_opener()?;
        let options = BundleReplayOptions {
            spec: spec.clone(),
            witness_opener: opener.as_ref().and_then(|backend| backend.partial_state()),
        };
        let mut replay = BundleReplay::new(&options, &store, &*kv)?;
        print_header(out, name)?;
        for file in bundles {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let bundle = file.load()?;
            print_outcome(out, replay.run(&bundle)?)?;
        }
        store.flush()?;
        Ok(replay.result(kv.disk_bytes()? + store.stats()?.file_bytes))
    }

    fn replay_chain(
        &self,
        out: &Output,
        files: &ChainFiles,
        backend: &Arc<dyn AnyBackend>,
        sync: SyncMode,
        stop: &AtomicBool,
    ) -> eyre::Result<ReplayResult> {
        let root_mode = if backend.capabilities().ethereum_root {
            StateRootMode::Header
        } else {
            StateRootMode::Shadow
        };
        let (_folder, chain) = self.pad.chain(|datadir| ChainOptions {
            spec: files.spec.clone(),
            backend: backend.clone(),
            referee: None,
            root_mode,
            datadir: datadir.to_owned(),
            db: db_options(sync),
            store: StoreOptions { retention: self.retention, ..StoreOptions::default() },
        })?;
        let mut sources = open_sources(&files.paths)?;
        let metrics = match out.metrics() {
            Some(metrics) => metrics.clone(),
            None => Metrics::new().wrap_err("registering the metrics")?,
        };
        chain.show_in(&metrics);
        import_below(&chain, &mut sources, self.from, &metrics, stop)?;
        let mut progress = Progress::new(files.total.or_else(|| total_blocks(&sources)));
        let outcome = import(
            &chain,
            sources,
            self.from..=self.to,
            ImportOptions::default(),
            &metrics,
            stop,
            &mut |report| progress.update(report),
        );
        progress.finish();
        Ok(chain_replay_result(&chain, self.from, &outcome?)?)
    }
}

fn db_options(sync: SyncMode) -> OpenOptions {
    OpenOptions { sync, ..OpenOptions::default() }
}

/// A folder that goes when the run ends.
fn fresh_folder() -> eyre::Result<tempfile::TempDir> {
    tempfile::Builder::new()
        .prefix("retrie-replay-")
        .tempdir()
        .wrap_err("creating a temporary folder (set TMPDIR to choose where)")
}

const fn mark(check: Option<bool>) -> &'static str {
    match check {
        Some(true) => "ok",
        Some(false) => "BAD",
        None => "-",
    }
}

fn print_header(out: &Output, backend: &str) -> eyre::Result<()> {
    say!(
        out,
        "\n{backend}\n{:>10} {:<18} {:<9} {:>5} {:>10} {:>9}  {:<4} {:<6} {:<9} {:<9} {:<5}",
        "block",
        "fork",
        "bundle",
        "txs",
        "gas",
        "ms",
        "gas",
        "bloom",
        "receipts",
        "requests",
        "root"
    );
    Ok(())
}

fn print_outcome(out: &Output, outcome: &BundleOutcome) -> eyre::Result<()> {
    say!(
        out,
        "{:>10} {:<18} {:<9} {:>5} {:>10} {:>9.2}  {:<4} {:<6} {:<9} {:<9} {:<5}",
        outcome.number,
        outcome.fork,
        outcome.kind,
        outcome.txs,
        outcome.gas,
        outcome.seconds * 1e3,
        mark(Some(outcome.gas_ok)),
        mark(Some(outcome.bloom_ok)),
        mark(outcome.receipts_ok),
        mark(outcome.requests_ok),
        mark(outcome.root_ok),
    );
    Ok(())
}

fn print_summary(out: &Output, results: &[ReplayResult]) -> eyre::Result<()> {
    say!(
        out,
        "\n{:<12} {:>8} {:>9} {:>9} {:>9} {:>9} {:>10} | {:>9} {:>9} {:>9} {:>9} | {:>6}",
        "backend",
        "blocks",
        "txs",
        "seconds",
        "TPS",
        "Mgas/s",
        "disk MiB",
        "exec s",
        "auth s",
        "io s",
        "other s",
        "checks"
    );
    for result in results {
        let parts = &result.breakdown;
        say!(
            out,
            "{:<12} {:>8} {:>9} {:>9.3} {:>9.0} {:>9.1} {:>10.1} | {:>9.3} {:>9.3} {:>9.3} {:>9.3} | {:>6}",
            result.backend,
            grouped(result.blocks),
            grouped(result.txs),
            result.seconds,
            result.tps,
            result.mgas_per_s,
            result.disk_bytes as f64 / (1 << 20) as f64,
            parts.execution,
            parts.authentication,
            parts.storage_io,
            parts.other,
            if result.ok { "ok" } else { "FAILED" },
        );
        print_kinds(out, result)?;
    }
    for failure in results.iter().flat_map(|result| &result.failures) {
        say!(out, "{failure}");
    }
    Ok(())
}

/// The two kinds of bundles apart: a backend that opens witnesses executes them in memory and
/// commits nothing, so only prestate bundles compare backends.
fn print_kinds(out: &Output, result: &ReplayResult) -> eyre::Result<()> {
    for kind in ["witness", "prestate"] {
        let of_kind = || result.bundles.iter().filter(|bundle| bundle.kind == kind);
        let (blocks, txs): (usize, u64) = (of_kind().count(), of_kind().map(|b| b.txs).sum());
        if blocks == 0 || blocks == result.bundles.len() {
            continue;
        }
        let seconds: f64 = of_kind().map(|b| b.seconds).sum();
        let gas: u64 = of_kind().map(|b| b.gas).sum();
        say!(
            out,
            "  {kind:<10} {blocks:>8} {:>9} {seconds:>9.3} {:>9.0} {:>9.1}",
            grouped(txs),
            txs as f64 / seconds.max(1e-9),
            gas as f64 / 1e6 / seconds.max(1e-9),
        );
    }
    Ok(())
}
