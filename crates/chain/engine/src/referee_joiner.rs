//! [`start_referee_joiner`]: lets a referee join the chain of a running node.

use crate::{BackgroundThread, EngineError, background::BackgroundControl};
use retrie_pipeline::{ChainStore, JoinStep, JoiningReferee};
use std::{
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

/// A referee that lacks at most this many blocks is brought to the tip at the start and at the end of a
/// node.
pub const NEAR_REFEREE: u64 = 256;

/// Time between two looks at the chain while the referee is at its tip.
const POLL: Duration = Duration::from_millis(200);
/// Pause after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(30);
/// Time between two lines of the log.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Lets a referee join on the thread `referee-join`. What it has done is durable, so a restarted node
/// goes on from there.
///
/// The thread keeps the datadir open. Drop it after the engine: a referee that is
/// [near](NEAR_REFEREE) is then brought to the last block, so that the next start has it.
///
/// # Errors
/// If the thread cannot be started.
pub fn start_referee_joiner(
    chain: Arc<ChainStore>,
    joining: JoiningReferee,
) -> Result<BackgroundThread, EngineError> {
    let run = move |control: &BackgroundControl| keep_joining(&chain, joining, control);
    BackgroundThread::start("referee-join", "referee join", run)
}

fn keep_joining(chain: &ChainStore, mut joining: JoiningReferee, control: &BackgroundControl) {
    let mut line = StepLog::default();
    loop {
        let outcome = joining.advance(chain, &control.stop, &mut |step| line.tell(step));
        let pause = if outcome.is_err() { AFTER_FAILURE } else { POLL };
        control.record(outcome.err().map(|error| error.to_string()), "the referee cannot join");
        if !control.pause(pause) {
            break;
        }
    }
    let missing = joining.missing(chain).ok().flatten();
    if missing.is_some_and(|missing| missing <= NEAR_REFEREE)
        && let Err(error) = joining.advance(chain, &AtomicBool::new(false), &mut |_| {})
    {
        tracing::warn!(%error, "the referee is behind the chain; it goes on at the next start");
    }
}

/// The lines of the log.
#[derive(Default)]
struct StepLog {
    last: Option<Instant>,
    was_level: bool,
}

impl StepLog {
    fn tell(&mut self, step: JoinStep) {
        let is_level = step.missing() == Some(0);
        if is_level && !self.was_level {
            self.was_level = true;
            tracing::info!("the referee is at the tip of the chain: the next start has it");
        }
        if is_level || self.last.is_some_and(|last| last.elapsed() < LINE_EVERY) {
            return;
        }
        self.last = Some(Instant::now());
        tracing::info!("the referee joins: {step}");
    }
}
