//! [`StateDownload`]: what the threads of a download share.

use super::{
    StateSyncError, StateSyncProgress,
    queue::{CheckedAnswer, ChunkQueue, StateItem},
    standing::{AnswerCounts, StatePeerStanding},
};
use crate::peer::{StatePeer, StatePeerError};
use alloy_primitives::Bytes;
use retrie_state::ProofError;
use std::{sync::Arc, time::Duration};

/// Maximum number of peers whose standing is kept.
const MAX_KNOWN_PEERS: usize = 4096;

/// The result for one item of a request.
#[derive(Debug)]
pub(super) enum ItemOutcome {
    /// It is right.
    Taken(Bytes, CheckedAnswer),
    /// The answer ended before this item.
    Left,
    /// The peer does not have it.
    Missing,
    /// It is not what the id names.
    Wrong {
        error: ProofError,
        /// Whether an honest peer of this kind may give it.
        may_be_mistake: bool,
    },
}

/// A download that goes on: what is wanted and fetched, how each peer has behaved, and how it
/// ended. The threads share it under one lock.
#[derive(Debug)]
pub(super) struct StateDownload {
    pub(super) queue: ChunkQueue,
    /// A peer keeps its place, also after it has disconnected.
    pub(super) standing: Vec<StatePeerStanding>,
    /// How the download has ended, once it has.
    pub(super) ended: Option<Result<(), StateSyncError>>,
}

impl StateDownload {
    /// Ends the download, unless it has ended already.
    pub(super) fn end(&mut self, how: Result<(), StateSyncError>) {
        self.ended.get_or_insert(how);
    }

    /// The peer's index in `standing`, if a new thread must ask it.
    pub(super) fn admit_peer(&mut self, peer: &Arc<dyn StatePeer>) -> Option<usize> {
        let known = self.standing.iter().position(|one| one.peer.name() == peer.name());
        let at = known.unwrap_or(self.standing.len());
        match self.standing.get_mut(at) {
            Some(one) if one.is_asked || one.banned.is_some() => return None,
            Some(one) => (one.peer, one.is_asked) = (peer.clone(), true),
            None if at >= MAX_KNOWN_PEERS => return None,
            None => self.standing.push(StatePeerStanding::of(peer.clone())),
        }
        Some(at)
    }

    /// Records that a peer has disconnected.
    pub(super) fn peer_gone(&mut self, at: usize, items: Vec<StateItem>) {
        items.into_iter().for_each(|item| self.queue.give_back(Some(at), item));
        if let Some(one) = self.standing.get_mut(at) {
            one.is_asked = false;
            one.failed = Some("it has disconnected".into());
        }
    }

    /// The progress so far.
    pub(super) fn progress(&self) -> StateSyncProgress {
        let banned = self.standing.iter().filter(|one| one.banned.is_some()).count();
        StateSyncProgress { banned, ..self.queue.progress }
    }

    /// Applies the result of a request. Returns the peers that are now known to have lied.
    pub(super) fn apply_answers(
        &mut self,
        at: usize,
        name: &str,
        items: Vec<StateItem>,
        outcomes: Result<Vec<ItemOutcome>, StatePeerError>,
        took: Duration,
    ) -> Result<Vec<Arc<dyn StatePeer>>, StateSyncError> {
        let outcomes = match outcomes {
            Ok(outcomes) => outcomes,
            Err(error) => {
                self.apply_failure(at, name, items, &error);
                return Ok(Vec::new());
            }
        };
        let (mut liars, mut counts, mut lacked) = (Vec::new(), AnswerCounts::default(), None);
        for (item, outcome) in items.into_iter().zip(outcomes) {
            match outcome {
                ItemOutcome::Taken(answer, checked) => {
                    counts.taken += 1;
                    for liar in self.queue.accept(Some(at), &item, &answer, checked)? {
                        liars.extend(
                            self.ban(liar, "it split a part that is too small to split".into()),
                        );
                    }
                    continue;
                }
                ItemOutcome::Left => counts.left += 1,
                ItemOutcome::Missing => {
                    counts.missing += 1;
                    if lacked.is_none() {
                        let place = self.place_at(at, &item);
                        lacked = place.map(|place| format!("it lacks {item}: {place}"));
                    }
                }
                ItemOutcome::Wrong { error, may_be_mistake } => {
                    let place = self.place_at(at, &item).map(|place| format!(" ({place})"));
                    let place = place.unwrap_or_default();
                    let why = format!("{item} is not what it sent{place}: {error}");
                    let standing = self.standing.get_mut(at);
                    if let Some(liar) = standing
                        .and_then(|of| of.wrong(why, may_be_mistake).then(|| of.peer.clone()))
                    {
                        tracing::warn!(peer = name, %item, %error, "wrong answer{place}; the peer is banned");
                        liars.push(liar);
                    } else {
                        tracing::warn!(peer = name, %item, %error, "wrong answer; the peer is asked again later");
                    }
                }
            }
            self.queue.give_back(Some(at), item);
        }
        if let Some(standing) = self.standing.get_mut(at) {
            standing.answered(counts, lacked, took);
            if let Some(reason) = standing.banned.as_ref().filter(|_| counts.missing > 0) {
                tracing::warn!(peer = name, reason, "the peer is not asked again");
            }
        }
        Ok(liars)
    }

    /// Where the peer has its answer for an item.
    fn place_at(&self, at: usize, item: &StateItem) -> Option<String> {
        self.standing.get(at)?.peer.place_of(item.id())
    }

    /// Records that a peer gave no answer.
    fn apply_failure(
        &mut self,
        at: usize,
        name: &str,
        items: Vec<StateItem>,
        error: &StatePeerError,
    ) {
        items.into_iter().for_each(|item| self.queue.give_back(Some(at), item));
        let Some(standing) = self.standing.get_mut(at) else { return };
        if standing.failures == 0 {
            tracing::debug!(peer = name, %error, "a peer gave no answer");
        }
        standing.is_busy = error.is_busy();
        standing.fail(error.to_string());
    }

    /// Bans a peer from this sync.
    fn ban(&mut self, at: usize, why: String) -> Option<Arc<dyn StatePeer>> {
        let standing = self.standing.get_mut(at)?;
        standing.ban(why);
        Some(standing.peer.clone())
    }
}
