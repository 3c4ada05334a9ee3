//! What new heads and reorgs do.

use super::fixtures::*;
use alloy_primitives::Bytes;
use retrie_chainspec::primitives::{Header, SealedHeader};
use retrie_engine::pool::{NextBlock, PoolConfig, TransactionOrigin};

#[test]
fn a_head_takes_out_what_it_mined_and_what_it_made_stale() {
    let mut world = HeadFixture::new("prague");
    let pool = world.pool(PoolConfig::default());
    for (from, nonce) in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0)] {
        pool.add(transfer(from, nonce).signed(), TransactionOrigin::External, &world).unwrap();
    }
    let first = pool.get(transfer(0, 0).signed().tx_hash()).unwrap();
    let hashes = world.mine(&[first]);
    // Wallet 1 sent another transaction elsewhere, wallet 2 turned out to be a contract.
    world.account_mut(1).nonce = 1;
    world.set_code(2, Bytes::from_static(&[0]));
    world.go(&pool, &hashes, vec![]);
    assert_eq!(status(&pool), (3, 0));
    assert_eq!(pool.nonce(&address(0)), Some(3));
    assert_eq!(pool.nonce(&address(1)), Some(2));
    let counters = pool.stats().counters;
    assert_eq!((counters.added, counters.mined, counters.invalidated), (6, 1, 2));
    assert_eq!(pool.stats().senders, 2);
}

#[test]
fn transactions_of_reorganised_blocks_come_back() {
    let mut world = HeadFixture::new("prague");
    let before = world.clone();
    let pool = world.pool(PoolConfig::default());
    let txs: Vec<_> = (0..3).map(|nonce| transfer(0, nonce).signed()).collect();
    for tx in &txs {
        pool.add(tx.clone(), TransactionOrigin::External, &world).unwrap();
    }
    let pooled: Vec<_> = txs[..2].iter().map(|tx| pool.get(tx.tx_hash()).unwrap()).collect();
    let hashes = world.mine(&pooled);
    world.go(&pool, &hashes, vec![]);
    assert_eq!(status(&pool), (1, 0));

    // A sibling with none of them, and a transaction that the pool has never seen.
    let stranger = transfer(5, 0).signed();
    let back = [&txs[1], &stranger, &txs[0]].map(mined).to_vec();
    let sibling = HeadFixture { sequence: world.sequence + 1, ..before };
    sibling.go(&pool, &[], back);
    assert_eq!(status(&pool), (4, 0));
    assert_eq!(pool.stats().counters.reinserted, 3);
    assert!(pool.get(stranger.tx_hash()).is_some());

    // A sibling with the same ones takes none back.
    world.sequence = sibling.sequence + 1;
    world.go(&pool, &hashes, txs[..2].iter().map(mined).collect());
    assert_eq!(status(&pool), (2, 0));
}

#[test]
fn a_fork_drops_what_its_rules_refuse() {
    let world = HeadFixture::new("prague");
    let mut world = HeadFixture { spec: spec("prague", &[("osakaTime", 1000)]), ..world };
    let pool = world.pool(PoolConfig::default());
    pool.add(transfer(0, 0).signed(), TransactionOrigin::External, &world).unwrap();
    pool.add(transfer(1, 0).gas(20_000_000).signed(), TransactionOrigin::External, &world).unwrap();
    assert_eq!(status(&pool), (2, 0));
    world.next.timestamp = 1000;
    world.go(&pool, &[], vec![]);
    assert_eq!(status(&pool), (1, 0), "EIP-7825");
}

#[test]
fn the_next_block_follows_from_its_parent() {
    let head = SealedHeader::seal_slow(Header {
        number: 7,
        gas_limit: BLOCK_GAS,
        gas_used: BLOCK_GAS,
        base_fee_per_gas: Some(800),
        blob_gas_used: Some(0),
        excess_blob_gas: Some(0),
        ..Default::default()
    });
    let next = NextBlock::after(&spec("cancun", &[]), &head, 12).unwrap();
    let expected = NextBlock {
        number: 8,
        timestamp: 12,
        gas_limit: BLOCK_GAS,
        base_fee: Some(900),
        blob_base_fee: Some(1),
    };
    assert_eq!(next, expected);
}

#[test]
fn subscribers_hear_of_each_transaction_once() {
    let mut world = HeadFixture::new("prague");
    let pool = world.pool(PoolConfig::default());
    let mut events = pool.subscribe();
    let mut heard =
        || std::iter::from_fn(|| events.try_recv().ok()).map(|tx| *tx.hash()).collect::<Vec<_>>();
    let txs = [1, 0, 2].map(|nonce| transfer(0, nonce).signed());
    pool.add(txs[0].clone(), TransactionOrigin::External, &world).unwrap();
    assert!(heard().is_empty(), "it waits");
    pool.add(txs[1].clone(), TransactionOrigin::External, &world).unwrap();
    assert_eq!(heard(), hashes([&txs[1], &txs[0]]));
    for fee in [30, 10] {
        world.next.base_fee = Some(fee * GWEI as u64);
        world.go(&pool, &[], vec![]);
    }
    assert!(heard().is_empty(), "they are known already");
    pool.add(txs[2].clone(), TransactionOrigin::External, &world).unwrap();
    assert_eq!(heard(), hashes([&txs[2]]));
}
