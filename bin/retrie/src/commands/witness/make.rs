//! `retrie witness make`: the witness of a block in a datadir.

use crate::{
    args::{BackendArgs, ChainArgs, DbArgs},
    commands::existing::open_existing,
    output::{CommandOutput, OutputTarget, grouped, say},
};
use alloy_primitives::{B256, Bytes};
use eyre::{Context, OptionExt};
use retrie_chainspec::primitives::RecoveredBlock;
use retrie_engine::{LiveChain, LiveView};
use retrie_pipeline::stateless::StateWitnessFile;
use retrie_sources::{
    BlockHashOrNumber,
    witness::{BlockWithWitness, ExecutionWitness},
};
use serde::Serialize;
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
    /// Format of the witness [default: `execution` where it can be made, else `state`].
    #[arg(long, value_name = "FORMAT")]
    format: Option<WitnessFormat>,
    /// Output file, or `-` for stdout: the witness and the block.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// The block. The state before it must be there (`--retention`).
    #[arg(value_name = "NUMBER_OR_HASH")]
    block: BlockHashOrNumber,
}

/// The format of a witness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum WitnessFormat {
    /// The answer of `debug_executionWitness`: of stores with Ethereum's trie
    Execution,
    /// The store's own format: of all stores but `cole` and `raw`
    State,
}

/// A witness in its file.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum WitnessContent {
    Execution(BlockWithWitness),
    State(Box<StateWitnessFile>),
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
        let content = self.content(&view, &block)?;
        let mut json = serde_json::to_string(&content).wrap_err("encoding the witness")?;
        json.push('\n');
        OutputTarget::open(&self.output)?.write(&json)?;
        if self.output == Path::new("-") {
            return Ok(());
        }
        self.print(block.number, hash, &content)
    }

    fn content(&self, view: &LiveView, block: &RecoveredBlock) -> eyre::Result<WitnessContent> {
        let format = self.format.unwrap_or_else(|| match view.witness_obstacle(block.timestamp) {
            None => WitnessFormat::Execution,
            Some(_) => WitnessFormat::State,
        });
        Ok(match format {
            WitnessFormat::Execution => {
                let witness = view.execution_witness(block)?;
                let block = Bytes::from(alloy_rlp::encode(block.sealed_block()));
                WitnessContent::Execution(BlockWithWitness { block, witness })
            }
            WitnessFormat::State => WitnessContent::State(view.state_witness(block)?.into()),
        })
    }

    fn print(&self, number: u64, hash: B256, content: &WitnessContent) -> eyre::Result<()> {
        let out = CommandOutput::default();
        let list = |entries: &[Bytes]| {
            let bytes: usize = entries.iter().map(|entry| entry.len()).sum();
            format!("{} ({} bytes)", grouped(entries.len() as u64), grouped(bytes as u64))
        };
        let file = self.output.display();
        match content {
            WitnessContent::Execution(BlockWithWitness { witness, .. }) => {
                let ExecutionWitness { state, codes, headers, .. } = witness;
                let [state, codes, headers] = [state, codes, headers].map(|of| list(of));
                say!(
                    out,
                    "block {number} ({hash}): {state} trie nodes, {codes} codes, {headers} headers, in {file}"
                );
            }
            WitnessContent::State(made) => {
                let [codes, headers] = [&made.codes, &made.headers].map(|of| list(of));
                say!(
                    out,
                    "block {number} ({hash}): {} bytes of {}, {codes} codes, {headers} headers, in {file}",
                    grouped(made.witness.len() as u64),
                    made.backend
                );
                say!(out, "root {} -> {}", made.root, made.next_root);
            }
        }
        Ok(())
    }
}
