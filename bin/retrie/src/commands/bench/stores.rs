//! The state stores and terms of races without a chain, for `bench state` and `bench adversary`.

use super::{contenders, memory::MemoryArgs};
use crate::{
    args::{BackendArgs, HashChoice, parse_count, parse_sync},
    output::ReportArgs,
};
use eyre::{ensure, eyre};
use retrie_bench::{
    cache::StateCache,
    memory::parse_size,
    peers,
    race::{MemoryTerms, RaceTerms},
    state::{BackendFactory, StoreFactory},
};
use retrie_db::SyncMode;
use retrie_state::KeyForm;
use std::path::PathBuf;

/// Flags about the stores.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct StoreArgs {
    /// The state stores, separated by commas [default: all of ours]. `lvmt@3/16` is `lvmt` with
    /// that proof shard, `lvmt:hashed` with hashed keys. The feature `peers` adds `redb`, `eth-trie`, `firewood-ethhash`,
    /// `nomt` and `qmdb`.
    #[arg(long, value_name = "BACKENDS", value_delimiter = ',')]
    pub(super) backends: Vec<String>,
    /// Hash function of the state stores that support another one (`mpt-archive`, `pbt`), for
    /// comparison only.
    #[arg(long, value_name = "HASH")]
    hash: Option<HashChoice>,
    #[command(flatten)]
    backend_args: BackendArgs,
    /// `durable`: a commit is on disk when it returns. `none`: the operating system decides.
    #[arg(long, value_name = "MODE", default_value = "durable", value_parser = parse_sync)]
    pub(super) sync: SyncMode,
    /// Memory in MiB of a store beside the page cache. For our stores it limits the rows that are
    /// committed but not yet folded into the tables, and so sets how often they fold; the caches of
    /// `mpt` (about 128 MiB) and `mpt-archive` (192 MiB) come on top. For Firewood it is the node
    /// cache; for NOMT the page cache and the leaf cache, half each; for `redb` and QMDB the page
    /// cache [default: 1024; with --memory-limit the stores share half of it, less these fixed
    /// caches].
    #[arg(long, value_name = "N", conflicts_with = "memory_budget", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) cache_mb: Option<u32>,
    /// Cap memory at this size (512MB, 2GB) during the race, with the page cache, so that data can
    /// be larger than memory. The cap uses a cgroup, or locks the rest of the machine's memory. All
    /// stores of a race are open at once and share it: a store raced alone has more.
    #[arg(long, value_name = "SIZE", conflicts_with = "memory_budget", value_parser = parse_size)]
    memory_limit: Option<u64>,
    #[command(flatten)]
    pub(super) memory: MemoryArgs,
    /// How many commits can be reverted; 0 disables undo.
    #[arg(long, value_name = "COMMITS", default_value_t = 128)]
    retention: u64,
    /// Threads for the prefetch of each of our stores. A store gets the keys of a commit before the
    /// first read; 0 disables this. More than a few threads help only while reads wait for the
    /// disk.
    #[arg(long, value_name = "THREADS", default_value_t = 16)]
    read_ahead: usize,
    /// At the end, prove this many keys with a value and as many without, one by one, and all keys of
    /// a commit at once, of at most 32 commits; and check the proofs.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) proofs: u64,
    /// Prove the keys of --proofs that have a value also in old states, this many commits before
    /// the end: 1,100,10k. Stores without proofs of such old states are left out.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = parse_count)]
    pub(super) proof_depths: Vec<u64>,
    /// Cache of loaded states between runs, or `none` [default: retrie/bench in the user's cache
    /// directory].
    #[arg(long, value_name = "DIR")]
    state_cache: Option<PathBuf>,
    #[command(flatten)]
    pub(super) report: ReportArgs,
}

/// The folder of prepared states for `--state-cache`.
pub(crate) fn state_cache(flag: Option<PathBuf>) -> StateCache {
    match flag {
        None => StateCache::user_default(),
        Some(folder) if folder.as_os_str() == "none" => StateCache::none(),
        Some(folder) => StateCache::at(folder),
    }
}

impl StoreArgs {
    /// Names of the stores in the race.
    pub(super) fn names(&self) -> eyre::Result<Vec<String>> {
        contenders::names(&self.backends, self.hash, is_peer)
    }

    /// The terms, where each store is open `times` times.
    pub(super) fn terms(
        &self,
        names: &[String],
        times: usize,
        memory: MemoryTerms,
    ) -> eyre::Result<RaceTerms> {
        ensure!(
            self.proofs > 0 || self.proof_depths.is_empty(),
            "--proof-depths says in which states keys are proven: say how many with --proofs"
        );
        let entrants = self.entrants(names, memory)?;
        let fixed: Vec<_> = entrants.iter().map(|entrant| entrant.fixed_bytes()).collect();
        let fixed = fixed.repeat(times);
        let cache_bytes = contenders::cache_bytes(self.cache_mb, self.memory_limit, memory, &fixed);
        let cache_bytes = usize::try_from(cache_bytes).unwrap_or(usize::MAX);
        Ok(RaceTerms {
            sync: self.sync,
            cache_bytes,
            retention: self.retention,
            read_threads: self.read_ahead,
            memory,
        })
    }

    /// The cache of loaded states.
    pub(super) fn cache(&self) -> StateCache {
        state_cache(self.state_cache.clone())
    }

    /// The cap on memory in bytes of a race with `open` stores at once, if there is one.
    pub(super) fn memory_limit(&self, memory: MemoryTerms, open: u64) -> Option<u64> {
        memory.cap(open).or(self.memory_limit)
    }

    /// The stores, made anew for each race: a backend may cache nodes of the race before.
    pub(super) fn entrants(
        &self,
        names: &[String],
        memory: MemoryTerms,
    ) -> eyre::Result<Vec<Box<dyn StoreFactory>>> {
        names.iter().map(|name| self.entrant(name, memory)).collect()
    }

    fn entrant(&self, name: &str, memory: MemoryTerms) -> eyre::Result<Box<dyn StoreFactory>> {
        if is_peer(name) {
            return peers::factory(name).ok_or_else(|| {
                eyre!("`{name}` is a peer: build with `--features peers` to race against it")
            });
        }
        let (lane, keys) = match name.strip_suffix(HASHED) {
            Some(lane) => (lane, KeyForm::Hashed),
            None => (name, KeyForm::Plain),
        };
        let backend = contenders::backend(lane, self.hash, &self.backend_args, memory)?;
        Ok(Box::new(BackendFactory::new(backend).named(name).with_keys(keys)))
    }
}

/// At the end of a name: the store gets hashed keys.
const HASHED: &str = ":hashed";

fn is_peer(name: &str) -> bool {
    peers::NAMES.contains(&name)
}
