//! `retrie init-state`: a datadir that begins with the state after some block.

use crate::{
    args::{ChainArgs, DbArgs, StateArgs},
    output::{Output, grouped, say},
};
use alloy_primitives::{B256, U256};
use retrie_pipeline::{Anchor, Chain, LoadedState};
use retrie_sources::{StateDump, read_headers};
use std::{
    path::PathBuf,
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

/// Arguments of `retrie init-state`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    chain: ChainArgs,
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    db: DbArgs,
    /// The header of the dump's block in RLP, binary or hex; before it, in the same file, any run
    /// of its ancestors: blocks after it may ask for the hashes of 255 of them. Blocks in place of
    /// headers (`retrie export`, `geth export`) are kept as blocks.
    #[arg(long, value_name = "HEADER_FILE")]
    header: Option<PathBuf>,
    /// The hash that the last header must have. Without it the file is trusted.
    #[arg(long, value_name = "HASH", requires = "header")]
    header_hash: Option<B256>,
    /// The total difficulty up to and with the last header, if that is of proof of work.
    #[arg(long, value_name = "DIFFICULTY", requires = "header")]
    total_difficulty: Option<U256>,
    /// For command lines of reth: blocks before the state are never executed here.
    #[arg(long, hide = true)]
    without_evm: bool,
    /// The state: JSON lines as `geth dump --iterative`, reth and `retrie dump-state` know them,
    /// plain or gzipped.
    #[arg(value_name = "STATE_DUMP_FILE")]
    file: PathBuf,
}

impl Args {
    /// Runs the command. It leaves a whole datadir or none.
    pub(crate) fn run(self, stop: &AtomicBool) -> eyre::Result<()> {
        let (spec, datadir) = self.chain.resolve()?;
        let options = self.state.chain_options(spec, &datadir, self.db.options())?;
        let dump = StateDump::open(&self.file)?;
        let anchor = match &self.header {
            Some(file) => {
                let items = read_headers(file)?;
                Anchor::of_dump(&options, items, self.header_hash, self.total_difficulty)?
            }
            None => Anchor::genesis(&options, dump.root())?,
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
        let (chain, loaded) = Chain::create_at(options, &anchor, dump, stop, &mut progress)?;
        chain.flush()?;
        let out = Output::default();
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
            anchor.ancestors(),
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
