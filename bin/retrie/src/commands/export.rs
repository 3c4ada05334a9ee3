//! `retrie export`: writes canonical blocks to a file or to ere files, or chain data and results as
//! Parquet files.

mod ere;
#[cfg(feature = "lab")]
mod parquet;

use super::existing::ExistingDatadir;
use crate::{
    args::ChainArgs,
    output::{CommandOutput, say},
};
use eyre::{OptionExt, bail};
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
pub(crate) struct ExportArgs {
    #[command(flatten)]
    chain: ChainArgs,
    /// Format of the output.
    #[arg(long, value_name = "FORMAT", default_value = "rlp")]
    format: ExportFormat,
    /// First block [default: the first one of the chain]. With --format ere a multiple of 8192.
    #[arg(long, value_name = "NUMBER")]
    from: Option<u64>,
    /// Last block [default: the head].
    #[arg(long, value_name = "NUMBER")]
    to: Option<u64>,
    /// With --format ere: leave receipts out. The names of the files then say noreceipts.
    #[arg(long)]
    without_receipts: bool,
    #[cfg(feature = "lab")]
    #[command(flatten)]
    parquet: parquet::ParquetArgs,
    /// Output file: concatenated RLP of the blocks, gzipped if its name ends in .gz. With --format
    /// ere or parquet, the folder of the files.
    #[arg(value_name = "FILE_OR_FOLDER")]
    target: PathBuf,
    /// With --format parquet: bundles or folders of bundles to export instead of the datadir's
    /// chain; object stores and http(s) URLs are allowed. With --tables results or result_blocks:
    /// reports written by `retrie replay --json` or `retrie bench --json`.
    #[cfg(feature = "lab")]
    #[arg(value_name = "PATH_OR_URL")]
    paths: Vec<String>,
}

/// Format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ExportFormat {
    /// Blocks, as `retrie import`, `geth import` and `reth import` read them.
    Rlp,
    /// Archives of 8192 blocks each with their receipts, as `retrie import` and `geth import-history
    /// --era.format ere` read them, and checksums.txt. The last one may be shorter. Intact files that
    /// are there are kept.
    Ere,
    /// Tables of blocks, transactions, receipts, logs and state changes, in columns.
    #[cfg(feature = "lab")]
    Parquet,
}

impl ExportArgs {
    /// Runs the command. A file is complete or missing.
    pub(crate) fn run(self, stop: &Arc<AtomicBool>) -> eyre::Result<()> {
        if self.without_receipts && self.format != ExportFormat::Ere {
            bail!("--without-receipts is a flag of --format ere");
        }
        match self.format {
            ExportFormat::Ere => self.run_ere(stop),
            #[cfg(feature = "lab")]
            ExportFormat::Parquet => self.run_parquet(stop),
            ExportFormat::Rlp => self.run_rlp(stop),
        }
    }

    fn run_rlp(self, stop: &AtomicBool) -> eyre::Result<()> {
        #[cfg(feature = "lab")]
        self.refuse_parquet()?;
        let read = ExistingDatadir::open(&self.chain)?.db.begin_read()?;
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
            CommandOutput::default(),
            "wrote blocks {from} to {to} ({} blocks, {} bytes of RLP) to {}",
            summary.blocks,
            summary.rlp_bytes,
            self.target.display()
        );
        Ok(())
    }
}
