//! The order in which the pool judges transactions.
//!
//! Each peer has a queue. The peer that has cost least is next (start-time fair queueing); among
//! equals, the one whose next transaction costs least. So a peer that sends little is next, however
//! much others send, and its second transaction comes after one of each other peer. The work for a
//! peer is bounded by a rate, even if no other peer has any.
//!
//! | cost of a transaction | |
//! |---|---|
//! | base | 1: one signature recovery, one account read |
//! | each authorization (EIP-7702) | 1: one signature recovery |
//! | each blob (EIP-4844) | 128: that many cell proofs (EIP-7594); one proof of EIP-4844 takes as long |

use super::{GossipEvent, TxPool};
use crate::{
    eth::{PeerId, PooledTransaction},
    gossip_queue::SharePermit,
    rate::TokenBucket,
};
use alloy_consensus::Transaction as _;
use parking_lot::{Condvar, Mutex};
use std::{
    collections::{BTreeMap, VecDeque},
    io,
    sync::Arc,
    time::Instant,
};
use tokio::sync::mpsc;

/// Cost of a peer's transactions: a second, and at once. One unit takes about 60 to 100 us.
const RATE: (u32, u32) = (2_000, 10_000);

/// Cost of a blob.
const BLOB_COST: u32 = 128;

/// Maximum number of transactions that are kept of peers that are gone.
const MOST_LEFT: usize = 256;

/// A transaction to be judged.
#[derive(Debug)]
pub(super) struct JudgeJob {
    pub(super) peer: PeerId,
    pub(super) transaction: PooledTransaction,
    /// Its part of the peer's memory budget, if it was sent without a request.
    pub(super) permit: Option<SharePermit>,
}

impl JudgeJob {
    fn cost(&self) -> u32 {
        let authorizations = self.transaction.authorization_count().unwrap_or(0);
        let blobs = self.transaction.blob_versioned_hashes().map_or(0, <[_]>::len);
        let authorizations = u32::try_from(authorizations).unwrap_or(u32::MAX);
        let blobs = u32::try_from(blobs).unwrap_or(u32::MAX);
        blobs.saturating_mul(BLOB_COST).saturating_add(authorizations).saturating_add(1)
    }
}

/// The queue of a peer, and its cost so far.
#[derive(Debug)]
struct JudgeAccount {
    waiting: VecDeque<JudgeJob>,
    /// The start time of its next transaction, on a virtual clock that advances with the cost of
    /// judged transactions.
    start: u64,
    budget: TokenBucket,
}

/// What the thread does next.
#[derive(Debug)]
enum JudgeTurn {
    Judge(Box<JudgeJob>),
    WaitUntil(Instant),
    Wait,
}

/// The queues of all peers.
#[derive(Debug, Default)]
struct JudgeQueues {
    /// All peers that are gone share one queue, under `None`.
    accounts: BTreeMap<Option<PeerId>, JudgeAccount>,
    clock: u64,
    is_over: bool,
}

impl JudgeQueues {
    fn account(&mut self, peer: Option<PeerId>, now: Instant) -> &mut JudgeAccount {
        let start = self.clock;
        self.accounts.entry(peer).or_insert_with(|| JudgeAccount {
            waiting: VecDeque::new(),
            start,
            budget: TokenBucket::new(RATE, now),
        })
    }

    fn push(&mut self, job: JudgeJob, now: Instant) {
        self.account(Some(job.peer), now).waiting.push_back(job);
    }

    fn leave(&mut self, jobs: impl IntoIterator<Item = JudgeJob>, now: Instant) {
        let left = &mut self.account(None, now).waiting;
        let room = MOST_LEFT.saturating_sub(left.len());
        // Blob transactions are large; other peers are asked for them again.
        let jobs = jobs.into_iter().filter(|job| !job.transaction.is_eip4844());
        left.extend(jobs.take(room));
    }

    fn next(&mut self, now: Instant) -> JudgeTurn {
        let (mut next, mut soonest) = (None, None);
        for (peer, account) in &mut self.accounts {
            let Some(job) = account.waiting.front() else { continue };
            let wait = account.budget.wait(now);
            if !wait.is_zero() {
                let at = now + wait;
                soonest = Some(soonest.map_or(at, |soonest: Instant| soonest.min(at)));
                continue;
            }
            // A peer that had no transactions or no budget gains no advantage from that.
            let turn = (account.start.max(self.clock), job.cost());
            if next.is_none_or(|(_, first)| turn < first) {
                next = Some((*peer, turn));
            }
        }
        let Some((peer, (start, cost))) = next else {
            return soonest.map_or(JudgeTurn::Wait, JudgeTurn::WaitUntil);
        };
        self.clock = start;
        let Some(account) = self.accounts.get_mut(&peer) else { return JudgeTurn::Wait };
        let Some(job) = account.waiting.pop_front() else { return JudgeTurn::Wait };
        account.start = start.saturating_add(cost.into());
        account.budget.spend(cost, now);
        JudgeTurn::Judge(Box::new(job))
    }
}

/// The queues, and the thread that takes from them. The thread ends when this is dropped.
#[derive(Debug)]
pub(super) struct PoolJudge(Arc<JudgeShared>);

#[derive(Debug, Default)]
struct JudgeShared {
    queues: Mutex<JudgeQueues>,
    wake: Condvar,
}

impl PoolJudge {
    /// Starts the thread `name`, which hands transactions to the pool and sends the verdicts to
    /// `news`.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(super) fn start(
        name: &str,
        pool: Arc<dyn TxPool>,
        news: mpsc::UnboundedSender<GossipEvent>,
    ) -> io::Result<Self> {
        let shared = Arc::<JudgeShared>::default();
        let of_thread = shared.clone();
        std::thread::Builder::new().name(name.into()).spawn(move || {
            while let Some(JudgeJob { peer, transaction, permit }) = of_thread.take() {
                let hash = *transaction.tx_hash();
                let verdict = pool.add(transaction);
                drop(permit);
                if news.send(GossipEvent::Judged(peer, hash, verdict)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self(shared))
    }

    /// Queues a transaction of a connected peer.
    pub(super) fn push(&self, job: JudgeJob) {
        self.0.queues.lock().push(job, Instant::now());
        self.0.wake.notify_one();
    }

    /// Queues a transaction of a peer that is gone.
    pub(super) fn push_orphan(&self, job: JudgeJob) {
        self.0.queues.lock().leave([job], Instant::now());
        self.0.wake.notify_one();
    }

    /// Moves the queue of a peer that is gone to the shared one.
    pub(super) fn forget(&self, peer: PeerId) {
        let mut queues = self.0.queues.lock();
        if let Some(account) = queues.accounts.remove(&Some(peer)) {
            queues.leave(account.waiting, Instant::now());
        }
    }
}

impl Drop for PoolJudge {
    fn drop(&mut self) {
        self.0.queues.lock().is_over = true;
        self.0.wake.notify_one();
    }
}

impl JudgeShared {
    /// The next transaction, once there is one; `None` after the drop.
    fn take(&self) -> Option<JudgeJob> {
        let mut queues = self.queues.lock();
        loop {
            if queues.is_over {
                return None;
            }
            match queues.next(Instant::now()) {
                JudgeTurn::Judge(job) => return Some(*job),
                JudgeTurn::WaitUntil(time) => {
                    self.wake.wait_until(&mut queues, time);
                }
                JudgeTurn::Wait => self.wake.wait(&mut queues),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_consensus::{SignableTransaction, TxEip7702, TxLegacy};
    use alloy_eips::eip7702::{Authorization, SignedAuthorization};
    use alloy_primitives::{Signature, U256};
    use std::time::Duration;

    const SIGNATURE: Signature = Signature::new(U256::ONE, U256::ONE, false);

    fn peer(name: u8) -> PeerId {
        PeerId::repeat_byte(name)
    }

    /// A job that costs `cost` units.
    fn job(name: u8, cost: usize) -> JudgeJob {
        let transaction = if cost == 1 {
            TxLegacy::default().into_signed(SIGNATURE).into()
        } else {
            let of = Authorization { chain_id: U256::ONE, address: Default::default(), nonce: 0 };
            let signed = SignedAuthorization::new_unchecked(of, 0, U256::ONE, U256::ONE);
            let authorization_list = vec![signed; cost - 1];
            TxEip7702 { authorization_list, ..TxEip7702::default() }.into_signed(SIGNATURE).into()
        };
        let job = JudgeJob { peer: peer(name), transaction, permit: None };
        assert_eq!(job.cost() as usize, cost);
        job
    }

    /// The peers in the order in which their jobs come now.
    fn order(queues: &mut JudgeQueues, now: Instant) -> Vec<u8> {
        let mut order = Vec::new();
        while let JudgeTurn::Judge(job) = queues.next(now) {
            order.push(job.peer[0]);
        }
        order
    }

    #[test]
    fn who_sends_little_comes_next() {
        let (mut queues, now) = (JudgeQueues::default(), Instant::now());
        for name in 1..=3 {
            (0..5).for_each(|_| queues.push(job(name, 601), now));
        }
        for _ in 0..4 {
            assert!(matches!(queues.next(now), JudgeTurn::Judge(_)));
        }
        // With eleven costly jobs besides: each peer has one started before its second turn.
        (0..20).for_each(|_| queues.push(job(9, 1), now));
        let order = order(&mut queues, now);
        assert_eq!((order[0], order.len()), (9, 31));
        assert_eq!(order[..22].iter().filter(|name| **name == 9).count(), 20, "{order:?}");
    }

    #[test]
    fn equals_take_turns_by_cost_and_who_was_silent_has_saved_nothing() {
        let (mut queues, now) = (JudgeQueues::default(), Instant::now());
        (0..2).for_each(|_| queues.push(job(1, 100), now));
        (0..20).for_each(|_| queues.push(job(2, 10), now));
        assert_eq!(order(&mut queues, now)[..13], [2, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1]);
        (0..3).for_each(|_| queues.push(job(3, 100), now));
        (0..3).for_each(|_| queues.push(job(4, 100), now));
        assert_eq!(order(&mut queues, now), [3, 4, 3, 4, 3, 4]);
        // The third peer was silent while the others used their budgets.
        (0..30).for_each(|_| queues.push(job(4, 10), now));
        assert_eq!(order(&mut queues, now).len(), 30);
        (0..2).for_each(|_| queues.push(job(3, 100), now));
        (0..2).for_each(|_| queues.push(job(5, 100), now));
        let order = order(&mut queues, now);
        assert!(order == [3, 5, 3, 5] || order == [5, 3, 5, 3], "{order:?}");
    }

    /// Regression: an unlimited number of refused transactions was judged, with 600 signatures
    /// each.
    #[test]
    fn no_peer_has_more_done_for_it_than_its_rate() {
        let (mut queues, start) = (JudgeQueues::default(), Instant::now());
        (0..100).for_each(|_| queues.push(job(1, 501), start));
        let seconds = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(order(&mut queues, start).len(), 20);
        let JudgeTurn::WaitUntil(time) = queues.next(start) else { panic!("it waits for nothing") };
        assert!(time > start && time <= seconds(1));
        // The other peers do not wait for it.
        queues.push(job(2, 1), start);
        assert_eq!(order(&mut queues, start), [2]);
        assert_eq!(order(&mut queues, seconds(1)).len(), 4);
        assert_eq!(order(&mut queues, seconds(6)).len(), 20);
        (0..100).for_each(|_| queues.push(job(1, 501), start));
        assert_eq!(order(&mut queues, seconds(3600)).len(), 20, "no more than at once");
    }

    #[test]
    fn those_who_are_gone_share_one_queue() {
        let (mut queues, now) = (JudgeQueues::default(), Instant::now());
        for _ in 0..2 {
            queues.leave((0..200).map(|_| job(1, 1)), now);
        }
        queues.push(job(2, 1), now);
        let order = order(&mut queues, now);
        assert_eq!(order.len(), MOST_LEFT + 1);
        assert!(order[..3].contains(&2));
    }
}
