//! `retrie export`: canonical blocks to a file, or chain data and results as Parquet files.

mod parquet;

use super::existing::Existing;
use crate::{
    args::{BackendArgs, ChainArgs, HttpArgs},
    output::{Output, say},
};
use eyre::{OptionExt, bail};
use parquet::ParquetArgs;
use retrie_db::ChainRead;
use retrie_sources::BlockWriter;
use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// Arguments of `retrie export`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    chain: ChainArgs,
    /// What is written.
    #[arg(long, value_name = "FORMAT", default_value = "rlp")]
    format: Format,
    /// First block; that of the chain if absent.
    #[arg(long, value_name = "NUMBER")]
    from: Option<u64>,
    /// Last block; the head if absent.
    #[arg(long, value_name = "NUMBER")]
    to: Option<u64>,
    #[command(flatten)]
    parquet: ParquetArgs,
    #[command(flatten)]
    backends: BackendArgs,
    #[command(flatten)]
    http: HttpArgs,
    /// The file: concatenated block RLP, gzipped if its name ends in .gz. With --format parquet the
    /// folder of the files.
    #[arg(value_name = "FILE_OR_FOLDER")]
    target: PathBuf,
    /// With --format parquet: bundles or folders of bundles, also in object stores and behind
    /// http(s), in place of the chain of the datadir; or with --tables results and result_blocks,
    /// reports that `retrie replay --json` or `retrie bench --json` have written.
    #[arg(value_name = "PATH_OR_URL")]
    paths: Vec<String>,
}

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// Blocks, as `retrie import`, `geth import` and `reth import` read them.
    Rlp,
    /// Tables of blocks, transactions, receipts, logs and changes of the state, in columns.
    Parquet,
}

impl Args {
    /// Runs the command. A file appears whole or not at all.
    pub(crate) fn run(self, stop: &Arc<AtomicBool>) -> eyre::Result<()> {
        match self.format {
            Format::Parquet => self.run_parquet(stop),
            Format::Rlp => self.run_rlp(stop),
        }
    }

    fn run_rlp(self, stop: &AtomicBool) -> eyre::Result<()> {
        if let Some(path) = self.paths.first() {
            bail!("{path}: blocks are written to one file; or give --format parquet");
        }
        self.parquet.refuse()?;
        let read = Existing::open(&self.chain)?.db.begin_read()?;
        let tip = read.tip()?.ok_or_eyre("the datadir holds no blocks; import some first")?;
        let (from, to) = (self.from.unwrap_or(0), self.to.unwrap_or(tip.number));
        if from > to || to > tip.number {
            bail!("blocks {from} to {to} are not all there: the head is {}", tip.number);
        }
        let mut writer = BlockWriter::create(&self.target)?;
        for number in from..=to {
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
            "wrote blocks {from} to {to} ({} blocks, {} bytes of RLP) to {}",
            summary.blocks,
            summary.rlp_bytes,
            self.target.display()
        );
        Ok(())
    }
}
