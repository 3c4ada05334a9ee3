//! The open requests to one peer, until they are answered, time out or are cancelled.

use super::run::SessionEnd;
use crate::handle::RequestError;
use std::{collections::HashMap, time::Duration};
use tokio::{sync::oneshot, time::Instant};

/// Maximum number of open requests of one protocol to a peer.
const MAX_IN_FLIGHT: usize = 16;

/// After a timeout, a late answer is accepted and ignored for this long.
const LATE: Duration = Duration::from_secs(120);

pub(super) type RequestResult<R> = Result<R, RequestError>;

/// What a valid answer to a request must be.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpectedAnswer {
    /// Its message id.
    pub(super) id: u8,
    /// Its maximum number of items.
    pub(super) items: usize,
    /// Its maximum number of bytes.
    pub(super) bytes: usize,
}

/// An open request.
#[derive(Debug)]
struct PendingRequest<R> {
    expected: ExpectedAnswer,
    /// Receives the answer; `None` after the timeout.
    reply: Option<oneshot::Sender<RequestResult<R>>>,
    deadline: Instant,
    /// The sum of all reading pauses when the request was sent.
    pauses: Duration,
    /// Whether the peer has been reported for the missing answer.
    is_blamed: bool,
}

/// Requests that have timed out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ExpiredRequests {
    /// Requests whose callers have got the timeout.
    pub(super) told: usize,
    /// Requests for which the peer is to blame: this node was reading for the whole time.
    pub(super) blamed: usize,
}

/// The open requests of one protocol, whose answers are of type `R`.
#[derive(Debug)]
pub(super) struct RequestTable<R> {
    next: u64,
    under_way: HashMap<u64, PendingRequest<R>>,
    over: bool,
}

impl<R> Default for RequestTable<R> {
    fn default() -> Self {
        Self { next: rand::random::<u32>().into(), under_way: HashMap::new(), over: false }
    }
}

impl<R> RequestTable<R> {
    /// Adds a request, which `send` sends with the given request id. The receiver gets the answer,
    /// or the error. `pauses` is the sum of all reading pauses until now.
    pub(super) fn add(
        &mut self,
        expected: ExpectedAnswer,
        limit: Duration,
        pauses: Duration,
        send: impl FnOnce(u64) -> Result<(), SendError>,
    ) -> Result<oneshot::Receiver<RequestResult<R>>, RequestError> {
        if self.over {
            return Err(RequestError::NotConnected);
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
        let one = PendingRequest { expected, reply, deadline, pauses, is_blamed: false };
        self.under_way.insert(number, one);
        Ok(receiver)
    }

    /// The maximum number of bytes of an answer with this message id; `None` if none is expected.
    pub(super) fn expects(&self, answer: u8) -> Option<usize> {
        let all = self.under_way.values().map(|one| one.expected);
        all.filter(|expected| expected.id == answer).map(|expected| expected.bytes).max()
    }

    /// Whether a caller waits for the answer to this request. If none does any more, the request is
    /// removed. `Err` if there was no such request.
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

    /// As [`is_awaited`](Self::is_awaited), with the request id that the answer has, if any.
    pub(super) fn awaits(&mut self, number: Option<u64>, answer: u8) -> Result<bool, SessionEnd> {
        let awaited = number.ok_or(()).and_then(|number| self.is_awaited(number, answer));
        awaited.map_err(|()| SessionEnd::breach("it answers a request that was not sent"))
    }

    /// Hands an answer with `items` items to its caller. The session ends if it has more than were asked for.
    pub(super) fn answer(
        &mut self,
        number: u64,
        response: R,
        items: usize,
    ) -> Result<(), SessionEnd> {
        let Some(one) = self.under_way.remove(&number) else { return Ok(()) };
        let fits = items <= one.expected.items;
        if let Some(reply) = one.reply {
            // The caller may have given up.
            let _ = reply.send(if fits { Ok(response) } else { Err(RequestError::WrongAnswer) });
        }
        match fits {
            true => Ok(()),
            false => Err(SessionEnd::breach("its answer has more than was asked for")),
        }
    }

    /// Fails the requests that have been open for longer than `limit`. `pauses` is the sum of all
    /// reading pauses until now: the peer gets that much more time before it is blamed, since its
    /// answer may be in the socket.
    pub(super) fn expire(&mut self, limit: Duration, pauses: Duration) -> ExpiredRequests {
        let now = Instant::now();
        let mut expired = ExpiredRequests::default();
        for one in self.under_way.values_mut().filter(|one| one.deadline <= now) {
            if let Some(reply) = one.reply.take() {
                // The caller may have given up.
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

    /// Fails all open requests: the peer is gone.
    pub(super) fn close(&mut self) {
        self.over = true;
        for (_, one) in self.under_way.drain() {
            if let Some(reply) = one.reply {
                // The caller may have given up.
                let _ = reply.send(Err(RequestError::NotConnected));
            }
        }
    }
}

/// Why a request was not sent.
pub(super) enum SendError {
    /// The write queue is full.
    Full,
    /// Another error.
    Failed(RequestError),
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(15);

    fn ask(
        requests: &mut RequestTable<()>,
        pauses: Duration,
    ) -> oneshot::Receiver<RequestResult<()>> {
        let expected = ExpectedAnswer { id: 4, items: 1, bytes: 100 };
        requests.add(expected, LIMIT, pauses, |_| Ok(())).unwrap()
    }

    fn told_and_blamed(requests: &mut RequestTable<()>, pauses: Duration) -> (usize, usize) {
        let ExpiredRequests { told, blamed } = requests.expire(LIMIT, pauses);
        (told, blamed)
    }

    /// Regression: honest peers were banned for answers that lay in the socket while the node did
    /// not read.
    #[tokio::test(start_paused = true)]
    async fn a_peer_is_not_blamed_for_the_time_in_which_it_was_not_read() {
        let second = Duration::from_secs(1);
        let mut requests = RequestTable::default();
        let mut reply = ask(&mut requests, second);
        tokio::time::advance(LIMIT).await;
        // For 10 of these 15 s the peer was not read.
        assert_eq!(told_and_blamed(&mut requests, second * 11), (1, 0));
        assert_eq!(reply.try_recv(), Ok(Err(RequestError::Timeout(LIMIT))));
        tokio::time::advance(second * 9).await;
        assert_eq!(told_and_blamed(&mut requests, second * 11), (0, 0));
        tokio::time::advance(second).await;
        assert_eq!(told_and_blamed(&mut requests, second * 11), (0, 1));
        assert_eq!(told_and_blamed(&mut requests, second * 11), (0, 0), "once");
        // A late answer is accepted.
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
        let mut requests = RequestTable::<()>::default();
        assert_eq!(requests.expects(4), None);
        for bytes in [7, 9, 8] {
            let expected = ExpectedAnswer { id: 4, items: 1, bytes };
            drop(requests.add(expected, LIMIT, Duration::ZERO, |_| Ok(())).unwrap());
        }
        assert_eq!((requests.expects(4), requests.expects(5)), (Some(9), None));
    }
}
