//! `retrie dump-state`: writes the state after a block as JSON lines.

use super::existing::ExistingDatadir;
use crate::{
    args::{BackendArgs, ChainArgs},
    output::{CommandOutput, grouped, say},
};
use alloy_rlp::Encodable;
use eyre::{Context, OptionExt};
use retrie_db::{ChainRead, ReadTxn};
use retrie_pipeline::dump_state;
use retrie_state::BlockRef;
use std::{
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
};

/// Arguments of `retrie dump-state`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DumpStateArgs {
    #[command(flatten)]
    chain: ChainArgs,
    #[command(flatten)]
    backends: BackendArgs,
    /// The block [default: the durable head]. It must be within the retention window, unless the
    /// backend is an archive.
    #[arg(long, value_name = "NUMBER")]
    block: Option<u64>,
    /// Also write a file for `retrie init-state --header`: the headers of the block and of its 255
    /// ancestors, as far as they are stored.
    #[arg(long, value_name = "FILE")]
    header: Option<PathBuf>,
    /// Output file, gzipped if its name ends in .gz.
    #[arg(value_name = "STATE_DUMP_FILE")]
    file: PathBuf,
}

/// Number of ancestors whose hashes a block can read with BLOCKHASH, its parent included.
const HASHES: u64 = 256;

impl DumpStateArgs {
    /// Runs the command, also beside a running node. The file is complete or missing.
    pub(crate) fn run(self, stop: &AtomicBool) -> eyre::Result<()> {
        let found = ExistingDatadir::open(&self.chain)?;
        let backend = found.backend(&found.db.metadata()?, &self.backends)?;
        let read = Arc::new(found.db.begin_read()?);
        let block = match self.block {
            None => read.tip()?.ok_or_eyre("the datadir holds no blocks")?,
            Some(number) => {
                let hash = read.canonical_hash(number)?;
                BlockRef::new(number, hash.ok_or_eyre(format!("block {number} is not there"))?)
            }
        };
        let dumped = dump_state(&read, backend, block, &self.file, stop, &mut |_| {})?;
        if let Some(file) = &self.header {
            write_headers(&read, block.number, file)?;
        }
        say!(
            CommandOutput::default(),
            "wrote {} accounts and {} slots, the state after block {block}, to {}",
            grouped(dumped.accounts),
            grouped(dumped.slots),
            self.file.display()
        );
        if !dumped.hashed.is_none() {
            tracing::warn!(
                "the preimages of {} are not known, so these are dumped by their hashes, and the dump \
                 cannot be loaded",
                dumped.hashed
            );
        }
        Ok(())
    }
}

/// Writes the headers of a block and of its ancestors, as far as BLOCKHASH reads them.
pub(crate) fn write_headers(read: &ReadTxn, number: u64, file: &Path) -> eyre::Result<()> {
    let first = read.first()?.map_or(0, |first| first.number);
    let first = first.max((number + 1).saturating_sub(HASHES));
    let mut bytes = Vec::new();
    for header in read.canonical_headers(first) {
        let (_, header) = header?;
        if header.number > number {
            break;
        }
        header.encode(&mut bytes);
    }
    std::fs::write(file, bytes).wrap_err_with(|| format!("writing {}", file.display()))
}
