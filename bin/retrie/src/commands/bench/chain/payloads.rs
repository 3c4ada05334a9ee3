//! `retrie bench new-payload`: delivers blocks one by one, as a live node gets them; generated
//! blocks and real ones.

use super::{GenesisSetup, NEW_PAYLOAD, SenderRaces, TokenArgs, table};
use crate::{
    args::parse_count,
    commands::bench::{
        contenders,
        measurement::{RaceMeasurement, ended},
        memory::raced,
        stores::state_cache,
    },
    limit,
    output::{CommandOutput, grouped, say},
    progress::RaceProgress,
};
use eyre::bail;
use retrie_bench::{
    clients::{BlockDelivery, RealBlockSet, RealRace},
    state::BlockCorpus,
};
use retrie_pipeline::replay::StatePadding;
use std::sync::atomic::AtomicBool;

/// How often all real blocks are run without `--slices`.
const PASSES: u64 = 10;

/// Arguments of `retrie bench new-payload`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PayloadArgs {
    #[command(flatten)]
    pub(crate) tokens: TokenArgs,
    /// Source of the blocks, one race for each. `made`: a chain generated for the race. `real`:
    /// mainnet blocks in RETRIE_DATA (`../shared/data` by default), each with the state it touches
    /// on a padded state. For real blocks --slices is the number of measured runs over all of them
    /// [default: 10], after one run that is not measured; flags of generated chains have no effect.
    #[arg(long, value_name = "WHOSE", default_value = "made", value_delimiter = ',', value_parser = parse_whose)]
    blocks_from: Vec<BlockOrigin>,
    /// Gas target of generated blocks, one race for each (1m, 30m, 150m) [default: 30m, or as many
    /// --txs as fit]. The gas limit is twice the target, and at least 60m.
    #[arg(long, value_name = "GAS", value_delimiter = ',', value_parser = parse_count)]
    gas: Vec<u64>,
    /// Run real blocks on a state of this many random accounts.
    #[arg(long, value_name = "N", default_value = "1m", value_parser = parse_count)]
    pad_accounts: u64,
    /// Also put this many random slots into the state, 100 in each of the first of these accounts.
    #[arg(long, value_name = "N", default_value = "0", value_parser = parse_count)]
    pad_slots: u64,
}

/// Source of the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockOrigin {
    Made,
    Real,
}

fn parse_whose(text: &str) -> Result<BlockOrigin, String> {
    match text {
        "made" => Ok(BlockOrigin::Made),
        "real" => Ok(BlockOrigin::Real),
        _ => Err("it is `made` or `real`".into()),
    }
}

impl PayloadArgs {
    /// Runs the races on generated blocks, then those on real ones, as requested.
    pub(crate) fn measure(
        self,
        out: &CommandOutput,
        stop: &AtomicBool,
    ) -> eyre::Result<RaceMeasurement> {
        let asked_for = |whose| self.blocks_from.contains(&whose);
        let (made, real) = (asked_for(BlockOrigin::Made), asked_for(BlockOrigin::Real));
        if !made && !self.gas.is_empty() {
            bail!("--gas is of made blocks: leave it out, or add them (--blocks-from made,real)");
        }
        if !self.gas.is_empty() && self.tokens.args.txs.is_some() {
            bail!("--gas and --txs both say how full blocks are: leave out one of them");
        }
        // A missing file is found now, and not after the first race.
        let blocks = real.then(|| self.load()).transpose()?;
        let mut measured = match made {
            true => self.made(out, stop)?,
            false => RaceMeasurement::on(NEW_PAYLOAD.name),
        };
        if let (Some(blocks), true) = (blocks, measured.ended.is_ok()) {
            measured.ended = self.real(&blocks, out, stop, &mut measured);
        }
        Ok(measured)
    }

    fn made(&self, out: &CommandOutput, stop: &AtomicBool) -> eyre::Result<RaceMeasurement> {
        let mut args = self.tokens.args.clone();
        args.gas.clone_from(&self.gas);
        let (keys, genesis) = (args.receivers(), GenesisSetup::with(self.tokens.contracts.set()?));
        args.race(&NEW_PAYLOAD, genesis, &keys, out, stop)
    }

    fn load(&self) -> eyre::Result<RealBlockSet> {
        let padding = StatePadding { accounts: self.pad_accounts, slots: self.pad_slots };
        Ok(RealBlockSet::load(&BlockCorpus::user_default(), padding)?)
    }

    /// Runs the race on real blocks, adds its results to `measured`, and prints them.
    fn real(
        &self,
        blocks: &RealBlockSet,
        out: &CommandOutput,
        stop: &AtomicBool,
        measured: &mut RaceMeasurement,
    ) -> eyre::Result<()> {
        let args = &self.tokens.args;
        SenderRaces::choose(args.senders, BlockDelivery::EngineApi)?;
        let names = contenders::names(&args.backends, args.hash, |_| false)?;
        let slices = args.slices.unwrap_or(PASSES);
        say!(
            out,
            "\nnew-payload, real: {} mainnet blocks of prestate bundles ({} since the merge), {} \
             transactions, {} Mgas; on {} random accounts and {} slots; all of them {slices} times, a \
             slice each, after one of warm-up; commit: every block",
            blocks.len(),
            blocks.payloads(),
            grouped(blocks.txs()),
            grouped(blocks.gas() / 1_000_000),
            grouped(self.pad_accounts),
            grouped(self.pad_slots)
        );
        let cache = &state_cache(args.state_cache.clone());
        for memory in args.memory.terms(out)? {
            let (terms, entrants) = (&args.terms(&names, memory)?, args.entrants(&names, memory)?);
            table::print_equal_terms(out, terms, &entrants)?;
            let memory_limit = args.print_memory_limit(out, memory, entrants.len())?;
            let race = RealRace { blocks, slices, warmup: 1, terms, cache, memory_limit, stop };
            let mut progress = RaceProgress::counting(out.metrics(), NEW_PAYLOAD.name);
            let raced = raced(&entrants, memory, |group| {
                race.run(group, &mut |step| progress.update(step))
            });
            progress.finish();
            let mut raced = raced?;
            limit::compare(cache, &mut raced);
            // Before the output, so that a closed pipe loses no results.
            measured.results.extend(race.results(&raced));
            let printed =
                table::print(out, NEW_PAYLOAD.name, BlockDelivery::EngineApi, &raced.outcomes);
            ended("new-payload, real", slices, raced).and(printed)?;
        }
        Ok(())
    }
}
