//! `retrie db preimages`: preimages of hashed keys, from and to files of EIP-8347.

use crate::{
    args::{BackendArgs, ChainArgs, DbArgs},
    commands::existing::ExistingDatadir,
    output::{CommandOutput, grouped, say},
    progress::LINE_EVERY,
};
use eyre::OptionExt;
use retrie_db::{ChainRead, DatabaseEnv};
use retrie_pipeline::{export_preimages, import_preimages, missing_preimages};
use retrie_state::{BlockRef, KeyForm};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
    time::Instant,
};

/// Subcommands of `retrie db preimages`.
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum PreimagesCommand {
    /// Store the preimages in a file of EIP-8347, and count those that the latest state still lacks.
    Import(PreimagesImportArgs),
    /// Write the preimages of a state to a file of EIP-8347.
    Export(PreimagesExportArgs),
}

/// Arguments of `retrie db preimages import`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PreimagesImportArgs {
    #[command(flatten)]
    chain: ChainArgs,
    #[command(flatten)]
    backends: BackendArgs,
    #[command(flatten)]
    db: DbArgs,
    /// The file, gzipped if its name ends in .gz.
    #[arg(value_name = "PREIMAGE_FILE")]
    file: PathBuf,
}

/// Arguments of `retrie db preimages export`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PreimagesExportArgs {
    #[command(flatten)]
    chain: ChainArgs,
    #[command(flatten)]
    backends: BackendArgs,
    /// The block [default: the durable head]. It must be within the retention window, unless the
    /// backend is an archive.
    #[arg(long, value_name = "NUMBER")]
    block: Option<u64>,
    /// Output file, gzipped if its name ends in .gz.
    #[arg(value_name = "PREIMAGE_FILE")]
    file: PathBuf,
}

impl PreimagesCommand {
    /// Whether the command changes no datadir.
    pub(crate) const fn only_prints(&self) -> bool {
        matches!(self, Self::Export(_))
    }

    pub(crate) fn run(self, stop: &AtomicBool) -> eyre::Result<()> {
        match self {
            Self::Import(args) => args.run(stop),
            Self::Export(args) => args.run(stop),
        }
    }
}

impl PreimagesImportArgs {
    fn run(self, stop: &AtomicBool) -> eyre::Result<()> {
        // Close the reader before the database is opened to write.
        let (path, backend) = {
            let found = ExistingDatadir::open(&self.chain)?;
            let backend = found.backend(&found.db.metadata()?, &self.backends)?;
            (found.path, backend)
        };
        let db = DatabaseEnv::open(path, &self.db.options())?;
        let out = CommandOutput::default();
        let mut told = Instant::now();
        let mut tell = |line: String| {
            if told.elapsed() >= LINE_EVERY {
                told = Instant::now();
                tracing::info!("{line}");
            }
        };
        let done = import_preimages(&db, &self.file, stop, &mut |done| {
            let (accounts, slots) = (grouped(done.accounts), grouped(done.slots));
            tell(format!("read the preimages of {accounts} accounts and {slots} slots"));
        })?;
        say!(
            out,
            "read the preimages of {} accounts and {} slots, {} of them new",
            grouped(done.accounts),
            grouped(done.slots),
            grouped(done.new)
        );
        let read = Arc::new(db.begin_read()?);
        let Some(tip) = read.tip()? else { return Ok(()) };
        let missing = missing_preimages(&read, backend, stop, &mut |entries| {
            tell(format!("looked up {} entries of the state", grouped(entries)));
        })?;
        match missing.is_none() {
            true => say!(out, "all preimages of the state after block {tip} are known"),
            false => say!(out, "still unknown: {missing} after block {tip}"),
        }
        Ok(())
    }
}

impl PreimagesExportArgs {
    /// Runs the command, also beside a running node. The file is complete or missing.
    fn run(self, stop: &AtomicBool) -> eyre::Result<()> {
        let found = ExistingDatadir::open(&self.chain)?;
        let metadata = found.db.metadata()?;
        let backend = found.backend(&metadata, &self.backends)?;
        let read = Arc::new(found.db.begin_read()?);
        let block = match self.block {
            None => read.tip()?.ok_or_eyre("the datadir holds no blocks")?,
            Some(number) => {
                let hash = read.canonical_hash(number)?;
                BlockRef::new(number, hash.ok_or_eyre(format!("block {number} is not there"))?)
            }
        };
        // Only a state with plain keys has to be sorted.
        let scratch = self.file.parent().filter(|folder| !folder.as_os_str().is_empty());
        let scratch = scratch.unwrap_or_else(|| Path::new("."));
        let done = export_preimages(&read, backend, block, &self.file, scratch, stop)?;
        say!(
            CommandOutput::default(),
            "wrote the preimages of {} accounts and {} slots, the state after block {block} ({} \
             keys), to {}: {} bytes, keccak-256 {}",
            grouped(done.accounts),
            grouped(done.slots),
            KeyForm::from(metadata.keys).name(),
            self.file.display(),
            grouped(done.bytes),
            done.digest
        );
        Ok(())
    }
}
