//! `retrie init`: a datadir with the genesis block.

use crate::{
    args::{ChainArgs, DbArgs, StateArgs},
    output::{Output, say},
};
use retrie_pipeline::Chain;

/// Arguments of `retrie init`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    chain: ChainArgs,
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    db: DbArgs,
}

impl Args {
    /// Runs the command. An existing datadir of the same chain and backend is left as it is.
    pub(crate) fn run(self) -> eyre::Result<()> {
        let (spec, datadir) = self.chain.resolve()?;
        let options = self.state.chain_options(spec, &datadir, self.db.options())?;
        let chain = Chain::open(options)?;
        chain.flush()?;
        say!(
            Output::default(),
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
