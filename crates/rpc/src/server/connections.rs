//! How many connections a port has, and which of them are idle.

use parking_lot::Mutex;
use retrie_telemetry::IntCounter;
use std::{collections::BTreeMap, sync::Arc};
use tokio::sync::Notify;

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
        Some(Connection { connections: self.clone(), eviction, idle })
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

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

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
}
