//! `retrie bench transfers|erc20|uniswap|new-payload|smallbank|kvstore`: whole clients raced on the same blocks.

mod payloads;
mod table;

pub(crate) use payloads::PayloadArgs;

use super::{
    lanes,
    measured::{Measured, print_memory_limit},
    stores::state_cache,
};
use crate::{
    args::{BackendArgs, Hash, parse_count, parse_sync, root_maker},
    output::{Output, ReportArgs},
    progress::RaceProgress,
};
use eyre::{bail, eyre};
use retrie_bench::{
    BenchError,
    chain::{ContractSet, Fill, KeyChoice, Mix, Preload, Recipe},
    clients::{ClientRace, Entrant, Raced, Senders, Via, Workload},
    memory::parse_size,
    state::Terms,
};
use retrie_db::SyncMode;
use std::{
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
};

/// Where real data is looked for, unless `RETRIE_DATA` says.
const DATA: &str = "../shared/data";

/// What all these workloads take.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The state backends, separated by commas; all by default. `lvmt@3/16` is `lvmt` with that proof
    /// shard, `cole:size-ratio=6:fanout=8` is `cole` with --cole.size-ratio 6 and --cole.fanout 8.
    #[arg(long, value_name = "BACKENDS", value_delimiter = ',')]
    backends: Vec<String>,
    /// Hash function of the backends that have the choice (`mpt-archive`), for comparison only.
    #[arg(long, value_name = "HASH")]
    hash: Option<Hash>,
    #[command(flatten)]
    backend_args: BackendArgs,
    /// Accounts in the state from the start, one race for each number (1000, 50k, 1m): receivers;
    /// customers of the banks; keys of the store. 1m by default, 100k for banks and store.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = parse_count)]
    accounts: Vec<u64>,
    /// Accounts that sign: 20,000 by default, 1,000 for banks and store.
    #[arg(long, value_name = "N", value_parser = parse_count)]
    signers: Option<u64>,
    /// Blocks that are measured: 300 by default, 200 for new-payload, 1,000 for banks and store.
    #[arg(long, value_name = "N", value_parser = parse_count)]
    blocks: Option<u64>,
    /// Transactions a block, as far as they take less than 30 Mgas: 500 by default, 200 swaps, 100 for
    /// banks and store, as many as fit for new-payload.
    #[arg(long, value_name = "N", value_parser = parse_count)]
    txs: Option<u64>,
    /// Blocks before the measured ones; a tenth of them by default.
    #[arg(long, value_name = "BLOCKS", value_parser = parse_count)]
    warmup: Option<u64>,
    /// Turns each client gets: 10 by default, 25 for banks and store, or one a block if these are
    /// fewer. A turn starts with nothing prepared and ends with a commit: short ones make all slower.
    #[arg(long, value_name = "N")]
    slices: Option<u64>,
    /// Blocks a commit. By default the import decides; banks and store commit every block. What a
    /// slice has imported is durable at its end in any case.
    #[arg(long, value_name = "BLOCKS", value_parser = parse_count)]
    commit_every: Option<u64>,
    /// When the senders of transactions are recovered. `recovered`: before the clock starts, as by a
    /// node that has had the transactions in its pool. `unrecovered`: on the clock, as in an import.
    /// `both`: one race each; the default, but for new-payload, which knows `unrecovered` only.
    #[arg(long, value_name = "WHEN", value_parser = parse_senders)]
    senders: Option<SenderRaces>,
    /// Choose receivers, or keys of the store, by YCSB's Zipf distribution with this constant (0.99)
    /// instead of all alike.
    #[arg(long, value_name = "THETA")]
    zipf: Option<f64>,
    /// Whence everything random comes.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// `durable`: each commit is on disk when it returns. `none`: that is left to the system.
    #[arg(long, value_name = "MODE", default_value = "durable", value_parser = parse_sync)]
    sync: SyncMode,
    /// Memory in MiB for rows that are committed but not yet folded into the tables; the caches of
    /// `mpt` (about 128 MiB) and `mpt-archive` (192 MiB) come on top. 1024 by default; under
    /// --memory-limit the clients share half of it, less these fixed caches.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    cache_mb: Option<u32>,
    /// Cap memory at this size (512MB, 2GB) while the clients race, the page cache included, so that
    /// the state can be larger than memory. By cgroup, or by locking the rest of the machine's memory.
    /// All clients of a race are open at once and share it: a client raced alone has more.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory_limit: Option<u64>,
    /// How many blocks can be reverted; 0 switches undo off.
    #[arg(long, value_name = "BLOCKS", default_value_t = 128)]
    retention: u64,
    /// Threads with which each client may read ahead what the next blocks name; 0: it does not. More than
    /// a few serve only while reads wait for the disk.
    #[arg(long, value_name = "THREADS", default_value_t = 16)]
    read_ahead: usize,
    /// Where made blocks and loaded states are kept between runs, or `none`; by default retrie/bench
    /// in the user's cache directory.
    #[arg(long, value_name = "DIR")]
    state_cache: Option<PathBuf>,
    /// Gas that blocks aim at, a race for each; in place of `txs`. `bench new-payload` sets it.
    #[arg(skip)]
    gas: Vec<u64>,
    #[command(flatten)]
    pub(super) report: ReportArgs,
}

/// The same, of banks.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct BankArgs {
    #[command(flatten)]
    pub(super) args: Args,
    /// Banks hold nothing at first: accounts come into being as calls name them.
    #[arg(long)]
    fresh: bool,
}

/// The same, of a workload of tokens.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct TokenArgs {
    #[command(flatten)]
    pub(super) args: Args,
    #[command(flatten)]
    contracts: ContractArgs,
}

/// Which contracts a preloaded state holds.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct ContractArgs {
    /// The token and the market of two tokens. `mainnet`: the real codes in RETRIE_DATA
    /// (`../shared/data` by default); the default. `own`: contracts of this program.
    #[arg(long, value_name = "SET", value_parser = parse_contracts)]
    contracts: Option<Contracts>,
}

/// The same, of the key-value store.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct KvArgs {
    #[command(flatten)]
    pub(super) args: Args,
    /// Reads and writes, one race for each: `read-only`, `read-write` (half of each), `write-only`.
    #[arg(long, value_name = "RATIO", default_value = "read-write", value_delimiter = ',', value_parser = parse_ratio)]
    ratio: Vec<u32>,
    /// How many of 100 writes insert a new key instead of writing one that there is; YCSB's inserts.
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=100))]
    inserts: u32,
    /// The store is empty at first.
    #[arg(long)]
    fresh: bool,
}

/// What `--contracts` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contracts {
    Mainnet,
    Own,
}

impl ContractArgs {
    /// Whether the flag was given.
    pub(crate) const fn is_given(self) -> bool {
        self.contracts.is_some()
    }

    /// The contracts asked for.
    pub(crate) fn set(self) -> eyre::Result<ContractSet> {
        match self.contracts {
            Some(Contracts::Own) => Ok(ContractSet::own()),
            Some(Contracts::Mainnet) | None => {
                let data = std::env::var_os("RETRIE_DATA").unwrap_or_else(|| DATA.into());
                Ok(ContractSet::mainnet(&PathBuf::from(data))?)
            }
        }
    }
}

/// The races that `--senders` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SenderRaces(&'static [Senders]);

impl SenderRaces {
    const RECOVERED: Self = Self(&[Senders::Recovered]);
    const UNRECOVERED: Self = Self(&[Senders::Unrecovered]);
    const BOTH: Self = Self(&[Senders::Recovered, Senders::Unrecovered]);

    /// Those that are asked for, if blocks come `via` this.
    fn choose(asked: Option<Self>, via: Via) -> eyre::Result<Self> {
        match (via, asked) {
            (Via::Import, asked) => Ok(asked.unwrap_or(Self::BOTH)),
            (Via::EngineApi, None | Some(Self::UNRECOVERED)) => Ok(Self::UNRECOVERED),
            (Via::EngineApi, Some(_)) => {
                bail!("payloads come without senders: leave out --senders")
            }
        }
    }
}

fn parse_senders(text: &str) -> Result<SenderRaces, String> {
    match text {
        "recovered" => Ok(SenderRaces::RECOVERED),
        "unrecovered" => Ok(SenderRaces::UNRECOVERED),
        "both" => Ok(SenderRaces::BOTH),
        _ => Err("it is `recovered`, `unrecovered` or `both`".into()),
    }
}

fn parse_contracts(text: &str) -> Result<Contracts, String> {
    match text {
        "mainnet" => Ok(Contracts::Mainnet),
        "own" => Ok(Contracts::Own),
        _ => Err("it is `mainnet` or `own`".into()),
    }
}

/// Of 100 calls, those that read.
fn parse_ratio(text: &str) -> Result<u32, String> {
    match text {
        "read-only" => Ok(100),
        "read-write" => Ok(50),
        "write-only" => Ok(0),
        _ => Err("it is `read-only`, `read-write` or `write-only`".into()),
    }
}

/// What a workload is unless flags say otherwise.
struct Defaults {
    name: &'static str,
    mix: Mix,
    accounts: u64,
    signers: u64,
    blocks: u64,
    txs: u64,
    /// Unless there are fewer blocks.
    slices: u64,
    commit_every: Option<u64>,
    via: Via,
}

/// Payments, of the LVMT and LMPT papers.
const TRANSFERS: Defaults = Defaults {
    name: "transfers",
    mix: Mix { transfers: 1, ..Mix::NOTHING },
    accounts: 1_000_000,
    signers: 20_000,
    blocks: 300,
    txs: 500,
    slices: 10,
    commit_every: None,
    via: Via::Import,
};
const ERC20: Defaults =
    Defaults { name: "erc20", mix: Mix { erc20: 1, ..Mix::NOTHING }, ..TRANSFERS };
const UNISWAP: Defaults =
    Defaults { name: "uniswap", mix: Mix { swaps: 1, ..Mix::NOTHING }, txs: 200, ..TRANSFERS };
/// Blocks of 100 transactions, of the COLE paper.
const SMALLBANK: Defaults = Defaults {
    name: "smallbank",
    mix: Mix { smallbank: 1, ..Mix::NOTHING },
    accounts: 100_000,
    signers: 1_000,
    blocks: 1_000,
    txs: 100,
    slices: 25,
    commit_every: Some(1),
    via: Via::Import,
};
const KVSTORE: Defaults =
    Defaults { name: "kvstore", mix: Mix { kvstore: 1, ..Mix::NOTHING }, ..SMALLBANK };
/// Blocks as full as mainnet's, of what fills those.
const NEW_PAYLOAD: Defaults = Defaults {
    name: "new-payload",
    mix: Recipe::BUILT_IN.mix,
    blocks: 200,
    // More than fit.
    txs: 2_000,
    commit_every: Some(1),
    via: Via::EngineApi,
    ..TRANSFERS
};

/// What the chain starts from.
struct Genesis {
    contracts: ContractSet,
    /// Banks and store hold nothing.
    empty_ledgers: bool,
}

impl Genesis {
    const fn with(contracts: ContractSet) -> Self {
        Self { contracts, empty_ledgers: false }
    }

    fn of_ledgers(fresh: bool) -> Self {
        Self { contracts: ContractSet::own(), empty_ledgers: fresh }
    }
}

impl Args {
    /// The choice of receivers, where there are no keys.
    const fn receivers(&self) -> [KeyChoice; 1] {
        [KeyChoice { reads: 50, inserts: 0, zipf: self.zipf }]
    }

    /// The same, where nobody receives.
    fn no_receivers(&self, name: &str) -> eyre::Result<[KeyChoice; 1]> {
        if self.zipf.is_some() {
            bail!("nobody receives anything in {name}: leave out --zipf");
        }
        Ok(self.receivers())
    }

    fn race(
        self,
        defaults: &Defaults,
        genesis: Genesis,
        keys: &[KeyChoice],
        out: &Output,
        stop: &AtomicBool,
    ) -> eyre::Result<Measured> {
        let names = lanes::names(&self.backends, self.hash, |_| false)?;
        let senders = SenderRaces::choose(self.senders, defaults.via)?;
        let workloads = self.workloads(defaults, genesis, keys);
        workloads.iter().try_for_each(Workload::check)?;
        let terms = self.terms(&names)?;
        let cache = state_cache(self.state_cache.clone());
        let mut measured = Measured::on(defaults.name);
        let mut variants = workloads
            .iter()
            .flat_map(|workload| senders.0.iter().map(move |senders| (workload, *senders)));
        let results = &mut measured.results;
        let mut run = |workload: &Workload, senders: Senders| -> eyre::Result<()> {
            let entrants = self.entrants(&names)?;
            table::print_terms(out, workload, senders, &terms, &entrants)?;
            let root_maker = root_maker()?;
            let memory_limit = self.memory_limit;
            if let Some(limit) = memory_limit {
                print_memory_limit(out, limit, entrants.len())?;
            }
            let race = ClientRace {
                workload,
                senders,
                terms: &terms,
                root_maker,
                cache: &cache,
                memory_limit,
                stop,
            };
            let mut progress = RaceProgress::counting(out.metrics(), defaults.name);
            let raced = race.run(&entrants, &mut |step| progress.update_clients(step));
            progress.finish();
            let raced = raced?;
            // First, so that no closed pipe loses them.
            results.extend(raced.outcomes.iter().map(|one| one.result(workload, &terms)));
            let printed = table::print(out, workload.name, workload.via, &raced.outcomes);
            let what = format!("{}, senders {senders}", workload.name);
            stopped(&what, workload.slices, &raced).and(printed)
        };
        measured.ended = variants.try_for_each(|(workload, senders)| run(workload, senders));
        Ok(measured)
    }

    fn terms(&self, names: &[String]) -> eyre::Result<Terms> {
        let fixed = self.entrants(names)?.into_iter().map(|one| one.backend.cache_bytes());
        let fixed: Vec<_> = fixed.collect();
        let cache_mb = lanes::cache_mb(self.cache_mb, self.memory_limit, &fixed);
        let cache_bytes = (cache_mb as usize) << 20;
        Ok(Terms {
            sync: self.sync,
            cache_bytes,
            retention: self.retention,
            read_threads: self.read_ahead,
        })
    }

    /// The clients, made anew for each race: a backend may have cached nodes of the one before.
    fn entrants(&self, names: &[String]) -> eyre::Result<Vec<Entrant>> {
        let entrant = |name: &String| {
            let backend = lanes::backend(name, self.hash, &self.backend_args)?;
            Ok(Entrant { name: name.clone(), backend })
        };
        names.iter().map(entrant).collect()
    }

    fn workloads(
        &self,
        defaults: &Defaults,
        genesis: Genesis,
        keys: &[KeyChoice],
    ) -> Vec<Workload> {
        let Genesis { contracts, empty_ledgers } = genesis;
        let contracts = Arc::new(contracts);
        let blocks = self.blocks.unwrap_or(defaults.blocks);
        let one = [defaults.accounts];
        let accounts = if self.accounts.is_empty() { &one[..] } else { &self.accounts };
        let fills = match self.gas.is_empty() {
            true => vec![Fill::Transactions(self.txs.unwrap_or(defaults.txs))],
            false => self.gas.iter().copied().map(Fill::Gas).collect(),
        };
        let workload = |accounts: u64, keys: KeyChoice, fill: Fill| Workload {
            name: defaults.name,
            recipe: Recipe {
                seed: self.seed,
                fill,
                mix: defaults.mix,
                accounts,
                keys,
                preload: Some(Preload {
                    senders: self.signers.unwrap_or(defaults.signers),
                    contracts: contracts.clone(),
                    empty_ledgers,
                }),
            },
            blocks,
            warmup: self.warmup.unwrap_or(blocks / 10),
            slices: self.slices.unwrap_or_else(|| blocks.min(defaults.slices)),
            commit_every: self.commit_every.or(defaults.commit_every),
            via: defaults.via,
        };
        let variants = accounts.iter().flat_map(|n| keys.iter().map(move |keys| (*n, *keys)));
        let variants =
            variants.flat_map(|(n, keys)| fills.iter().map(move |fill| (n, keys, *fill)));
        variants.map(|(accounts, keys, fill)| workload(accounts, keys, fill)).collect()
    }
}

impl Args {
    /// `bench transfers`.
    pub(super) fn transfers(self, out: &Output, stop: &AtomicBool) -> eyre::Result<Measured> {
        let keys = self.receivers();
        self.race(&TRANSFERS, Genesis::with(ContractSet::own()), &keys, out, stop)
    }
}

impl BankArgs {
    /// `bench smallbank`.
    pub(super) fn smallbank(self, out: &Output, stop: &AtomicBool) -> eyre::Result<Measured> {
        let keys = self.args.no_receivers(SMALLBANK.name)?;
        self.args.race(&SMALLBANK, Genesis::of_ledgers(self.fresh), &keys, out, stop)
    }
}

impl TokenArgs {
    /// `bench erc20`.
    pub(super) fn erc20(self, out: &Output, stop: &AtomicBool) -> eyre::Result<Measured> {
        let keys = self.args.receivers();
        self.args.race(&ERC20, Genesis::with(self.contracts.set()?), &keys, out, stop)
    }

    /// `bench uniswap`.
    pub(super) fn uniswap(self, out: &Output, stop: &AtomicBool) -> eyre::Result<Measured> {
        let keys = self.args.no_receivers(UNISWAP.name)?;
        self.args.race(&UNISWAP, Genesis::with(self.contracts.set()?), &keys, out, stop)
    }
}

impl KvArgs {
    /// `bench kvstore`.
    pub(super) fn kvstore(self, out: &Output, stop: &AtomicBool) -> eyre::Result<Measured> {
        let (inserts, zipf) = (self.inserts, self.args.zipf);
        let keys = |reads: &u32| KeyChoice { reads: *reads, inserts, zipf };
        let keys: Vec<_> = self.ratio.iter().map(keys).collect();
        self.args.race(&KVSTORE, Genesis::of_ledgers(self.fresh), &keys, out, stop)
    }
}

/// An error if a race was stopped before its end.
fn stopped(what: &str, slices: u64, raced: &Raced) -> eyre::Result<()> {
    if raced.complete {
        return Ok(());
    }
    let done = raced.outcomes.first().map_or(0, |outcome| outcome.slices_done());
    let done = format!("{what}: {done} of {slices} slices were measured");
    Err(eyre!(BenchError::Stopped).wrap_err(done))
}
