//! Where transactions wait, what replaces them, and the order of execution and eviction.

use super::fixtures::*;
use alloy_primitives::{B256, U256};
use retrie_engine::pool::{PoolConfig, SubPoolLimit, TransactionOrigin};
use std::{collections::BTreeSet, time::Duration};

#[test]
fn a_gap_in_the_nonces_waits_until_it_is_filled() {
    let world = HeadFixture::new("prague");
    let pool = world.pool(PoolConfig::default());
    for nonce in [2, 3, 0] {
        pool.add(transfer(0, nonce).signed(), TransactionOrigin::External, &world).unwrap();
    }
    assert_eq!(status(&pool), (1, 2));
    assert_eq!(pool.nonce(&address(0)), Some(1));
    let content = pool.content();
    assert_eq!(content.pending[&address(0)].keys().collect::<Vec<_>>(), [&0]);
    assert_eq!(content.queued[&address(0)].keys().collect::<Vec<_>>(), [&2, &3]);
    pool.add(transfer(0, 1).signed(), TransactionOrigin::External, &world).unwrap();
    assert_eq!(status(&pool), (4, 0));
    assert_eq!(pool.nonce(&address(0)), Some(4));
    assert_eq!(pool.content_from(&address(0)).pending.len(), 4);
    assert_eq!(pool.nonce(&address(1)), None);

    let second = *transfer(0, 1).signed().tx_hash();
    assert_eq!(pool.remove(&second).map(|tx| tx.nonce()), Some(1));
    assert!(pool.get(&second).is_none() && pool.remove(&second).is_none());
    assert_eq!(status(&pool), (1, 2));
}

#[test]
fn what_the_balance_does_not_cover_waits() {
    let mut world = HeadFixture::new("prague");
    let pool = world.pool(PoolConfig::default());
    for nonce in 0..3 {
        let tx = transfer(0, nonce).value(4 * ETHER).signed();
        pool.add(tx, TransactionOrigin::External, &world).unwrap();
    }
    assert_eq!(status(&pool), (2, 1), "ten ether cover two of four");
    assert_eq!(pool.nonce(&address(0)), Some(3));
    world.account_mut(0).balance = U256::from(5 * ETHER);
    world.go(&pool, &[], vec![]);
    assert_eq!(status(&pool), (1, 2));
    world.account_mut(0).balance = U256::from(20 * ETHER);
    world.go(&pool, &[], vec![]);
    assert_eq!(status(&pool), (3, 0));
}

#[test]
fn fees_below_those_of_the_next_block_wait_for_a_cheaper_one() {
    let mut world = HeadFixture::new("prague");
    let pool = world.pool(PoolConfig::default());
    for tx in [transfer(0, 0), transfer(0, 1).fee(9 * GWEI, GWEI), transfer(0, 2)] {
        pool.add(tx.signed(), TransactionOrigin::External, &world).unwrap();
    }
    assert_eq!(status(&pool), (1, 2));
    assert_eq!((pool.stats().basefee.txs, pool.stats().queued.txs), (2, 0));
    assert_eq!(pool.nonce(&address(0)), Some(3), "none is missing");
    world.next.base_fee = Some(9 * GWEI as u64);
    world.go(&pool, &[], vec![]);
    assert_eq!(status(&pool), (3, 0));
    world.next.base_fee = Some(21 * GWEI as u64);
    world.go(&pool, &[], vec![]);
    assert_eq!(status(&pool), (0, 3));
    // A builder may use other fees than the head's.
    assert_eq!(pool.best(20 * GWEI as u64, None).count(), 1);
    assert_eq!(pool.best(GWEI as u64, None).count(), 3);
}

#[test]
fn a_block_that_shrinks_makes_large_transactions_wait() {
    let mut world = HeadFixture::new("prague");
    let pool = world.pool(PoolConfig::default());
    pool.add(transfer(0, 0).gas(BLOCK_GAS).signed(), TransactionOrigin::External, &world).unwrap();
    for (gas_limit, expected) in [(BLOCK_GAS - 1, (0, 1)), (BLOCK_GAS, (1, 0))] {
        world.next.gas_limit = gas_limit;
        world.go(&pool, &[], vec![]);
        assert_eq!(status(&pool), expected);
    }
}

#[test]
fn what_waits_too_long_goes_unless_it_is_local() {
    let world = HeadFixture::new("prague");
    let pool = world.pool(PoolConfig { max_queued_lifetime: Duration::ZERO, ..Default::default() });
    pool.add(transfer(0, 0).signed(), TransactionOrigin::External, &world).unwrap();
    pool.add(transfer(0, 2).signed(), TransactionOrigin::External, &world).unwrap();
    pool.add(transfer(1, 2).signed(), TransactionOrigin::Local, &world).unwrap();
    pool.add(transfer(2, 0).fee(GWEI, 0).signed(), TransactionOrigin::External, &world).unwrap();
    assert_eq!(status(&pool), (1, 3));
    world.go(&pool, &[], vec![]);
    assert_eq!(status(&pool), (1, 2), "what waits for fees stays");
    assert_eq!(pool.stats().counters.expired, 1);
    assert!(pool.content_from(&address(0)).queued.is_empty());
}

// Replacement.

#[test]
fn a_replacement_pays_a_tenth_more_in_every_fee() {
    let world = HeadFixture::new("prague");
    let pool = world.pool(PoolConfig::default());
    let add = |from, fee, tip| {
        let tx = transfer(from, 0).fee(fee, tip).signed();
        pool.add(tx, TransactionOrigin::Local, &world).map_err(|error| error.to_string())
    };
    let underpriced = Err("replacement transaction underpriced".into());
    let first = add(0, 100 * GWEI, 10 * GWEI).unwrap();
    assert_eq!(add(0, 110 * GWEI, 11 * GWEI - 1), underpriced);
    assert_eq!(add(0, 110 * GWEI - 1, 11 * GWEI), underpriced);
    let second = add(0, 110 * GWEI, 11 * GWEI).unwrap();
    assert!(pool.get(&first).is_none() && pool.get(&second).is_some());
    assert_eq!(status(&pool), (1, 0));
    // Without a tip only the fee must grow.
    add(1, 11, 0).unwrap();
    assert_eq!(add(1, 12, 0), underpriced, "a tenth, rounded up");
    add(1, 13, 0).unwrap();
    assert_eq!(pool.stats().counters.replaced, 2);
    assert_eq!(status(&pool), (1, 1));
}

#[test]
fn a_replacement_is_judged_together_with_what_follows() {
    let world = HeadFixture::new("prague");
    let pool = world.pool(PoolConfig::default());
    for nonce in 0..3 {
        pool.add(transfer(0, nonce).signed(), TransactionOrigin::External, &world).unwrap();
    }
    let dear = transfer(0, 0).fee(30 * GWEI, 3 * GWEI).value(10 * ETHER - ETHER / 800);
    pool.add(dear.signed(), TransactionOrigin::External, &world).unwrap();
    assert_eq!(status(&pool), (2, 1), "only one of the others can still be paid for");
    let cheap = transfer(0, 0).fee(40 * GWEI, 4 * GWEI);
    pool.add(cheap.signed(), TransactionOrigin::External, &world).unwrap();
    assert_eq!(status(&pool), (3, 0));
}

// Order.

#[test]
fn the_best_come_first_and_nonces_stay_in_order() {
    let world = HeadFixture::new("prague");
    let pool = world.pool(PoolConfig::default());
    // The tip of a legacy transaction is all above the base fee; the maximum fee limits a tip.
    let low = transfer(0, 0).fee(50 * GWEI, GWEI).signed();
    let behind = transfer(0, 1).fee(50 * GWEI, 9 * GWEI).signed();
    let cut = transfer(1, 0).fee(13 * GWEI, 13 * GWEI).signed();
    let legacy = sign(2, legacy(14 * GWEI));
    let tie = transfer(3, 0).fee(50 * GWEI, 3 * GWEI).signed();
    let waiting = transfer(4, 1).fee(50 * GWEI, 50 * GWEI).signed();
    for tx in [&low, &behind, &cut, &legacy, &tie, &waiting] {
        pool.add(tx.clone(), TransactionOrigin::External, &world).unwrap();
    }
    let best = || pool.best(10 * GWEI as u64, None);
    let all: Vec<B256> = best().map(|tx| *tx.hash()).collect();
    assert_eq!(all, hashes([&legacy, &cut, &tie, &low, &behind]));

    let mut iter = best();
    let mut seen = vec![];
    while let Some(tx) = iter.next() {
        seen.push(*tx.hash());
        if tx.sender() == address(0) {
            iter.mark_invalid(tx.sender());
        }
        // It is a snapshot: later changes of the pool do not matter.
        pool.remove(tx.hash()).unwrap();
    }
    assert_eq!(seen, hashes([&legacy, &cut, &tie, &low]));
}

// Limits.

#[test]
fn a_sender_has_sixteen_slots_unless_it_is_local() {
    let world = HeadFixture::new("prague");
    let local_senders = [address(2)].into_iter().collect();
    let pool = world.pool(PoolConfig { local_senders, ..Default::default() });
    let add = |from, nonce, origin| pool.add(transfer(from, nonce).signed(), origin, &world);
    for nonce in 0..16 {
        add(0, nonce, TransactionOrigin::External).unwrap();
    }
    let error = add(0, 16, TransactionOrigin::External).unwrap_err();
    assert_eq!(error.to_string(), "account limit exceeded: pooled 16 txs");
    for nonce in 0..20 {
        add(1, nonce, TransactionOrigin::Local).unwrap();
        add(2, nonce, TransactionOrigin::External).unwrap();
    }
    assert_eq!(pool.local_senders(), BTreeSet::from([address(1), address(2)]));
    let replacement = transfer(0, 3).fee(40 * GWEI, 4 * GWEI).signed();
    pool.add(replacement, TransactionOrigin::External, &world).unwrap();
    assert_eq!(status(&pool), (56, 0));

    let pool = world.pool(PoolConfig { no_locals: true, ..Default::default() });
    for nonce in 0..16 {
        pool.add(transfer(0, nonce).signed(), TransactionOrigin::Local, &world).unwrap();
    }
    assert!(pool.add(transfer(0, 16).signed(), TransactionOrigin::Local, &world).is_err());
}

#[test]
fn a_full_pool_drops_the_worst_and_never_a_local() {
    let world = HeadFixture::new("prague");
    let pending = SubPoolLimit { max_txs: 4, ..Default::default() };
    let pool = world.pool(PoolConfig { pending, ..Default::default() });
    let add = |from, tip, origin| {
        let tx = transfer(from, 0).fee(50 * GWEI, tip * GWEI).signed();
        pool.add(tx, origin, &world).map_err(|error| error.to_string())
    };
    let local = add(0, 1, TransactionOrigin::Local).unwrap();
    let worst = add(1, 2, TransactionOrigin::External).unwrap();
    add(2, 3, TransactionOrigin::External).unwrap();
    add(3, 4, TransactionOrigin::External).unwrap();
    let full = Err("txpool is full".to_owned());
    assert_eq!(add(4, 2, TransactionOrigin::External), full, "not better than the worst");
    let better = add(5, 5, TransactionOrigin::External).unwrap();
    assert!(pool.get(&worst).is_none() && pool.get(&better).is_some());
    assert!(pool.get(&local).is_some());
    assert_eq!(status(&pool), (4, 0));
    // Local transactions evict the others; then further ones are refused.
    for from in 6..9 {
        add(from, 0, TransactionOrigin::Local).unwrap();
    }
    assert_eq!(add(9, 30, TransactionOrigin::External), full);
    assert_eq!(add(10, 30, TransactionOrigin::Local), full);
    assert_eq!(pool.local_senders().len(), 4);
    assert_eq!(status(&pool), (4, 0));
}

#[test]
fn bytes_are_limited_too_and_the_farthest_go_first() {
    let world = HeadFixture::new("prague");
    let pool = world.pool(PoolConfig::default());
    let hash = pool.add(transfer(0, 0).signed(), TransactionOrigin::External, &world).unwrap();
    let size = pool.get(&hash).unwrap().size();
    assert_eq!(pool.stats().pending.size, size);

    let queued = SubPoolLimit { max_size: 3 * size + size / 2, ..Default::default() };
    let pool = world.pool(PoolConfig { queued, ..Default::default() });
    // A transaction that lacks funds ranks above one that lacks a nonce and pays more.
    pool.add(transfer(1, 0).value(6 * ETHER).signed(), TransactionOrigin::External, &world)
        .unwrap();
    let unfunded = transfer(1, 1).fee(11 * GWEI, GWEI).value(6 * ETHER).signed();
    pool.add(unfunded.clone(), TransactionOrigin::External, &world).unwrap();
    for (from, fee) in [(2, 40), (3, 30), (4, 50)] {
        let tx = transfer(from, 9).fee(fee * GWEI, GWEI).signed();
        pool.add(tx, TransactionOrigin::External, &world).unwrap();
    }
    assert_eq!(status(&pool), (1, 3));
    assert!(pool.get(unfunded.tx_hash()).is_some());
    assert!(pool.content_from(&address(3)).queued.is_empty(), "the lowest fee of the gapped");
    assert_eq!(pool.stats().counters.evicted, 1);
}

#[test]
fn an_eviction_makes_what_follows_wait() {
    let world = HeadFixture::new("prague");
    let pending = SubPoolLimit { max_txs: 3, ..Default::default() };
    let pool = world.pool(PoolConfig { pending, ..Default::default() });
    for (nonce, tip) in [(0, 5), (1, 1), (2, 9)] {
        let tx = transfer(0, nonce).fee(50 * GWEI, tip * GWEI).signed();
        pool.add(tx, TransactionOrigin::External, &world).unwrap();
    }
    pool.add(transfer(1, 0).signed(), TransactionOrigin::External, &world).unwrap();
    assert_eq!(status(&pool), (2, 1));
    assert_eq!(pool.content_from(&address(0)).queued.keys().collect::<Vec<_>>(), [&2]);
}
