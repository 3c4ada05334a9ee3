//! `retrie bench provenance`: queries what keys were over the latest blocks, with proofs (COLE
//! 8.2.5).

use super::{
    contenders,
    measurement::RaceMeasurement,
    memory::{MemoryArgs, words},
    stores::state_cache,
};
use crate::{
    args::{BackendArgs, HashChoice, parse_count, parse_sync, root_backend},
    output::{CommandOutput, ReportArgs, grouped, say},
    progress::RaceProgress,
};
use eyre::bail;
use retrie_bench::{
    chain::{
        BlockFill, ChainFork, ChainRecipe, ContractSet, GenesisPreload, KeyChoice, TransactionMix,
    },
    clients::{
        BlockDelivery, ClientEntrant, ClientRace, ClientWorkload, ProvenanceOutcome, QueryConfig,
        SenderRecovery, can_prove_history,
    },
    race::{MemoryTerms, RaceTerms},
};
use retrie_db::SyncMode;
use std::{path::PathBuf, sync::atomic::AtomicBool};

/// Arguments of `retrie bench provenance`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ProvenanceRaceArgs {
    /// The state backends, separated by commas [default: all that can prove old states].
    /// `cole:fanout=8` is `cole` with --cole.fanout 8.
    #[arg(long, value_name = "BACKENDS", value_delimiter = ',')]
    pub(super) backends: Vec<String>,
    /// Hash function of the backends that support another one (`mpt-archive`, `pbt`), for
    /// comparison only.
    #[arg(long, value_name = "HASH")]
    hash: Option<HashChoice>,
    #[command(flatten)]
    pub(super) backend_args: BackendArgs,
    /// Number of states, which the transactions write repeatedly.
    #[arg(long, value_name = "N", default_value = "100", value_parser = parse_count)]
    pub(super) states: u64,
    /// Blocks of the chain.
    #[arg(long, value_name = "N", default_value = "10k", value_parser = parse_count)]
    pub(super) blocks: u64,
    /// Transactions in each block.
    #[arg(long, value_name = "N", default_value = "100", value_parser = parse_count)]
    pub(super) txs: u64,
    /// How many of the latest blocks a query covers; one set of queries for each number.
    #[arg(long, value_name = "BLOCKS", value_delimiter = ',', default_values_t = [2, 4, 8, 16, 32, 64, 128])]
    pub(super) range: Vec<u64>,
    /// Queries for each range, each about one random key.
    #[arg(long, value_name = "N", default_value = "2000", value_parser = parse_count)]
    queries: u64,
    /// Accounts that sign.
    #[arg(long, value_name = "N", default_value = "1", value_parser = parse_count)]
    signers: u64,
    /// Seed of all random choices.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// `durable`: a commit is on disk when it returns. `none`: the operating system decides.
    #[arg(long, value_name = "MODE", default_value = "none", value_parser = parse_sync)]
    sync: SyncMode,
    /// Memory in MiB for rows that are committed but not yet folded into the tables.
    #[arg(long, value_name = "N", default_value_t = 1024, conflicts_with = "memory_budget", value_parser = clap::value_parser!(u32).range(1..))]
    cache_mb: u32,
    #[command(flatten)]
    memory: MemoryArgs,
    /// How many blocks can be reverted; 0 disables undo.
    #[arg(long, value_name = "BLOCKS", default_value_t = 128)]
    retention: u64,
    /// Cache of generated blocks and loaded states between runs, or `none` [default: retrie/bench
    /// in the user's cache directory].
    #[arg(long, value_name = "DIR")]
    state_cache: Option<PathBuf>,
    #[command(flatten)]
    pub(super) report: ReportArgs,
}

impl ProvenanceRaceArgs {
    /// Runs the measurement.
    pub(super) fn measure(
        self,
        out: &CommandOutput,
        stop: &AtomicBool,
    ) -> eyre::Result<RaceMeasurement> {
        let workload = self.workload();
        let queries = QueryConfig { ranges: self.range.clone(), count: self.queries };
        say!(
            out,
            "\nprovenance, {} states; {} blocks of {} txs; {} queries of a range",
            grouped(self.states),
            grouped(self.blocks),
            grouped(self.txs),
            grouped(self.queries)
        );
        let cache = state_cache(self.state_cache.clone());
        let mut measured = RaceMeasurement::on(workload.name);
        // The answers of all are compared, so all are open at once and share the page cache.
        for memory in self.memory.terms_of_stores() {
            let (entrants, terms) = (self.entrants(memory)?, self.terms(memory));
            if memory != MemoryTerms::FREE {
                let own =
                    entrants.iter().map(|one| (&*one.name, one.backend.profile().cache_bytes));
                say!(out, "equal terms: {}", words(&terms, own));
            }
            let race = ClientRace {
                workload: &workload,
                senders: SenderRecovery::Unrecovered,
                terms: &terms,
                root_maker: root_backend()?,
                cache: &cache,
                memory_limit: None,
                stop,
            };
            let mut progress = RaceProgress::counting(out.metrics(), workload.name);
            let answers = race.provenance(&entrants, &queries, &mut |step| progress.update(step));
            progress.finish();
            let answers = match answers {
                // What was measured with other budgets is kept.
                Err(error) if !measured.results.is_empty() => {
                    measured.ended = Err(error.into());
                    break;
                }
                answers => answers?,
            };
            measured.results.extend(answers.iter().map(|one| one.result(&workload, &terms)));
            measured.ended = print(out, &answers);
            if measured.ended.is_err() {
                break;
            }
        }
        Ok(measured)
    }

    fn entrants(&self, memory: MemoryTerms) -> eyre::Result<Vec<ClientEntrant>> {
        let names = contenders::names(&self.backends, self.hash, |_| false)?;
        let mut entrants = Vec::new();
        for name in names {
            let backend = contenders::backend(&name, self.hash, &self.backend_args, memory)?;
            // A backend named in the flags is rejected later, with the reason.
            if !self.backends.is_empty() || can_prove_history(&*backend) {
                entrants.push(ClientEntrant { name, backend });
            }
        }
        if entrants.is_empty() {
            bail!("no backend can prove what keys were in old blocks");
        }
        Ok(entrants)
    }

    fn workload(&self) -> ClientWorkload {
        ClientWorkload {
            name: "provenance",
            recipe: ChainRecipe {
                fork: ChainFork::Prague,
                seed: self.seed,
                fill: BlockFill::Transactions(self.txs),
                mix: TransactionMix { kvstore: 1, ..TransactionMix::NOTHING },
                accounts: self.states,
                keys: KeyChoice { reads: 0, inserts: 0, zipf: None },
                preload: Some(GenesisPreload {
                    senders: self.signers,
                    contracts: ContractSet::own().into(),
                    empty_ledgers: false,
                }),
            },
            blocks: self.blocks,
            warmup: 0,
            slices: self.blocks.min(1),
            commit_every: None,
            via: BlockDelivery::Import,
        }
    }

    fn terms(&self, memory: MemoryTerms) -> RaceTerms {
        let cache_bytes = contenders::cache_bytes(Some(self.cache_mb), None, memory, &[]);
        RaceTerms {
            sync: self.sync,
            cache_bytes: usize::try_from(cache_bytes).unwrap_or(usize::MAX),
            retention: self.retention,
            read_threads: 16,
            memory,
        }
    }
}

/// Prints one line for each range and backend.
fn print(out: &CommandOutput, answers: &[ProvenanceOutcome]) -> eyre::Result<()> {
    say!(
        out,
        "\n{:>6} {:<20} {:>10} {:>10} {:>10} {:>10} {:>10} {:>12} {:>12} {:>9}",
        "range",
        "backend",
        "mean us",
        "p50 us",
        "p99 us",
        "query us",
        "verify us",
        "proof bytes",
        "longest",
        "disk MiB"
    );
    for one in answers {
        let (both, proofs) = (&one.both, &one.proofs);
        say!(
            out,
            "{:>6} {:<20} {:>10.1} {:>10} {:>10} {:>10} {:>10} {:>12} {:>12} {:>9.1}",
            one.range,
            one.backend,
            one.elapsed.as_secs_f64() * 1e6 / both.count().max(1) as f64,
            both.micros(0.5),
            both.micros(0.99),
            proofs.made.micros(0.5),
            proofs.verified.micros(0.5),
            grouped(proofs.bytes(0.5) as u64),
            grouped(proofs.bytes(1.0) as u64),
            one.disk_bytes as f64 / f64::from(1 << 20),
        );
    }
    say!(
        out,
        "mean, p50, p99: query and verification together; query, verify, proof bytes: medians. A \
         backend without provenance proves each block of the range: the lengths are added up, shared \
         nodes counted each time"
    );
    Ok(())
}
