//! Which state stores are raced without a chain, and on which terms: what `bench state` and
//! `bench adversary` share.

use super::lanes;
use crate::{
    args::{BackendArgs, Hash, parse_count, parse_sync},
    output::ReportArgs,
};
use eyre::{ensure, eyre};
use retrie_bench::{
    cache::StateCache,
    memory::parse_size,
    peers,
    state::{BackendEntrant, Entrant, Terms},
};
use retrie_db::SyncMode;
use std::path::PathBuf;

/// The flags.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct StoreArgs {
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
    /// `durable`: each commit is on disk when it returns. `none`: that is left to the system.
    #[arg(long, value_name = "MODE", default_value = "durable", value_parser = parse_sync)]
    pub(super) sync: SyncMode,
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
    pub(super) memory_limit: Option<u64>,
    /// How many commits can be reverted; 0 switches undo off.
    #[arg(long, value_name = "COMMITS", default_value_t = 128)]
    retention: u64,
    /// Threads with which each of our stores may read ahead the keys of a commit, which are told to it
    /// before the first is read; 0: it is told nothing. More than a few serve only while reads wait for
    /// the disk.
    #[arg(long, value_name = "THREADS", default_value_t = 16)]
    read_ahead: usize,
    /// At the end prove this many keys that have a value and as many that have none, one by one, and
    /// check the proofs.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) proofs: u64,
    /// Prove those keys of --proofs that have a value in old states too, so many commits before the
    /// end: 1,100,10k. Where a store has no proofs of a state so old, it is left out.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = parse_count)]
    pub(super) proof_depths: Vec<u64>,
    /// Where loaded states are kept between runs, or `none`; by default retrie/bench in the user's
    /// cache directory.
    #[arg(long, value_name = "DIR")]
    state_cache: Option<PathBuf>,
    #[command(flatten)]
    pub(super) report: ReportArgs,
}

/// The folder of prepared states that `--state-cache` means.
pub(crate) fn state_cache(flag: Option<PathBuf>) -> StateCache {
    match flag {
        None => StateCache::user_default(),
        Some(folder) if folder.as_os_str() == "none" => StateCache::none(),
        Some(folder) => StateCache::at(folder),
    }
}

impl StoreArgs {
    /// Names of those that take part.
    pub(super) fn names(&self) -> eyre::Result<Vec<String>> {
        lanes::names(&self.backends, self.hash, is_peer)
    }

    /// The terms, if each of them is open so many `times`.
    pub(super) fn terms(&self, names: &[String], times: usize) -> eyre::Result<Terms> {
        ensure!(
            self.proofs > 0 || self.proof_depths.is_empty(),
            "--proof-depths says in which states keys are proven: say how many with --proofs"
        );
        let entrants = self.entrants(names)?;
        let fixed: Vec<_> = entrants.iter().map(|entrant| entrant.fixed_bytes()).collect();
        let cache_bytes =
            lanes::cache_mb(self.cache_mb, self.memory_limit, &fixed.repeat(times)) << 20;
        let cache_bytes = usize::try_from(cache_bytes).unwrap_or(usize::MAX);
        Ok(Terms {
            sync: self.sync,
            cache_bytes,
            retention: self.retention,
            read_threads: self.read_ahead,
        })
    }

    /// Where loaded states are kept.
    pub(super) fn cache(&self) -> StateCache {
        state_cache(self.state_cache.clone())
    }

    /// The stores, made anew for each race: a backend may have cached nodes of the one before.
    pub(super) fn entrants(&self, names: &[String]) -> eyre::Result<Vec<Box<dyn Entrant>>> {
        names.iter().map(|name| self.entrant(name)).collect()
    }

    fn entrant(&self, name: &str) -> eyre::Result<Box<dyn Entrant>> {
        if is_peer(name) {
            return peers::entrant(name).ok_or_else(|| {
                eyre!("`{name}` is a peer: build with `--features peers` to race against it")
            });
        }
        let entrant = BackendEntrant::new(lanes::backend(name, self.hash, &self.backend_args)?);
        Ok(Box::new(entrant.named(name)))
    }
}

fn is_peer(name: &str) -> bool {
    peers::NAMES.contains(&name)
}
