//! `retrie dump-genesis`: writes a chain with its forks as a genesis file.

use crate::output::{CommandOutput, say};
use retrie_chainspec::parse_chain;

/// Arguments of `retrie dump-genesis`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DumpGenesisArgs {
    /// The chain: mainnet, sepolia, holesky, hoodi, dev, or a genesis JSON file.
    #[arg(long, value_name = "CHAIN_OR_PATH", default_value = "mainnet")]
    chain: String,
}

impl DumpGenesisArgs {
    /// Runs the command.
    pub(crate) fn run(self) -> eyre::Result<()> {
        let spec = parse_chain(&self.chain)?;
        say!(CommandOutput::default(), "{}", spec.to_genesis_json()?);
        Ok(())
    }
}
