//! `retrie export --format ere`.

use super::{ExistingDatadir, ExportArgs};
use crate::output::{CommandOutput, grouped, say};
use alloy_primitives::B256;
use eyre::{Context, OptionExt, bail};
use retrie_chainspec::{ChainSpec, EthereumHardforks};
use retrie_db::{ChainRead, ReadTxn};
use retrie_sources::{AtomicFile, EraFileName, EreProfile, EreWriter, ExportedFile, SlimReceipt};
use std::{
    io::Write,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

/// Blocks of an epoch, which is one file.
const EPOCH: u64 = 8192;

/// As geth names and writes it: the SHA-256 of each file, in the order of the files.
const CHECKSUMS: &str = "checksums.txt";

impl ExportArgs {
    pub(super) fn run_ere(self, stop: &AtomicBool) -> eyre::Result<()> {
        #[cfg(feature = "lab")]
        self.refuse_parquet()?;
        let found = ExistingDatadir::open(&self.chain)?;
        let spec = found.spec()?;
        let tip = found.db.begin_read()?.tip()?;
        let tip = tip.ok_or_eyre("the datadir holds no blocks; import some first")?.number;
        let (from, to) = (self.from.unwrap_or(0), self.to.unwrap_or(tip));
        if from > to || to > tip {
            bail!("blocks {from} to {to} are not all there: the head is {tip}");
        }
        if !from.is_multiple_of(EPOCH) {
            bail!(
                "--from {from}: each ere file begins with a block that {EPOCH} divides; the next \
                 ones are {} and {}",
                from - from % EPOCH,
                (from - from % EPOCH).saturating_add(EPOCH)
            );
        }
        std::fs::create_dir_all(&self.target)
            .wrap_err_with(|| format!("creating the folder {}", self.target.display()))?;
        let out = CommandOutput::default();
        let mut checksums = String::new();
        for first in (from..=to).step_by(EPOCH as usize) {
            // A snapshot for each file, so that a node beside can reuse pages.
            let epoch = EpochExport {
                read: found.db.begin_read()?,
                spec: &spec,
                first,
                last: to.min(first.saturating_add(EPOCH - 1)),
                with_receipts: !self.without_receipts,
            };
            let (file, existed) = epoch.write(&self.target, stop)?;
            checksums.push_str(&format!("{}\n", file.sha256));
            say!(
                out,
                "{}  blocks {first} to {}  {} bytes  {}",
                file.path.display(),
                epoch.last,
                grouped(file.bytes),
                if existed { "was there" } else { "written" },
            );
        }
        write_whole(&self.target.join(CHECKSUMS), checksums.as_bytes())?;
        Ok(())
    }
}

/// A file that appears under its name only when it is complete.
fn write_whole(path: &Path, bytes: &[u8]) -> eyre::Result<()> {
    let mut file = AtomicFile::create(path)?;
    file.write_all(bytes).wrap_err_with(|| format!("writing {}", path.display()))?;
    Ok(file.finish(path)?)
}

/// The blocks of one file.
struct EpochExport<'a> {
    read: ReadTxn,
    spec: &'a ChainSpec,
    first: u64,
    last: u64,
    with_receipts: bool,
}

impl EpochExport<'_> {
    /// Writes the file, unless it is there and intact.
    fn write(&self, folder: &Path, stop: &AtomicBool) -> eyre::Result<(ExportedFile, bool)> {
        if let Some(file) = self.existing(folder)? {
            return Ok((file, true));
        }
        let mut writer =
            EreWriter::create(folder, self.spec.name(), self.first, self.with_receipts)?;
        for number in self.first..=self.last {
            if stop.load(Ordering::Relaxed) {
                bail!("stopped before block {number}; run the same command again to go on");
            }
            let hash = self.hash(number)?;
            let block = self.read.block(&hash)?;
            let block = block.ok_or_eyre(format!("block {number} is not stored"))?;
            let receipts = match self.with_receipts {
                true => Some(self.receipts(number, &hash)?),
                false => None,
            };
            writer.write(&block, receipts, self.read.total_difficulty(&hash)?)?;
        }
        Ok((writer.finish()?, false))
    }

    /// The intact file of the same blocks. Another file of the epoch is an error: neither geth nor a
    /// mirror takes two.
    fn existing(&self, folder: &Path) -> eyre::Result<Option<ExportedFile>> {
        let hash = self.hash(self.last)?;
        let header = self.read.header(&hash)?;
        let header = header.ok_or_eyre(format!("block {} is not stored", self.last))?;
        let profile =
            EreProfile { no_receipts: !self.with_receipts, no_proofs: header.difficulty.is_zero() };
        let name = EreWriter::file_name(self.spec.name(), self.first, hash, profile);
        let listing = || format!("listing {}", folder.display());
        for entry in std::fs::read_dir(folder).wrap_err_with(listing)? {
            let other = entry.wrap_err_with(listing)?.file_name();
            let parsed = EraFileName::parse(&other.to_string_lossy());
            let is_of_epoch = parsed.is_some_and(|other| {
                let digest = name.digest;
                EraFileName { digest, ..other.clone() } == name && other.digest != digest
            });
            if is_of_epoch {
                bail!(
                    "{} is there, another file of the same epoch: remove it, or export into \
                     another folder",
                    folder.join(other).display()
                );
            }
        }
        Ok(EreWriter::existing(folder, &name, self.last - self.first + 1)?)
    }

    fn hash(&self, number: u64) -> eyre::Result<B256> {
        let hash = self.read.canonical_hash(number)?;
        hash.ok_or_eyre(format!("block {number} is not stored"))
    }

    fn receipts(&self, number: u64, hash: &B256) -> eyre::Result<Vec<SlimReceipt>> {
        let Some(receipts) = self.read.receipts(hash)? else {
            bail!(
                "the receipts of block {number} are not kept: receipts are kept from block {} on; \
                 export from there, or --without-receipts",
                self.read.receipts_pruned_below()?
            );
        };
        if !receipts.is_empty() && !self.spec.is_byzantium_active_at_block(number) {
            bail!(
                "block {number} is from before Byzantium: its receipts have a state root each, \
                 which a datadir does not store; export --without-receipts"
            );
        }
        Ok(receipts.into_iter().map(SlimReceipt::from).collect())
    }
}
