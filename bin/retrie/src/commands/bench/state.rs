//! `retrie bench state`: state stores raced on the same reads and writes, without a chain.

use crate::{
    commands::{
        grouped, parse_sync,
        replay::{command_line, parse_count},
    },
    output::{Output, say},
    progress::RaceProgress,
    registry::{self, BackendArgs, Hash, Purpose},
};
use eyre::{bail, eyre};
use retrie_bench::{
    cache::StateCache,
    latency::Latency,
    peers,
    report::BenchReport,
    state::{BackendEntrant, Entrant, Keys, Layout, Outcome, Race, Terms, Workload},
};
use retrie_db::SyncMode;
use retrie_state::Counts;
use std::{path::PathBuf, sync::atomic::AtomicBool};

/// Slices, unless there are fewer commits.
const SLICES: u64 = 25;

/// Arguments of `retrie bench state`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The state stores, separated by commas; all of ours by default. `lvmt@3/16` is `lvmt` with
    /// that proof shard. Built with the feature `peers` there are also `firewood-ethhash` and `nomt`.
    #[arg(long, value_name = "BACKENDS", value_delimiter = ',')]
    backends: Vec<String>,
    /// Hash function of the state stores that have the choice (`mpt-archive`), for comparison only.
    #[arg(long, value_name = "HASH")]
    hash: Option<Hash>,
    #[command(flatten)]
    backend_args: BackendArgs,
    /// Keys preloaded, one race for each: numbers (1000, 50k, 1m), or `fresh` to insert new keys
    /// into an empty state.
    #[arg(long, value_name = "N", default_value = "1m", value_delimiter = ',', value_parser = parse_keys)]
    keys: Vec<Keys>,
    /// Pairs of a read and a write that are measured.
    #[arg(long, value_name = "N", default_value = "250k", value_parser = parse_count)]
    pairs: u64,
    /// Pairs a commit.
    #[arg(long, value_name = "N", default_value = "1000", value_parser = parse_count)]
    commit_every: u64,
    /// Pairs before the measured ones; a tenth of them by default.
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
    /// page cache and leaf cache, half each.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    cache_mb: u32,
    /// How many commits can be reverted; 0 switches undo off.
    #[arg(long, value_name = "COMMITS", default_value_t = 128)]
    retention: u64,
    /// At the end prove this many keys that have a value and as many that have none, one by one, and
    /// check the proofs.
    #[arg(long, value_name = "N", default_value_t = 0)]
    proofs: u64,
    /// Where loaded states are kept between runs, or `none`; by default retrie/bench in the user's
    /// cache directory.
    #[arg(long, value_name = "DIR")]
    state_cache: Option<PathBuf>,
    /// Write the figures as JSON to this file, or `-` for stdout.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn parse_keys(text: &str) -> Result<Keys, String> {
    if text == "fresh" { Ok(Keys::Fresh) } else { parse_count(text).map(Keys::Preloaded) }
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
    /// Runs the command.
    pub(crate) fn run(self, stop: &AtomicBool) -> eyre::Result<()> {
        let entrants = entrants(&self.backends, self.hash, &self.backend_args)?;
        let workloads: Vec<_> = self.keys.iter().map(|keys| self.workload(*keys)).collect();
        workloads.iter().try_for_each(Workload::check)?;
        let terms = Terms {
            sync: self.sync,
            cache_bytes: (self.cache_mb as usize) << 20,
            retention: self.retention,
        };
        let cache = state_cache(self.state_cache);
        let out = Output::new(self.json);
        let mut report = BenchReport::new(command_line(), Vec::new());
        say!(out, "{}", report.machine);
        for workload in &workloads {
            print_terms(&out, workload, &terms, &entrants)?;
            let proofs = self.proofs;
            let race = Race { workload, terms: &terms, cache: &cache, proofs, stop };
            let mut progress = RaceProgress::default();
            let outcomes = race.run(&entrants, &mut |step| progress.update(step));
            progress.finish();
            let outcomes = outcomes?;
            print_table(&out, workload, &outcomes)?;
            report.results.extend(outcomes.iter().map(|outcome| outcome.result(workload, &terms)));
        }
        out.json(&report)
    }

    fn workload(&self, keys: Keys) -> Workload {
        let mut workload = Workload {
            keys,
            pairs: self.pairs,
            commit_every: self.commit_every,
            warmup: self.warmup.unwrap_or(self.pairs / 10),
            slices: 0,
            layout: self.layout,
            seed: self.seed,
        };
        workload.slices = self.slices.unwrap_or_else(|| workload.commits().min(SLICES));
        workload
    }
}

/// The stores called `names`, or all of ours.
fn entrants(
    names: &[String],
    hash: Option<Hash>,
    args: &BackendArgs,
) -> eyre::Result<Vec<Box<dyn Entrant>>> {
    let all = registry::all();
    let names = if names.is_empty() { &all[..] } else { names };
    if let Some((n, twice)) = names.iter().enumerate().find(|(n, name)| names[..*n].contains(name))
    {
        bail!("--backends names `{twice}` twice (place {})", n + 1);
    }
    let is_peer = |name: &&String| peers::NAMES.contains(&name.as_str());
    let kind = |name: &String| name.split('@').next().unwrap_or_default().to_owned();
    let ours: Vec<_> = names.iter().filter(|name| !is_peer(name)).map(kind).collect();
    registry::check_names(&ours, hash)?;
    let entrant = |name: &String| -> eyre::Result<Box<dyn Entrant>> {
        if is_peer(&name) {
            return peers::entrant(name).ok_or_else(|| {
                eyre!("`{name}` is a peer: build with `--features peers` to race against it")
            });
        }
        let backend = match name.split_once('@') {
            None => registry::backend_with(name, hash, args, Purpose::Trial)?,
            Some((name, shard)) => {
                let args = args.with_proof_shard(name, shard)?;
                registry::backend_with(name, hash, &args, Purpose::Trial)?
            }
        };
        Ok(Box::new(BackendEntrant::new(backend).named(name)))
    };
    names.iter().map(entrant).collect()
}

fn print_terms(
    out: &Output,
    workload: &Workload,
    terms: &Terms,
    entrants: &[Box<dyn Entrant>],
) -> eyre::Result<()> {
    let keys = match workload.keys {
        Keys::Preloaded(keys) => format!("{} keys", grouped(keys)),
        Keys::Fresh => "fresh keys".into(),
    };
    let layout = match workload.layout {
        Layout::OneContract => "slots of one contract",
        Layout::Accounts => "100 slots a contract",
    };
    say!(
        out,
        "\nstate, {keys} ({layout}); {} pairs (a read, a write) after {} of warm-up, {} a commit, \
         {} slices",
        grouped(workload.pairs),
        grouped(workload.warmup),
        grouped(workload.commit_every),
        workload.slices
    );
    let hashes: Vec<_> =
        entrants.iter().map(|entrant| format!("{} {}", entrant.name(), entrant.hash())).collect();
    say!(
        out,
        "equal terms: sync {}; memory for unfolded rows {} MiB; retention {}; pages of 4096 bytes; \
         hash: {}",
        match terms.sync {
            SyncMode::Durable => "durable",
            SyncMode::NoSync => "none",
        },
        terms.cache_bytes >> 20,
        terms.retention,
        hashes.join(", ")
    );
    for entrant in entrants {
        if let Some(remark) = entrant.remark() {
            say!(out, "{}: {remark}", entrant.name());
        }
    }
    Ok(())
}

/// One line a store, held against `raw` if it takes part, else against the first.
fn print_table(out: &Output, workload: &Workload, outcomes: &[Outcome]) -> eyre::Result<()> {
    let raw = outcomes.iter().find(|outcome| outcome.backend == "raw");
    let Some(yardstick) = raw.or_else(|| outcomes.first()) else { return Ok(()) };
    say!(
        out,
        "\n{:<16} {:>9} {:>6} {:>6} {:>9} {:>6} | {:>8} {:>8} {:>8} {:>8} {:>7} | {:>6} {:>6} \
         {:>7} {:>7} {:>7} {:>7} | {:>9} {:>9}",
        "backend",
        "ops/s",
        "spread",
        "ratio",
        "sustained",
        "ratio",
        "p50 ms",
        "p99 ms",
        "p99.9 ms",
        "max ms",
        "max/p50",
        "reads",
        "writes",
        "read B",
        "write B",
        "jrnl B",
        "undo B",
        "disk MiB",
        "mem MiB"
    );
    for outcome in outcomes {
        let latency = &outcome.latency;
        let millis = |micros: u64| format!("{:.2}", micros as f64 / 1e3);
        let count = |digits: usize, count: fn(&Counts) -> u64| {
            outcome.per_pair(count).map_or_else(|| "-".into(), |n| format!("{n:.digits$}"))
        };
        say!(
            out,
            "{:<16} {:>9} {:>5.0}% {:>6.2} {:>9} {:>6.2} | {:>8} {:>8} {:>8} {:>8} {:>7.1} | \
             {:>6} {:>6} {:>7} {:>7} {:>7} {:>7} | {:>9.1} {:>9.1}",
            outcome.backend,
            grouped(outcome.median_rate() as u64),
            outcome.spread() * 100.0,
            outcome.median_rate() / yardstick.median_rate(),
            grouped(outcome.sustained_rate() as u64),
            outcome.sustained_rate() / yardstick.sustained_rate(),
            millis(latency.micros(0.5)),
            millis(latency.micros(0.99)),
            millis(latency.micros(0.999)),
            millis(latency.max_micros()),
            latency.stall_ratio(),
            count(2, |counts| counts.reads),
            count(2, |counts| counts.writes),
            count(0, |counts| counts.read_bytes),
            count(0, |counts| counts.write_bytes),
            count(0, |counts| counts.journal_bytes),
            count(0, |counts| counts.undo_bytes),
            mib(outcome.disk_bytes as f64),
            mib(outcome.memory_bytes as f64),
        );
    }
    print_tables(out, outcomes)?;
    print_proofs(out, outcomes)?;
    say!(
        out,
        "ops/s: median of {} slices; spread: their interquartile range; sustained: with all folds \
         and the final flush; ms: a commit of {} pairs; rows and bytes: a pair; mem: allocated in \
         its turns; peak resident set of the process, mapped files included: {:.0} MiB",
        workload.slices,
        grouped(workload.commit_every),
        mib(outcomes.iter().map(|outcome| outcome.peak_rss_bytes).max().unwrap_or(0) as f64)
    );
    Ok(())
}

/// What each store did on which table, of those that have several.
fn print_tables(out: &Output, outcomes: &[Outcome]) -> eyre::Result<()> {
    for outcome in outcomes {
        let tables = outcome.tables().unwrap_or_default();
        if tables.len() < 2 {
            continue;
        }
        say!(out, "  {} by table:", outcome.backend);
        for table in tables {
            say!(
                out,
                "    {:<16} {:>6.2} reads {:>7.0} B  {:>6.2} writes {:>7.0} B",
                table.name,
                table.reads_per_op,
                table.read_bytes_per_op,
                table.writes_per_op,
                table.write_bytes_per_op,
            );
        }
    }
    Ok(())
}

/// What proofs cost each store that makes them.
fn print_proofs(out: &Output, outcomes: &[Outcome]) -> eyre::Result<()> {
    for outcome in outcomes {
        for proofs in outcome.proofs.iter().filter(|proofs| proofs.count() > 0) {
            let micros = |latency: &Latency| {
                format!(
                    "{} us (p99 {})",
                    grouped(latency.micros(0.5)),
                    grouped(latency.micros(0.99))
                )
            };
            say!(
                out,
                "  {}: {} proofs of one {} key: made in {}, checked in {}; {} bytes ({} to {})",
                outcome.backend,
                proofs.count(),
                if proofs.present { "present" } else { "absent" },
                micros(&proofs.made),
                micros(&proofs.verified),
                grouped(proofs.bytes(0.5) as u64),
                grouped(proofs.bytes(0.0) as u64),
                grouped(proofs.bytes(1.0) as u64),
            );
        }
    }
    Ok(())
}

fn mib(bytes: f64) -> f64 {
    bytes / f64::from(1 << 20)
}
