//! `retrie init`: creates a datadir with the genesis block.

use crate::{
    args::{ChainArgs, DbArgs, StateArgs},
    output::{CommandOutput, say},
};
use retrie_pipeline::ChainStore;

/// Arguments of `retrie init`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct InitArgs {
    #[command(flatten)]
    chain: ChainArgs,
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    db: DbArgs,
}

impl InitArgs {
    /// Runs the command. An existing datadir of the same chain and backend is left unchanged.
    pub(crate) fn run(self) -> eyre::Result<()> {
        let (spec, datadir) = self.chain.resolve()?;
        let options = self.state.chain_options(spec, &datadir, self.db.options())?;
        let chain = ChainStore::open(options)?;
        chain.flush()?;
        say!(
            CommandOutput::default(),
            "{}: chain {} (genesis {}), backend {}, at block {}",
            datadir.display(),
            chain.spec().name(),
            chain.spec().genesis_hash(),
            chain.state().identity().name,
            chain.tip()?,
        );
        Ok(())
    }
}
