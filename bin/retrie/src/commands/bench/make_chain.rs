//! `retrie bench make-chain`: a chain from a seed, in files that any client imports.

use crate::{
    commands::grouped,
    output::{Output, say},
    progress::Progress,
    registry,
};
use eyre::{OptionExt, bail};
use retrie_bench::chain::{
    CHAIN_FILE, ChainMaker, Fill, GENESIS_FILE, MadeChain, Mix, Recipe, write_chain,
};
use retrie_pipeline::report::{ImportReport, TipReport};
use std::{path::PathBuf, sync::atomic::AtomicBool};

/// Arguments of `retrie bench make-chain`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of blocks after genesis. The first few set contracts up.
    #[arg(long, value_name = "N", default_value_t = 300)]
    blocks: u64,
    /// Transactions a block, as far as they take less than 30 Mgas.
    #[arg(long, value_name = "N", default_value_t = 120, conflicts_with = "gas_target")]
    txs: u64,
    /// Fill blocks to about this much gas instead, at most 30000000.
    #[arg(long, value_name = "GAS")]
    gas_target: Option<u64>,
    /// Whence everything random comes.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Shares of the kinds of transactions.
    #[arg(long, value_name = "SHARES", default_value_t = Mix::default())]
    mix: Mix,
    /// Number of accounts that ether and tokens are sent to.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    accounts: u64,
    /// Folder for `genesis.json` and `chain.rlp`; nothing in it is overwritten.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self, stop: &AtomicBool) -> eyre::Result<()> {
        if self.blocks == 0 {
            bail!("--blocks must be 1 at least");
        }
        let fill = self.gas_target.map_or(Fill::Transactions(self.txs), Fill::Gas);
        let recipe = Recipe { seed: self.seed, fill, mix: self.mix, accounts: self.accounts };
        let backend = registry::root_maker().ok_or_eyre("no backend computes Ethereum's roots")?;
        let mut maker = ChainMaker::new(recipe, backend)?;
        let mut progress = Progress::new(Some(self.blocks));
        let made = write_chain(&mut maker, self.blocks, &self.dir, stop, &mut |made| {
            progress.update(&as_report(made));
        });
        progress.finish();
        let made = made?;
        let out = Output::default();
        let [genesis, chain] = [GENESIS_FILE, CHAIN_FILE].map(|name| self.dir.join(name));
        say!(
            out,
            "made {} blocks, {} txs, {:.1} Mgas; {:.1} MB; head {}, state root {}",
            grouped(made.blocks),
            grouped(made.txs),
            made.gas as f64 / 1e6,
            made.bytes as f64 / 1e6,
            made.head,
            made.state_root,
        );
        say!(out, "retrie import --chain {} --datadir DIR {}", genesis.display(), chain.display());
        Ok(())
    }
}

/// What was made so far, as the progress line shows it.
pub(crate) fn as_report(made: &MadeChain) -> ImportReport {
    let tip = TipReport { number: made.blocks, hash: made.head, state_root: made.state_root };
    ImportReport {
        blocks: made.blocks,
        txs: made.txs,
        gas: made.gas,
        tip,
        ..ImportReport::default()
    }
}
