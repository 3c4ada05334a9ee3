//! `retrie bench state`: state stores raced on the same reads and writes, without a chain.

mod table;

use super::{lanes, measured::Measured};
use crate::{
    args::{BackendArgs, Hash, parse_count, parse_sync, witness_opener},
    output::{Output, ReportArgs},
    progress::RaceProgress,
};
use eyre::{WrapErr, ensure, eyre};
use retrie_bench::{
    cache::StateCache,
    memory::parse_size,
    peers,
    state::{
        BackendEntrant, Choice, Corpus, Entrant, Keys, Layout, Race, Raced, Terms, Trace, Workload,
    },
};
use retrie_chainspec::ChainSpec;
use retrie_db::SyncMode;
use retrie_pipeline::replay::{BundleReplayOptions, Padding};
use std::{
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
};

/// Slices, unless there are fewer commits.
const SLICES: u64 = 25;

/// Arguments of `retrie bench state`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The state stores, separated by commas; all of ours by default. `lvmt@3/16` is `lvmt` with
    /// that proof shard. Built with the feature `peers` there are also `redb`, `eth-trie`,
    /// `firewood-ethhash` and `nomt`.
    #[arg(long, value_name = "BACKENDS", value_delimiter = ',')]
    backends: Vec<String>,
    /// Hash function of the state stores that have the choice (`mpt-archive`), for comparison only.
    #[arg(long, value_name = "HASH")]
    hash: Option<Hash>,
    #[command(flatten)]
    backend_args: BackendArgs,
    /// Keys preloaded, one race for each: numbers (1000, 50k, 1m), `fresh` to insert new keys into an
    /// empty state, or `real` for the accesses of the mainnet blocks in RETRIE_DATA (`../shared/data`
    /// by default), a block a commit.
    #[arg(long, value_name = "N", default_value = "1m", value_delimiter = ',', value_parser = parse_keys)]
    keys: Vec<KeysArg>,
    /// Operations that are measured: pairs of a read and a write, or reads alone (--reads). Real
    /// blocks are run forth and back until they have read as many keys.
    #[arg(long, value_name = "N", default_value = "250k", value_parser = parse_count)]
    pairs: u64,
    /// The part of the operations that only read, 0 to 1. The others read a key, then write it, as all
    /// do at 0: 0.5 is YCSB's workload F, 1 its C (its A and B write without reading).
    #[arg(long, value_name = "PART", default_value_t = 0.0)]
    reads: f64,
    /// Which keys: `uniform`, or `zipf`, where few are hot (YCSB's scrambled distribution, 0.99).
    #[arg(long, value_name = "CHOICE", default_value = "uniform", value_parser = parse_choice)]
    keys_by: Choice,
    /// Put random accounts beside those of `--keys real`, so that tries have depth.
    #[arg(long, value_name = "N", default_value = "1m", value_parser = parse_count)]
    pad_accounts: u64,
    /// The same with slots, 100 in each of the first random accounts.
    #[arg(long, value_name = "N", default_value = "0", value_parser = parse_count)]
    pad_slots: u64,
    /// Operations a commit.
    #[arg(long, value_name = "N", default_value = "1000", value_parser = parse_count)]
    commit_every: u64,
    /// Operations before the measured ones; a tenth of them by default.
    #[arg(long, value_name = "N", value_parser = parse_count)]
    warmup: Option<u64>,
    /// Turns each store gets; 25 by default, or one a commit if these are fewer.
    #[arg(long, value_name = "N")]
    slices: Option<u64>,
    /// `one-contract`: all keys are slots of one contract. `accounts`: 100 slots a contract.
    #[arg(long, value_name = "LAYOUT", default_value = "one-contract", value_parser = parse_layout)]
    layout: Layout,
    /// Seed of keys, values and choices.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// `durable`: each commit is on disk when it returns. `none`: that is left to the system.
    #[arg(long, value_name = "MODE", default_value = "durable", value_parser = parse_sync)]
    sync: SyncMode,
    /// Memory in MiB for what a store holds beside the page cache. Of ours it bounds the rows that
    /// are committed but not yet folded into the tables, and so sets how often they fold; the caches
    /// of `mpt` (about 128 MiB) and `mpt-archive` (192 MiB) come on top. Firewood's node cache; NOMT's
    /// page cache and leaf cache, half each; the page cache of `redb`. 1024 by default; under
    /// --memory-limit the stores share half of it, less these fixed caches.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    cache_mb: Option<u32>,
    /// Cap memory at this size (512MB, 2GB) while the stores race, the page cache included, so that
    /// data can be larger than memory. By cgroup, or by locking the rest of the machine's memory. All
    /// stores of a race are open at once and share it: a store raced alone has more.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory_limit: Option<u64>,
    /// How many commits can be reverted; 0 switches undo off.
    #[arg(long, value_name = "COMMITS", default_value_t = 128)]
    retention: u64,
    /// At the end prove this many keys that have a value and as many that have none, one by one, and
    /// check the proofs.
    #[arg(long, value_name = "N", default_value_t = 0)]
    proofs: u64,
    /// Prove those keys of --proofs that have a value in old states too, so many commits before the
    /// end: 1,100,10k. Where a store has no proofs of a state so old, it is left out.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = parse_count)]
    proof_depths: Vec<u64>,
    /// Where loaded states are kept between runs, or `none`; by default retrie/bench in the user's
    /// cache directory.
    #[arg(long, value_name = "DIR")]
    state_cache: Option<PathBuf>,
    #[command(flatten)]
    pub(super) report: ReportArgs,
}

/// What `--keys` names.
#[derive(Clone, Copy, Debug)]
enum KeysArg {
    Preloaded(u64),
    Fresh,
    Real,
}

fn parse_keys(text: &str) -> Result<KeysArg, String> {
    match text {
        "fresh" => Ok(KeysArg::Fresh),
        "real" => Ok(KeysArg::Real),
        _ => parse_count(text).map(KeysArg::Preloaded),
    }
}

fn parse_choice(text: &str) -> Result<Choice, String> {
    match text {
        "uniform" => Ok(Choice::Uniform),
        "zipf" => Ok(Choice::Zipf),
        _ => Err("it is `uniform` or `zipf`".into()),
    }
}

fn parse_layout(text: &str) -> Result<Layout, String> {
    match text {
        "one-contract" => Ok(Layout::OneContract),
        "accounts" => Ok(Layout::Accounts),
        _ => Err("it is `one-contract` or `accounts`".into()),
    }
}

/// The folder of prepared states that `--state-cache` means.
pub(crate) fn state_cache(flag: Option<PathBuf>) -> StateCache {
    match flag {
        None => StateCache::user_default(),
        Some(folder) if folder.as_os_str() == "none" => StateCache::none(),
        Some(folder) => StateCache::at(folder),
    }
}

impl Args {
    /// Races the stores, for every variant of the workload.
    pub(super) fn measure(self, out: &Output, stop: &AtomicBool) -> eyre::Result<Measured> {
        ensure!(
            self.proofs > 0 || self.proof_depths.is_empty(),
            "--proof-depths says in which states keys are proven: say how many with --proofs"
        );
        let names = lanes::names(&self.backends, self.hash, is_peer)?;
        let fixed = names
            .iter()
            .map(|name| eyre::Ok(entrant(name, self.hash, &self.backend_args)?.fixed_bytes()));
        let fixed = fixed.collect::<Result<Vec<_>, _>>()?;
        let cache_bytes = lanes::cache_mb(self.cache_mb, self.memory_limit, &fixed) << 20;
        let terms =
            Terms { sync: self.sync, cache_bytes: cache_bytes as usize, retention: self.retention };
        let workloads = self.workloads(stop)?;
        workloads.iter().try_for_each(Workload::check)?;
        let cache = state_cache(self.state_cache.clone());
        let mut measured = Measured::on("state");
        for workload in &workloads {
            let (proofs, memory_limit) = (self.proofs, self.memory_limit);
            let (terms, cache, proof_depths) = (&terms, &cache, &self.proof_depths);
            let race = Race { workload, terms, cache, proofs, proof_depths, memory_limit, stop };
            measured.ended = self.race(&race, &names, out, &mut measured);
            if measured.ended.is_err() {
                break;
            }
        }
        Ok(measured)
    }

    /// Runs one race, adds what it has measured to `measured`, and prints it.
    fn race(
        &self,
        race: &Race<'_>,
        names: &[String],
        out: &Output,
        measured: &mut Measured,
    ) -> eyre::Result<()> {
        // Made anew: a backend may have cached nodes of the race before.
        let entrant = |name: &String| entrant(name, self.hash, &self.backend_args);
        let entrants: Vec<_> = names.iter().map(entrant).collect::<Result<_, _>>()?;
        table::print_terms(out, race, &entrants)?;
        let mut progress = RaceProgress::counting(out.metrics(), "state");
        let raced = race.run(&entrants, &mut |step| progress.update(step));
        progress.finish();
        let raced = raced?;
        // Before anything is printed, which may fail.
        measured.results.extend(raced.results(race.workload, race.terms));
        for note in table::remarks(&entrants) {
            if !measured.notes.contains(&note) {
                measured.notes.push(note);
            }
        }
        let printed = table::print(out, &raced);
        ended(race.workload, raced).and(printed)
    }

    fn workloads(&self, stop: &AtomicBool) -> eyre::Result<Vec<Workload>> {
        let workload = |keys: &KeysArg| {
            let keys = match keys {
                KeysArg::Preloaded(keys) => Keys::Preloaded(*keys),
                KeysArg::Fresh => Keys::Fresh,
                KeysArg::Real => Keys::Real(Arc::new(self.trace(stop)?)),
            };
            Ok(self.workload(keys))
        };
        self.keys.iter().map(workload).collect()
    }

    /// The accesses of real blocks.
    fn trace(&self, stop: &AtomicBool) -> eyre::Result<Trace> {
        let opener = witness_opener()?;
        let options = BundleReplayOptions {
            spec: ChainSpec::mainnet(),
            witness_opener: opener.as_ref().and_then(|backend| backend.partial_state()),
        };
        let padding = Padding { accounts: self.pad_accounts, slots: self.pad_slots };
        Ok(Corpus::user_default().trace(&options, padding, stop)?)
    }

    fn workload(&self, keys: Keys) -> Workload {
        let mut workload = Workload {
            keys,
            pairs: self.pairs,
            commit_every: self.commit_every,
            warmup: self.warmup.unwrap_or(self.pairs / 10),
            slices: 0,
            layout: self.layout,
            reads: self.reads,
            choice: self.keys_by,
            seed: self.seed,
        };
        workload.slices = self.slices.unwrap_or_else(|| workload.commits().min(SLICES));
        workload
    }
}

/// Why a race was cut short, if it was.
fn ended(workload: &Workload, raced: Raced) -> eyre::Result<()> {
    let done = raced.outcomes.first().map_or(0, |outcome| outcome.series.len());
    let of = workload.slices;
    raced
        .ended
        .wrap_err_with(|| format!("--keys {}: {done} of {of} slices were measured", workload.keys))
}

fn is_peer(name: &str) -> bool {
    peers::NAMES.contains(&name)
}

/// The store called `name`.
fn entrant(name: &str, hash: Option<Hash>, args: &BackendArgs) -> eyre::Result<Box<dyn Entrant>> {
    if is_peer(name) {
        return peers::entrant(name).ok_or_else(|| {
            eyre!("`{name}` is a peer: build with `--features peers` to race against it")
        });
    }
    let entrant = BackendEntrant::new(lanes::backend(name, hash, args)?);
    Ok(Box::new(entrant.named(name)))
}
