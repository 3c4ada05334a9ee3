//! `retrie stage`: work on parts of an import, in reth's words.

use super::{ChainArgs, DbArgs, fold_bytes_of, grouped, open_to_read};
use crate::{
    output::{Output, say},
    registry::{self, BackendArgs, Purpose},
};
use eyre::{OptionExt, bail};
use retrie_db::ChainRead;
use retrie_pipeline::{Chain, ChainOptions, verify::referee_name};
use retrie_state::StoreOptions;

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
        let spec = self.chain.spec()?;
        let datadir = self.chain.datadir(&spec)?;
        // Backend, referee and root mode are those of the datadir.
        let (metadata, referee) = {
            let read = open_to_read(&datadir)?.begin_read()?;
            let metadata =
                read.metadata()?.ok_or_eyre("the datadir is not initialised; run `retrie init`")?;
            let referee = referee_name(&read, &metadata)?;
            (metadata, referee)
        };
        let purpose = Purpose::Existing { datadir: &datadir, params: metadata.params };
        let backend =
            registry::backend_of(&metadata.backend, &metadata.hash, &self.backends, purpose)?;
        let chain = Chain::open(ChainOptions {
            spec,
            backend,
            referee: referee.as_deref().map(registry::referee).transpose()?,
            root_mode: metadata.state_root,
            datadir,
            db: self.db.options(),
            store: fold_bytes_of(StoreOptions::default()),
        })?;
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
