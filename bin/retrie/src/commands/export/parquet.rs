//! `retrie export --format parquet`.

use super::{ExistingDatadir, ExportArgs};
use crate::{
    args::{BackendArgs, HttpArgs, witness_opener},
    meter::TransferMeter,
    output::{CommandOutput, grouped, say},
};
use eyre::{OptionExt, bail};
use retrie_chainspec::parse_chain;
use retrie_db::ChainRead;
use retrie_export::{
    BlockExport, BlockSource, BundleSource, ChainSource, ExportOutcome, ExportTable, export_reports,
};
use retrie_pipeline::replay::BundleReplayOptions;
use retrie_sources::{detect, list_bundles};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
};

/// Flags of `--format parquet`.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Parquet")]
pub(super) struct ParquetArgs {
    /// Tables, separated by commas: blocks, transactions, receipts, logs, balance_diffs,
    /// nonce_diffs, code_diffs, storage_diffs [default: all of these]; or results, result_blocks.
    #[arg(long, value_name = "TABLES", value_delimiter = ',')]
    tables: Vec<ExportTable>,
    /// Blocks in a file [default: 1000]. Files of a chain start at multiples of it.
    #[arg(long, value_name = "BLOCKS", value_parser = clap::value_parser!(u64).range(1..))]
    chunk_size: Option<u64>,
    /// Overwrite existing files. Without this flag complete files with the same blocks are kept,
    /// and other existing files are an error.
    #[arg(long)]
    overwrite: bool,
    #[command(flatten)]
    backends: BackendArgs,
    #[command(flatten)]
    http: HttpArgs,
}

/// As in cryo.
const CHUNK_SIZE: u64 = 1000;

impl ExportArgs {
    /// Rejects what only `--format parquet` takes.
    pub(super) fn refuse_parquet(&self) -> eyre::Result<()> {
        if let Some(path) = self.paths.first() {
            bail!("{path}: blocks are written to one file; or give --format parquet");
        }
        let ParquetArgs { tables, chunk_size, overwrite, .. } = &self.parquet;
        for (flag, given) in [
            ("--tables", !tables.is_empty()),
            ("--chunk-size", chunk_size.is_some()),
            ("--overwrite", *overwrite),
        ] {
            if given {
                bail!("{flag} is a flag of --format parquet");
            }
        }
        Ok(())
    }

    pub(super) fn run_parquet(self, stop: &Arc<AtomicBool>) -> eyre::Result<()> {
        let mut tables = self.parquet.tables.clone();
        tables.sort_unstable();
        tables.dedup();
        let of_reports =
            tables.iter().filter(|table| ExportTable::OF_REPORTS.contains(table)).count();
        if of_reports > 0 {
            if of_reports < tables.len() {
                bail!("results are made of reports, and other tables of blocks: export them apart");
            }
            if self.paths.is_empty() {
                bail!("name the reports that the results are in");
            }
            let overwrite = self.parquet.overwrite;
            let reports: Vec<_> = self.paths.iter().map(PathBuf::from).collect();
            let exported = export_reports(&self.target, &tables, &reports, overwrite)?;
            return print(&exported, &self.target, "results");
        }
        if tables.is_empty() {
            tables = ExportTable::OF_BLOCKS.to_vec();
        }
        let export = BlockExport {
            out: &self.target,
            tables: &tables,
            chunk_size: self.parquet.chunk_size.unwrap_or(CHUNK_SIZE),
            overwrite: self.parquet.overwrite,
        };
        if self.paths.is_empty() {
            self.of_chain(&export, stop)
        } else {
            self.of_bundles(&export, stop)
        }
    }

    fn of_chain(&self, export: &BlockExport<'_>, stop: &AtomicBool) -> eyre::Result<()> {
        let found = ExistingDatadir::open(&self.chain)?;
        let read = Arc::new(found.db.begin_read()?);
        read.tip()?.ok_or_eyre("the datadir holds no blocks; import some first")?;
        let backend = found.backend(&found.db.metadata()?, &self.parquet.backends)?;
        let mut source = ChainSource::new(read, found.spec()?, backend, self.from, self.to)?;
        let range = source.range();
        let exported = run(export, &mut source, range.end() - range.start() + 1, stop)?;
        let what = format!("blocks {} to {}", range.start(), range.end());
        print(&exported, export.out, &what)
    }

    fn of_bundles(&self, export: &BlockExport<'_>, stop: &Arc<AtomicBool>) -> eyre::Result<()> {
        let mut bundles = Vec::new();
        let stores = self.parquet.http.stores(stop);
        for path in &self.paths {
            let place = stores.locate(path)?;
            if detect(&place)?.has_blocks() {
                bail!(
                    "{path}: block files say nothing of the state: import them into a datadir, and \
                     export that"
                );
            }
            bundles.extend(list_bundles(place)?);
        }
        let (from, to) = (self.from.unwrap_or(0), self.to.unwrap_or(u64::MAX));
        bundles.retain(|bundle| (from..=to).contains(&bundle.number));
        if bundles.is_empty() {
            bail!("no bundle lies within blocks {from} to {to}");
        }
        let spec = match self.chain.given()? {
            Some(given) => given,
            None => parse_chain("mainnet")?,
        };
        let opener = witness_opener()?;
        let options = BundleReplayOptions {
            spec,
            witness_opener: opener.as_ref().and_then(|backend| backend.extensions().partial_state),
            witnesses: false,
        };
        let count = bundles.len();
        let mut source = BundleSource::new(&options, bundles);
        let total = source.len() as u64;
        let exported = run(export, &mut source, total, stop)?;
        if source.repeated() > 0 {
            say!(
                CommandOutput::default(),
                "{} blocks are in several bundles; each is in the files once",
                source.repeated()
            );
        }
        if !source.without_ommers().is_empty() {
            let numbers: Vec<_> = source.without_ommers().iter().map(u64::to_string).collect();
            say!(
                CommandOutput::default(),
                "left out what blocks changed whose bundles lack ommers that they pay: {}",
                numbers.join(", ")
            );
        }
        print(&exported, export.out, &format!("the blocks of {count} bundles"))
    }
}

fn run(
    export: &BlockExport<'_>,
    source: &mut dyn BlockSource,
    total: u64,
    stop: &AtomicBool,
) -> eyre::Result<ExportOutcome> {
    let mut meter = TransferMeter::blocks(total);
    let exported = export.run(source, stop, &mut |exported| {
        meter.update(exported.blocks, Some(total));
    });
    meter.finish();
    Ok(exported?)
}

fn print(exported: &ExportOutcome, out: &Path, what: &str) -> eyre::Result<()> {
    let output = CommandOutput::default();
    for (table, rows) in &exported.rows {
        say!(output, "{table:<14} {:>12} rows", grouped(*rows));
    }
    say!(
        output,
        "exported {what} to {}: {} files written, {} were there",
        out.display(),
        grouped(exported.files_written),
        grouped(exported.files_kept)
    );
    Ok(())
}
