//! `retrie bench state|adversary|transfers|..`: the races.

use super::{adversary, chain, measurement::RaceMeasurement, provenance, state};
use crate::output::{CommandOutput, ReportArgs, command_line, say};
use retrie_report::BenchReport;
use std::sync::atomic::AtomicBool;

/// A workload that backends race on.
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum BenchRace {
    /// Race state stores on random reads and writes (the LVMT paper's stand-alone workload).
    State(state::StateRaceArgs),
    /// Race state stores under attacks: keys ground to deepen tries, a huge contract, tiny and
    /// empty blocks, storms on one slot, churn; each beside a plain baseline.
    Adversary(adversary::AdversaryArgs),
    /// Race whole clients on payments to many accounts (LVMT section 6, LMPT section V).
    Transfers(chain::ChainRaceArgs),
    /// Race whole clients on token transfers; the token is mainnet's USDT by default.
    Erc20(chain::TokenArgs),
    /// Race whole clients on swaps through a router, by default Uniswap's (LMPT section V).
    Uniswap(chain::TokenArgs),
    /// Race live nodes on blocks delivered one by one through the Engine API: generated ones with
    /// transfers, tokens and swaps, and mainnet's; latency is that of engine_newPayload.
    NewPayload(chain::PayloadArgs),
    /// Race whole clients on SmallBank, block by block (COLE section 8).
    Smallbank(chain::BankArgs),
    /// Race whole clients on a key-value store, with YCSB's mixes (COLE section 8).
    Kvstore(chain::KvArgs),
    /// Query what keys were over the latest blocks, with proofs (COLE section 8).
    Provenance(provenance::ProvenanceRaceArgs),
}

impl BenchRace {
    /// Runs the race, and writes the report as the flags say.
    pub(super) fn run(self, stop: &AtomicBool) -> eyre::Result<()> {
        let out = CommandOutput::open(self.report_args())?;
        let mut report = BenchReport::new(command_line(), Vec::new());
        say!(out, "{}", report.machine);
        let RaceMeasurement { results, notes, references, ended } = self.measure(&out, stop)?;
        report.results = results;
        report.notes = notes;
        report.references = references;
        report.complete = ended.is_ok();
        out.report(&report)?;
        ended
    }

    /// Runs the race, and returns the results.
    pub(super) fn measure(
        self,
        out: &CommandOutput,
        stop: &AtomicBool,
    ) -> eyre::Result<RaceMeasurement> {
        match self {
            Self::State(args) => args.measure(out, stop),
            Self::Adversary(args) => args.measure(out, stop),
            Self::Transfers(args) => args.transfers(out, stop),
            Self::Erc20(args) => args.erc20(out, stop),
            Self::Uniswap(args) => args.uniswap(out, stop),
            Self::NewPayload(args) => args.measure(out, stop),
            Self::Smallbank(args) => args.smallbank(out, stop),
            Self::Kvstore(args) => args.kvstore(out, stop),
            Self::Provenance(args) => args.measure(out, stop),
        }
    }

    const fn report_args(&self) -> &ReportArgs {
        match self {
            Self::State(args) => &args.stores.report,
            Self::Adversary(args) => &args.stores.report,
            Self::Transfers(args) => &args.report,
            Self::Smallbank(args) => &args.args.report,
            Self::Erc20(args) | Self::Uniswap(args) => &args.args.report,
            Self::NewPayload(args) => &args.tokens.args.report,
            Self::Kvstore(args) => &args.args.report,
            Self::Provenance(args) => &args.report,
        }
    }
}
