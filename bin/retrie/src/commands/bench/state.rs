//! `retrie bench state`: races state stores on the same reads and writes, without a chain.

pub(crate) mod table;

use super::{
    measurement::{RaceMeasurement, ended},
    memory::raced,
    stores::StoreArgs,
    trace::corpus_options,
};
use crate::{
    args::{parse_count, witness_opener},
    limit,
    output::CommandOutput,
    progress::RaceProgress,
};
use retrie_bench::state::{
    AccessTrace, BlockCorpus, InitialKeys, KeyDistribution, KeyLayout, RecordedTrace, StoreOutcome,
    StoreRace, StoreWorkload,
};
use retrie_pipeline::replay::StatePadding;
use std::{
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
};

/// Number of slices, or the number of commits if that is smaller.
const SLICES: u64 = 25;
/// Operations measured, unless a trace is replayed.
const PAIRS: u64 = 250_000;
/// Random accounts beside those of `--keys real`.
const PAD_ACCOUNTS: u64 = 1_000_000;

/// Arguments of `retrie bench state`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct StateRaceArgs {
    /// Preloaded keys, one race for each value: numbers (1000, 50k, 1m); `fresh` inserts new keys
    /// into an empty state; `real` uses the accesses of the mainnet blocks in RETRIE_DATA
    /// (`../shared/data` by default), one commit for each block; `trace:FILE` those of a trace
    /// (`retrie bench trace make`), forward only.
    #[arg(long, value_name = "N", default_value = "1m", value_delimiter = ',', value_parser = parse_keys)]
    pub(super) keys: Vec<KeysArg>,
    /// Operations measured: pairs of a read and a write, or single reads (--reads). Real blocks are
    /// run forth and back until they have read this many keys; a trace ends earlier, if it has fewer
    /// [default: 250k, or the whole trace].
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub(super) pairs: Option<u64>,
    /// Share of operations that only read, 0 to 1. The others read a key and then write it; at 0
    /// all operations do. 0.5 is YCSB's workload F, 1 its workload C (A and B write without
    /// reading).
    #[arg(long, value_name = "PART", default_value_t = 0.0)]
    reads: f64,
    /// Choice of keys: `uniform`, or `zipf` with few hot keys (YCSB's scrambled distribution,
    /// 0.99).
    #[arg(long, value_name = "CHOICE", default_value = "uniform", value_parser = parse_choice)]
    keys_by: KeyDistribution,
    /// Add random accounts to those of `--keys real` or `trace:FILE`, so that tries have depth
    /// [default: 1m for `real`, none for a trace].
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub(super) pad_accounts: Option<u64>,
    /// Also add random slots, 100 in each of the first random accounts.
    #[arg(long, value_name = "N", default_value = "0", value_parser = parse_count)]
    pad_slots: u64,
    /// Operations in each commit.
    #[arg(long, value_name = "N", default_value = "1000", value_parser = parse_count)]
    pub(super) commit_every: u64,
    /// Operations before the measured ones [default: a tenth of them].
    #[arg(long, value_name = "N", value_parser = parse_count)]
    warmup: Option<u64>,
    /// Turns for each store [default: 25, or the number of commits if that is smaller].
    #[arg(long, value_name = "N")]
    slices: Option<u64>,
    /// `one-contract`: all keys are slots of one contract. `accounts`: 100 slots in each contract.
    #[arg(long, value_name = "LAYOUT", default_value = "one-contract", value_parser = parse_layout)]
    layout: KeyLayout,
    /// Seed of keys, values and choices.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    pub(super) stores: StoreArgs,
}

/// Values of `--keys`.
#[derive(Clone, Debug)]
pub(super) enum KeysArg {
    Preloaded(u64),
    Fresh,
    Real,
    Trace(PathBuf),
}

fn parse_keys(text: &str) -> Result<KeysArg, String> {
    match text {
        "fresh" => Ok(KeysArg::Fresh),
        "real" => Ok(KeysArg::Real),
        _ => match text.strip_prefix("trace:") {
            Some("") => Err("`trace:` needs the name of a trace file".into()),
            Some(file) => Ok(KeysArg::Trace(file.into())),
            None => parse_count(text).map(KeysArg::Preloaded),
        },
    }
}

fn parse_choice(text: &str) -> Result<KeyDistribution, String> {
    match text {
        "uniform" => Ok(KeyDistribution::Uniform),
        "zipf" => Ok(KeyDistribution::Zipf),
        _ => Err("it is `uniform` or `zipf`".into()),
    }
}

fn parse_layout(text: &str) -> Result<KeyLayout, String> {
    match text {
        "one-contract" => Ok(KeyLayout::OneContract),
        "accounts" => Ok(KeyLayout::Accounts),
        _ => Err("it is `one-contract` or `accounts`".into()),
    }
}

impl StateRaceArgs {
    /// Races the stores on every variant of the workload.
    pub(super) fn measure(
        self,
        out: &CommandOutput,
        stop: &AtomicBool,
    ) -> eyre::Result<RaceMeasurement> {
        let names = self.stores.names()?;
        let memories = self.stores.memory.terms(out)?;
        let workloads = self.workloads(stop)?;
        workloads.iter().try_for_each(StoreWorkload::check)?;
        let cache = self.stores.cache();
        let mut measured = RaceMeasurement::on("state");
        let StoreArgs { proofs, proof_depths, .. } = &self.stores;
        let (proofs, cache) = (*proofs, &cache);
        for memory in memories {
            let (terms, memory_limit) =
                (&self.stores.terms(&names, 1, memory)?, self.stores.memory_limit(memory, 1));
            for workload in &workloads {
                let race =
                    StoreRace { workload, terms, cache, proofs, proof_depths, memory_limit, stop };
                measured.ended = self.race(&race, &names, out, &mut measured);
                if measured.ended.is_err() {
                    return Ok(measured);
                }
            }
        }
        Ok(measured)
    }

    /// Runs one race, adds its results to `measured`, and prints them.
    fn race(
        &self,
        race: &StoreRace<'_>,
        names: &[String],
        out: &CommandOutput,
        measured: &mut RaceMeasurement,
    ) -> eyre::Result<()> {
        let memory = race.terms.memory;
        let entrants = self.stores.entrants(names, memory)?;
        table::print_terms(out, race, &entrants)?;
        let mut progress = RaceProgress::counting(out.metrics(), "state");
        let raced =
            raced(&entrants, memory, |group| race.run(group, &mut |step| progress.update(step)));
        progress.finish();
        let mut raced = raced?;
        limit::compare(race.cache, &mut raced);
        // Before the output, which can fail.
        let result = |one: &StoreOutcome| one.result(race.workload, race.terms);
        measured.results.extend(raced.outcomes.iter().map(result));
        for note in table::remarks(&entrants, memory) {
            if !measured.notes.contains(&note) {
                measured.notes.push(note);
            }
        }
        let printed = table::print(out, &raced.outcomes)
            .and_then(|()| limit::print_bounds(out, &raced.outcomes));
        ended(&format!("--keys {}", race.workload.keys), race.workload.slices, raced).and(printed)
    }

    fn workloads(&self, stop: &AtomicBool) -> eyre::Result<Vec<StoreWorkload>> {
        let workload = |keys: &KeysArg| {
            let keys = match keys {
                KeysArg::Preloaded(keys) => InitialKeys::Preloaded(*keys),
                KeysArg::Fresh => InitialKeys::Fresh,
                KeysArg::Real => InitialKeys::Real(Arc::new(self.real_trace(stop)?)),
                KeysArg::Trace(file) => {
                    let padding = self.padding(0);
                    InitialKeys::Trace(Arc::new(RecordedTrace::read(file, padding)?))
                }
            };
            Ok(self.workload(keys))
        };
        self.keys.iter().map(workload).collect()
    }

    /// The accesses of real blocks.
    fn real_trace(&self, stop: &AtomicBool) -> eyre::Result<AccessTrace> {
        let opener = witness_opener()?;
        let options = corpus_options(opener.as_deref());
        Ok(BlockCorpus::user_default().trace(&options, self.padding(PAD_ACCOUNTS), stop)?)
    }

    fn padding(&self, default: u64) -> StatePadding {
        StatePadding { accounts: self.pad_accounts.unwrap_or(default), slots: self.pad_slots }
    }

    fn workload(&self, keys: InitialKeys) -> StoreWorkload {
        let (pairs, warmup) = match &keys {
            InitialKeys::Trace(trace) => {
                let all = trace.figures().reads;
                let warmup = self.warmup.unwrap_or_else(|| self.pairs.unwrap_or(all) / 10);
                let left = all.saturating_sub(warmup);
                (self.pairs.map_or(left, |pairs| pairs.min(left)), warmup)
            }
            _ => {
                let pairs = self.pairs.unwrap_or(PAIRS);
                (pairs, self.warmup.unwrap_or(pairs / 10))
            }
        };
        let mut workload = StoreWorkload {
            keys,
            pairs,
            commit_every: self.commit_every,
            warmup,
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
