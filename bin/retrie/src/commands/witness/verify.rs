//! `retrie witness verify`: a block on its witness alone.

use super::opener;
use crate::{
    args::DEFAULT_CHAIN,
    output::{CommandOutput, grouped, say},
};
use eyre::{Context, OptionExt};
use retrie_chainspec::parse_chain;
use retrie_pipeline::stateless::verify_witness;
use retrie_sources::witness::{WitnessAnswer, enclosed_block, read_block};
use std::path::PathBuf;

/// Arguments of `retrie witness verify`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct WitnessVerifyArgs {
    /// The chain: mainnet, sepolia, holesky, hoodi, dev, or a genesis JSON file.
    #[arg(long, value_name = "CHAIN_OR_PATH", default_value = DEFAULT_CHAIN)]
    chain: String,
    /// File of the block, as RLP or JSON [default: the block in the witness's file].
    #[arg(long, value_name = "FILE")]
    block: Option<PathBuf>,
    /// File of the witness, plain or gzipped.
    #[arg(value_name = "WITNESS_FILE")]
    file: PathBuf,
}

impl WitnessVerifyArgs {
    /// Runs the command. Fails unless the block is valid on its witness.
    pub(super) fn run(self) -> eyre::Result<()> {
        let spec = parse_chain(&self.chain)?;
        let answer = WitnessAnswer::load(&self.file)?;
        let block = match (&self.block, &answer.block) {
            (Some(file), _) => read_block(file)?,
            (None, Some(rlp)) => enclosed_block(&self.file, rlp)?,
            (None, None) => return Err(NoBlock(self.file).into()),
        };
        let witness = answer.into_witness(&self.file)?;
        let opener = opener()?;
        let opener = opener.extensions().partial_state.ok_or_eyre("it opens no witnesses")?;
        let (number, hash) = (block.header.number, block.header.hash_slow());
        let shown = verify_witness(&spec, opener, block, &witness)
            .wrap_err_with(|| format!("block {number} ({hash}) is refused"))?;
        let out = CommandOutput::default();
        say!(
            out,
            "block {number} ({hash}) is valid: {} gas, state root {} -> {}",
            grouped(shown.gas_used),
            shown.before,
            shown.after
        );
        say!(out, "trusted: the hash of the block; nothing here says that it is canonical");
        Ok(())
    }
}

/// A witness without its block.
#[derive(Debug, thiserror::Error)]
#[error("{} has no block: give it by --block FILE", .0.display())]
pub(super) struct NoBlock(pub(super) PathBuf);
