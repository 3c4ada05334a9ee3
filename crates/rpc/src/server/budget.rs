//! Bounds the bytes that clients make the node hold: incoming requests and outgoing responses.
//!
//! All HTTP and WebSocket connections share one [`BufferBudget`]. The first [`OWN`] bytes of a
//! connection are not counted, so small requests are always served. Further bytes are taken from
//! the shared budget as they arrive, and returned when they are dropped, at the latest with the
//! connection. A connection that finds no bytes left waits for [`PATIENCE`] and then gets the error
//! "busy". No client can hold bytes forever: requests must arrive in time, and responses must be
//! read in time ([`writing_time`]).

use parking_lot::Mutex;
use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

/// Bytes that each connection may hold without counting.
pub(super) const OWN: usize = 64 << 10;
/// Longest wait for bytes of other connections.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes per second that a client must read at least.
const SLOWEST: u64 = 256 << 10;

/// Longest time for writing a response of `bytes` bytes to a client that may stall for
/// `stall_timeout`. A stall timeout alone would let a client that reads single bytes hold a
/// response for hours.
pub(super) fn writing_time(stall_timeout: Duration, bytes: usize) -> Duration {
    stall_timeout + Duration::from_millis((bytes as u64).saturating_mul(1000) / SLOWEST)
}

/// The bytes that all connections hold together. Cheap to clone; clones share the budget.
#[derive(Clone, Debug)]
pub(super) struct BufferBudget(Arc<SharedBudget>);

#[derive(Debug)]
struct SharedBudget {
    most: usize,
    held: AtomicUsize,
    released: Notify,
}

/// The bytes that one connection holds.
#[derive(Debug)]
pub(super) struct ConnectionBudget {
    buffered: BufferBudget,
    held: Mutex<usize>,
}

/// Bytes that a connection holds for one purpose; returned on drop.
#[derive(Debug)]
pub(super) struct HeldBytes {
    tab: Arc<ConnectionBudget>,
    bytes: usize,
}

impl BufferBudget {
    /// A budget of `most` bytes beyond the connections' own bytes.
    pub(super) fn new(most: usize) -> Self {
        let released = Notify::new();
        Self(Arc::new(SharedBudget { most, held: AtomicUsize::new(0), released }))
    }

    /// Without a limit, for trusted clients.
    pub(super) fn unlimited() -> Self {
        Self::new(usize::MAX)
    }

    /// The budget of a new connection.
    pub(super) fn open(&self) -> Arc<ConnectionBudget> {
        Arc::new(ConnectionBudget { buffered: self.clone(), held: Mutex::new(0) })
    }

    fn try_take(&self, bytes: usize) -> bool {
        let take = |held: usize| held.checked_add(bytes).filter(|held| *held <= self.0.most);
        bytes == 0 || self.0.held.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).is_ok()
    }

    fn give(&self, bytes: usize) {
        if bytes > 0 {
            self.0.held.fetch_sub(bytes, Ordering::AcqRel);
            self.0.released.notify_waiters();
        }
    }

    /// The counted part of a connection's bytes: without its own bytes, and at most the whole
    /// budget, so that a message larger than the budget can be held when nothing else is.
    fn counted(&self, held: usize) -> usize {
        held.saturating_sub(OWN).min(self.0.most)
    }
}

impl ConnectionBudget {
    /// Holds no bytes yet.
    pub(super) const fn hold(self: Arc<Self>) -> HeldBytes {
        HeldBytes { tab: self, bytes: 0 }
    }

    /// Waits for `bytes` bytes; `None` if they are not free within [`PATIENCE`].
    pub(super) async fn take(self: Arc<Self>, bytes: usize) -> Option<HeldBytes> {
        let mut held = self.hold();
        held.grow(bytes).await.then_some(held)
    }

    fn try_change(&self, change: impl FnOnce(usize) -> usize) -> bool {
        let mut held = self.held.lock();
        let new = change(*held);
        let (before, after) = (self.buffered.counted(*held), self.buffered.counted(new));
        // A message larger than the budget must be taken first and at once.
        let is_too_much = before > 0 && new.saturating_sub(OWN) > self.buffered.0.most;
        if new > *held && (is_too_much || !self.buffered.try_take(after - before)) {
            return false;
        }
        *held = new;
        drop(held);
        self.buffered.give(before.saturating_sub(after));
        true
    }
}

impl HeldBytes {
    /// Takes `bytes` more bytes if they are free now.
    pub(super) fn try_grow(&mut self, bytes: usize) -> bool {
        let is_there = self.tab.try_change(|held| held.saturating_add(bytes));
        if is_there {
            self.bytes += bytes;
        }
        is_there
    }

    /// Waits for `bytes` more bytes; `false` if they are not free within [`PATIENCE`].
    pub(super) async fn grow(&mut self, bytes: usize) -> bool {
        let end = Instant::now() + PATIENCE;
        let buffered = self.tab.buffered.clone();
        loop {
            let mut released = pin!(buffered.0.released.notified());
            // Registered before the try, so that no release is missed.
            released.as_mut().enable();
            if self.try_grow(bytes) {
                return true;
            }
            if timeout_at(end, released).await.is_err() {
                return false;
            }
        }
    }

    /// Returns `bytes` bytes.
    pub(super) fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.tab.try_change(|held| held.saturating_sub(bytes));
    }

    /// The number of held bytes.
    #[cfg(test)]
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Moves all held bytes out; this then holds none.
    pub(super) fn split(&mut self) -> Self {
        Self { tab: self.tab.clone(), bytes: std::mem::take(&mut self.bytes) }
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(buffered: &BufferBudget) -> usize {
        buffered.0.held.load(Ordering::Acquire)
    }

    #[tokio::test(start_paused = true)]
    async fn connections_share_what_is_beyond_their_own() {
        let buffered = BufferBudget::new(1000);
        let (one, other) = (buffered.open(), buffered.open());
        let small = one.clone().take(OWN).await.unwrap();
        assert_eq!(held(&buffered), 0, "its own");
        let mut large = one.clone().take(900).await.unwrap();
        assert_eq!(held(&buffered), 900);
        assert!(large.try_grow(100));
        assert!(!large.try_grow(1));
        assert!(other.clone().take(OWN).await.is_some(), "others have their own");
        let start = Instant::now();
        assert!(other.clone().take(OWN + 1).await.is_none());
        assert_eq!(start.elapsed(), PATIENCE);
        // The order of drops does not matter.
        drop(small);
        assert_eq!(held(&buffered), 0);
        let again = other.clone().take(OWN + 1000).await.unwrap();
        assert_eq!(held(&buffered), 1000);
        drop((again, large));
        assert_eq!(held(&buffered), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_is_served_when_others_let_go() {
        let buffered = BufferBudget::new(1000);
        let large = buffered.open().take(OWN + 1000).await.unwrap();
        let waiting = tokio::spawn(buffered.open().take(OWN + 500));
        tokio::time::sleep(PATIENCE / 2).await;
        drop(large);
        assert!(waiting.await.unwrap().is_some());
        assert_eq!(held(&buffered), 0, "it was dropped with the task");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_larger_than_all_is_held_alone() {
        let buffered = BufferBudget::new(1000);
        let mut huge = buffered.open().take(1 << 30).await.unwrap();
        assert_eq!(held(&buffered), 1000);
        assert!(buffered.open().take(OWN + 1).await.is_none());
        let moved = huge.split();
        drop(huge);
        assert_eq!(held(&buffered), 1000);
        drop(moved);
        assert_eq!(held(&buffered), 0);
        assert!(BufferBudget::unlimited().open().take(usize::MAX).await.is_some());
    }
}
