//! `retrie download`: real chain data from public servers.

use crate::{
    args::HttpArgs,
    meter::TransferMeter,
    output::{CommandOutput, grouped, say},
};
use eyre::{Context, bail};
use retrie_chainspec::parse_chain;
use retrie_sources::{DownloadProgress, EraFormat, EraMirror, EraSummary, SourceLocation};
use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// `retrie download ...`
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum DownloadCommand {
    /// Fetch era1 files: blocks and receipts before the merge, 8192 blocks each.
    Era1(EraArgs),
    /// Fetch ere files: blocks of any time, 8192 each, and their receipts and proofs if the mirror has
    /// them.
    Ere(EraArgs),
}

impl DownloadCommand {
    /// Runs the command.
    pub(crate) fn run(self, stop: &Arc<AtomicBool>) -> eyre::Result<()> {
        match self {
            Self::Era1(args) => args.run(EraFormat::Era1, stop),
            Self::Ere(args) => args.run(EraFormat::Ere, stop),
        }
    }
}

/// Arguments of `retrie download era1` and `ere`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct EraArgs {
    /// The chain: mainnet, sepolia, or any with a --mirror of its own.
    #[arg(long, value_name = "CHAIN_OR_PATH", default_value = "mainnet")]
    chain: String,
    /// First epoch. Each epoch is one file; epoch E starts at block 8192 * E.
    #[arg(long, value_name = "EPOCH")]
    from: u64,
    /// Last epoch. Mainnet's epoch with the merge, the last one of era1, is 1896.
    #[arg(long, value_name = "EPOCH")]
    to: u64,
    /// Folder of the files on an HTTP server or in an object store (s3://, gs://) [default: for era1,
    /// a public mirror of the chain].
    #[arg(long, value_name = "URL")]
    mirror: Option<String>,
    #[command(flatten)]
    http: HttpArgs,
    /// Where to write the files. Complete and valid files are kept, partial ones (.part) continued.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

impl EraArgs {
    fn run(self, format: EraFormat, stop: &Arc<AtomicBool>) -> eyre::Result<()> {
        if self.from > self.to {
            bail!("--from {} is after --to {}", self.from, self.to);
        }
        let spec = parse_chain(&self.chain)?;
        let http = self.http.client(stop);
        let mirror = match &self.mirror {
            Some(url) if url.starts_with("s3://") || url.starts_with("gs://") => {
                match self.http.stores(stop).locate(url)? {
                    SourceLocation::Object(folder) => EraMirror::open_store(format, spec, &folder)?,
                    SourceLocation::Path(path) => bail!("{} is no URL", path.display()),
                }
            }
            mirror => EraMirror::open(format, spec, mirror.as_deref(), http)?,
        };
        // A missing file is found before anything is downloaded.
        for epoch in self.from..=self.to {
            mirror.name(epoch)?;
        }
        std::fs::create_dir_all(&self.folder)
            .wrap_err_with(|| format!("creating the folder {}", self.folder.display()))?;
        let out = CommandOutput::default();
        let mut previous = None;
        let (mut fetched, mut there) = (0, 0);
        for epoch in self.from..=self.to {
            if stop.load(Ordering::Relaxed) {
                bail!("stopped before epoch {epoch}; run the same command again to go on");
            }
            let mut meter = TransferMeter::bytes(mirror.name(epoch)?.to_string());
            let file =
                mirror.download(epoch, &self.folder, previous, &mut |transfer| match transfer {
                    DownloadProgress::Fetching { bytes, total } => meter.update(bytes, total),
                    DownloadProgress::Checking { bytes } => meter.checking(bytes),
                });
            meter.finish();
            let file = file?;
            let summary = &file.summary;
            previous = Some(summary.last_hash);
            *(if file.existed { &mut there } else { &mut fetched }) += 1;
            say!(
                out,
                "{}  blocks {} to {}  {} bytes  {}, {}",
                file.path.display(),
                summary.first_block,
                summary.first_block + summary.block_count - 1,
                grouped(file.bytes),
                if file.existed { "was there" } else { "fetched" },
                what_was_checked(format, summary, file.has_checksum),
            );
        }
        say!(out, "{} files fetched, {} were there", grouped(fetched), grouped(there));
        Ok(())
    }
}

/// What the checks of a file covered.
fn what_was_checked(format: EraFormat, file: &EraSummary, has_checksum: bool) -> String {
    let mut checked = vec![match file.accumulator {
        Some(_) => "accumulator",
        None => "blocks",
    }];
    if format == EraFormat::Ere && file.has_receipts {
        checked.push("receipts");
    }
    if file.has_proofs {
        checked.push("proofs");
    }
    if has_checksum {
        checked.push("SHA-256");
    }
    let (last, others) =
        checked.split_last().map_or(("", &[][..]), |(last, others)| (*last, others));
    let list = match others {
        [] => last.to_owned(),
        others => format!("{} and {last}", others.join(", ")),
    };
    let more = if has_checksum { "" } else { "; the mirror has no SHA-256" };
    format!("{list} checked{more}")
}
