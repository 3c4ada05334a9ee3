//! `retrie bench`: workloads, and races between state stores.

mod adversary;
pub(crate) mod advice;
pub(crate) mod chain;
pub(crate) mod compare;
mod contenders;
mod locality;
pub(crate) mod make_chain;
mod measurement;
mod merge;
pub(crate) mod page;
mod paper;
pub(crate) mod provenance;
pub(crate) mod state;
pub(crate) mod stores;
mod tree_sync;
mod trees;

use crate::output::{CommandOutput, ReportArgs, command_line, say};
use measurement::RaceMeasurement;
use retrie_bench::report::BenchReport;
use std::sync::atomic::AtomicBool;

/// Measurements, and tools to prepare or compare them.
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum BenchCommand {
    #[command(flatten)]
    Race(Box<BenchRace>),
    /// Count which slots Merkle paths touch in flat files, exactly, and time them (The Locality of
    /// Memory Checking).
    Locality(locality::LocalityArgs),
    /// Race search trees with Merkle hashes in memory (B+AVL section V).
    Trees(trees::TreesArgs),
    /// Race methods to fetch a tree from peers, some of which lie (B+AVL section V).
    Sync(tree_sync::TreeFetchArgs),
    /// Serve a tree to `bench sync`, which starts this command.
    #[command(hide = true)]
    SyncPeer(tree_sync::PeerArgs),
    /// Run a paper's experiments, scaled to fit this machine, beside the paper's own figures.
    Paper(paper::PaperArgs),
    /// Generate a chain from a seed: `genesis.json` and `chain.rlp`, for any client.
    MakeChain(make_chain::MakeChainArgs),
    /// Compare two JSON reports: what became slower or larger, and what is noise.
    Compare(compare::CompareArgs),
    /// Merge the reports of all parts of a replay (`retrie replay --part`), from any machines.
    Merge(merge::MergeArgs),
    /// Make one HTML page from JSON reports.
    Page(page::PageArgs),
}

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

impl BenchCommand {
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

impl BenchRace {
    /// Runs the race, and writes the report as the flags say.
    fn run(self, stop: &AtomicBool) -> eyre::Result<()> {
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
    fn measure(self, out: &CommandOutput, stop: &AtomicBool) -> eyre::Result<RaceMeasurement> {
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
