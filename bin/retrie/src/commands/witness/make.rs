//! `retrie witness make`: the witness of a block in a datadir.

use crate::{
    args::{BackendArgs, ChainArgs, DbArgs},
    commands::existing::open_existing,
    output::{CommandOutput, OutputTarget, grouped, say},
};
use alloy_primitives::Bytes;
use eyre::{Context, OptionExt};
use retrie_engine::LiveChain;
use retrie_sources::{BlockHashOrNumber, witness::BlockWithWitness};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// Arguments of `retrie witness make`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct WitnessMakeArgs {
    #[command(flatten)]
    chain: ChainArgs,
    #[command(flatten)]
    backends: BackendArgs,
    #[command(flatten)]
    db: DbArgs,
    /// Output file, or `-` for stdout: the answer of `debug_executionWitness`, and the block.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// The block. The state before it must be there (`--retention`).
    #[arg(value_name = "NUMBER_OR_HASH")]
    block: BlockHashOrNumber,
}

impl WitnessMakeArgs {
    /// Runs the command. Nothing in the datadir is written.
    pub(super) fn run(self) -> eyre::Result<()> {
        let chain = Arc::new(open_existing(&self.chain, &self.backends, self.db.options())?);
        let live = LiveChain::new(chain)?;
        let view = live.view()?;
        let no_block = || format!("the datadir has no block {}", self.block);
        let hash = match self.block {
            BlockHashOrNumber::Hash(hash) => hash,
            BlockHashOrNumber::Number(number) => {
                view.canonical_hash(number)?.ok_or_eyre(no_block())?
            }
        };
        let block = view.block(&hash)?.ok_or_eyre(no_block())?;
        let witness = view.execution_witness(&block)?;
        let rlp = Bytes::from(alloy_rlp::encode(block.sealed_block()));
        let whole = BlockWithWitness { block: rlp, witness };
        let mut json = serde_json::to_string(&whole).wrap_err("encoding the witness")?;
        json.push('\n');
        OutputTarget::open(&self.output)?.write(&json)?;
        if self.output == Path::new("-") {
            return Ok(());
        }
        let list = |entries: &[Bytes]| {
            let bytes: usize = entries.iter().map(|entry| entry.len()).sum();
            format!("{} ({} bytes)", grouped(entries.len() as u64), grouped(bytes as u64))
        };
        let BlockWithWitness { witness, .. } = whole;
        say!(
            CommandOutput::default(),
            "block {} ({hash}): {} trie nodes, {} codes, {} headers, in {}",
            block.number,
            list(&witness.state),
            list(&witness.codes),
            list(&witness.headers),
            self.output.display()
        );
        Ok(())
    }
}
