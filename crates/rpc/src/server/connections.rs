//! How many connections a port has, which of them are idle, and which take their answers too slowly.

use parking_lot::Mutex;
use retrie_telemetry::IntCounter;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout_at},
};

/// The connections of one port, at most `limit`.
#[derive(Debug)]
pub(super) struct Connections {
    limit: usize,
    state: Mutex<State>,
    /// Counts those that found no place or lost theirs.
    lost: Option<IntCounter>,
}

#[derive(Debug, Default)]
struct State {
    open: usize,
    /// Idle connections in the order in which they became so.
    idle: BTreeMap<u64, Arc<Notify>>,
    next: u64,
}

impl State {
    fn set_idle(&mut self, eviction: &Arc<Notify>) -> u64 {
        let order = self.next;
        self.next += 1;
        self.idle.insert(order, eviction.clone());
        order
    }
}

/// One of them; closed when dropped.
#[derive(Debug)]
pub(super) struct Connection {
    connections: Arc<Connections>,
    eviction: Arc<Notify>,
    /// Its place among the idle ones.
    idle: Mutex<Option<u64>>,
    writing: watch::Sender<Writing>,
}

/// The answers that are being written on a connection.
#[derive(Debug, Default)]
struct Writing {
    answers: usize,
    /// When the last of them has to be written.
    due: Option<Instant>,
}

impl Connections {
    pub(super) fn new(limit: usize, lost: Option<IntCounter>) -> Arc<Self> {
        Arc::new(Self { limit: limit.max(1), state: Mutex::default(), lost })
    }

    /// Leave for one more, in place of the one idle for longest if there are as many as may be;
    /// `None` if none is idle.
    pub(super) fn open(self: &Arc<Self>) -> Option<Connection> {
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
        let idle = Mutex::new(Some(state.set_idle(&eviction)));
        let writing = watch::Sender::default();
        Some(Connection { connections: self.clone(), eviction, idle, writing })
    }
}

impl Connection {
    /// Returns when the connection has to make room for another one.
    pub(super) async fn evicted(&self) {
        self.eviction.notified().await;
    }

    /// Says that a request is under way, until what this returns is dropped.
    pub(super) fn busy(self: &Arc<Self>) -> Busy {
        let mut state = self.connections.state.lock();
        if let Some(order) = self.idle.lock().take() {
            state.idle.remove(&order);
        }
        Busy(self.clone())
    }

    /// Says that an answer is being written, until what this returns is dropped. It may take so much
    /// time once those before it are written.
    pub(super) fn answering(self: &Arc<Self>, time: Duration) -> Answering {
        self.writing.send_modify(|writing| {
            writing.answers += 1;
            writing.due = Some(writing.due.unwrap_or_else(Instant::now) + time);
        });
        Answering(self.clone())
    }

    /// Returns when the answers that are being written have taken too long.
    pub(super) async fn overdue(&self) {
        let mut writing = self.writing.subscribe();
        loop {
            let due = writing.borrow_and_update().due;
            // It never fails: the sender is here.
            let changed = writing.changed();
            match due {
                None => drop(changed.await),
                Some(due) if timeout_at(due, changed).await.is_err() => return,
                Some(_) => {}
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut state = self.connections.state.lock();
        state.open -= 1;
        if let Some(order) = self.idle.get_mut().take() {
            state.idle.remove(&order);
        }
    }
}

/// A request of a connection is under way.
#[derive(Debug)]
pub(super) struct Busy(Arc<Connection>);

impl Drop for Busy {
    fn drop(&mut self) {
        let mut state = self.0.connections.state.lock();
        let order = state.set_idle(&self.0.eviction);
        *self.0.idle.lock() = Some(order);
    }
}

/// An answer of a connection is being written.
#[derive(Debug)]
pub(super) struct Answering(Arc<Connection>);

impl Drop for Answering {
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

    fn is_evicted(connection: &Connection) -> bool {
        connection.evicted().now_or_never().is_some()
    }

    #[test]
    fn a_new_connection_replaces_the_one_idle_for_longest() {
        let connections = Connections::new(2, None);
        let first = Arc::new(connections.open().unwrap());
        let second = Arc::new(connections.open().unwrap());
        drop(first.busy());
        let _third = connections.open().unwrap();
        assert!(!is_evicted(&first), "it was active after the second one");
        assert!(is_evicted(&second));
    }

    #[test]
    fn connections_at_work_are_not_replaced() {
        let connections = Connections::new(1, None);
        let first = Arc::new(connections.open().unwrap());
        let busy = first.busy();
        assert!(connections.open().is_none());
        drop(busy);
        let second = connections.open().unwrap();
        assert!(is_evicted(&first));
        drop((first, second));
        let state = connections.state.lock();
        assert_eq!((state.open, state.idle.len()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn answers_are_overdue_when_their_time_is_up_and_never_once_they_are_written() {
        const TIME: Duration = Duration::from_secs(10);
        let connections = Connections::new(1, None);
        let connection = Arc::new(connections.open().unwrap());
        let is_overdue = async |within| timeout(within, connection.overdue()).await.is_ok();
        assert!(!is_overdue(10 * TIME).await, "nothing is written");
        let first = connection.answering(TIME);
        sleep(TIME / 2).await;
        // Two requests that were sent at once: the second answer waits for the first.
        let second = connection.answering(TIME);
        drop(first);
        assert!(!is_overdue(TIME).await);
        assert!(is_overdue(TIME).await);
        drop(second);
        assert!(!is_overdue(10 * TIME).await, "all are written");
        // What begins while somebody looks.
        let overdue = tokio::spawn({
            let connection = connection.clone();
            async move { connection.overdue().await }
        });
        sleep(TIME).await;
        let start = Instant::now();
        let _third = connection.answering(TIME);
        overdue.await.unwrap();
        assert_eq!(start.elapsed(), TIME);
    }
}
