//! Tracks the connections of a port: their number, which are idle, and which read too slowly.

use parking_lot::Mutex;
use retrie_telemetry::IntCounter;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout_at},
};

/// The connections of one port, at most `limit`.
#[derive(Debug)]
pub(super) struct PortConnections {
    limit: usize,
    state: Mutex<ConnectionStates>,
    /// Counts connections that were refused or evicted.
    lost: Option<IntCounter>,
}

#[derive(Debug, Default)]
struct ConnectionStates {
    open: usize,
    /// Idle connections, the longest idle first.
    idle: BTreeMap<u64, Arc<Notify>>,
    next: u64,
}

impl ConnectionStates {
    fn set_idle(&mut self, eviction: &Arc<Notify>) -> u64 {
        let order = self.next;
        self.next += 1;
        self.idle.insert(order, eviction.clone());
        order
    }
}

/// An open connection; closed on drop.
#[derive(Debug)]
pub(super) struct OpenConnection {
    connections: Arc<PortConnections>,
    eviction: Arc<Notify>,
    requests: Mutex<OpenRequests>,
    writing: watch::Sender<PendingWrites>,
}

/// The requests that a connection works on; with HTTP/2 there may be several.
#[derive(Debug, Default)]
struct OpenRequests {
    count: usize,
    /// Its key in the idle connections, if there are none.
    idle: Option<u64>,
}

/// The responses that are being written on a connection.
#[derive(Debug, Default)]
struct PendingWrites {
    answers: usize,
    /// The deadline of the last response.
    due: Option<Instant>,
}

impl PortConnections {
    pub(super) fn new(limit: usize, lost: Option<IntCounter>) -> Arc<Self> {
        Arc::new(Self { limit: limit.max(1), state: Mutex::default(), lost })
    }

    /// Opens a connection. At the limit, it evicts the connection that is idle for longest; `None`
    /// if no connection is idle.
    pub(super) fn open(self: &Arc<Self>) -> Option<OpenConnection> {
        let mut state = self.state.lock();
        if state.open >= self.limit {
            if let Some(lost) = &self.lost {
                lost.inc();
            }
            let (_, eviction) = state.idle.pop_first()?;
            eviction.notify_one();
        }
        state.open += 1;
        let eviction = Arc::new(Notify::new());
        let idle = Some(state.set_idle(&eviction));
        let requests = Mutex::new(OpenRequests { count: 0, idle });
        let writing = watch::Sender::default();
        Some(OpenConnection { connections: self.clone(), eviction, requests, writing })
    }
}

impl OpenConnection {
    /// Returns when the connection is evicted.
    pub(super) async fn evicted(&self) {
        self.eviction.notified().await;
    }

    /// Marks the connection as busy until the guard is dropped.
    pub(super) fn mark_busy(self: &Arc<Self>) -> BusyGuard {
        let mut state = self.connections.state.lock();
        let mut requests = self.requests.lock();
        requests.count += 1;
        if let Some(order) = requests.idle.take() {
            state.idle.remove(&order);
        }
        drop(requests);
        BusyGuard(self.clone())
    }

    /// Marks a response as being written until the guard is dropped. It has `time` after the
    /// responses before it.
    pub(super) fn mark_writing(self: &Arc<Self>, time: Duration) -> WriteGuard {
        self.writing.send_modify(|writing| {
            writing.answers += 1;
            writing.due = Some(writing.due.unwrap_or_else(Instant::now) + time);
        });
        WriteGuard(self.clone())
    }

    /// Returns when the responses are overdue.
    pub(super) async fn overdue(&self) {
        let mut writing = self.writing.subscribe();
        loop {
            let due = writing.borrow_and_update().due;
            // Never fails, because the sender is a field of `self`.
            let changed = writing.changed();
            match due {
                None => drop(changed.await),
                Some(due) if timeout_at(due, changed).await.is_err() => return,
                Some(_) => {}
            }
        }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let mut state = self.connections.state.lock();
        state.open -= 1;
        if let Some(order) = self.requests.get_mut().idle.take() {
            state.idle.remove(&order);
        }
    }
}

/// Marks a connection as busy.
#[derive(Debug)]
pub(super) struct BusyGuard(Arc<OpenConnection>);

impl Drop for BusyGuard {
    fn drop(&mut self) {
        let mut state = self.0.connections.state.lock();
        let mut requests = self.0.requests.lock();
        requests.count -= 1;
        if requests.count == 0 {
            requests.idle = Some(state.set_idle(&self.0.eviction));
        }
    }
}

/// Marks a response as being written.
#[derive(Debug)]
pub(super) struct WriteGuard(Arc<OpenConnection>);

impl Drop for WriteGuard {
    fn drop(&mut self) {
        self.0.writing.send_modify(|writing| {
            writing.answers -= 1;
            if writing.answers == 0 {
                writing.due = None;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use tokio::time::{sleep, timeout};

    fn is_evicted(connection: &OpenConnection) -> bool {
        connection.evicted().now_or_never().is_some()
    }

    #[test]
    fn a_new_connection_replaces_the_one_idle_for_longest() {
        let connections = PortConnections::new(2, None);
        let first = Arc::new(connections.open().unwrap());
        let second = Arc::new(connections.open().unwrap());
        drop(first.mark_busy());
        let _third = connections.open().unwrap();
        assert!(!is_evicted(&first), "it was active after the second one");
        assert!(is_evicted(&second));
    }

    #[test]
    fn connections_at_work_are_not_replaced() {
        let connections = PortConnections::new(1, None);
        let first = Arc::new(connections.open().unwrap());
        let busy = first.mark_busy();
        assert!(connections.open().is_none());
        drop(busy);
        let second = connections.open().unwrap();
        assert!(is_evicted(&first));
        drop((first, second));
        let state = connections.state.lock();
        assert_eq!((state.open, state.idle.len()), (0, 0));
    }

    /// Cause: each request that ended made its connection idle, also beside others, and left an entry
    /// behind.
    #[test]
    fn a_connection_is_idle_after_the_last_of_its_requests() {
        let connections = PortConnections::new(1, None);
        let first = Arc::new(connections.open().unwrap());
        let (one, other) = (first.mark_busy(), first.mark_busy());
        drop(one);
        assert!(connections.open().is_none(), "another request is open");
        drop(other);
        assert_eq!(connections.state.lock().idle.len(), 1);
        drop(first);
        let state = connections.state.lock();
        assert_eq!((state.open, state.idle.len()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn answers_are_overdue_when_their_time_is_up_and_never_once_they_are_written() {
        const TIME: Duration = Duration::from_secs(10);
        let connections = PortConnections::new(1, None);
        let connection = Arc::new(connections.open().unwrap());
        let is_overdue = async |within| timeout(within, connection.overdue()).await.is_ok();
        assert!(!is_overdue(10 * TIME).await, "nothing is written");
        let first = connection.mark_writing(TIME);
        sleep(TIME / 2).await;
        // Two concurrent requests: the second response waits for the first.
        let second = connection.mark_writing(TIME);
        drop(first);
        assert!(!is_overdue(TIME).await);
        assert!(is_overdue(TIME).await);
        drop(second);
        assert!(!is_overdue(10 * TIME).await, "all are written");
        // A response that starts while `overdue` waits.
        let overdue = tokio::spawn({
            let connection = connection.clone();
            async move { connection.overdue().await }
        });
        sleep(TIME).await;
        let start = Instant::now();
        let _third = connection.mark_writing(TIME);
        overdue.await.unwrap();
        assert_eq!(start.elapsed(), TIME);
    }
}
