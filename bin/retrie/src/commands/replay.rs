//! `retrie replay`: real blocks on fresh stores, measured.

use super::{
    grouped,
    import::{open_sources, total_blocks},
};
use crate::{
    output::{Output, say},
    progress::Progress,
    registry,
};
use eyre::{Context, bail};
use retrie_chainspec::{ChainSpec, parse_chain};
use retrie_db::{Db, OpenOptions, StateRootMode, SyncMode};
use retrie_pipeline::{
    Chain, ChainOptions, ImportOptions, chain_replay_result, import,
    replay::{BundleOutcome, BundleReplay, BundleReplayOptions, padding_accounts},
    report::{ReplayReport, ReplayResult, machine},
};
use retrie_sources::{BundleFile, detect, list_bundles};
use retrie_state::{Backend, BlockRef, StateStore, StoreOptions};
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
    /// The chain: mainnet, sepolia, holesky, hoodi, dev, or a genesis JSON file.
    #[arg(long, value_name = "CHAIN_OR_PATH", default_value = "mainnet")]
    chain: String,
    /// The state stores, one after the other, separated by commas.
    #[arg(long, value_name = "BACKENDS", default_value = "mpt", value_delimiter = ',')]
    state_backend: Vec<String>,
    /// First block to replay.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    from: u64,
    /// Last block to replay.
    #[arg(long, value_name = "NUMBER", default_value_t = u64::MAX)]
    to: u64,
    /// Put bundles on a state of this many random accounts (1000, 50k, 1m).
    #[arg(long, value_name = "N", default_value = "0", value_parser = parse_count)]
    pad_accounts: u64,
    /// `durable`: each commit is synced to disk. `none`: commits are left to the system.
    #[arg(long, value_name = "MODE", default_value = "durable")]
    sync: String,
    /// How many blocks can be reverted; bundles need two at least.
    #[arg(long, value_name = "BLOCKS", default_value_t = 128)]
    retention: u64,
    /// Write the figures as JSON to this file, or `-` for stdout.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Bundles, block files, or folders of either.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// `10`, `50k`, `1m`.
fn parse_count(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.to_ascii_lowercase().strip_suffix(['k', 'm']) {
        Some(digits) if text.ends_with(['k', 'K']) => (digits.to_owned(), 1000),
        Some(digits) => (digits.to_owned(), 1_000_000),
        None => (text.to_owned(), 1),
    };
    let count: Option<u64> = digits.parse().ok().and_then(|n: u64| n.checked_mul(unit));
    count.ok_or_else(|| format!("`{text}` is not a count such as 1000, 50k or 1m"))
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
        if bundles.is_empty() && chains.is_empty() {
            bail!("no bundle lies within blocks {} to {}", self.from, self.to);
        }
        if !bundles.is_empty() && self.retention < 2 {
            bail!("--retention must be 2 at least: a bundle's pre-state and block are taken back");
        }
        let backends = self.state_backend.iter().map(|name| registry::backend(name));
        let backends: Vec<_> = backends.collect::<Result<_, _>>()?;
        let spec = parse_chain(&self.chain)?;
        let mut report = ReplayReport {
            machine: machine(),
            version: env!("CARGO_PKG_VERSION").into(),
            command: command_line(),
            results: Vec::new(),
        };
        let out = Output::new(self.json.clone());
        say!(
            out,
            "hash: by backend; sync {}; retention {}; cache: journal and page cache; {}",
            self.sync,
            self.retention,
            report.machine
        );
        for backend in backends {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let result = if chains.is_empty() {
                self.replay_bundles(&out, &spec, backend, &bundles, sync, stop)?
            } else {
                self.replay_chain(&spec, backend, &chains, sync, stop)?
            };
            report.results.push(result);
        }
        print_summary(&out, &report.results)?;
        out.json(&report)?;
        if stop.load(Ordering::Relaxed) {
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
        backend: Arc<dyn Backend>,
        bundles: &[BundleFile],
        sync: SyncMode,
        stop: &AtomicBool,
    ) -> eyre::Result<ReplayResult> {
        let name = backend.identity().name;
        let folder = fresh_folder()?;
        let db = Db::create(folder.path(), &db_options(sync))?;
        let kv = db.state_store();
        let files = folder.path().join("state");
        std::fs::create_dir_all(&files).wrap_err("creating the state folder")?;
        let store_options =
            StoreOptions { retention: self.retention, dir: Some(files), ..StoreOptions::default() };
        let store = StateStore::open(backend, kv.clone(), store_options)?;
        if self.pad_accounts > 0 {
            tracing::info!(
                "{name}: padding the state with {} accounts",
                grouped(self.pad_accounts)
            );
            let mut txn = kv.begin_write()?;
            let mut entries = padding_accounts(self.pad_accounts).into_iter().map(Ok);
            let (_, after) = store.bulk_load(BlockRef::default(), &mut entries, &mut *txn)?;
            txn.commit()?;
            after.run()?;
        }
        let opener = registry::witness_opener();
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
        spec: &Arc<ChainSpec>,
        backend: Arc<dyn Backend>,
        paths: &[PathBuf],
        sync: SyncMode,
        stop: &AtomicBool,
    ) -> eyre::Result<ReplayResult> {
        let folder = fresh_folder()?;
        let root_mode = if backend.capabilities().ethereum_root {
            StateRootMode::Header
        } else {
            StateRootMode::Shadow
        };
        let chain = Chain::open(ChainOptions {
            spec: spec.clone(),
            backend,
            referee: None,
            root_mode,
            datadir: folder.path().to_owned(),
            db: db_options(sync),
            store: StoreOptions { retention: self.retention, ..StoreOptions::default() },
        })?;
        let sources = open_sources(paths)?;
        let mut progress = Progress::new(total_blocks(&sources));
        let metrics = Metrics::new().wrap_err("registering the metrics")?;
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

fn command_line() -> String {
    let words: Vec<_> = std::env::args_os().collect();
    words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
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
