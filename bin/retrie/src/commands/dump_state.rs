//! `retrie dump-state`: the state after a block as JSON lines.

use super::existing::Existing;
use crate::{
    args::{BackendArgs, ChainArgs},
    output::{Output, grouped, say},
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
pub(crate) struct Args {
    #[command(flatten)]
    chain: ChainArgs,
    #[command(flatten)]
    backends: BackendArgs,
    /// The block; the durable head if absent. It must be one that can be reverted to, or the
    /// backend an archive.
    #[arg(long, value_name = "NUMBER")]
    block: Option<u64>,
    /// Write to this file what `retrie init-state --header` takes: the headers of the block and of
    /// the 255 before it, as far as they are there.
    #[arg(long, value_name = "FILE")]
    header: Option<PathBuf>,
    /// The file, gzipped if its name ends in .gz.
    #[arg(value_name = "STATE_DUMP_FILE")]
    file: PathBuf,
}

/// Ancestors whose hashes a block may ask for, its parent included.
const HASHES: u64 = 256;

impl Args {
    /// Runs the command, also beside a node. The file appears whole or not at all.
    pub(crate) fn run(self, stop: &AtomicBool) -> eyre::Result<()> {
        let found = Existing::open(&self.chain)?;
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
            Output::default(),
            "wrote {} accounts and {} slots, the state after block {block}, to {}",
            grouped(dumped.accounts),
            grouped(dumped.slots),
            self.file.display()
        );
        Ok(())
    }
}

fn write_headers(read: &ReadTxn, number: u64, file: &Path) -> eyre::Result<()> {
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
