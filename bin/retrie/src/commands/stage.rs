//! `retrie stage`: work on parts of an import, in reth's words.

use super::existing::open_existing;
use crate::{
    args::{BackendArgs, ChainArgs, DbArgs},
    output::{Output, grouped, say},
};
use eyre::bail;

/// Subcommands of `retrie stage`.
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Take chain and state back to an earlier block; blocks above it are removed.
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
    /// The same in reth's words.
    #[command(subcommand)]
    target: Option<Target>,
}

#[derive(Clone, Copy, Debug, clap::Subcommand)]
enum Target {
    /// Unwind to this block, which becomes the head.
    ToBlock {
        /// Its number.
        number: u64,
    },
    /// Unwind so many blocks.
    NumBlocks {
        /// How many.
        count: u64,
    },
}

impl Command {
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
            (Some(to), None) | (None, Some(Target::ToBlock { number: to })) => to,
            (None, Some(Target::NumBlocks { count })) => match tip.number.checked_sub(count) {
                Some(to) => to,
                None => bail!("cannot unwind {count} blocks: the head is block {}", tip.number),
            },
            (None, None) => bail!("say where to unwind to: --to NUMBER"),
            (Some(_), Some(_)) => bail!("--to and a subcommand both say where to unwind to"),
        };
        let removed = chain.unwind(to, &mut |tip| tracing::info!("unwound to block {tip}"))?;
        chain.flush()?;
        let tip = chain.tip()?;
        say!(
            Output::default(),
            "unwound to block {} ({}); {} blocks removed, import them again to go on",
            tip.number,
            tip.hash,
            grouped(removed)
        );
        Ok(())
    }
}
