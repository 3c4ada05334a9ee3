//! `retrie bench`: workloads, and races between state stores.

mod adversary;
pub(crate) mod advice;
pub(crate) mod chain;
pub(crate) mod compare;
mod lanes;
mod locality;
pub(crate) mod make_chain;
mod measured;
mod merge;
pub(crate) mod page;
mod paper;
pub(crate) mod provenance;
pub(crate) mod state;
pub(crate) mod stores;
mod sync;
mod trees;

use crate::output::{Output, ReportArgs, command_line, say};
use measured::Measured;
use retrie_bench::report::BenchReport;
use std::sync::atomic::AtomicBool;

/// What to measure, or to make for measuring.
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum Command {
    #[command(flatten)]
    Race(Box<Race>),
    /// Count what Merkle paths touch in flat files, exactly, and time it (The Locality of Memory
    /// Checking).
    Locality(locality::Args),
    /// Race search trees with Merkle hashes in memory (B+AVL section V).
    Trees(trees::Args),
    /// Race ways to fetch a tree from peers, some of which lie (B+AVL section V).
    Sync(sync::Args),
    /// Serve a tree to `bench sync`, which starts this.
    #[command(hide = true)]
    SyncPeer(sync::PeerArgs),
    /// Run the experiments of a paper at a scale that fits the machine, beside its own figures.
    Paper(paper::Args),
    /// Make a chain from a seed: `genesis.json` and `chain.rlp`, for any client.
    MakeChain(make_chain::Args),
    /// Compare two JSON reports: what has become slower or larger, and what is noise.
    Compare(compare::Args),
    /// Make one report of those of all parts of a replay (`retrie replay --part`), from whatever machines.
    Merge(merge::Args),
    /// Make one HTML page of JSON reports.
    Page(page::Args),
}

/// A workload that backends are raced on.
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum Race {
    /// Race state stores on random reads and writes (the LVMT paper's stand-alone workload).
    State(state::Args),
    /// Race state stores on what slows them down: keys ground to deepen tries, a huge contract, tiny and
    /// empty blocks, storms on one slot, churn; each beside a plain baseline.
    Adversary(adversary::Args),
    /// Race whole clients on payments to many accounts (LVMT section 6, LMPT section V).
    Transfers(chain::Args),
    /// Race whole clients on transfers of a token, mainnet's USDT by default.
    Erc20(chain::TokenArgs),
    /// Race whole clients on swaps through a router, Uniswap's by default (LMPT section V).
    Uniswap(chain::TokenArgs),
    /// Race live nodes on blocks that come one by one through the Engine API: made ones of transfers,
    /// tokens and swaps, and mainnet's own; the latency is that of engine_newPayload.
    NewPayload(chain::PayloadArgs),
    /// Race whole clients on SmallBank, block by block (COLE section 8).
    Smallbank(chain::BankArgs),
    /// Race whole clients on a key-value store, with the mixes of YCSB (COLE section 8).
    Kvstore(chain::KvArgs),
    /// Ask what keys were over the latest blocks, with proofs (COLE section 8).
    Provenance(provenance::Args),
}

impl Command {
    /// Runs the command.
    pub(crate) fn run(self, stop: &AtomicBool) -> eyre::Result<()> {
        match self {
            Self::Race(race) => (*race).run(stop),
            Self::Locality(args) => args.run(stop),
            Self::Trees(args) => args.run(stop),
            Self::Sync(args) => args.run(stop),
            Self::SyncPeer(args) => args.run(stop),
            Self::Paper(args) => args.run(stop),
            Self::MakeChain(args) => args.run(stop),
            Self::Compare(args) => args.run(),
            Self::Merge(args) => args.run(),
            Self::Page(args) => args.run(),
        }
    }
}

impl Race {
    /// Races, and writes the report wherever the flags say.
    fn run(self, stop: &AtomicBool) -> eyre::Result<()> {
        let out = Output::open(self.report_args())?;
        let mut report = BenchReport::new(command_line(), Vec::new());
        say!(out, "{}", report.machine);
        let Measured { results, notes, references, ended } = self.measure(&out, stop)?;
        report.results = results;
        report.notes = notes;
        report.references = references;
        report.complete = ended.is_ok();
        out.report(&report)?;
        ended
    }

    /// Races, and leaves the report to the caller.
    fn measure(self, out: &Output, stop: &AtomicBool) -> eyre::Result<Measured> {
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
