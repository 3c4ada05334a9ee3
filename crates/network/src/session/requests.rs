//! Requests of ours to a peer, until they are answered or nobody cares any more.

use crate::handle::RequestError;
use std::{collections::HashMap, time::Duration};
use tokio::{sync::oneshot, time::Instant};

/// Requests of one protocol that a peer may have at once.
const MAX_IN_FLIGHT: usize = 16;

/// For how long an answer that comes too late is not held against a peer again.
const LATE: Duration = Duration::from_secs(120);

pub(super) type Answer<R> = Result<R, RequestError>;

/// What may answer a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpectedAnswer {
    /// Id of the message.
    pub(super) id: u8,
    /// Items that it has at most.
    pub(super) items: usize,
    /// Bytes that it has at most.
    pub(super) bytes: usize,
}

/// A request under way.
#[derive(Debug)]
struct Pending<R> {
    expected: ExpectedAnswer,
    /// Who waits; nobody any more once the time is over.
    reply: Option<oneshot::Sender<Answer<R>>>,
    deadline: Instant,
    /// How long the peer had not been read when it was asked.
    pauses: Duration,
    /// Whether the peer was blamed for not answering.
    is_blamed: bool,
}

/// Requests whose time is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ExpiredRequests {
    /// Those whose askers were told so.
    pub(super) told: usize,
    /// Those for which the peer is to blame: it was read for all the time that it had.
    pub(super) blamed: usize,
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
    /// Adds one that `send` sends under the number that it is given; the answer comes over the
    /// receiver, or why there is none. `pauses` is for how long the peer was not read until now.
    pub(super) fn add(
        &mut self,
        expected: ExpectedAnswer,
        limit: Duration,
        pauses: Duration,
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
        let reply = Some(sender);
        let one = Pending { expected, reply, deadline, pauses, is_blamed: false };
        self.under_way.insert(number, one);
        Ok(receiver)
    }

    /// How many bytes an answer of this id may have, if one may come.
    pub(super) fn expects(&self, answer: u8) -> Option<usize> {
        let all = self.under_way.values().map(|one| one.expected);
        all.filter(|expected| expected.id == answer).map(|expected| expected.bytes).max()
    }

    /// Whether somebody waits for the answer to this request; forgets it if nobody does any more.
    /// Err if there was never such a request.
    pub(super) fn is_awaited(&mut self, number: u64, answer: u8) -> Result<bool, ()> {
        let one = self.under_way.get(&number).ok_or(())?;
        if one.expected.id != answer {
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
        let fits = items <= one.expected.items;
        if let Some(reply) = one.reply {
            // Who no longer waits does not want it.
            let _ = reply.send(if fits { Ok(response) } else { Err(RequestError::WrongAnswer) });
        }
        if fits { Ok(()) } else { Err(()) }
    }

    /// Tells those who have waited too long, which is `limit`. `pauses` is for how long the peer was
    /// not read until now: it has as much more time before it is blamed, as its answer may wait to be
    /// read.
    pub(super) fn expire(&mut self, limit: Duration, pauses: Duration) -> ExpiredRequests {
        let now = Instant::now();
        let mut expired = ExpiredRequests::default();
        for one in self.under_way.values_mut().filter(|one| one.deadline <= now) {
            if let Some(reply) = one.reply.take() {
                // As above.
                let _ = reply.send(Err(RequestError::Timeout(limit)));
                expired.told += 1;
            }
            if !one.is_blamed && one.deadline + pauses.saturating_sub(one.pauses) <= now {
                one.is_blamed = true;
                expired.blamed += 1;
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

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(15);

    fn ask(requests: &mut Requests<()>, pauses: Duration) -> oneshot::Receiver<Answer<()>> {
        let expected = ExpectedAnswer { id: 4, items: 1, bytes: 100 };
        requests.add(expected, LIMIT, pauses, |_| Ok(())).unwrap()
    }

    fn told_and_blamed(requests: &mut Requests<()>, pauses: Duration) -> (usize, usize) {
        let ExpiredRequests { told, blamed } = requests.expire(LIMIT, pauses);
        (told, blamed)
    }

    /// Honest peers were banned for answers that lay in the socket, while the node did not read them.
    #[tokio::test(start_paused = true)]
    async fn a_peer_is_not_blamed_for_the_time_in_which_it_was_not_read() {
        let second = Duration::from_secs(1);
        let mut requests = Requests::default();
        let mut reply = ask(&mut requests, second);
        tokio::time::advance(LIMIT).await;
        // Of these 15 s it was not read for 10.
        assert_eq!(told_and_blamed(&mut requests, second * 11), (1, 0));
        assert_eq!(reply.try_recv(), Ok(Err(RequestError::Timeout(LIMIT))));
        tokio::time::advance(second * 9).await;
        assert_eq!(told_and_blamed(&mut requests, second * 11), (0, 0));
        tokio::time::advance(second).await;
        assert_eq!(told_and_blamed(&mut requests, second * 11), (0, 1));
        assert_eq!(told_and_blamed(&mut requests, second * 11), (0, 0), "once");
        // What comes meanwhile is not held against it.
        let _reply = ask(&mut requests, second * 11);
        tokio::time::advance(LIMIT).await;
        assert_eq!(told_and_blamed(&mut requests, second * 14), (1, 0));
        let number = *requests.under_way.keys().max().unwrap();
        assert_eq!(requests.is_awaited(number, 4), Ok(false));
        tokio::time::advance(LIMIT).await;
        assert_eq!(told_and_blamed(&mut requests, second * 14), (0, 0));
    }

    #[tokio::test]
    async fn an_answer_may_be_as_long_as_that_to_the_largest_request() {
        let mut requests = Requests::<()>::default();
        assert_eq!(requests.expects(4), None);
        for bytes in [7, 9, 8] {
            let expected = ExpectedAnswer { id: 4, items: 1, bytes };
            drop(requests.add(expected, LIMIT, Duration::ZERO, |_| Ok(())).unwrap());
        }
        assert_eq!((requests.expects(4), requests.expects(5)), (Some(9), None));
    }
}
