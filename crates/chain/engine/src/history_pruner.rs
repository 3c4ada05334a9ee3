//! [`start_history_pruner`]: deletes what old blocks no longer keep, in the background.

use crate::{BackgroundControl, BackgroundThread, EngineError};
use retrie_db::ChainRead;
use retrie_pipeline::ChainStore;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Rows of each kind that a step deletes. Other writers wait for it.
const STEP: usize = 1024;
/// Time between two checks while nothing is old. New blocks prune about what they add themselves.
const POLL: Duration = Duration::from_secs(10);
/// Pause after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(30);
/// Time between two lines of the log.
const LINE_EVERY: Duration = Duration::from_secs(30);

/// Deletes the bodies, receipts, lookup rows and access lists that are no longer
/// [kept](retrie_db::HistoryKept), on the thread `history-pruner`, in
/// [steps](retrie_db::DatabaseEnv::prune_history), with a pause as long as the step after each. There is
/// much to do after flags have changed. Each step is durable, so a restarted node continues from the last
/// one.
///
/// The thread keeps the datadir open.
///
/// # Errors
/// If the thread cannot be started.
pub fn start_history_pruner(chain: Arc<ChainStore>) -> Result<BackgroundThread, EngineError> {
    let run = move |control: &BackgroundControl| keep_pruning(&chain, control);
    BackgroundThread::start("history-pruner", "pruning of old blocks", run)
}

fn keep_pruning(chain: &ChainStore, control: &BackgroundControl) {
    let (mut steps, mut told) = (0_u64, Instant::now());
    loop {
        let began = Instant::now();
        let step = chain.db().prune_history(STEP);
        let failed = step.as_ref().err().map(ToString::to_string);
        let pause = match step {
            Ok(true) => {
                steps += 1;
                if told.elapsed() >= LINE_EVERY {
                    told = Instant::now();
                    tell(chain, "old blocks are being pruned");
                }
                began.elapsed()
            }
            Ok(false) => {
                // One step, for a new head or two, is not worth a log line.
                if steps > 1 {
                    tell(chain, "old blocks are pruned");
                }
                (steps, told) = (0, Instant::now());
                POLL
            }
            Err(_) => AFTER_FAILURE,
        };
        control.record(failed, "old blocks cannot be pruned");
        if !control.pause(pause) {
            return;
        }
    }
}

/// Logs from which block on bodies and receipts are whole.
fn tell(chain: &ChainStore, what: &str) {
    let Ok(read) = chain.db().begin_read() else { return };
    let (Ok(bodies), Ok(receipts)) = (read.bodies_pruned_below(), read.receipts_pruned_below())
    else {
        return;
    };
    tracing::info!(bodies_from = bodies, receipts_from = receipts, "{what}");
}
