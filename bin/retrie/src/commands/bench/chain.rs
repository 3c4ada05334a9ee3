//! `retrie bench transfers|erc20|uniswap|new-payload|smallbank|kvstore`: races whole clients on the
//! same blocks.

mod payloads;
mod table;

pub(crate) use payloads::PayloadArgs;

use super::{
    contenders,
    measurement::{RaceMeasurement, ended, print_memory_limit},
    memory::{MemoryArgs, raced},
    stores::state_cache,
};
use crate::{
    args::{BackendArgs, HashChoice, parse_count, parse_sync, root_backend},
    limit,
    output::{CommandOutput, ReportArgs},
    progress::RaceProgress,
};
use eyre::bail;
use retrie_bench::{
    chain::{
        BlockFill, ChainFork, ChainRecipe, ContractSet, GenesisPreload, KeyChoice, TransactionMix,
    },
    clients::{BlockDelivery, ClientEntrant, ClientRace, ClientWorkload, SenderRecovery},
    memory::parse_size,
    race::{MemoryTerms, RaceTerms},
};
use retrie_db::SyncMode;
use std::{
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
};

/// Folder of real data without the environment variable `RETRIE_DATA`.
const DATA: &str = "../shared/data";

/// Flags of all these workloads.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ChainRaceArgs {
    /// The state backends, separated by commas [default: all]. `lvmt@3/16` is `lvmt` with that
    /// proof shard, `cole:size-ratio=6:fanout=8` is `cole` with --cole.size-ratio 6 and
    /// --cole.fanout 8.
    #[arg(long, value_name = "BACKENDS", value_delimiter = ',')]
    pub(super) backends: Vec<String>,
    /// Hash function of the backends that support another one (`mpt-archive`, `pbt`), for
    /// comparison only.
    #[arg(long, value_name = "HASH")]
    hash: Option<HashChoice>,
    #[command(flatten)]
    pub(super) backend_args: BackendArgs,
    /// Accounts in the initial state, one race for each number (1000, 50k, 1m): receivers;
    /// customers of smallbank; keys of kvstore [default: 1m, 100k for smallbank and kvstore].
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = parse_count)]
    pub(super) accounts: Vec<u64>,
    /// Accounts that sign [default: 20,000, 1,000 for smallbank and kvstore].
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub(super) signers: Option<u64>,
    /// Blocks measured [default: 300, 200 for new-payload, 1,000 for smallbank and kvstore].
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub(super) blocks: Option<u64>,
    /// Transactions in each block, as long as they take less than 30 Mgas; more than 1428, which no
    /// 30 Mgas hold, are taken whole [default: 500, 200 swaps, 100 for smallbank and kvstore, as many
    /// as fit for new-payload].
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub(super) txs: Option<u64>,
    /// Blocks before the measured ones [default: a tenth of them].
    #[arg(long, value_name = "BLOCKS", value_parser = parse_count)]
    pub(super) warmup: Option<u64>,
    /// Turns for each client [default: 10, 25 for smallbank and kvstore, or the number of blocks if
    /// that is smaller]. A turn starts with nothing prepared and ends with a commit, so short turns
    /// make all clients slower.
    #[arg(long, value_name = "N")]
    slices: Option<u64>,
    /// Blocks in each commit. By default the import decides; smallbank and kvstore commit every
    /// block. At the end of a slice all its blocks are durable in any case.
    #[arg(long, value_name = "BLOCKS", value_parser = parse_count)]
    commit_every: Option<u64>,
    /// When the senders of transactions are recovered. `recovered`: before the clock starts, as in
    /// a node that had the transactions in its pool. `unrecovered`: while the clock runs, as in an
    /// import. `both`: one race each [default: both; new-payload supports only `unrecovered`].
    #[arg(long, value_name = "WHEN", value_parser = parse_senders)]
    pub(super) senders: Option<SenderRaces>,
    /// Choose receivers, or keys of kvstore, by YCSB's Zipf distribution with this constant (0.99)
    /// instead of uniformly.
    #[arg(long, value_name = "THETA")]
    pub(super) zipf: Option<f64>,
    /// Seed of all random choices.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// `durable`: a commit is on disk when it returns. `none`: the operating system decides.
    #[arg(long, value_name = "MODE", default_value = "durable", value_parser = parse_sync)]
    sync: SyncMode,
    /// Memory in MiB for rows that are committed but not yet folded into the tables; the caches of
    /// `mpt` (about 128 MiB) and `mpt-archive` (192 MiB) come on top [default: 1024; with
    /// --memory-limit the clients share half of it, less these fixed caches].
    #[arg(long, value_name = "N", conflicts_with = "memory_budget", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) cache_mb: Option<u32>,
    /// Cap memory at this size (512MB, 2GB) during the race, with the page cache, so that the state
    /// can be larger than memory. The cap uses a cgroup, or locks the rest of the machine's memory.
    /// All clients of a race are open at once and share it: a client raced alone has more.
    #[arg(long, value_name = "SIZE", conflicts_with = "memory_budget", value_parser = parse_size)]
    memory_limit: Option<u64>,
    #[command(flatten)]
    pub(super) memory: MemoryArgs,
    /// How many blocks can be reverted; 0 disables undo.
    #[arg(long, value_name = "BLOCKS", default_value_t = 128)]
    retention: u64,
    /// Threads for each client's prefetch of the state that the next blocks name; 0 disables it.
    /// More than a few help only while reads wait for the disk.
    #[arg(long, value_name = "THREADS", default_value_t = 16)]
    read_ahead: usize,
    /// Cache of generated blocks and loaded states between runs, or `none` [default: retrie/bench
    /// in the user's cache directory].
    #[arg(long, value_name = "DIR")]
    state_cache: Option<PathBuf>,
    /// Gas target of blocks, one race for each, instead of `txs`. Set by `bench new-payload`.
    #[arg(skip)]
    gas: Vec<u64>,
    #[command(flatten)]
    pub(super) report: ReportArgs,
}

/// Flags of smallbank.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct BankArgs {
    #[command(flatten)]
    pub(super) args: ChainRaceArgs,
    /// Start with empty banks: calls create the accounts that they name.
    #[arg(long)]
    pub(super) fresh: bool,
}

/// Flags of the token workloads.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct TokenArgs {
    #[command(flatten)]
    pub(super) args: ChainRaceArgs,
    #[command(flatten)]
    contracts: ContractArgs,
}

/// The contracts in a preloaded state.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct ContractArgs {
    /// The token, and the market of two tokens. `mainnet`: the real codes in RETRIE_DATA
    /// (`../shared/data` by default). `own`: contracts of this program [default: mainnet].
    #[arg(long, value_name = "SET", value_parser = parse_contracts)]
    contracts: Option<ContractChoice>,
}

/// Flags of kvstore.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct KvArgs {
    #[command(flatten)]
    pub(super) args: ChainRaceArgs,
    /// Mixes of reads and writes, one race for each: `read-only`, `read-write` (half of each),
    /// `write-only`.
    #[arg(long, value_name = "RATIO", default_value = "read-write", value_delimiter = ',', value_parser = parse_ratio)]
    pub(super) ratio: Vec<u32>,
    /// How many of 100 writes insert a new key instead of writing an existing one, as YCSB's
    /// inserts.
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=100))]
    pub(super) inserts: u32,
    /// Start with an empty store.
    #[arg(long)]
    fresh: bool,
}

/// Values of `--contracts`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ContractChoice {
    Mainnet,
    Own,
}

impl ContractArgs {
    /// Whether the flag is set.
    pub(crate) const fn is_given(self) -> bool {
        self.contracts.is_some()
    }

    /// The contracts for the flag.
    pub(crate) fn set(self) -> eyre::Result<ContractSet> {
        match self.contracts {
            Some(ContractChoice::Own) => Ok(ContractSet::own()),
            Some(ContractChoice::Mainnet) | None => Ok(ContractSet::mainnet(&data_folder())?),
        }
    }
}

/// The folder of real data.
pub(super) fn data_folder() -> PathBuf {
    std::env::var_os("RETRIE_DATA").unwrap_or_else(|| DATA.into()).into()
}

/// The races for `--senders`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SenderRaces(&'static [SenderRecovery]);

impl SenderRaces {
    pub(super) const RECOVERED: Self = Self(&[SenderRecovery::Recovered]);
    const UNRECOVERED: Self = Self(&[SenderRecovery::Unrecovered]);
    const BOTH: Self = Self(&[SenderRecovery::Recovered, SenderRecovery::Unrecovered]);

    /// The races for `--senders` if blocks are delivered `via` this.
    fn choose(asked: Option<Self>, via: BlockDelivery) -> eyre::Result<Self> {
        match (via, asked) {
            (BlockDelivery::Import, asked) => Ok(asked.unwrap_or(Self::BOTH)),
            (BlockDelivery::EngineApi, None | Some(Self::UNRECOVERED)) => Ok(Self::UNRECOVERED),
            (BlockDelivery::EngineApi, Some(_)) => {
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

fn parse_contracts(text: &str) -> Result<ContractChoice, String> {
    match text {
        "mainnet" => Ok(ContractChoice::Mainnet),
        "own" => Ok(ContractChoice::Own),
        _ => Err("it is `mainnet` or `own`".into()),
    }
}

/// How many of 100 calls read.
fn parse_ratio(text: &str) -> Result<u32, String> {
    match text {
        "read-only" => Ok(100),
        "read-write" => Ok(50),
        "write-only" => Ok(0),
        _ => Err("it is `read-only`, `read-write` or `write-only`".into()),
    }
}

/// Defaults of a workload's flags.
struct WorkloadDefaults {
    name: &'static str,
    mix: TransactionMix,
    accounts: u64,
    signers: u64,
    blocks: u64,
    txs: u64,
    /// The number of blocks if that is smaller.
    slices: u64,
    commit_every: Option<u64>,
    via: BlockDelivery,
}

/// Payments, as in the LVMT and LMPT papers.
const TRANSFERS: WorkloadDefaults = WorkloadDefaults {
    name: "transfers",
    mix: TransactionMix { transfers: 1, ..TransactionMix::NOTHING },
    accounts: 1_000_000,
    signers: 20_000,
    blocks: 300,
    txs: 500,
    slices: 10,
    commit_every: None,
    via: BlockDelivery::Import,
};
const ERC20: WorkloadDefaults = WorkloadDefaults {
    name: "erc20",
    mix: TransactionMix { erc20: 1, ..TransactionMix::NOTHING },
    ..TRANSFERS
};
const UNISWAP: WorkloadDefaults = WorkloadDefaults {
    name: "uniswap",
    mix: TransactionMix { swaps: 1, ..TransactionMix::NOTHING },
    txs: 200,
    ..TRANSFERS
};
/// Blocks of 100 transactions, as in the COLE paper.
const SMALLBANK: WorkloadDefaults = WorkloadDefaults {
    name: "smallbank",
    mix: TransactionMix { smallbank: 1, ..TransactionMix::NOTHING },
    accounts: 100_000,
    signers: 1_000,
    blocks: 1_000,
    txs: 100,
    slices: 25,
    commit_every: Some(1),
    via: BlockDelivery::Import,
};
const KVSTORE: WorkloadDefaults = WorkloadDefaults {
    name: "kvstore",
    mix: TransactionMix { kvstore: 1, ..TransactionMix::NOTHING },
    ..SMALLBANK
};
/// Blocks as full as mainnet's, with a similar mix.
const NEW_PAYLOAD: WorkloadDefaults = WorkloadDefaults {
    name: "new-payload",
    mix: ChainRecipe::BUILT_IN.mix,
    blocks: 200,
    // More than fit into a block.
    txs: 2_000,
    commit_every: Some(1),
    via: BlockDelivery::EngineApi,
    ..TRANSFERS
};

/// The initial state of the chain.
struct GenesisSetup {
    contracts: ContractSet,
    /// Whether smallbank and kvstore start empty.
    empty_ledgers: bool,
}

impl GenesisSetup {
    const fn with(contracts: ContractSet) -> Self {
        Self { contracts, empty_ledgers: false }
    }

    fn of_ledgers(fresh: bool) -> Self {
        Self { contracts: ContractSet::own(), empty_ledgers: fresh }
    }
}

impl ChainRaceArgs {
    /// The choice of receivers, for workloads without keys.
    const fn receivers(&self) -> [KeyChoice; 1] {
        [KeyChoice { reads: 50, inserts: 0, zipf: self.zipf }]
    }

    /// Rejects `--zipf`, for workloads without receivers.
    fn no_receivers(&self, name: &str) -> eyre::Result<[KeyChoice; 1]> {
        if self.zipf.is_some() {
            bail!("{name} has no receivers: leave out --zipf");
        }
        Ok(self.receivers())
    }

    fn race(
        self,
        defaults: &WorkloadDefaults,
        genesis: GenesisSetup,
        keys: &[KeyChoice],
        out: &CommandOutput,
        stop: &AtomicBool,
    ) -> eyre::Result<RaceMeasurement> {
        let names = contenders::names(&self.backends, self.hash, |_| false)?;
        let senders = SenderRaces::choose(self.senders, defaults.via)?;
        let workloads = self.workloads(defaults, genesis, keys);
        workloads.iter().try_for_each(ClientWorkload::check)?;
        let memories = self.memory.terms(out)?;
        let cache = state_cache(self.state_cache.clone());
        let mut measured = RaceMeasurement::on(defaults.name);
        let mut variants = memories.iter().flat_map(|memory| {
            let each = move |workload| senders.0.iter().map(move |one| (*memory, workload, *one));
            workloads.iter().flat_map(each)
        });
        let results = &mut measured.results;
        let mut run = |memory: MemoryTerms,
                       workload: &ClientWorkload,
                       senders: SenderRecovery|
         -> eyre::Result<()> {
            let terms = self.terms(&names, memory)?;
            let entrants = self.entrants(&names, memory)?;
            table::print_terms(out, workload, senders, &terms, &entrants)?;
            let memory_limit = self.print_memory_limit(out, memory, entrants.len())?;
            let race = ClientRace {
                workload,
                senders,
                terms: &terms,
                root_maker: root_backend()?,
                cache: &cache,
                memory_limit,
                stop,
            };
            let mut progress = RaceProgress::counting(out.metrics(), defaults.name);
            let raced = raced(&entrants, memory, |group| {
                race.run(group, &mut |step| progress.update(step))
            });
            progress.finish();
            let mut raced = raced?;
            limit::compare(&cache, &mut raced);
            // Before the output, so that a closed pipe loses no results.
            results.extend(raced.outcomes.iter().map(|one| one.result(workload, &terms)));
            let printed = table::print(out, workload.name, workload.via, &raced.outcomes);
            let what = format!("{}, senders {senders}", workload.name);
            ended(&what, workload.slices, raced).and(printed)
        };
        measured.ended =
            variants.try_for_each(|(memory, workload, senders)| run(memory, workload, senders));
        Ok(measured)
    }

    /// The cap on memory in bytes of a race of `entrants` clients, if there is one; a limit that
    /// they share is printed.
    fn print_memory_limit(
        &self,
        out: &CommandOutput,
        memory: MemoryTerms,
        entrants: usize,
    ) -> eyre::Result<Option<u64>> {
        if let Some(limit) = self.memory_limit {
            print_memory_limit(out, limit, entrants)?;
        }
        Ok(memory.cap(1).or(self.memory_limit))
    }

    fn terms(&self, names: &[String], memory: MemoryTerms) -> eyre::Result<RaceTerms> {
        let entrants = self.entrants(names, memory)?;
        let fixed: Vec<_> =
            entrants.into_iter().map(|one| one.backend.profile().cache_bytes).collect();
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

    /// The clients, made anew for each race: a backend may cache nodes of the race before.
    fn entrants(&self, names: &[String], memory: MemoryTerms) -> eyre::Result<Vec<ClientEntrant>> {
        let entrant = |name: &String| {
            let backend = contenders::backend(name, self.hash, &self.backend_args, memory)?;
            Ok(ClientEntrant { name: name.clone(), backend })
        };
        names.iter().map(entrant).collect()
    }

    fn workloads(
        &self,
        defaults: &WorkloadDefaults,
        genesis: GenesisSetup,
        keys: &[KeyChoice],
    ) -> Vec<ClientWorkload> {
        let GenesisSetup { contracts, empty_ledgers } = genesis;
        let contracts = Arc::new(contracts);
        let blocks = self.blocks.unwrap_or(defaults.blocks);
        let one = [defaults.accounts];
        let accounts = if self.accounts.is_empty() { &one[..] } else { &self.accounts };
        let fills = match self.gas.is_empty() {
            true => vec![BlockFill::Transactions(self.txs.unwrap_or(defaults.txs))],
            false => self.gas.iter().copied().map(BlockFill::Gas).collect(),
        };
        let workload = |accounts: u64, keys: KeyChoice, fill: BlockFill| ClientWorkload {
            name: defaults.name,
            recipe: ChainRecipe {
                fork: ChainFork::Prague,
                seed: self.seed,
                fill,
                mix: defaults.mix,
                accounts,
                keys,
                preload: Some(GenesisPreload {
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

impl ChainRaceArgs {
    /// `bench transfers`.
    pub(super) fn transfers(
        self,
        out: &CommandOutput,
        stop: &AtomicBool,
    ) -> eyre::Result<RaceMeasurement> {
        let keys = self.receivers();
        self.race(&TRANSFERS, GenesisSetup::with(ContractSet::own()), &keys, out, stop)
    }
}

impl BankArgs {
    /// `bench smallbank`.
    pub(super) fn smallbank(
        self,
        out: &CommandOutput,
        stop: &AtomicBool,
    ) -> eyre::Result<RaceMeasurement> {
        let keys = self.args.no_receivers(SMALLBANK.name)?;
        self.args.race(&SMALLBANK, GenesisSetup::of_ledgers(self.fresh), &keys, out, stop)
    }
}

impl TokenArgs {
    /// `bench erc20`.
    pub(super) fn erc20(
        self,
        out: &CommandOutput,
        stop: &AtomicBool,
    ) -> eyre::Result<RaceMeasurement> {
        let keys = self.args.receivers();
        self.args.race(&ERC20, GenesisSetup::with(self.contracts.set()?), &keys, out, stop)
    }

    /// `bench uniswap`.
    pub(super) fn uniswap(
        self,
        out: &CommandOutput,
        stop: &AtomicBool,
    ) -> eyre::Result<RaceMeasurement> {
        let keys = self.args.no_receivers(UNISWAP.name)?;
        self.args.race(&UNISWAP, GenesisSetup::with(self.contracts.set()?), &keys, out, stop)
    }
}

impl KvArgs {
    /// `bench kvstore`.
    pub(super) fn kvstore(
        self,
        out: &CommandOutput,
        stop: &AtomicBool,
    ) -> eyre::Result<RaceMeasurement> {
        let (inserts, zipf) = (self.inserts, self.args.zipf);
        let keys = |reads: &u32| KeyChoice { reads: *reads, inserts, zipf };
        let keys: Vec<_> = self.ratio.iter().map(keys).collect();
        self.args.race(&KVSTORE, GenesisSetup::of_ledgers(self.fresh), &keys, out, stop)
    }
}
