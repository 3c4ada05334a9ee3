//! [`start_log_indexer`]: keeps the log index, and index tables, at the head of the durable chain.

use crate::{BackgroundThread, EngineError, background::BackgroundControl};
use retrie_db::LogBounds;
use retrie_pipeline::ChainStore;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Time between two checks of the chain while there is nothing to index.
const POLL: Duration = Duration::from_secs(1);
/// Pause after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(30);

/// Keeps the [log index](retrie_db::DatabaseEnv::index_logs) of a datadir on the thread `log-index`,
/// in steps, with a pause as long as the step after each; if asked for, also its
/// [index tables](retrie_db::DatabaseEnv::keep_index_tables). Each step is durable, so a restarted node
/// continues from the last one. While steps fail, log searches read blocks one by one.
///
/// The thread keeps the datadir open.
///
/// # Errors
/// If the thread cannot be started.
pub fn start_log_indexer(
    chain: Arc<ChainStore>,
    bounds: LogBounds,
    with_tables: bool,
) -> Result<BackgroundThread, EngineError> {
    let run =
        move |control: &BackgroundControl| keep_indexing(&chain, &bounds, with_tables, control);
    BackgroundThread::start("log-index", "log index", run)
}

fn keep_indexing(
    chain: &ChainStore,
    bounds: &LogBounds,
    with_tables: bool,
    control: &BackgroundControl,
) {
    let active_from = chain.spec().index_tables_block().unwrap_or_default();
    let mut steps = 0_u64;
    loop {
        let began = Instant::now();
        let step = chain.db().index_logs(bounds, &control.stop).and_then(|more| {
            let tables = with_tables && chain.db().keep_index_tables(active_from, &control.stop)?;
            Ok(more || tables)
        });
        let failed = step.as_ref().err().map(ToString::to_string);
        let pause = match step {
            Ok(true) => {
                steps += 1;
                began.elapsed()
            }
            Ok(false) => {
                // One step, for a new head or two, is not worth a log line.
                if steps > 1 {
                    tracing::info!(steps, "the index of logs is complete");
                }
                steps = 0;
                POLL
            }
            Err(_) => AFTER_FAILURE,
        };
        control.record(failed, "logs cannot be indexed");
        if !control.pause(pause) {
            return;
        }
    }
}
