//! Requests of ours to a peer, until they are answered or nobody cares any more.

use crate::handle::RequestError;
use std::{collections::HashMap, time::Duration};
use tokio::{sync::oneshot, time::Instant};

/// Requests of one protocol that a peer may have at once.
const MAX_IN_FLIGHT: usize = 16;

/// For how long an answer that comes too late is not held against a peer again.
const LATE: Duration = Duration::from_secs(120);

pub(super) type Answer<R> = Result<R, RequestError>;

/// A request under way.
#[derive(Debug)]
struct Pending<R> {
    /// Id of the message that answers it.
    answer: u8,
    /// How many items there may be.
    items: usize,
    /// Who waits; nobody any more once the time is over.
    reply: Option<oneshot::Sender<Answer<R>>>,
    deadline: Instant,
}

/// Those of one protocol, which are answered by an `R`.
#[derive(Debug)]
pub(super) struct Requests<R> {
    next: u64,
    under_way: HashMap<u64, Pending<R>>,
    over: bool,
}

impl<R> Default for Requests<R> {
    fn default() -> Self {
        Self { next: rand::random::<u32>().into(), under_way: HashMap::new(), over: false }
    }
}

impl<R> Requests<R> {
    /// Adds one that `send` sends under the number that it is given; the answer, a message of id
    /// `answer` with so many items at most, comes over the receiver, or why there is none.
    pub(super) fn add(
        &mut self,
        (answer, items): (u8, usize),
        limit: Duration,
        send: impl FnOnce(u64) -> Result<(), SendError>,
    ) -> Result<oneshot::Receiver<Answer<R>>, RequestError> {
        if self.over {
            return Err(RequestError::Gone);
        }
        let waiting = self.under_way.values().filter(|one| one.reply.is_some()).count();
        if waiting >= MAX_IN_FLIGHT {
            return Err(RequestError::Busy(waiting));
        }
        let number = self.next;
        send(number).map_err(|error| match error {
            SendError::Full => RequestError::Busy(waiting),
            SendError::Failed(error) => error,
        })?;
        self.next += 1;
        let (sender, receiver) = oneshot::channel();
        let deadline = Instant::now() + limit;
        let one = Pending { answer, items, reply: Some(sender), deadline };
        self.under_way.insert(number, one);
        Ok(receiver)
    }

    /// Whether an answer of this id may come.
    pub(super) fn expects(&self, answer: u8) -> bool {
        self.under_way.values().any(|one| one.answer == answer)
    }

    /// Whether somebody waits for the answer to this request; forgets it if nobody does any more.
    /// Err if there was never such a request.
    pub(super) fn is_awaited(&mut self, number: u64, answer: u8) -> Result<bool, ()> {
        let one = self.under_way.get(&number).ok_or(())?;
        if one.answer != answer {
            return Err(());
        }
        let awaited = one.reply.as_ref().is_some_and(|reply| !reply.is_closed());
        if !awaited {
            self.under_way.remove(&number);
        }
        Ok(awaited)
    }

    /// Hands over an answer of so many items. Err if that is more than were asked for.
    pub(super) fn answer(&mut self, number: u64, response: R, items: usize) -> Result<(), ()> {
        let Some(one) = self.under_way.remove(&number) else { return Ok(()) };
        let fits = items <= one.items;
        if let Some(reply) = one.reply {
            // Who no longer waits does not want it.
            let _ = reply.send(if fits { Ok(response) } else { Err(RequestError::WrongAnswer) });
        }
        if fits { Ok(()) } else { Err(()) }
    }

    /// Tells those who have waited too long, which is `limit`; how many there were.
    pub(super) fn expire(&mut self, limit: Duration) -> usize {
        let now = Instant::now();
        let mut expired = 0;
        for one in self.under_way.values_mut().filter(|one| one.deadline <= now) {
            if let Some(reply) = one.reply.take() {
                // As above.
                let _ = reply.send(Err(RequestError::Timeout(limit)));
                expired += 1;
            }
        }
        self.under_way.retain(|_, one| now < one.deadline + LATE);
        expired
    }

    /// Tells all who wait that the peer is gone.
    pub(super) fn close(&mut self) {
        self.over = true;
        for (_, one) in self.under_way.drain() {
            if let Some(reply) = one.reply {
                // As above.
                let _ = reply.send(Err(RequestError::Gone));
            }
        }
    }
}

/// Why a request was not sent.
pub(super) enum SendError {
    /// Too much waits to be written.
    Full,
    /// Something else.
    Failed(RequestError),
}
