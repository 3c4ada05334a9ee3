//! [`start_indexer`]: keeps the indexes of the durable chain at its head.

use crate::{BackgroundThread, EngineError, LiveChain, background::BackgroundControl};
use retrie_db::{AddressBounds, LogBounds};
use retrie_pipeline::PipelineError;
use std::time::{Duration, Instant};

/// Time between two checks of the chain while there is nothing to index.
const POLL: Duration = Duration::from_secs(1);
/// Pause after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(30);

/// What is indexed, and how much at a time.
#[derive(Clone, Copy, Debug, Default)]
pub struct IndexerConfig {
    /// The [log index](retrie_db::DatabaseEnv::index_logs), which every node has.
    pub logs: LogBounds,
    /// Whether to keep [index tables](retrie_db::DatabaseEnv::keep_index_tables) (`--logs.tables`).
    pub has_tables: bool,
    /// The [address index](retrie_db::DatabaseEnv::index_addresses), if it is kept
    /// (`--index.addresses`).
    pub addresses: Option<AddressBounds>,
}

/// Keeps the indexes of a datadir on the thread `indexer`: a step of each in turn, and a pause as long
/// as that took. Each step is durable, so a restarted node continues from the last one. While steps
/// fail, log searches read blocks one by one, and searches by address execute the newest blocks.
///
/// The thread keeps the datadir open.
///
/// # Errors
/// If the thread cannot be started.
pub fn start_indexer(
    live: LiveChain,
    config: IndexerConfig,
) -> Result<BackgroundThread, EngineError> {
    let run = move |control: &BackgroundControl| keep_indexing(&live, &config, control);
    BackgroundThread::start("indexer", "indexer", run)
}

fn keep_indexing(live: &LiveChain, config: &IndexerConfig, control: &BackgroundControl) {
    let mut steps = 0_u64;
    loop {
        let began = Instant::now();
        let step = take_steps(live, config, control);
        let failed = step.as_ref().err().map(ToString::to_string);
        let pause = match step {
            Ok(true) => {
                steps += 1;
                began.elapsed()
            }
            Ok(false) => {
                // One step, for a new head or two, is not worth a log line.
                if steps > 1 {
                    tracing::info!(steps, "the indexes are complete");
                }
                steps = 0;
                POLL
            }
            Err(_) => AFTER_FAILURE,
        };
        control.record(failed, "blocks cannot be indexed");
        if !control.pause(pause) {
            return;
        }
    }
}

/// Takes a step of each index; returns whether there may be more to do.
fn take_steps(
    live: &LiveChain,
    config: &IndexerConfig,
    control: &BackgroundControl,
) -> Result<bool, PipelineError> {
    let (db, stop) = (live.chain().db(), &control.stop);
    let mut has_more = db.index_logs(&config.logs, stop)?;
    if config.has_tables {
        let active_from = live.spec().index_tables_block().unwrap_or_default();
        has_more |= db.keep_index_tables(active_from, stop)?;
    }
    if let Some(bounds) = &config.addresses {
        // A view for each block: a view that is held long keeps the database from reusing pages.
        has_more |= db.index_addresses(bounds, stop, |hash| {
            let mut view = live.view()?;
            loop {
                match view.trace_participants(hash) {
                    Err(error) if error.lacks_state() => {
                        view = view.successor()?.ok_or(error)?;
                    }
                    found => return found,
                }
            }
        })?;
    }
    Ok(has_more)
}
