//! `retrie bench new-payload`: blocks one by one, as a live node gets them; made ones, and real ones.

use super::{Genesis, NEW_PAYLOAD, SenderRaces, TokenArgs, stopped, table};
use crate::{
    args::parse_count,
    commands::bench::{
        lanes,
        measured::{Measured, print_memory_limit},
        stores::state_cache,
    },
    output::{Output, grouped, say},
    progress::RaceProgress,
};
use eyre::bail;
use retrie_bench::{
    clients::{RealBlocks, RealRace, Via},
    state::Corpus,
};
use retrie_pipeline::replay::Padding;
use std::sync::atomic::AtomicBool;

/// How often all real blocks are run, unless flags say otherwise.
const PASSES: u64 = 10;

/// Arguments of `retrie bench new-payload`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PayloadArgs {
    #[command(flatten)]
    pub(crate) tokens: TokenArgs,
    /// Whose blocks, one race after the other. `made`: of a chain made for this. `real`: mainnet's own
    /// in RETRIE_DATA (`../shared/data` by default), each with the state it touches on a padded one;
    /// --slices is then how often all are run (10 by default), after one time that is not measured, and
    /// flags of made chains do not matter.
    #[arg(long, value_name = "WHOSE", default_value = "made", value_delimiter = ',', value_parser = parse_whose)]
    blocks_from: Vec<Whose>,
    /// Gas that made blocks aim at, one race for each (1m, 30m, 150m); by default 30m, or as many --txs
    /// as it holds. Their limit is twice that, but no less than 60m.
    #[arg(long, value_name = "GAS", value_delimiter = ',', value_parser = parse_count)]
    gas: Vec<u64>,
    /// Put real blocks on a state of this many random accounts.
    #[arg(long, value_name = "N", default_value = "1m", value_parser = parse_count)]
    pad_accounts: u64,
    /// And of this many random slots, 100 in each of the first of these accounts.
    #[arg(long, value_name = "N", default_value = "0", value_parser = parse_count)]
    pad_slots: u64,
}

/// Whose blocks are raced on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Made,
    Real,
}

fn parse_whose(text: &str) -> Result<Whose, String> {
    match text {
        "made" => Ok(Whose::Made),
        "real" => Ok(Whose::Real),
        _ => Err("it is `made` or `real`".into()),
    }
}

impl PayloadArgs {
    /// Races on made blocks, then on real ones, as far as they are asked for.
    pub(crate) fn measure(self, out: &Output, stop: &AtomicBool) -> eyre::Result<Measured> {
        let asked_for = |whose| self.blocks_from.contains(&whose);
        let (made, real) = (asked_for(Whose::Made), asked_for(Whose::Real));
        if !made && !self.gas.is_empty() {
            bail!("--gas is of made blocks: leave it out, or add them (--blocks-from made,real)");
        }
        if !self.gas.is_empty() && self.tokens.args.txs.is_some() {
            bail!("--gas and --txs both say how full blocks are: leave out one of them");
        }
        // Found missing now, not after the first race.
        let blocks = real.then(|| self.load()).transpose()?;
        let mut measured = match made {
            true => self.made(out, stop)?,
            false => Measured::on(NEW_PAYLOAD.name),
        };
        if let (Some(blocks), true) = (blocks, measured.ended.is_ok()) {
            measured.ended = self.real(&blocks, out, stop, &mut measured);
        }
        Ok(measured)
    }

    fn made(&self, out: &Output, stop: &AtomicBool) -> eyre::Result<Measured> {
        let mut args = self.tokens.args.clone();
        args.gas.clone_from(&self.gas);
        let (keys, genesis) = (args.receivers(), Genesis::with(self.tokens.contracts.set()?));
        args.race(&NEW_PAYLOAD, genesis, &keys, out, stop)
    }

    fn load(&self) -> eyre::Result<RealBlocks> {
        let padding = Padding { accounts: self.pad_accounts, slots: self.pad_slots };
        Ok(RealBlocks::load(&Corpus::user_default(), padding)?)
    }

    /// Runs the race on real blocks, adds what it has measured to `measured`, and prints it.
    fn real(
        &self,
        blocks: &RealBlocks,
        out: &Output,
        stop: &AtomicBool,
        measured: &mut Measured,
    ) -> eyre::Result<()> {
        let args = &self.tokens.args;
        SenderRaces::choose(args.senders, Via::EngineApi)?;
        let names = lanes::names(&args.backends, args.hash, |_| false)?;
        let (terms, entrants) = (args.terms(&names)?, args.entrants(&names)?);
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
        table::print_equal_terms(out, &terms, &entrants)?;
        let memory_limit = args.memory_limit;
        if let Some(limit) = memory_limit {
            print_memory_limit(out, limit, entrants.len())?;
        }
        let cache = state_cache(args.state_cache.clone());
        let (terms, cache) = (&terms, &cache);
        let race = RealRace { blocks, slices, warmup: 1, terms, cache, memory_limit, stop };
        let mut progress = RaceProgress::counting(out.metrics(), NEW_PAYLOAD.name);
        let raced = race.run(&entrants, &mut |step| progress.update_clients(step));
        progress.finish();
        let raced = raced?;
        // First, so that no closed pipe loses them.
        measured.results.extend(race.results(&raced));
        let printed = table::print(out, NEW_PAYLOAD.name, Via::EngineApi, &raced.outcomes);
        stopped("new-payload, real", slices, &raced).and(printed)
    }
}
