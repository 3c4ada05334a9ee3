//! Serving `rchk` and `snap` requests. They cost more than all others, so they have a queue, permits and a
//! byte budget of their own: no other request waits for them, not even one of the same peer.
//!
//! | in the lane of trusted and static peers, and in the lane of all other peers | at most |
//! |---|---|
//! | answers in progress | 2 |
//! | bytes of answers in progress or waiting to be written | 64 MiB |
//!
//! | for one peer | at most |
//! |---|---|
//! | waiting requests; further ones are refused as busy | 32 |
//! | answers in progress or waiting to be written | 1 |
//! | bytes of answers: a second, and at once | 32 MiB, 64 MiB |

use super::{
    link::{OutgoingMessage, SessionHandle},
    run::{RequestHandlers, SessionContext, SessionEnd, add, kib, now},
};
use crate::{
    handle::{PeerInfo, StateAudience},
    rate::TokenBucket,
    rchk::{RchkMessage, RchkRefusal, RchkRequest},
    snap::{SnapMessage, SnapRequest},
};
use std::{sync::Arc, time::Duration};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Maximum number of a peer's requests that wait.
pub(super) const MAX_REQUESTS: usize = 32;

/// Maximum number of answers that wait to be written.
pub(super) const MAX_ANSWERS: usize = 1;

/// Maximum number of answers in progress in a lane.
const PERMITS: usize = 2;

/// Maximum KiB of answers in a lane.
const ROOM_KIB: usize = 64 << 10;

/// KiB that an answer holds at most, even if it is longer.
const LARGEST_KIB: u32 = 16 << 10;

/// KiB of answers that a peer may get: a second, and at once.
const SERVED_KIB: (u32, u32) = (32 << 10, 64 << 10);

/// How often to try whether a state is ready: before the peer is told to ask again (`rchk`), or is not
/// answered (`snap`, which has no such words; geth waits up to a minute, and asks again).
const RCHK_TRIES: usize = 8;
const SNAP_TRIES: usize = 100;
const PAUSE: Duration = Duration::from_millis(250);

/// The limits on the answers for all peers. Unknown peers cannot use the lane of the peers that the
/// operator has named.
#[derive(Debug, Default)]
pub(crate) struct ServeLimits {
    named: ServeLane,
    strangers: ServeLane,
}

#[derive(Debug)]
struct ServeLane {
    permits: Arc<Semaphore>,
    /// Free KiB.
    room: Arc<Semaphore>,
}

impl Default for ServeLane {
    fn default() -> Self {
        let (permits, room) = (Semaphore::new(PERMITS), Semaphore::new(ROOM_KIB));
        Self { permits: Arc::new(permits), room: Arc::new(room) }
    }
}

impl ServeLimits {
    const fn of(&self, peer: &PeerInfo) -> &ServeLane {
        match StateAudience::Named.includes(peer.trusted, peer.is_static) {
            true => &self.named,
            false => &self.strangers,
        }
    }
}

/// A request for a part of a state.
#[derive(Clone, Debug)]
pub(super) enum StateRequest {
    /// By `rchk`.
    Rchk(RchkRequest),
    /// By `snap`.
    Snap(SnapRequest),
}

/// A request and its request id.
pub(super) type NumberedRequest = (u64, StateRequest);

impl StateRequest {
    /// Answers the request. Returns whether the answer says that the state is being prepared.
    /// `None` if the node has no handler for such requests.
    fn answer(
        self,
        number: u64,
        info: &PeerInfo,
        by: &RequestHandlers,
    ) -> Option<(OutgoingMessage, bool)> {
        match self {
            Self::Rchk(request) => {
                let response = by.states.as_ref()?.answer(info, request);
                let is_busy = *response.parts() == Err(RchkRefusal::Busy);
                let (id, payload) = RchkMessage::Response(number, response).encode();
                Some((OutgoingMessage { id: info.rchk_base()? + id, payload }, is_busy))
            }
            Self::Snap(request) => {
                let empty = request.empty_answer();
                let response = by.ranges.as_ref()?.answer(info, request);
                let is_busy = response.is_none();
                let response = response.unwrap_or(empty);
                let (id, payload) = SnapMessage::Response(number, response).encode();
                Some((OutgoingMessage { id: info.snap_base()? + id, payload }, is_busy))
            }
        }
    }

    /// The answer for a peer that has too many waiting requests. `snap` has none: an empty answer
    /// would say that the state is not there.
    pub(super) fn refusal(self, number: u64, info: &PeerInfo) -> Option<OutgoingMessage> {
        let Self::Rchk(request) = self else { return None };
        let busy = request.answer(Err(RchkRefusal::Busy));
        let (id, payload) = RchkMessage::Response(number, busy).encode();
        Some(OutgoingMessage { id: info.rchk_base()? + id, payload })
    }
}

/// An answer to be written, with the permits that it holds.
#[derive(Debug)]
pub(super) struct StateAnswer {
    pub(super) outgoing: OutgoingMessage,
    pub(super) held: AnswerPermits,
}

/// The permit for the peer's one answer, and the room that the answer takes in its lane. Dropping
/// it releases both.
#[derive(Debug)]
pub(super) struct AnswerPermits {
    _place: OwnedSemaphorePermit,
    _room: OwnedSemaphorePermit,
}

/// Answers requests, one after the other.
pub(super) async fn serve(
    link: &SessionHandle,
    context: &SessionContext,
    mut requests: mpsc::Receiver<NumberedRequest>,
    answers: &mpsc::Sender<StateAnswer>,
) -> SessionEnd {
    let mut rate = TokenBucket::new(SERVED_KIB, now());
    let places = Arc::new(Semaphore::new(1));
    while let Some(asked) = requests.recv().await {
        let info = link.info();
        // Waits until the last answer is written. The semaphore is never closed.
        let Ok(place) = places.clone().acquire_owned().await else { break };
        let lane = context.lanes.of(&info);
        let Some((outgoing, room)) = answer(lane, &context.handlers, &info, asked).await else {
            continue;
        };
        tokio::time::sleep(rate.spend(kib(outgoing.payload.len()), now())).await;
        let held = AnswerPermits { _place: place, _room: room };
        if answers.send(StateAnswer { outgoing, held }).await.is_err() {
            break;
        }
        add(&context.stats.served, 1);
    }
    // The task that closed the channel returns the cause.
    std::future::pending().await
}

/// Answers a request. Tries for a while if the state is being prepared. `None` if the peer gets no
/// answer.
async fn answer(
    lane: &ServeLane,
    handlers: &RequestHandlers,
    info: &Arc<PeerInfo>,
    asked: NumberedRequest,
) -> Option<(OutgoingMessage, OwnedSemaphorePermit)> {
    let (tries, says_busy) = match asked.1 {
        StateRequest::Rchk(_) => (RCHK_TRIES, true),
        StateRequest::Snap(_) => (SNAP_TRIES, false),
    };
    for _ in 1..tries {
        let made = attempt(lane, handlers.clone(), info.clone(), asked.clone()).await?;
        if !made.is_busy {
            return Some((made.outgoing, made.room));
        }
        // Waits without holding permits.
        drop(made);
        tokio::time::sleep(PAUSE).await;
    }
    let made = attempt(lane, handlers.clone(), info.clone(), asked).await?;
    (says_busy || !made.is_busy).then_some((made.outgoing, made.room))
}

struct AnswerAttempt {
    outgoing: OutgoingMessage,
    is_busy: bool,
    room: OwnedSemaphorePermit,
}

/// Makes one attempt to answer. `None` if the node has no handler for such requests, or
/// the handler panics.
async fn attempt(
    lane: &ServeLane,
    handlers: RequestHandlers,
    info: Arc<PeerInfo>,
    (number, request): NumberedRequest,
) -> Option<AnswerAttempt> {
    let mut room = lane.room.clone().acquire_many_owned(LARGEST_KIB).await.ok()?;
    // Taken before a blocking thread, which other work needs.
    let permit = lane.permits.clone().acquire_owned().await.ok()?;
    let work = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        let (outgoing, is_busy) = request.answer(number, &info, &handlers)?;
        let spare = LARGEST_KIB.saturating_sub(kib(outgoing.payload.len()));
        drop(room.split(spare as usize));
        Some(AnswerAttempt { outgoing, is_busy, room })
    });
    work.await.ok()?
}
