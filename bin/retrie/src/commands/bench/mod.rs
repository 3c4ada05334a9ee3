//! `retrie bench`: workloads, and races between state stores.

pub(crate) mod make_chain;
pub(crate) mod state;

use std::sync::atomic::AtomicBool;

/// What to measure, or to make for measuring.
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Race state stores on random reads and writes (the LVMT paper's stand-alone workload).
    State(state::Args),
    /// Make a chain from a seed: `genesis.json` and `chain.rlp`, for any client.
    MakeChain(make_chain::Args),
}

impl Command {
    /// Runs the command.
    pub(crate) fn run(self, stop: &AtomicBool) -> eyre::Result<()> {
        match self {
            Self::State(args) => args.run(stop),
            Self::MakeChain(args) => args.run(stop),
        }
    }
}
