//! `retrie bench state`: state stores raced on the same reads and writes, without a chain.

pub(crate) mod table;

use super::{measured::Measured, stores::StoreArgs};
use crate::{
    args::{parse_count, witness_opener},
    output::Output,
    progress::RaceProgress,
};
use eyre::WrapErr;
use retrie_bench::state::{Choice, Corpus, Keys, Layout, Race, Raced, Trace, Workload};
use retrie_chainspec::ChainSpec;
use retrie_pipeline::replay::{BundleReplayOptions, Padding};
use std::sync::{Arc, atomic::AtomicBool};

/// Slices, unless there are fewer commits.
const SLICES: u64 = 25;

/// Arguments of `retrie bench state`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
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
    #[command(flatten)]
    pub(super) stores: StoreArgs,
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

impl Args {
    /// Races the stores, for every variant of the workload.
    pub(super) fn measure(self, out: &Output, stop: &AtomicBool) -> eyre::Result<Measured> {
        let names = self.stores.names()?;
        let terms = self.stores.terms(&names, 1)?;
        let workloads = self.workloads(stop)?;
        workloads.iter().try_for_each(Workload::check)?;
        let cache = self.stores.cache();
        let mut measured = Measured::on("state");
        for workload in &workloads {
            let StoreArgs { proofs, memory_limit, proof_depths, .. } = &self.stores;
            let (proofs, memory_limit) = (*proofs, *memory_limit);
            let (terms, cache) = (&terms, &cache);
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
        let entrants = self.stores.entrants(names)?;
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
        let printed = table::print(out, &raced.outcomes, raced.memory);
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
