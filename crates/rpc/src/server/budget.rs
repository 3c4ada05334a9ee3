//! Bytes that clients make the node hold: requests on their way in, answers on their way out.
//!
//! All HTTP and WebSocket connections share one [`Buffered`]. The first [`OWN`] bytes of a connection
//! do not count, so that small requests are answered whatever others hold; what goes beyond is taken
//! from what all share, as it comes, and given back when it is dropped, with the connection at the
//! latest. Who finds nothing left waits for [`PATIENCE`], and is then told that the server is busy.
//! Nobody holds anything for ever: requests have to come in time, and answers to be taken
//! ([`writing_time`]).

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

/// Bytes that each connection may hold by itself.
pub(super) const OWN: usize = 64 << 10;
/// How long to wait for others to let go.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes a second that clients have to take of an answer.
const SLOWEST: u64 = 256 << 10;

/// How long writing an answer of so many bytes may take, where a client may stall for so long:
/// taking a byte now and then, it would hold them for ever.
pub(super) fn writing_time(stall_timeout: Duration, bytes: usize) -> Duration {
    stall_timeout + Duration::from_millis((bytes as u64).saturating_mul(1000) / SLOWEST)
}

/// What connections hold together. Cheap to clone; clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Buffered(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    most: usize,
    held: AtomicUsize,
    released: Notify,
}

/// What one connection holds.
#[derive(Debug)]
pub(super) struct Tab {
    buffered: Buffered,
    held: Mutex<usize>,
}

/// Bytes that a connection holds for one purpose; given back when dropped.
#[derive(Debug)]
pub(super) struct Held {
    tab: Arc<Tab>,
    bytes: usize,
}

impl Buffered {
    /// At most so many bytes beyond what connections may hold by themselves.
    pub(super) fn new(most: usize) -> Self {
        let released = Notify::new();
        Self(Arc::new(Shared { most, held: AtomicUsize::new(0), released }))
    }

    /// Any number of bytes: for those who are trusted.
    pub(super) fn unlimited() -> Self {
        Self::new(usize::MAX)
    }

    /// The tab of a new connection.
    pub(super) fn open(&self) -> Arc<Tab> {
        Arc::new(Tab { buffered: self.clone(), held: Mutex::new(0) })
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

    /// How much of what a connection holds counts: not the first bytes, and of what is larger than all
    /// that there is, no more than that, so that it can be held when nothing else is.
    fn counted(&self, held: usize) -> usize {
        held.saturating_sub(OWN).min(self.0.most)
    }
}

impl Tab {
    /// Holds nothing yet.
    pub(super) const fn hold(self: Arc<Self>) -> Held {
        Held { tab: self, bytes: 0 }
    }

    /// Holds so many bytes, as soon as there is room for them; `None` if there is none for too long.
    pub(super) async fn take(self: Arc<Self>, bytes: usize) -> Option<Held> {
        let mut held = self.hold();
        held.grow(bytes).await.then_some(held)
    }

    fn try_change(&self, change: impl FnOnce(usize) -> usize) -> bool {
        let mut held = self.held.lock();
        let new = change(*held);
        let (before, after) = (self.buffered.counted(*held), self.buffered.counted(new));
        // What is larger than all comes first and at once, or not.
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

impl Held {
    /// Holds so many bytes more, if there is room for them now.
    pub(super) fn try_grow(&mut self, bytes: usize) -> bool {
        let is_there = self.tab.try_change(|held| held.saturating_add(bytes));
        if is_there {
            self.bytes += bytes;
        }
        is_there
    }

    /// Holds so many bytes more, as soon as there is room for them; `false` if there is none for too
    /// long.
    pub(super) async fn grow(&mut self, bytes: usize) -> bool {
        let end = Instant::now() + PATIENCE;
        let buffered = self.tab.buffered.clone();
        loop {
            let mut released = pin!(buffered.0.released.notified());
            // From before the try, so that nothing is missed.
            released.as_mut().enable();
            if self.try_grow(bytes) {
                return true;
            }
            if timeout_at(end, released).await.is_err() {
                return false;
            }
        }
    }

    /// Gives so many bytes back.
    pub(super) fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.tab.try_change(|held| held.saturating_sub(bytes));
    }

    /// How many bytes are held.
    #[cfg(test)]
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// What is held so far; from here on this holds nothing.
    pub(super) fn split(&mut self) -> Self {
        Self { tab: self.tab.clone(), bytes: std::mem::take(&mut self.bytes) }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(buffered: &Buffered) -> usize {
        buffered.0.held.load(Ordering::Acquire)
    }

    #[tokio::test(start_paused = true)]
    async fn connections_share_what_is_beyond_their_own() {
        let buffered = Buffered::new(1000);
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
        // What is dropped first does not matter.
        drop(small);
        assert_eq!(held(&buffered), 0);
        let again = other.clone().take(OWN + 1000).await.unwrap();
        assert_eq!(held(&buffered), 1000);
        drop((again, large));
        assert_eq!(held(&buffered), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_is_served_when_others_let_go() {
        let buffered = Buffered::new(1000);
        let large = buffered.open().take(OWN + 1000).await.unwrap();
        let waiting = tokio::spawn(buffered.open().take(OWN + 500));
        tokio::time::sleep(PATIENCE / 2).await;
        drop(large);
        assert!(waiting.await.unwrap().is_some());
        assert_eq!(held(&buffered), 0, "it was dropped with the task");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_larger_than_all_is_held_alone() {
        let buffered = Buffered::new(1000);
        let mut huge = buffered.open().take(1 << 30).await.unwrap();
        assert_eq!(held(&buffered), 1000);
        assert!(buffered.open().take(OWN + 1).await.is_none());
        let moved = huge.split();
        drop(huge);
        assert_eq!(held(&buffered), 1000);
        drop(moved);
        assert_eq!(held(&buffered), 0);
        assert!(Buffered::unlimited().open().take(usize::MAX).await.is_some());
    }
}
