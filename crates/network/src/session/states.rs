//! Requests for parts of states, which cost more than all others: they have a queue, permits and bytes of
//! their own, so that no other request waits for one, not even of the same peer.
//!
//! | of trusted and static peers together, and of all others together | at most |
//! |---|---|
//! | answers that are made at once | 2 |
//! | bytes of answers that are made or wait to be written | 64 MiB |
//!
//! | of one peer | at most |
//! |---|---|
//! | requests that wait; what comes then is refused as busy | 32 |
//! | answers that are made or wait to be written | 1 |
//! | bytes of answers in a second, and at once | 32 MiB, 64 MiB |

use super::{
    link::{Link, Outgoing},
    run::{Context, Ended, add, kib, now},
};
use crate::{
    handle::{PeerInfo, ServeStates, StateAudience},
    rate::Bucket,
    rchk::{Message, Refusal, Request, Response},
};
use std::{sync::Arc, time::Duration};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Requests of a peer that wait.
pub(super) const MAX_REQUESTS: usize = 32;

/// Answers that wait to be written.
pub(super) const MAX_ANSWERS: usize = 1;

/// Answers that are made at once, in a lane.
const PERMITS: usize = 2;

/// KiB of answers in a lane.
const ROOM_KIB: usize = 64 << 10;

/// KiB of one answer, at most: what is longer is held as this.
const LARGEST_KIB: u32 = 16 << 10;

/// KiB of answers that a peer may have in a second, and at once.
const SERVED_KIB: (u32, u32) = (32 << 10, 64 << 10);

/// How often it is looked whether a state has been made ready, before the peer is told to ask again.
const TRIES: usize = 8;
const PAUSE: Duration = Duration::from_millis(250);

/// What answers of all peers together may take. Strangers take nothing from the peers that the
/// operator has named.
#[derive(Debug, Default)]
pub struct StateLanes {
    named: StateLane,
    strangers: StateLane,
}

#[derive(Debug)]
struct StateLane {
    permits: Arc<Semaphore>,
    /// In KiB.
    room: Arc<Semaphore>,
}

impl Default for StateLane {
    fn default() -> Self {
        let (permits, room) = (Semaphore::new(PERMITS), Semaphore::new(ROOM_KIB));
        Self { permits: Arc::new(permits), room: Arc::new(room) }
    }
}

impl StateLanes {
    const fn of(&self, peer: &PeerInfo) -> &StateLane {
        match StateAudience::Named.includes(peer.trusted, peer.is_static) {
            true => &self.named,
            false => &self.strangers,
        }
    }
}

/// A request and its number.
pub(super) type NumberedRequest = (u64, Request);

/// An answer on its way. What it holds is given back when it is dropped.
#[derive(Debug)]
pub(super) struct StateAnswer {
    pub(super) outgoing: Outgoing,
    pub(super) held: AnswerHold,
}

/// The place of the peer's one answer, and room for it.
#[derive(Debug)]
pub(super) struct AnswerHold {
    _place: OwnedSemaphorePermit,
    _room: OwnedSemaphorePermit,
}

/// That a peer has asked for too much already.
pub(super) fn refusal((number, request): NumberedRequest) -> (u8, Vec<u8>) {
    Message::Response(number, request.answer(Err(Refusal::Busy))).encode()
}

/// Answers requests, one after the other.
pub(super) async fn serve(
    link: &Link,
    context: &Context,
    mut requests: mpsc::Receiver<NumberedRequest>,
    answers: &mpsc::Sender<StateAnswer>,
) -> Ended {
    let mut rate = Bucket::new(SERVED_KIB, now());
    let places = Arc::new(Semaphore::new(1));
    while let Some(asked) = requests.recv().await {
        let (Some(states), info) = (context.states.as_ref(), link.info()) else { continue };
        // Once the last answer is written. The semaphore is never closed.
        let Ok(place) = places.clone().acquire_owned().await else { break };
        let lane = context.lanes.of(&info);
        let Some((outgoing, room)) = answer(lane, states, &info, asked).await else { continue };
        tokio::time::sleep(rate.spend(kib(outgoing.payload.len()), now())).await;
        let held = AnswerHold { _place: place, _room: room };
        if answers.send(StateAnswer { outgoing, held }).await.is_err() {
            break;
        }
        add(&context.stats.served, 1);
    }
    // The reader, which has closed the channel, says why.
    std::future::pending().await
}

/// The answer, which is waited for a little if the state is being made ready.
async fn answer(
    lane: &StateLane,
    states: &Arc<dyn ServeStates>,
    info: &Arc<PeerInfo>,
    asked: NumberedRequest,
) -> Option<(Outgoing, OwnedSemaphorePermit)> {
    for _ in 1..TRIES {
        let made = attempt(lane, states.clone(), info.clone(), asked.clone()).await?;
        if !made.is_busy {
            return Some((made.outgoing, made.room));
        }
        // Holding nothing that others wait for.
        drop(made);
        tokio::time::sleep(PAUSE).await;
    }
    let made = attempt(lane, states.clone(), info.clone(), asked).await?;
    Some((made.outgoing, made.room))
}

struct AnswerAttempt {
    outgoing: Outgoing,
    is_busy: bool,
    room: OwnedSemaphorePermit,
}

/// `None` only if it panics.
async fn attempt(
    lane: &StateLane,
    states: Arc<dyn ServeStates>,
    info: Arc<PeerInfo>,
    (number, request): NumberedRequest,
) -> Option<AnswerAttempt> {
    let base = info.rchk_base()?;
    let mut room = lane.room.clone().acquire_many_owned(LARGEST_KIB).await.ok()?;
    // Before a thread is taken that others need.
    let permit = lane.permits.clone().acquire_owned().await.ok()?;
    let work = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        let response: Response = states.answer(&info, request);
        let is_busy = *response.parts() == Err(Refusal::Busy);
        let (id, payload) = Message::Response(number, response).encode();
        let spare = LARGEST_KIB.saturating_sub(kib(payload.len()));
        drop(room.split(spare as usize));
        AnswerAttempt { outgoing: Outgoing { id: base + id, payload }, is_busy, room }
    });
    work.await.ok()
}
