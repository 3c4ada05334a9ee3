//! `retrie witness`: what it takes to execute a block without a state.

mod lint;
mod make;
mod verify;

pub(crate) use lint::LintAborted;

use crate::args::witness_opener;
use eyre::OptionExt;
use retrie_state::AnyBackend;
use std::sync::{Arc, atomic::AtomicBool};

/// `retrie witness ...`
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum WitnessCommand {
    /// Make the witness of a block in a datadir, on any store but `cole` and `raw`.
    Make(Box<make::WitnessMakeArgs>),
    /// Execute a block on its witness alone, and compare everything with its header.
    Verify(verify::WitnessVerifyArgs),
    /// Say how a client's answer to `debug_executionWitness` differs from the canonical witness. Exit
    /// code 0: it does not; 1: it does; 2: there was nothing to compare.
    Lint(lint::LintArgs),
}

impl WitnessCommand {
    /// Runs the command.
    pub(crate) fn run(self, stop: &Arc<AtomicBool>) -> eyre::Result<()> {
        match self {
            Self::Make(args) => args.run(),
            Self::Verify(args) => args.run(),
            Self::Lint(args) => args.run(stop),
        }
    }

    /// Whether the command only prints.
    pub(crate) const fn only_prints(&self) -> bool {
        matches!(self, Self::Verify(_) | Self::Lint(_))
    }
}

/// A backend that opens witnesses of Ethereum's trie.
fn opener() -> eyre::Result<Arc<dyn AnyBackend>> {
    let opener = witness_opener()?.filter(|one| one.extensions().partial_state.is_some());
    opener.ok_or_eyre("no backend of this program opens witnesses")
}
