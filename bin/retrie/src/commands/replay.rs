//! `retrie replay`: runs real blocks, or a built-in chain, on fresh stores, and measures.

mod built_in;
mod padding;
mod part;
pub(crate) mod table;

use super::import::{open_sources, total_blocks};
use crate::{
    args::{BackendArgs, HashChoice, HttpArgs, check_names, make, witness_opener},
    limit,
    output::{CommandOutput, ReportArgs, command_line, say},
    progress::ImportProgress,
};
use eyre::{Context, bail};
use part::ReplaySettings;
use retrie_backends::{StorePurpose, find, names};
use retrie_bench::cache::StateCache;
use retrie_chainspec::{ChainSpec, parse_chain};
use retrie_db::{DatabaseEnv, OpenOptions, StateRootMode, SyncMode};
use retrie_pipeline::{
    ChainOptions, ImportOptions, ImportOutcome, PipelineError, chain_replay_result, import,
    import_below,
    replay::{BundleReplay, BundleReplayOptions},
    report::{PartFigures, ReplayReport, ReplayResult, machine},
};
use retrie_sources::{BundleFile, SourceLocation, detect, list_bundles};
use retrie_state::AnyBackend;
use retrie_state_store::{StateStore, StoreOptions};
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
pub(crate) struct ReplayArgs {
    /// The chain of the files: mainnet, sepolia, holesky, hoodi, dev, or a genesis JSON file
    /// [default: mainnet].
    #[arg(long, value_name = "CHAIN_OR_PATH", requires = "paths")]
    chain: Option<String>,
    /// The state backends, separated by commas; they run one after the other [default: `mpt`; with
    /// the built-in chain all].
    #[arg(long, value_name = "BACKENDS", value_delimiter = ',')]
    state_backend: Vec<String>,
    /// Hash function of the backends that support another one (`mpt-archive`, `pbt`), for
    /// comparison only.
    #[arg(long, value_name = "HASH")]
    hash: Option<HashChoice>,
    #[command(flatten)]
    part: part::PartArgs,
    #[command(flatten)]
    backends: BackendArgs,
    #[command(flatten)]
    pad: padding::PadArgs,
    /// `durable`: each commit is synced to disk. `none`: the operating system decides.
    #[arg(long, value_name = "MODE", default_value = "durable")]
    sync: String,
    /// How many blocks can be reverted; bundles need at least two.
    #[arg(long, value_name = "BLOCKS", default_value_t = 128)]
    retention: u64,
    /// Also prove, untimed, all that each bundle's block reads in one proof, and verify it. Witness
    /// bundles then run on the store like others.
    #[arg(long)]
    witness: bool,
    #[command(flatten)]
    report: ReportArgs,
    #[command(flatten)]
    http: HttpArgs,
    /// Bundles, block files, or folders of either: paths, or URLs of object stores and web servers
    /// (s3://, gs://, http://, https://) [default: a built-in chain made from a seed, with
    /// transfers, ERC-20 calls and swaps].
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// A backend with the name given on the command line.
struct NamedBackend<'a> {
    name: &'a str,
    backend: Arc<dyn AnyBackend>,
}

/// Block files of one chain.
struct ChainFiles {
    spec: Arc<ChainSpec>,
    paths: Vec<SourceLocation>,
    /// The blocks to replay; `None` if the part is empty.
    blocks: Option<RangeInclusive<u64>>,
    /// The first block requested; the report names it even if the chain lacks it.
    from: u64,
    /// Number of blocks to replay, if known.
    total: Option<u64>,
}

/// The inputs of a replay.
enum ReplayInputs {
    /// Bundles, sorted.
    Bundles(Arc<ChainSpec>, Vec<BundleFile>),
    Chain(ChainFiles),
}

impl ReplayArgs {
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
        let made = |name| -> eyre::Result<NamedBackend<'_>> {
            let flags = self.backends.flags();
            Ok(NamedBackend {
                name,
                backend: make(find(name)?, self.hash, flags, StorePurpose::Temporary)?,
            })
        };
        let lanes: Vec<_> = backends.into_iter().map(made).collect::<Result<_, _>>()?;
        let out = CommandOutput::open(&self.report)?;
        if self.witness && bundles.is_empty() {
            bail!("--witness proves what the blocks of bundles read: give bundles");
        }
        let made = match self.paths.is_empty() {
            true => Some(built_in::BuiltInRange::of(&self.part)?.make(&out, stop)?),
            false => None,
        };
        let spec = match &made {
            Some(made) => parse_chain(&made.genesis)?,
            None => parse_chain(self.chain.as_deref().unwrap_or("mainnet"))?,
        };
        let (inputs, part) = match &made {
            None if chains.is_empty() => {
                let (bundles, part) = self.part.of_bundles(&bundles, self.settings(&spec));
                (ReplayInputs::Bundles(spec, bundles), part)
            }
            _ => {
                let all = match &made {
                    Some(made) => made.blocks.clone(),
                    None => self.part.of_files(&chains)?,
                };
                let (blocks, part) = self.part.of_blocks(&all, self.settings(&spec));
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
                (ReplayInputs::Chain(chain), part)
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
            say!(out, "{}", part::describe(part));
        }
        let limits = limit::known(&StateCache::user_default());
        let mut unread = None;
        for lane in lanes {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let mut result = match &inputs {
                ReplayInputs::Bundles(spec, bundles) if bundles.is_empty() => empty_result(spec),
                ReplayInputs::Bundles(spec, bundles) => {
                    let (result, error) =
                        self.replay_bundles(&out, spec, &lane, bundles, sync, stop)?;
                    unread = unread.or(error);
                    result
                }
                ReplayInputs::Chain(chain) => match &chain.blocks {
                    None => empty_result(&chain.spec),
                    Some(blocks) => {
                        self.replay_chain(&out, chain, blocks, &lane.backend, sync, stop)?
                    }
                },
            };
            // The name in a datadir is not enough: there `cole-sync` is `cole`.
            result.backend = lane.name.to_owned();
            let has_root = lane.backend.profile().ethereum_root;
            limit::compare_replay(limits.as_ref(), &mut result, has_root, sync);
            if report.part.is_none() {
                result.part = None;
            }
            report.results.push(result);
        }
        report.complete = !stop.load(Ordering::Relaxed);
        print_summary(&out, &report.results)?;
        limit::print_replay_hint(&out, limits.as_ref())?;
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

    /// The requested bundles, sorted, or else the block files that the paths name.
    fn find(&self, stop: &Arc<AtomicBool>) -> eyre::Result<(Vec<BundleFile>, Vec<SourceLocation>)> {
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

    /// The settings that all parts of a replay share.
    fn settings(&self, spec: &ChainSpec) -> ReplaySettings {
        let mut options: BTreeMap<_, _> = self.backends.flag_pairs().collect();
        let hash = self.hash.map(|hash| ("hash".to_owned(), hash.name().to_owned()));
        options.extend(hash);
        options.extend(self.pad.flag_pairs());
        options.insert("sync".into(), self.sync.clone());
        options.insert("retention".into(), self.retention.to_string());
        ReplaySettings { genesis: spec.genesis_hash(), options }
    }

    /// The result, and the error of the first bundle that could not be replayed.
    fn replay_bundles(
        &self,
        out: &CommandOutput,
        spec: &Arc<ChainSpec>,
        lane: &NamedBackend<'_>,
        bundles: &[BundleFile],
        sync: SyncMode,
        stop: &AtomicBool,
    ) -> eyre::Result<(ReplayResult, Option<PipelineError>)> {
        let NamedBackend { name, backend } = lane;
        let folder = self.pad.base_state(backend)?;
        let db = DatabaseEnv::open(folder.path(), &db_options(sync))?;
        let kv = db.state_store();
        let files = padding::state_files(folder.path());
        let store_options =
            StoreOptions { retention: self.retention, dir: Some(files), ..StoreOptions::default() };
        let store = StateStore::open(backend.clone(), kv.clone(), store_options)?;
        let opener = witness_opener()?;
        let options = BundleReplayOptions {
            spec: spec.clone(),
            witness_opener: opener.as_ref().and_then(|backend| backend.extensions().partial_state),
            witnesses: self.witness,
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
                // Go on: the other bundles still count.
                Err(error) => {
                    replay.count_failed(file.number, &error)?;
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
        out: &CommandOutput,
        files: &ChainFiles,
        blocks: &RangeInclusive<u64>,
        backend: &Arc<dyn AnyBackend>,
        sync: SyncMode,
        stop: &AtomicBool,
    ) -> eyre::Result<ReplayResult> {
        let root_mode = if backend.profile().ethereum_root {
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
        // Files above the last block need not be read.
        sources
            .retain(|source| source.files().iter().any(|file| file.first_block <= *blocks.end()));
        let metrics = match out.metrics() {
            Some(metrics) => metrics.clone(),
            None => Metrics::new().wrap_err("registering the metrics")?,
        };
        chain.register_metrics(&metrics);
        let below = import_below(&chain, &mut sources, *blocks.start(), &metrics, stop);
        let parent = chain.tip()?.hash;
        let outcome = match below {
            Err(error) => ImportOutcome::failed_before(&chain, error)?,
            Ok(()) => {
                let mut progress =
                    ImportProgress::new(files.total.or_else(|| total_blocks(&sources)));
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
fn empty_result(spec: &ChainSpec) -> ReplayResult {
    let part = Some(PartFigures::default());
    ReplayResult { chain: spec.name().into(), ok: true, part, ..ReplayResult::default() }
}

fn db_options(sync: SyncMode) -> OpenOptions {
    OpenOptions { sync, ..OpenOptions::default() }
}

/// A temporary folder, removed at the end.
fn fresh_folder() -> eyre::Result<tempfile::TempDir> {
    tempfile::Builder::new()
        .prefix("retrie-replay-")
        .tempdir()
        .wrap_err("creating a temporary folder (set TMPDIR to choose where)")
}
