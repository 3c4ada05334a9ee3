//! `retrie bench`: workloads, and races between state stores.

mod adversary;
pub(crate) mod advice;
pub(crate) mod chain;
mod cole_index;
pub(crate) mod compare;
mod contenders;
mod crypto;
mod limit;
mod locality;
pub(crate) mod make_chain;
mod measurement;
mod memory;
mod merge;
pub(crate) mod page;
mod paper;
pub(crate) mod provenance;
mod race;
pub(crate) mod state;
pub(crate) mod stores;
mod trace;
mod tree_sync;
mod trees;
mod witness;

use race::BenchRace;
use std::sync::{Arc, atomic::AtomicBool};

/// Measurements, and tools to prepare or compare them.
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum BenchCommand {
    #[command(flatten)]
    Race(Box<BenchRace>),
    /// Measure what each kind of work costs on this machine: the limit that no store can beat.
    Limit(limit::LimitArgs),
    /// Count which slots Merkle paths touch in flat files, exactly, and time them (The Locality of
    /// Memory Checking).
    Locality(locality::LocalityArgs),
    /// Compare the learned index of COLE's runs with fence keys and binary search (COLE section 4.1).
    ColeIndex(cole_index::ColeIndexArgs),
    /// Race search trees with Merkle hashes in memory (B+AVL section V).
    Trees(trees::TreesArgs),
    /// Race methods to fetch a tree from peers, some of which lie (B+AVL section V).
    Sync(tree_sync::TreeFetchArgs),
    /// Serve a tree to `bench sync`, which starts this command.
    #[command(hide = true)]
    SyncPeer(tree_sync::PeerArgs),
    /// Time the curve arithmetic that LVMT builds on (LVMT Table 1).
    Crypto(crypto::CryptoArgs),
    /// Measure what it takes to execute blocks and calls without a state: bytes and time of witnesses,
    /// on every store that makes them.
    Witness(Box<witness::WitnessBenchArgs>),
    /// Make and show traces: real or synthetic accesses, which `bench state --keys trace:FILE`
    /// replays.
    #[command(subcommand)]
    Trace(trace::TraceCommand),
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

impl BenchCommand {
    /// Runs the command.
    pub(crate) fn run(self, stop: &Arc<AtomicBool>) -> eyre::Result<()> {
        match self {
            Self::Race(race) => (*race).run(stop),
            Self::Limit(args) => args.run(stop),
            Self::Locality(args) => args.run(stop),
            Self::ColeIndex(args) => args.run(stop),
            Self::Trees(args) => args.run(stop),
            Self::Sync(args) => args.run(stop),
            Self::SyncPeer(args) => args.run(stop),
            Self::Crypto(args) => args.run(stop),
            Self::Witness(args) => (*args).run(stop),
            Self::Trace(command) => command.run(stop),
            Self::Paper(args) => args.run(stop),
            Self::MakeChain(args) => args.run(stop),
            Self::Compare(args) => args.run(),
            Self::Merge(args) => args.run(),
            Self::Page(args) => args.run(),
        }
    }
}
