//! `retrie bench witness`: what it takes to execute blocks, and calls, without a state.

use super::{contenders, stores::state_cache};
use crate::{
    args::{BackendArgs, HashChoice, parse_count, root_backend, witness_opener},
    output::{CommandOutput, ReportArgs, command_line, grouped, say},
    progress::RaceProgress,
};
use eyre::bail;
use retrie_backends::{find, kind};
use retrie_bench::{
    chain::{
        BlockFill, ChainFork, ChainRecipe, ContractSet, GenesisPreload, KeyChoice, TransactionMix,
    },
    clients::{
        BlockDelivery, ClientEntrant, ClientRace, ClientWorkload, RealWitnesses, SenderRecovery,
    },
    race::{MemoryTerms, RaceTerms},
    state::BlockCorpus,
    witness::{WitnessOutcome, WitnessReport},
};
use retrie_db::SyncMode;
use retrie_pipeline::replay::StatePadding;
use retrie_report::BenchReport;
use retrie_sources::Bundle;
use retrie_state::WitnessSupport;
use serde_json::{Map, Value, json};
use std::{path::PathBuf, sync::atomic::AtomicBool};

/// The meaning of the figures, for the end of `--help`.
const HELP: &str = "A witness is made on the state before a block, opened with the root of that state, and the block \
executed on it; the root after it must be the store's. Making it: the work of the store, which knows what \
the block reads. Verifying it: opening, execution, the next root. Codes are the same for all stores and are \
counted apart. A call is a transaction on the state before its block: one proof of all that it reads, as \
state_call gives.";

/// Name in progress and metrics.
const NAME: &str = "witness";

/// Arguments of `retrie bench witness`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct WitnessBenchArgs {
    /// The state backends, separated by commas [default: all that make witnesses]. `lvmt` is
    /// `lvmt@all`: without all proof data it makes none.
    #[arg(long, value_name = "BACKENDS", value_delimiter = ',')]
    backends: Vec<String>,
    /// Hash function of the backends that support another one (`mpt-archive`, `pbt`), for
    /// comparison only.
    #[arg(long, value_name = "HASH")]
    hash: Option<HashChoice>,
    #[command(flatten)]
    backend_args: BackendArgs,
    /// Source of the blocks, a table for each. `made`: a generated chain. `real`: the mainnet blocks in
    /// RETRIE_DATA (`../shared/data` by default), each with the state it touches on a padded state.
    #[arg(long, value_name = "WHOSE", default_value = "made", value_delimiter = ',')]
    blocks_from: Vec<WitnessBlocks>,
    /// Accounts in the state of the generated chain.
    #[arg(long, value_name = "N", default_value = "100k", value_parser = parse_count)]
    accounts: u64,
    /// Accounts that sign.
    #[arg(long, value_name = "N", default_value = "1k", value_parser = parse_count)]
    signers: u64,
    /// Generated blocks that are measured.
    #[arg(long, value_name = "N", default_value = "20", value_parser = parse_count)]
    blocks: u64,
    /// Generated blocks before these.
    #[arg(long, value_name = "N", default_value = "4", value_parser = parse_count)]
    warmup: u64,
    /// Transactions in each of them.
    #[arg(long, value_name = "N", default_value = "200", value_parser = parse_count)]
    txs: u64,
    /// Shares of the kinds of transactions.
    #[arg(long, value_name = "SHARES", default_value_t = ChainRecipe::BUILT_IN.mix)]
    mix: TransactionMix,
    /// Seed of all random choices.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Run real blocks on a state of this many random accounts.
    #[arg(long, value_name = "N", default_value = "1m", value_parser = parse_count)]
    pad_accounts: u64,
    /// Also put this many random slots into the state, 100 in each of the first of these accounts.
    #[arg(long, value_name = "N", default_value = "0", value_parser = parse_count)]
    pad_slots: u64,
    /// How many transactions of each block are proven as calls, at most.
    #[arg(long, value_name = "N", default_value_t = 16)]
    calls: usize,
    /// Cache of generated blocks and loaded states between runs, or `none` [default: retrie/bench
    /// in the user's cache directory].
    #[arg(long, value_name = "DIR")]
    state_cache: Option<PathBuf>,
    #[command(flatten)]
    report: ReportArgs,
}

/// Source of the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum WitnessBlocks {
    /// A generated chain
    Made,
    /// Bundles of mainnet
    Real,
}

impl WitnessBenchArgs {
    /// Runs the measurement.
    pub(crate) fn run(self, stop: &AtomicBool) -> eyre::Result<()> {
        let out = CommandOutput::open(&self.report)?;
        let mut report = WitnessReport::new(BenchReport::new(command_line(), Vec::new()));
        say!(out, "{}", report.bench.machine);
        let ended = self.measure(&out, stop, &mut report);
        // The results measured before an error are kept.
        report.bench.complete = ended.is_ok();
        out.report(&report)?;
        ended
    }

    fn measure(
        &self,
        out: &CommandOutput,
        stop: &AtomicBool,
        report: &mut WitnessReport,
    ) -> eyre::Result<()> {
        let asked_for = |whose| self.blocks_from.contains(&whose);
        // A missing file is found now, and not after the first table.
        let bundles = asked_for(WitnessBlocks::Real)
            .then(|| BlockCorpus::user_default().bundles())
            .transpose()?;
        let (entrants, left_out) = self.entrants()?;
        for line in left_out {
            say!(out, "{line}");
            report.bench.notes.push(line);
        }
        if asked_for(WitnessBlocks::Made) {
            let outcomes = self.made(&entrants, out, stop)?;
            report.add(&outcomes, &self.made_params());
            print(out, &outcomes)?;
        }
        if let Some(bundles) = bundles {
            // Made anew: a backend may cache nodes of the state before.
            let (entrants, _) = self.entrants()?;
            let outcomes = self.real(&bundles, &entrants, out, stop)?;
            report.add(&outcomes, &self.real_params(bundles.len()));
            print(out, &outcomes)?;
        }
        Ok(())
    }

    /// The stores, and a line for each one that makes no witnesses. One that the flags name is an error.
    fn entrants(&self) -> eyre::Result<(Vec<ClientEntrant>, Vec<String>)> {
        let (mut entrants, mut left_out) = (Vec::new(), Vec::new());
        for mut name in contenders::names(&self.backends, self.hash, |_| false)? {
            if find(kind(&name)).is_ok_and(|backend| backend.shard_flag.is_some())
                && !name.contains('@')
            {
                let own = kind(&name).len();
                name.insert_str(own, "@all");
            }
            let backend =
                contenders::backend(&name, self.hash, &self.backend_args, MemoryTerms::FREE)?;
            let why = match backend.extensions().witnesses {
                WitnessSupport::Maker(_) => None,
                WitnessSupport::Unsupported(why) => Some(why),
            };
            match why {
                None => entrants.push(ClientEntrant { name, backend }),
                Some(why) if self.backends.is_empty() => {
                    left_out.push(format!("{name} makes no witnesses: {why}"));
                }
                Some(why) => {
                    bail!("backend `{name}` makes no witnesses: {why}; leave it out of --backends")
                }
            }
        }
        Ok((entrants, left_out))
    }

    const fn terms(&self) -> RaceTerms {
        RaceTerms {
            sync: SyncMode::NoSync,
            cache_bytes: 256 << 20,
            retention: 128,
            read_threads: 4,
            memory: MemoryTerms::FREE,
        }
    }

    fn made(
        &self,
        entrants: &[ClientEntrant],
        out: &CommandOutput,
        stop: &AtomicBool,
    ) -> eyre::Result<Vec<WitnessOutcome>> {
        say!(
            out,
            "\nwitnesses of {} made blocks of {} transactions ({}), on {} accounts",
            grouped(self.blocks),
            grouped(self.txs),
            self.mix,
            grouped(self.accounts)
        );
        let (workload, terms) = (self.workload(), self.terms());
        let cache = state_cache(self.state_cache.clone());
        let race = ClientRace {
            workload: &workload,
            senders: SenderRecovery::Unrecovered,
            terms: &terms,
            root_maker: root_backend()?,
            cache: &cache,
            memory_limit: None,
            stop,
        };
        let mut progress = RaceProgress::counting(out.metrics(), NAME);
        let outcomes = race.witnesses(entrants, self.calls, &mut |step| progress.update(step));
        progress.finish();
        Ok(outcomes?)
    }

    fn real(
        &self,
        bundles: &[Bundle],
        entrants: &[ClientEntrant],
        out: &CommandOutput,
        stop: &AtomicBool,
    ) -> eyre::Result<Vec<WitnessOutcome>> {
        say!(
            out,
            "\nwitnesses of {} mainnet blocks, on {} random accounts and {} slots",
            bundles.len(),
            grouped(self.pad_accounts),
            grouped(self.pad_slots)
        );
        let opener = witness_opener()?;
        let (terms, cache) = (self.terms(), state_cache(self.state_cache.clone()));
        let real = RealWitnesses {
            bundles,
            padding: StatePadding { accounts: self.pad_accounts, slots: self.pad_slots },
            opener: opener.as_ref().and_then(|backend| backend.extensions().partial_state),
            calls: self.calls,
            terms: &terms,
            cache: &cache,
            stop,
        };
        let mut progress = RaceProgress::counting(out.metrics(), NAME);
        let outcomes = real.run(entrants, &mut |step| progress.update(step));
        progress.finish();
        Ok(outcomes?)
    }

    fn workload(&self) -> ClientWorkload {
        ClientWorkload {
            name: NAME,
            recipe: ChainRecipe {
                fork: ChainFork::Prague,
                seed: self.seed,
                fill: BlockFill::Transactions(self.txs),
                mix: self.mix,
                accounts: self.accounts,
                keys: KeyChoice { reads: 50, inserts: 0, zipf: None },
                preload: Some(GenesisPreload {
                    senders: self.signers,
                    contracts: ContractSet::own().into(),
                    empty_ledgers: false,
                }),
            },
            blocks: self.blocks,
            warmup: self.warmup,
            slices: 1,
            commit_every: Some(1),
            via: BlockDelivery::Import,
        }
    }

    fn made_params(&self) -> Map<String, Value> {
        Map::from_iter([
            ("blocks_from".to_owned(), json!("made")),
            ("accounts".to_owned(), json!(self.accounts)),
            ("signers".to_owned(), json!(self.signers)),
            ("blocks".to_owned(), json!(self.blocks)),
            ("warmup".to_owned(), json!(self.warmup)),
            ("txs".to_owned(), json!(self.txs)),
            ("mix".to_owned(), json!(self.mix.to_string())),
            ("calls".to_owned(), json!(self.calls)),
            ("seed".to_owned(), json!(self.seed)),
        ])
    }

    fn real_params(&self, blocks: usize) -> Map<String, Value> {
        Map::from_iter([
            ("blocks_from".to_owned(), json!("real")),
            ("accounts".to_owned(), json!(self.pad_accounts)),
            ("pad_slots".to_owned(), json!(self.pad_slots)),
            ("blocks".to_owned(), json!(blocks)),
            ("calls".to_owned(), json!(self.calls)),
        ])
    }
}

/// Prints a line for each store, and why blocks have no witness.
fn print(out: &CommandOutput, outcomes: &[WitnessOutcome]) -> eyre::Result<()> {
    say!(
        out,
        "\n{:<14} {:>6} {:>9} {:>9} {:>9} {:>9} {:>7} {:>9} {:>15} {:>15} {:>20} {:>7}",
        "store",
        "blocks",
        "KiB",
        "most",
        "KiB zstd",
        "most",
        "of mpt",
        "KiB codes",
        "ms made (most)",
        "verified (most)",
        "bytes a call (most)",
        "of mpt"
    );
    let mpt = outcomes.iter().find(|one| one.backend == "mpt");
    for one in outcomes {
        let kib = |bytes: f64| bytes / 1024.0;
        let (bytes, zstd) = (one.spread(|b| b.bytes as f64), one.spread(|b| b.zstd_bytes as f64));
        let (made, verified) =
            (one.spread(|b| b.make_seconds * 1e3), one.spread(|b| b.verify_seconds * 1e3));
        let times = |of: Option<f64>| of.map_or_else(|| "-".into(), |times| format!("{times:.2}"));
        let calls = [0.5, 1.0].map(|part| grouped(one.calls.bytes(part) as u64));
        say!(
            out,
            "{:<14} {:>6} {:>9.1} {:>9.1} {:>9.1} {:>9.1} {:>7} {:>9.1} {:>15} {:>15} {:>20} {:>7}",
            one.backend,
            one.blocks.len(),
            kib(bytes.0),
            kib(bytes.1),
            kib(zstd.0),
            kib(zstd.1),
            times(mpt.and_then(|mpt| one.times(mpt))),
            kib(one.spread(|b| b.code_bytes as f64).0),
            format!("{:.2} ({:.2})", made.0, made.1),
            format!("{:.2} ({:.2})", verified.0, verified.1),
            format!("{} ({})", calls[0], calls[1]),
            times(mpt.and_then(|mpt| one.call_times(mpt))),
        );
    }
    for one in outcomes {
        for (why, count) in one.gaps() {
            say!(out, "  {}: {count} blocks without a witness: {why}", one.backend);
        }
    }
    say!(
        out,
        "medians, and in brackets or under `most` the largest; of mpt: median over the blocks"
    );
    Ok(())
}
