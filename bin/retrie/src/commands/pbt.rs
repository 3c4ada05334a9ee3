//! `retrie pbt`: the files of EIP-8347, from which a node gets the partitioned binary tree of a block.

mod check;
mod export;
mod files;
mod import;

use std::sync::atomic::AtomicBool;

/// Subcommands of `retrie pbt`.
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum PbtCommand {
    /// Write the preimages and the snapshot of a state (EIP-8347), from a datadir of any backend with
    /// plain keys.
    Export(export::PbtExportArgs),
    /// Check such files against the header of their block: the root of the leaves, the state root, every
    /// code.
    Check(check::PbtCheckArgs),
    /// Check such files, and create a datadir that starts from their state, on `pbt` or any other backend.
    Import(Box<import::PbtImportArgs>),
}

impl PbtCommand {
    /// Whether the command changes no datadir.
    pub(crate) const fn only_prints(&self) -> bool {
        matches!(self, Self::Check(_))
    }

    pub(crate) fn run(self, stop: &AtomicBool) -> eyre::Result<()> {
        match self {
            Self::Export(args) => args.run(stop),
            Self::Check(args) => args.run(stop),
            Self::Import(args) => args.run(stop),
        }
    }
}
