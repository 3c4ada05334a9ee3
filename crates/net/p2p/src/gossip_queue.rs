//! The queue of gossip between the sessions, which read it, and the gossip task, which handles it.
//!
//! ```text
//!  session --push, never waits--> lane of the peer ---.
//!  session --push, never waits--> lane of the peer ---'-- round robin --> recv: the gossip task
//! ```
//!
//! | for each peer | at most |
//! |---|---|
//! | hashes and transactions together | 2,000 a second, 16,384 at once |
//! | memory of gossip that is not judged yet | 1 MiB |
//! | hashes that are handled before the next peer's turn | 1,024 |
//!
//! Gossip of a peer beyond these limits is dropped. No peer can fill the lane of another peer or
//! make a session wait, so requests, answers and pings pass however much gossip other peers send.

use crate::{
    eth::{NewPooledTransactionHashes, PeerId, PooledTransaction, TxGossip},
    rate::TokenBucket,
};
use alloy_eips::eip2718::Encodable2718;
use parking_lot::Mutex;
use std::{
    collections::{HashMap, VecDeque},
    mem,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Instant,
};
use tokio::sync::Notify;

/// Hashes that are handled in one turn of a peer.
const TURN_HASHES: usize = 1024;

/// Bytes of an announced hash in memory, with its type and size.
const HASH_BYTES: usize = 41;

/// Limits on the gossip of one peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GossipLimits {
    /// Bytes in memory of gossip that the pool has not judged yet.
    pub(crate) bytes: usize,
    /// Hashes and transactions in a second.
    pub(crate) items_per_second: u32,
    /// Hashes and transactions at once.
    pub(crate) items: u32,
}

impl Default for GossipLimits {
    /// 1 MiB; 2,000 a second and 16,384 at once.
    fn default() -> Self {
        Self { bytes: 1 << 20, items_per_second: 2_000, items: 16_384 }
    }
}

/// One gossip message of a peer.
#[derive(Debug)]
pub struct ReceivedGossip {
    /// The peer that sent it.
    pub peer: PeerId,
    /// The message.
    pub gossip: TxGossip,
    /// The part of the peer's memory budget that the message uses.
    pub(crate) permit: SharePermit,
}

/// A part of a peer's memory budget. Dropping it gives the bytes back.
#[derive(Debug)]
pub(crate) struct SharePermit {
    used: Arc<AtomicUsize>,
    bytes: usize,
}

impl SharePermit {
    /// Splits off the part that one transaction uses.
    pub(crate) fn split(&mut self, transaction: &PooledTransaction) -> Self {
        let bytes = transaction_bytes(transaction).min(self.bytes);
        self.bytes -= bytes;
        Self { used: self.used.clone(), bytes }
    }
}

impl Drop for SharePermit {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Bytes of a transaction in memory, approximately.
fn transaction_bytes(transaction: &PooledTransaction) -> usize {
    size_of::<PooledTransaction>() + transaction.encode_2718_len()
}

/// The waiting messages of one session.
#[derive(Debug)]
struct GossipLane {
    peer: PeerId,
    waiting: VecDeque<(TxGossip, SharePermit)>,
}

#[derive(Debug, Default)]
struct LaneTable {
    by_session: HashMap<u64, GossipLane>,
    /// Sessions whose lanes are not empty, in the order of their turns.
    turns: VecDeque<u64>,
    next_session: u64,
    /// Whether the receiver is dropped.
    is_deaf: bool,
}

#[derive(Debug)]
struct GossipQueue {
    lanes: Mutex<LaneTable>,
    wake: Notify,
    limits: GossipLimits,
    dropped: AtomicU64,
    senders: AtomicUsize,
}

/// Makes a queue with a lane for each session.
pub(crate) fn channel(limits: GossipLimits) -> (GossipSender, GossipReceiver) {
    let queue = Arc::new(GossipQueue {
        lanes: Mutex::default(),
        wake: Notify::new(),
        limits,
        dropped: AtomicU64::new(0),
        senders: AtomicUsize::new(1),
    });
    (GossipSender(queue.clone()), GossipReceiver(queue))
}

/// Opens lanes in the queue.
#[derive(Debug)]
pub(crate) struct GossipSender(Arc<GossipQueue>);

impl GossipSender {
    /// Opens a lane for a peer whose session begins.
    pub(crate) fn share(&self, peer: PeerId) -> GossipShare {
        let queue = self.0.clone();
        queue.senders.fetch_add(1, Ordering::Relaxed);
        let session = {
            let mut lanes = queue.lanes.lock();
            lanes.next_session += 1;
            lanes.next_session
        };
        let limits = (queue.limits.items_per_second, queue.limits.items);
        let items = TokenBucket::new(limits, now());
        GossipShare { queue, session, peer, used: Arc::default(), items }
    }
}

impl Drop for GossipSender {
    fn drop(&mut self) {
        self.0.sender_is_gone();
    }
}

impl GossipQueue {
    fn sender_is_gone(&self) {
        if self.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.wake.notify_one();
        }
    }
}

/// The clock of tokio, so that tests can set it.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// The lane of one session, and the limits of its peer.
#[derive(Debug)]
pub(crate) struct GossipShare {
    queue: Arc<GossipQueue>,
    session: u64,
    peer: PeerId,
    used: Arc<AtomicUsize>,
    items: TokenBucket,
}

impl GossipShare {
    /// Bytes that the peer's memory budget has left.
    pub(crate) fn room(&self) -> usize {
        self.queue.limits.bytes.saturating_sub(self.used.load(Ordering::Relaxed))
    }

    /// Queues what the peer has sent, as far as its limits allow. Returns how many hashes or
    /// transactions were dropped. Never waits.
    pub(crate) fn push(&mut self, gossip: TxGossip) -> usize {
        let (taken, dropped) = match gossip {
            TxGossip::Hashes(hashes) => self.take_hashes(hashes),
            TxGossip::Transactions(transactions) => self.take_transactions(transactions),
        };
        self.queue.dropped.fetch_add(dropped as u64, Ordering::Relaxed);
        if taken.is_empty() {
            return dropped;
        }
        let mut guard = self.queue.lanes.lock();
        let lanes = &mut *guard;
        if lanes.is_deaf {
            return dropped;
        }
        let new = || GossipLane { peer: self.peer, waiting: VecDeque::new() };
        let lane = lanes.by_session.entry(self.session).or_insert_with(new);
        if lane.waiting.is_empty() {
            lanes.turns.push_back(self.session);
        }
        lane.waiting.extend(taken);
        drop(guard);
        self.queue.wake.notify_one();
        dropped
    }

    fn permit(&self, bytes: usize) -> SharePermit {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        SharePermit { used: self.used.clone(), bytes }
    }

    fn take_hashes(
        &mut self,
        mut hashes: NewPooledTransactionHashes,
    ) -> (Vec<(TxGossip, SharePermit)>, usize) {
        let told = hashes.hashes.len();
        let most = self.items.take(told.min(self.room() / HASH_BYTES), now());
        hashes.truncate(most);
        let mut taken = Vec::with_capacity(most.div_ceil(TURN_HASHES));
        while !hashes.hashes.is_empty() {
            let rest = hashes.split_off(TURN_HASHES);
            let turn = mem::replace(&mut hashes, rest);
            let permit = self.permit(turn.hashes.len() * HASH_BYTES);
            taken.push((TxGossip::Hashes(turn), permit));
        }
        (taken, told - most)
    }

    fn take_transactions(
        &mut self,
        mut transactions: Vec<PooledTransaction>,
    ) -> (Vec<(TxGossip, SharePermit)>, usize) {
        let (told, room) = (transactions.len(), self.room());
        let (mut bytes, mut most) = (0, 0);
        for transaction in &transactions {
            let with = bytes + transaction_bytes(transaction);
            if with > room {
                break;
            }
            (bytes, most) = (with, most + 1);
        }
        most = self.items.take(most, now());
        transactions.truncate(most);
        if most == 0 {
            return (Vec::new(), told);
        }
        let bytes = transactions.iter().map(transaction_bytes).sum();
        let permit = self.permit(bytes);
        (vec![(TxGossip::Transactions(transactions), permit)], told - most)
    }
}

impl Drop for GossipShare {
    fn drop(&mut self) {
        // The gossip task still handles what is in the lane.
        self.queue.sender_is_gone();
    }
}

/// The end of the queue that the gossip task reads.
#[derive(Debug)]
pub struct GossipReceiver(Arc<GossipQueue>);

impl GossipReceiver {
    /// The next message, of the peer whose turn it is. `None` once all senders are dropped and the
    /// lanes are empty. Cancel safe: dropping the future loses no message.
    pub async fn recv(&mut self) -> Option<ReceivedGossip> {
        loop {
            // Read before the lanes: the last sender may push a message before it is dropped.
            let is_over = self.0.senders.load(Ordering::Acquire) == 0;
            let next = self.0.lanes.lock().next();
            if next.is_some() || is_over {
                return next;
            }
            self.0.wake.notified().await;
        }
    }

    /// How many hashes and transactions were dropped since the last call.
    pub(crate) fn take_dropped(&self) -> u64 {
        self.0.dropped.swap(0, Ordering::Relaxed)
    }
}

impl Drop for GossipReceiver {
    fn drop(&mut self) {
        let mut lanes = self.0.lanes.lock();
        lanes.is_deaf = true;
        let waiting = mem::take(&mut lanes.by_session);
        lanes.turns.clear();
        drop(lanes);
        drop(waiting);
    }
}

impl LaneTable {
    fn next(&mut self) -> Option<ReceivedGossip> {
        let session = self.turns.pop_front()?;
        let lane = self.by_session.get_mut(&session)?;
        let (gossip, permit) = lane.waiting.pop_front()?;
        let peer = lane.peer;
        if lane.waiting.is_empty() {
            self.by_session.remove(&session);
        } else {
            self.turns.push_back(session);
        }
        Some(ReceivedGossip { peer, gossip, permit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_consensus::{SignableTransaction, TxLegacy};
    use alloy_primitives::{B256, Bytes, Signature, U256};
    use std::time::Duration;

    fn peer(name: u8) -> PeerId {
        PeerId::repeat_byte(name)
    }

    fn hashes(count: usize) -> TxGossip {
        TxGossip::Hashes(NewPooledTransactionHashes {
            types: vec![2; count],
            sizes: vec![100; count],
            hashes: vec![B256::repeat_byte(9); count],
            ..Default::default()
        })
    }

    fn transactions(count: u64, bytes: usize) -> TxGossip {
        let made = |nonce| {
            let tx = TxLegacy { nonce, input: Bytes::from(vec![1; bytes]), ..TxLegacy::default() };
            tx.into_signed(Signature::new(U256::ONE, U256::ONE, false)).into()
        };
        TxGossip::Transactions((0..count).map(made).collect())
    }

    const fn count(heard: &ReceivedGossip) -> usize {
        match &heard.gossip {
            TxGossip::Hashes(hashes) => hashes.hashes.len(),
            TxGossip::Transactions(transactions) => transactions.len(),
        }
    }

    /// Regression: the messages of one peer stood before all messages of the others.
    #[tokio::test]
    async fn peers_take_turns_however_much_one_tells() {
        let (sender, mut receiver) = channel(GossipLimits::default());
        let (mut first, mut second) = (sender.share(peer(1)), sender.share(peer(2)));
        assert_eq!(first.push(hashes(4_000)), 0);
        assert_eq!(first.push(hashes(4_000)), 0);
        assert_eq!(second.push(hashes(3)), 0);
        let mut order = Vec::new();
        for _ in 0..9 {
            let heard = receiver.recv().await.unwrap();
            order.push((heard.peer[0], count(&heard)));
        }
        assert_eq!(order[..3], [(1, 1024), (2, 3), (1, 1024)]);
        assert_eq!(order.iter().map(|(_, count)| count).sum::<usize>(), 8_003);
    }

    #[tokio::test]
    async fn a_peer_has_no_more_in_memory_than_its_share() {
        let limits = GossipLimits { bytes: 100 << 10, ..GossipLimits::default() };
        let (sender, mut receiver) = channel(limits);
        let (mut first, mut second) = (sender.share(peer(1)), sender.share(peer(2)));
        let dropped = first.push(transactions(20, 10 << 10));
        assert!((11..=12).contains(&dropped), "{dropped}");
        assert_eq!(first.push(transactions(1, 10 << 10)), 1);
        assert!(first.room() < 11 << 10);
        assert_eq!(second.push(transactions(5, 10 << 10)), 0, "of another peer");
        assert_eq!(receiver.take_dropped(), dropped as u64 + 1);
        // Memory comes back as the transactions are judged, one by one.
        let mut heard = receiver.recv().await.unwrap();
        let TxGossip::Transactions(all) = &heard.gossip else { panic!("{heard:?}") };
        let one = heard.permit.split(&all[0]);
        assert_eq!(first.push(transactions(1, 10 << 10)), 1);
        drop(one);
        assert_eq!(first.push(transactions(1, 10 << 10)), 0);
        drop((receiver.recv().await, receiver.recv().await, heard));
        assert_eq!((first.room(), second.room()), (limits.bytes, limits.bytes));
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_tells_no_more_items_than_its_rate() {
        let limits = GossipLimits { items_per_second: 100, items: 500, ..GossipLimits::default() };
        let (sender, mut receiver) = channel(limits);
        let mut share = sender.share(peer(1));
        assert_eq!(share.push(hashes(400)), 0);
        assert_eq!(share.push(transactions(300, 0)), 200);
        assert_eq!(share.push(hashes(9)), 9);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(share.push(hashes(1_000)), 800);
        let mut all = 0;
        for _ in 0..3 {
            all += count(&receiver.recv().await.unwrap());
        }
        assert_eq!(all, 700);
    }

    #[tokio::test]
    async fn it_ends_with_the_last_who_can_tell_and_nothing_is_kept_for_nobody() {
        let (sender, mut receiver) = channel(GossipLimits::default());
        let mut share = sender.share(peer(1));
        share.push(hashes(1));
        drop((sender, share));
        assert!(receiver.recv().await.is_some(), "its last words");
        assert!(receiver.recv().await.is_none());
        let (sender, receiver) = channel(GossipLimits::default());
        let mut share = sender.share(peer(1));
        share.push(hashes(1));
        drop(receiver);
        share.push(hashes(1));
        assert_eq!(share.room(), GossipLimits::default().bytes);
        assert!(sender.0.lanes.lock().by_session.is_empty());
    }
}
