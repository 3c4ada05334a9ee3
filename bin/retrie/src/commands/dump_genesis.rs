//! `retrie dump-genesis`: a chain, its forks included, as a genesis file.

use crate::output::{Output, say};
use retrie_chainspec::parse_chain;

/// Arguments of `retrie dump-genesis`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The chain: mainnet, sepolia, holesky, hoodi, dev, or a genesis JSON file.
    #[arg(long, value_name = "CHAIN_OR_PATH", default_value = "mainnet")]
    chain: String,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> eyre::Result<()> {
        let spec = parse_chain(&self.chain)?;
        say!(Output::default(), "{}", spec.to_genesis_json()?);
        Ok(())
    }
}
