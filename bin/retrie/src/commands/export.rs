//! `retrie export`: canonical blocks to a file.

use super::existing::Existing;
use crate::{
    args::ChainArgs,
    output::{Output, say},
};
use eyre::{OptionExt, bail};
use retrie_db::ChainRead;
use retrie_sources::BlockWriter;
use std::{
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
};

/// Arguments of `retrie export`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    chain: ChainArgs,
    /// First block.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    from: u64,
    /// Last block; the head if absent.
    #[arg(long, value_name = "NUMBER")]
    to: Option<u64>,
    /// The file: concatenated block RLP, gzipped if its name ends in .gz.
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

impl Args {
    /// Runs the command. The file appears whole or not at all.
    pub(crate) fn run(self, stop: &AtomicBool) -> eyre::Result<()> {
        let read = Existing::open(&self.chain)?.db.begin_read()?;
        let tip = read.tip()?.ok_or_eyre("the datadir holds no blocks; import some first")?;
        let to = self.to.unwrap_or(tip.number);
        if self.from > to || to > tip.number {
            bail!("blocks {} to {to} are not all there: the head is {}", self.from, tip.number);
        }
        let mut writer = BlockWriter::create(&self.file)?;
        for number in self.from..=to {
            if stop.load(Ordering::Relaxed) {
                bail!("stopped before block {number}; nothing was written");
            }
            let hash = read.canonical_hash(number)?;
            let block = hash.map(|hash| read.block(&hash)).transpose()?.flatten();
            writer.write(&block.ok_or_eyre(format!("block {number} is not stored"))?)?;
        }
        let summary = writer.finish()?;
        say!(
            Output::default(),
            "wrote blocks {} to {to} ({} blocks, {} bytes of RLP) to {}",
            self.from,
            summary.blocks,
            summary.rlp_bytes,
            self.file.display()
        );
        Ok(())
    }
}
