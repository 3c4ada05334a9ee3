//! `retrie re-execute`: executes stored blocks again, on the state history.

use super::existing::open_existing;
use crate::{
    args::{BackendArgs, ChainArgs, DbArgs},
    output::{CommandOutput, grouped, say},
};
use eyre::bail;
use retrie_db::ChainRead;
use retrie_engine::{LiveChain, re_execute};
use std::{
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

/// Arguments of `retrie re-execute`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ReExecuteArgs {
    #[command(flatten)]
    chain: ChainArgs,
    #[command(flatten)]
    backends: BackendArgs,
    #[command(flatten)]
    db: DbArgs,
    /// First block [default: the first one with a readable parent state].
    #[arg(long, value_name = "NUMBER")]
    from: Option<u64>,
    /// Last block [default: the head].
    #[arg(long, value_name = "NUMBER")]
    to: Option<u64>,
}

/// Failures that are printed one by one.
const SHOWN: usize = 20;

impl ReExecuteArgs {
    /// Runs the command. Nothing is written.
    pub(crate) fn run(self, stop: &AtomicBool) -> eyre::Result<()> {
        let chain = Arc::new(open_existing(&self.chain, &self.backends, self.db.options())?);
        let tip = chain.tip()?.number;
        let first = chain.db().begin_read()?.anchor()? + 1;
        let (from, to) = (self.from.unwrap_or(first), self.to.unwrap_or(tip));
        if from < first || from > to || to > tip {
            bail!("blocks {from} to {to} cannot be executed: there are {first} to {tip}");
        }
        let live = LiveChain::new(chain)?;
        let start = Instant::now();
        let mut told = start;
        let report = re_execute(&live, from..=to, stop, &mut |report| {
            if told.elapsed() >= Duration::from_secs(5) {
                told = Instant::now();
                tracing::info!("{} blocks executed again", grouped(report.blocks));
            }
        })?;
        let out = CommandOutput::default();
        for failure in report.failures.iter().take(SHOWN) {
            say!(out, "{failure}");
        }
        say!(
            out,
            "executed {} blocks again, {} txs, {:.1} Mgas, {} changes compared, in {:.2} s",
            grouped(report.blocks),
            grouped(report.txs),
            report.gas as f64 / 1e6,
            grouped(report.changes),
            start.elapsed().as_secs_f64()
        );
        if !report.failures.is_empty() {
            bail!("{} differences found; the first: {}", report.failures.len(), report.failures[0]);
        }
        if !report.complete {
            bail!("stopped after block {}", from + report.blocks - 1);
        }
        Ok(())
    }
}
