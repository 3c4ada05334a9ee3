//! `retrie stage`: commands on parts of an import, with reth's names.

use super::existing::open_existing;
use crate::{
    args::{BackendArgs, ChainArgs, DbArgs},
    output::{CommandOutput, grouped, say},
};
use eyre::bail;

/// Subcommands of `retrie stage`.
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum StageCommand {
    /// Revert chain and state to an earlier block, and remove the blocks above it.
    Unwind(UnwindArgs),
}

/// Arguments of `retrie stage unwind`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct UnwindArgs {
    #[command(flatten)]
    chain: ChainArgs,
    #[command(flatten)]
    db: DbArgs,
    #[command(flatten)]
    backends: BackendArgs,
    /// The block that becomes the head. It must lie within the retention window.
    #[arg(long, value_name = "NUMBER")]
    to: Option<u64>,
    /// The same as a subcommand, as in reth.
    #[command(subcommand)]
    target: Option<UnwindTarget>,
}

#[derive(Clone, Copy, Debug, clap::Subcommand)]
enum UnwindTarget {
    /// Unwind to this block, which becomes the head.
    ToBlock {
        /// Its number.
        number: u64,
    },
    /// Unwind this number of blocks.
    NumBlocks {
        /// The number of blocks.
        count: u64,
    },
}

impl StageCommand {
    /// Runs the command.
    pub(crate) fn run(self) -> eyre::Result<()> {
        match self {
            Self::Unwind(args) => args.run(),
        }
    }
}

impl UnwindArgs {
    fn run(self) -> eyre::Result<()> {
        let chain = open_existing(&self.chain, &self.backends, self.db.options())?;
        let tip = chain.tip()?;
        let to = match (self.to, self.target) {
            (Some(to), None) | (None, Some(UnwindTarget::ToBlock { number: to })) => to,
            (None, Some(UnwindTarget::NumBlocks { count })) => {
                match tip.number.checked_sub(count) {
                    Some(to) => to,
                    None => bail!("cannot unwind {count} blocks: the head is block {}", tip.number),
                }
            }
            (None, None) => bail!("say where to unwind to: --to NUMBER"),
            (Some(_), Some(_)) => bail!("--to and a subcommand both say where to unwind to"),
        };
        let removed = chain.unwind(to, &mut |tip| tracing::info!("unwound to block {tip}"))?;
        chain.flush()?;
        let tip = chain.tip()?;
        say!(
            CommandOutput::default(),
            "unwound to block {} ({}); {} blocks removed, import them again to go on",
            tip.number,
            tip.hash,
            grouped(removed)
        );
        Ok(())
    }
}
