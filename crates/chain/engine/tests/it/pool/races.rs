//! Heads that change while a transaction is being admitted.

use super::fixtures::*;
use retrie_engine::pool::{
    HeadState, HeadStateProvider, PoolConfig, TransactionOrigin, TransactionPool,
};
use retrie_state::StateError;
use std::cell::RefCell;

/// Gives a state, and moves the pool to the next head before the state is used.
struct MovingHeads<'a, F: FnOnce()> {
    first: &'a HeadFixture,
    then: RefCell<Option<F>>,
    later: &'a HeadFixture,
}

impl<F: FnOnce()> HeadStateProvider for MovingHeads<'_, F> {
    fn latest(&self) -> Result<Box<dyn HeadState + '_>, StateError> {
        match self.then.take() {
            Some(then) => {
                then();
                Ok(Box::new(self.first))
            }
            None => Ok(Box::new(self.later)),
        }
    }
}

/// A pool whose wallet 0 has sent nonces 0 and 1, mined; the worlds before and after.
fn mined_two() -> (TransactionPool, HeadFixture, HeadFixture) {
    let before = HeadFixture::new("prague");
    let pool = before.pool(PoolConfig::default());
    for nonce in [0, 1] {
        pool.add(transfer(0, nonce).signed(), TransactionOrigin::Local, &before).unwrap();
    }
    let mut after = before.clone();
    let content = pool.content_from(&address(0)).pending;
    after.mine(&content.into_values().collect::<Vec<_>>());
    (pool, before, after)
}

#[test]
fn a_transaction_is_not_judged_by_the_account_before_its_predecessors_were_mined() {
    let (pool, before, after) = mined_two();
    let hashes = [0, 1].map(|nonce| *transfer(0, nonce).signed().tx_hash());
    // While the account is read, the two go into a block, and the sender is new to the pool.
    let heads = MovingHeads {
        first: &before,
        then: RefCell::new(Some(|| after.go(&pool, &hashes, vec![]))),
        later: &after,
    };
    // The sender must be unknown, so that its account is read.
    pool.remove(&hashes[0]);
    pool.remove(&hashes[1]);
    pool.add(transfer(0, 2).signed(), TransactionOrigin::Local, &heads).unwrap();
    assert_eq!(status(&pool), (1, 0), "it waits for nonces that are mined");
    assert_eq!(pool.nonce(&address(0)), Some(3));
}

#[test]
fn blobs_are_not_refused_for_a_gap_that_a_block_has_just_closed() {
    let before = HeadFixture::new("prague");
    let pool = before.pool(PoolConfig::default());
    let first = transfer(0, 0).blobs(10, true_sidecar(&[1]));
    let hash = pool.add(first, TransactionOrigin::Local, &before).unwrap();
    let mut after = before.clone();
    after.mine(&[pool.get(&hash).unwrap()]);
    pool.remove(&hash);
    let heads = MovingHeads {
        first: &before,
        then: RefCell::new(Some(|| after.go(&pool, &[hash], vec![]))),
        later: &after,
    };
    let second = transfer(0, 1).blobs(10, true_sidecar(&[2]));
    pool.add(second, TransactionOrigin::Local, &heads).expect("nonce 1 is the next one");
    assert_eq!(status(&pool), (1, 0));
}

#[test]
fn an_account_that_was_read_after_a_reorg_outlives_the_head_before_it() {
    // The chain has gone back to before wallet 0 sent anything, and the pool learns of the head
    // before that only now.
    let (pool, before, after) = mined_two();
    let hashes = [0, 1].map(|nonce| *transfer(0, nonce).signed().tx_hash());
    pool.remove(&hashes[0]);
    pool.remove(&hashes[1]);
    let back = HeadFixture { sequence: after.sequence + 1, ..before };
    pool.add(transfer(0, 0).value(7).signed(), TransactionOrigin::Local, &back).unwrap();
    after.go(&pool, &hashes, vec![]);
    assert_eq!(status(&pool), (1, 0), "it was stale at a head that is no more");
    back.go(&pool, &[], vec![]);
    assert_eq!(status(&pool), (1, 0));
}
