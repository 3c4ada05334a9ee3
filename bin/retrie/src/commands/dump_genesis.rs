//! `retrie dump-genesis`: the genesis of a chain as JSON.

use crate::output::{Output, say};
use eyre::Context;
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
        let json = serde_json::to_string_pretty(spec.genesis()).wrap_err("writing the genesis")?;
        say!(Output::default(), "{json}");
        Ok(())
    }
}
