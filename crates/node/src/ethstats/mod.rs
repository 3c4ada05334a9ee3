//! Reports of this node to an ethstats server, as geth's and reth's `--ethstats` make them.
//!
//! ```text
//!  head, pool, peers -- StatsSource --> StatsSession --WebSocket--> server: a page of all its nodes
//!                                           ^ history, pings ----------'
//! ```
//!
//! | message | when |
//! |---|---|
//! | `hello`, answered with `ready` | at the start of a connection |
//! | `block`, `pending` | after each new head, at most ten times a second |
//! | `node-ping`, answered with `node-pong`; then `latency`, `block`, `pending`, `stats` | every 15 s |
//! | `history` | when the server asks for it: 50 blocks at most |
//!
//! A server that refuses, does not answer or does not read is given up after 10 s, and tried again:
//! after 1 s, then after twice as long each time, up to a minute. Nothing of the node waits for it.

mod messages;
mod node;
mod session;
mod target;
#[cfg(test)]
mod tests;

pub(crate) use node::LocalStats;
pub(crate) use target::StatsTarget;

use crate::services::NodeService;
use messages::{BlockStats, NodeIdentity, NodeStats};
use session::{SessionEnd, StatsTiming, run_session};
use std::sync::Arc;
use tokio::{runtime::Handle, sync::watch, task::JoinHandle, time::sleep};

/// What is reported of a node. Its methods may block.
pub(crate) trait StatsSource: Send + Sync {
    /// Who reports.
    fn identity(&self) -> NodeIdentity;

    /// The canonical block with this number, or the head; `None` if it cannot be read.
    fn block(&self, number: Option<u64>) -> Option<BlockStats>;

    /// The state of the node.
    fn stats(&self) -> NodeStats;
}

/// Reports until the node stops.
pub(crate) struct StatsService {
    task: JoinHandle<()>,
}

impl StatsService {
    /// Starts to report to `target`, also whenever `heads` changes.
    pub(crate) fn start(
        target: StatsTarget,
        source: Arc<dyn StatsSource>,
        heads: watch::Receiver<u64>,
        threads: &Handle,
    ) -> Self {
        let task = threads.spawn(report(target, source, heads, StatsTiming::default()));
        Self { task }
    }
}

impl NodeService for StatsService {
    fn name(&self) -> &'static str {
        "ethstats"
    }

    fn stop(self: Box<Self>) -> eyre::Result<()> {
        self.task.abort();
        Ok(())
    }
}

/// Connects again and again, until the node drops the sender of `heads`.
async fn report(
    target: StatsTarget,
    source: Arc<dyn StatsSource>,
    mut heads: watch::Receiver<u64>,
    timing: StatsTiming,
) {
    let mut pause = timing.first_pause;
    let mut is_logged = false;
    loop {
        let SessionEnd { was_ready, error } =
            run_session(&target, &source, &mut heads, &timing).await;
        if was_ready {
            (pause, is_logged) = (timing.first_pause, false);
        }
        let seconds = pause.as_secs_f64();
        match error {
            None => return,
            Some(error) if is_logged => {
                tracing::debug!("ethstats at {}: {error}; again in {seconds} s", target.host());
            }
            Some(error) => {
                tracing::warn!("ethstats at {}: {error}; trying again", target.host());
                is_logged = true;
            }
        }
        sleep(pause).await;
        pause = (2 * pause).min(timing.last_pause);
    }
}
