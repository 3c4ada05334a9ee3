//! `retrie download`: real chain data from public servers.

use crate::{
    args::HttpArgs,
    meter::Meter,
    output::{Output, grouped, say},
};
use eyre::{Context, bail};
use retrie_chainspec::parse_chain;
use retrie_sources::{Era1Mirror, Location, Transfer};
use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// `retrie download ...`
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Fetch era1 files: blocks and receipts before the merge, 8192 blocks each.
    Era1(Era1Args),
}

impl Command {
    /// Runs the command.
    pub(crate) fn run(self, stop: &Arc<AtomicBool>) -> eyre::Result<()> {
        match self {
            Self::Era1(args) => args.run(stop),
        }
    }
}

/// Arguments of `retrie download era1`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Era1Args {
    /// The chain: mainnet, sepolia, or any with a --mirror of its own.
    #[arg(long, value_name = "CHAIN_OR_PATH", default_value = "mainnet")]
    chain: String,
    /// First epoch, that is file; epoch E begins with block 8192 * E.
    #[arg(long, value_name = "EPOCH")]
    from: u64,
    /// Last epoch. Mainnet's last one, with the merge, is 1896.
    #[arg(long, value_name = "EPOCH")]
    to: u64,
    /// A folder of era1 files on an HTTP server or in an object store (s3://, gs://); without it, a
    /// public mirror of the chain.
    #[arg(long, value_name = "URL")]
    mirror: Option<String>,
    #[command(flatten)]
    http: HttpArgs,
    /// Where the files go. Files that are there and sound are kept, partial ones (.part) continued.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

impl Era1Args {
    fn run(self, stop: &Arc<AtomicBool>) -> eyre::Result<()> {
        if self.from > self.to {
            bail!("--from {} is after --to {}", self.from, self.to);
        }
        let spec = parse_chain(&self.chain)?;
        let http = self.http.client(stop);
        let mirror = match &self.mirror {
            Some(url) if url.starts_with("s3://") || url.starts_with("gs://") => {
                match self.http.stores(stop).locate(url)? {
                    Location::Object(folder) => Era1Mirror::open_store(spec, &folder)?,
                    Location::Path(path) => bail!("{} is no URL", path.display()),
                }
            }
            mirror => Era1Mirror::open(spec, mirror.as_deref(), http)?,
        };
        // A gap is found before the first byte is fetched.
        for epoch in self.from..=self.to {
            mirror.name(epoch)?;
        }
        std::fs::create_dir_all(&self.folder)
            .wrap_err_with(|| format!("creating the folder {}", self.folder.display()))?;
        let out = Output::default();
        let mut previous = None;
        let (mut fetched, mut there) = (0, 0);
        for epoch in self.from..=self.to {
            if stop.load(Ordering::Relaxed) {
                bail!("stopped before epoch {epoch}; run the same command again to go on");
            }
            let mut meter = Meter::bytes(mirror.name(epoch)?.to_string());
            let file =
                mirror.download(epoch, &self.folder, previous, &mut |transfer| match transfer {
                    Transfer::Fetching { bytes, total } => meter.update(bytes, total),
                    Transfer::Checking { bytes } => meter.checking(bytes),
                });
            meter.finish();
            let file = file?;
            let summary = &file.summary;
            previous = Some(summary.last_hash);
            *(if file.was_there { &mut there } else { &mut fetched }) += 1;
            say!(
                out,
                "{}  blocks {} to {}  {} bytes  {}, {}",
                file.path.display(),
                summary.first_block,
                summary.first_block + summary.block_count - 1,
                grouped(file.bytes),
                if file.was_there { "was there" } else { "fetched" },
                if file.has_checksum {
                    "accumulator and SHA-256 checked"
                } else {
                    "accumulator checked; the mirror has no SHA-256"
                },
            );
        }
        say!(out, "{} files fetched, {} were there", grouped(fetched), grouped(there));
        Ok(())
    }
}
