//! `retrie replay`: real blocks, or a built-in chain, on fresh stores, measured.

mod built_in;
mod padded;
mod part;
pub(crate) mod table;

use super::import::{open_sources, total_blocks};
use crate::{
    args::{BackendArgs, Hash, HttpArgs, check_names, make, witness_opener},
    output::{Output, ReportArgs, command_line, say},
    progress::Progress,
};
use eyre::{Context, bail};
use part::Run;
use retrie_backends::{Purpose, find, names};
use retrie_chainspec::{ChainSpec, parse_chain};
use retrie_db::{Db, OpenOptions, StateRootMode, SyncMode};
use retrie_pipeline::{
    ChainOptions, ImportOptions, ImportOutcome, PipelineError, chain_replay_result, import,
    import_below,
    replay::{BundleReplay, BundleReplayOptions},
    report::{PartFigures, ReplayReport, ReplayResult, machine},
};
use retrie_sources::{BundleFile, Location, detect, list_bundles};
use retrie_state::{AnyBackend, StateStore, StoreOptions};
use retrie_telemetry::Metrics;
use std::{
    collections::BTreeMap,
    ops::RangeInclusive,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use table::{print_header, print_outcome, print_summary};

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
    #[command(flatten)]
    part: part::PartArgs,
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
    #[command(flatten)]
    http: HttpArgs,
    /// Bundles, block files, or folders of either: paths, or URLs of object stores and web servers
    /// (s3://, gs://, http://, https://). Without any, a built-in chain is made from a seed: transfers,
    /// ERC-20 calls and swaps.
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
    paths: Vec<Location>,
    /// Which of them are replayed; none if the part is empty.
    blocks: Option<RangeInclusive<u64>>,
    /// The first one that was asked for, which the report names even if the chain has it not.
    from: u64,
    /// How many blocks are to be replayed, where that is known.
    total: Option<u64>,
}

/// What is replayed.
enum Inputs {
    /// Bundles, sorted.
    Bundles(Arc<ChainSpec>, Vec<BundleFile>),
    Chain(ChainFiles),
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self, stop: &Arc<AtomicBool>) -> eyre::Result<()> {
        let sync = match self.sync.as_str() {
            "durable" => SyncMode::Durable,
            "none" => SyncMode::NoSync,
            other => bail!("--sync is `durable` or `none`, not `{other}`"),
        };
        let (bundles, chains) = self.find(stop)?;
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
            true => Some(built_in::Wanted::of(&self.part)?.make(&out, stop)?),
            false => None,
        };
        let spec = match &made {
            Some(made) => parse_chain(&made.genesis)?,
            None => parse_chain(self.chain.as_deref().unwrap_or("mainnet"))?,
        };
        let (inputs, part) = match &made {
            None if chains.is_empty() => {
                let (bundles, part) = self.part.of_bundles(&bundles, self.run_of(&spec));
                (Inputs::Bundles(spec, bundles), part)
            }
            _ => {
                let all = match &made {
                    Some(made) => made.blocks.clone(),
                    None => self.part.of_files(&chains)?,
                };
                let (blocks, part) = self.part.of_blocks(&all, self.run_of(&spec));
                let is_first = blocks.as_ref().is_none_or(|blocks| blocks.start() == all.start());
                let asked = *self.part.blocks().start();
                let paths = made.as_ref().map_or(chains, |made| vec![made.file.clone().into()]);
                let count = |blocks: &RangeInclusive<u64>| blocks.end() - blocks.start() + 1;
                let known = made.is_some() || part.is_some();
                let chain = ChainFiles {
                    spec,
                    paths,
                    from: blocks.as_ref().filter(|_| !is_first).map_or(asked, |it| *it.start()),
                    total: blocks.as_ref().filter(|_| known).map(count),
                    blocks,
                };
                (Inputs::Chain(chain), part)
            }
        };
        let mut report = ReplayReport {
            machine: machine(),
            version: env!("CARGO_PKG_VERSION").into(),
            command: command_line(),
            complete: true,
            results: Vec::new(),
            part,
            merged: None,
        };
        say!(
            out,
            "hash: by backend; sync {}; retention {}; cache: journal and page cache; {}",
            self.sync,
            self.retention,
            report.machine
        );
        if let Some(part) = &report.part {
            say!(out, "{}", part::words(part));
        }
        let mut unread = None;
        for lane in lanes {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let mut result = match &inputs {
                Inputs::Bundles(spec, bundles) if bundles.is_empty() => nothing(spec),
                Inputs::Bundles(spec, bundles) => {
                    let (result, error) =
                        self.replay_bundles(&out, spec, &lane, bundles, sync, stop)?;
                    unread = unread.or(error);
                    result
                }
                Inputs::Chain(chain) => match &chain.blocks {
                    None => nothing(&chain.spec),
                    Some(blocks) => {
                        self.replay_chain(&out, chain, blocks, &lane.backend, sync, stop)?
                    }
                },
            };
            // What a datadir stores is not enough: `cole-sync` is `cole` there.
            result.backend = lane.name.to_owned();
            if report.part.is_none() {
                result.part = None;
            }
            report.results.push(result);
        }
        report.complete = !stop.load(Ordering::Relaxed);
        print_summary(&out, &report.results)?;
        out.report(&report)?;
        if !report.complete {
            bail!("stopped before the end");
        }
        if let Some(error) = unread {
            return Err(error.into());
        }
        match report.results.iter().flat_map(|result| &result.failures).next() {
            Some(failure) => bail!("not all checks held: {failure}"),
            None => Ok(()),
        }
    }

    /// The bundles within the blocks asked for, sorted, or else the block files that the paths name.
    fn find(&self, stop: &Arc<AtomicBool>) -> eyre::Result<(Vec<BundleFile>, Vec<Location>)> {
        let asked = self.part.blocks();
        let mut bundles = Vec::new();
        let mut chains = Vec::new();
        for path in self.http.stores(stop).locate_all(&self.paths)? {
            if path.is_stream() {
                bail!(
                    "{}: a replay reads its blocks once for each backend, and a pipe gives them once: \
                     write them into a file",
                    path.display()
                );
            }
            if detect(&path)?.has_blocks() {
                chains.push(path);
            } else {
                bundles.extend(list_bundles(path)?);
            }
        }
        bundles.retain(|bundle| asked.contains(&bundle.number));
        bundles.sort();
        if !bundles.is_empty() && !chains.is_empty() {
            bail!(
                "give either bundles or block files: a bundle stands alone, a chain from genesis"
            );
        }
        if bundles.is_empty() && chains.is_empty() && !self.paths.is_empty() {
            bail!("no bundle lies within blocks {} to {}", asked.start(), asked.end());
        }
        if !bundles.is_empty() && self.retention < 2 {
            bail!("--retention must be 2 at least: a bundle's pre-state and block are taken back");
        }
        Ok((bundles, chains))
    }

    /// What all parts of this run have in common.
    fn run_of(&self, spec: &ChainSpec) -> Run {
        let mut options: BTreeMap<_, _> = self.backends.words().collect();
        let hash = self.hash.map(|hash| ("hash".to_owned(), hash.name().to_owned()));
        options.extend(hash);
        options.extend(self.pad.words());
        options.insert("sync".into(), self.sync.clone());
        options.insert("retention".into(), self.retention.to_string());
        Run { genesis: spec.genesis_hash(), options }
    }

    /// The result, and why the first of the bundles that could not be replayed could not.
    fn replay_bundles(
        &self,
        out: &Output,
        spec: &Arc<ChainSpec>,
        lane: &Lane<'_>,
        bundles: &[BundleFile],
        sync: SyncMode,
        stop: &AtomicBool,
    ) -> eyre::Result<(ReplayResult, Option<PipelineError>)> {
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
        let mut unread = None;
        print_header(out, name)?;
        for file in bundles {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let bundle = file.load().map_err(PipelineError::from);
            let ran = bundle.and_then(|bundle| Ok(replay.run(&bundle)?.clone()));
            match ran {
                Ok(outcome) => print_outcome(out, &outcome)?,
                // The others are still worth knowing.
                Err(error) => {
                    replay.refuse(file.number, &error)?;
                    say!(out, "{:>10} {error}", file.number);
                    unread.get_or_insert(error);
                }
            }
        }
        store.flush()?;
        Ok((replay.result(kv.disk_bytes()? + store.stats()?.file_bytes), unread))
    }

    fn replay_chain(
        &self,
        out: &Output,
        files: &ChainFiles,
        blocks: &RangeInclusive<u64>,
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
        // Files above the last block need not be read to be passed over.
        sources
            .retain(|source| source.files().iter().any(|file| file.first_block <= *blocks.end()));
        let metrics = match out.metrics() {
            Some(metrics) => metrics.clone(),
            None => Metrics::new().wrap_err("registering the metrics")?,
        };
        chain.show_in(&metrics);
        let below = import_below(&chain, &mut sources, *blocks.start(), &metrics, stop);
        let parent = chain.tip()?.hash;
        let outcome = match below {
            Err(error) => ImportOutcome::failed_before(&chain, error)?,
            Ok(()) => {
                let mut progress = Progress::new(files.total.or_else(|| total_blocks(&sources)));
                let options = ImportOptions::default();
                let outcome = import(
                    &chain,
                    sources,
                    blocks.clone(),
                    options,
                    &metrics,
                    stop,
                    &mut |report| progress.update(report),
                );
                progress.finish();
                outcome?
            }
        };
        Ok(chain_replay_result(&chain, files.from, parent, &outcome)?)
    }
}

/// The result of an empty part.
fn nothing(spec: &ChainSpec) -> ReplayResult {
    let part = Some(PartFigures::default());
    ReplayResult { chain: spec.name().into(), ok: true, part, ..ReplayResult::default() }
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
