//! `retrie init-state`: creates a datadir that starts from the state after some block.

use crate::{
    args::{ChainArgs, DbArgs, StateArgs},
    output::{CommandOutput, grouped, say},
};
use alloy_primitives::{B256, U256};
use retrie_pipeline::{ChainAnchor, ChainStore, LoadedState};
use retrie_sources::{StateDump, read_headers};
use std::{
    path::PathBuf,
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

/// Arguments of `retrie init-state`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct InitStateArgs {
    #[command(flatten)]
    chain: ChainArgs,
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    db: DbArgs,
    /// The header of the dump's block in RLP, binary or hex. In front of it the file may hold
    /// consecutive ancestors; later blocks can read the hashes of 255 of them. If the file has
    /// blocks instead of headers (`retrie export`, `geth export`), they are kept as blocks.
    #[arg(long, value_name = "HEADER_FILE")]
    header: Option<PathBuf>,
    /// Hash that the last header must have. Without it the file is trusted.
    #[arg(long, value_name = "HASH", requires = "header")]
    header_hash: Option<B256>,
    /// Total difficulty of the chain up to and including the last header, if it is proof of work.
    #[arg(long, value_name = "DIFFICULTY", requires = "header")]
    total_difficulty: Option<U256>,
    /// Accepted for reth's command lines: blocks before the state are never executed here.
    #[arg(long, hide = true)]
    without_evm: bool,
    /// The state: JSON lines as written by `geth dump --iterative`, reth or `retrie dump-state`,
    /// plain or gzipped.
    #[arg(value_name = "STATE_DUMP_FILE")]
    file: PathBuf,
}

impl InitStateArgs {
    /// Runs the command. The datadir is complete or missing.
    pub(crate) fn run(self, stop: &AtomicBool) -> eyre::Result<()> {
        let (spec, datadir) = self.chain.resolve()?;
        let options = self.state.chain_options(spec, &datadir, self.db.options())?;
        let dump = StateDump::open(&self.file)?;
        let anchor = match &self.header {
            Some(file) => {
                let items = read_headers(file)?;
                ChainAnchor::for_dump(&options, items, self.header_hash, self.total_difficulty)?
            }
            None => ChainAnchor::genesis(&options, dump.root())?,
        };
        if self.header.is_some() && self.header_hash.is_none() {
            tracing::info!(
                "block {} is trusted as the file of headers gives it: compare its hash with one \
                 that you trust (--header-hash)",
                anchor.header().number
            );
        }
        let mut told = Instant::now();
        let mut progress = |loaded: &LoadedState| {
            if told.elapsed() >= Duration::from_secs(5) {
                told = Instant::now();
                let LoadedState { accounts, slots, .. } = *loaded;
                tracing::info!("read {} accounts, {} slots", grouped(accounts), grouped(slots));
            }
        };
        let start = Instant::now();
        let (chain, loaded) = ChainStore::create_at(options, &anchor, dump, stop, &mut progress)?;
        chain.flush()?;
        let out = CommandOutput::default();
        say!(
            out,
            "{}: chain {}, backend {}, begins at block {} ({}) with {} accounts and {} slots, and \
             headers of {} ancestors; loaded in {:.1} s",
            datadir.display(),
            chain.spec().name(),
            chain.state().identity().name,
            anchor.header().number,
            anchor.header().hash(),
            grouped(loaded.accounts),
            grouped(loaded.slots),
            anchor.ancestor_count(),
            start.elapsed().as_secs_f64()
        );
        if loaded.is_checked {
            say!(out, "the state has the root of the header, {}", anchor.header().state_root);
        } else {
            say!(
                out,
                "the state was not checked against the header's root, which {} does not compute: \
                 the dump is trusted (--referee mpt checks it)",
                chain.state().identity().name
            );
        }
        Ok(())
    }
}
