//! How each peer has behaved, and what it is asked for next.

use crate::peer::StatePeer;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// The longest backoff before a peer that failed is asked again.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// How many times a peer may lack what the state must have.
const STRIKES: u32 = 5;
/// A peer that may be mistaken is banned for more than `MISTAKES` wrong answers, and one more for each
/// `RIGHT_FOR_A_MISTAKE` right ones. Fewer count as failures.
const MISTAKES: u32 = 3;
const RIGHT_FOR_A_MISTAKE: u32 = 256;
/// The first backoff after a failure.
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// Maximum number of ids in one request.
const MAX_BATCH: usize = 256;
/// A complete answer faster than `QUICK` doubles the next request; one slower than `SLOW` halves
/// it.
const QUICK: Duration = Duration::from_millis(300);
const SLOW: Duration = Duration::from_millis(1500);
/// At the end of a sync a peer is also asked for items that another peer has had for
/// `TIMES_AS_LONG` times the peer's own usual answer time, but at least `SOONEST` and at most
/// `LATEST`.
const TIMES_AS_LONG: u32 = 4;
const SOONEST: Duration = Duration::from_millis(250);
const LATEST: Duration = Duration::from_secs(2);

/// How many items of a request ended in which way, wrong ones aside.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AnswerCounts {
    /// Right answers.
    pub(super) taken: usize,
    /// Items that the answer does not reach.
    pub(super) left: usize,
    /// Items that the peer does not have.
    pub(super) missing: usize,
}

/// How a peer has behaved.
#[derive(Debug)]
pub(super) struct StatePeerStanding {
    pub(super) peer: Arc<dyn StatePeer>,
    /// Whether a thread asks it now.
    pub(super) is_asked: bool,
    /// Whether its last answer was that it prepares the state.
    pub(super) is_busy: bool,
    /// Why it is never asked again, if so.
    pub(super) banned: Option<String>,
    /// Its last failure.
    pub(super) failed: Option<String>,
    pub(super) failures: u32,
    strikes: u32,
    /// Wrong answers, and right ones.
    mistakes: u32,
    right: u32,
    pub(super) not_before: Option<Instant>,
    /// How many ids to ask for at once.
    pub(super) batch: usize,
    /// Moving average of its answer time.
    usual: Option<Duration>,
}

impl StatePeerStanding {
    pub(super) const fn of(peer: Arc<dyn StatePeer>) -> Self {
        Self {
            peer,
            is_asked: true,
            is_busy: false,
            banned: None,
            failed: None,
            failures: 0,
            strikes: 0,
            mistakes: 0,
            right: 0,
            not_before: None,
            batch: 1,
            usual: None,
        }
    }

    /// How long other peers may take for an item before this peer is asked for it, too.
    pub(super) fn patience(&self) -> Duration {
        let usual = self.usual.map(|usual| usual.saturating_mul(TIMES_AS_LONG));
        usual.map_or(SOONEST * 2, |times| times.clamp(SOONEST, LATEST))
    }

    /// Records a failure: the peer is asked again after a backoff.
    pub(super) fn fail(&mut self, why: String) {
        let wait = FIRST_WAIT.saturating_mul(1 << self.failures.min(10)).min(LONGEST_WAIT);
        self.failures += 1;
        self.failed = Some(why);
        self.not_before = Instant::now().checked_add(wait);
        self.batch = (self.batch / 2).max(1);
    }

    /// Records an answer, which took this time. `lacked` says what the peer does not have, if its
    /// place is known.
    pub(super) fn answered(
        &mut self,
        counts: AnswerCounts,
        lacked: Option<String>,
        took: Duration,
    ) {
        let AnswerCounts { taken, left, missing } = counts;
        self.is_busy = false;
        if missing > 0 {
            self.strikes += 1;
            let why = "it does not have that state (another block, or another backend)";
            let why = lacked.unwrap_or_else(|| why.to_owned());
            self.fail(why.clone());
            if self.strikes >= STRIKES {
                self.ban(why);
            }
            return;
        }
        self.failures = 0;
        self.failed = None;
        self.right = self.right.saturating_add(taken.try_into().unwrap_or(u32::MAX));
        self.strikes = self.strikes.saturating_sub(u32::from(taken > 0));
        self.usual = Some(self.usual.map_or(took, |usual| usual.saturating_add(took) / 2));
        let batch = if left > 0 {
            // More did not fit into the answer, or the peer gives one item at a time.
            taken
        } else if took > SLOW {
            self.batch / 2
        } else if took < QUICK && taken >= self.batch {
            self.batch * 2
        } else {
            self.batch
        };
        self.batch = batch.clamp(1, MAX_BATCH);
    }

    /// Records a wrong answer, for which the peer is banned or, if honest peers of its kind give some,
    /// asked again after a backoff. Whether it is banned.
    pub(super) fn wrong(&mut self, why: String, may_be_mistake: bool) -> bool {
        self.mistakes += 1;
        let allowed = MISTAKES.saturating_add(self.right / RIGHT_FOR_A_MISTAKE);
        let is_banned = !may_be_mistake || self.mistakes > allowed;
        if is_banned {
            self.ban(why);
        } else {
            self.fail(why);
        }
        is_banned
    }

    /// Bans the peer from this sync. The first reason stays.
    pub(super) fn ban(&mut self, why: String) {
        self.banned.get_or_insert(why);
    }
}
