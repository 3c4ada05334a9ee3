//! Which limits strangers can use up for other senders: the table in docs/operations.md, row by
//! row.

use super::fixtures::*;
use alloy_consensus::TxEip7702;
use alloy_eips::eip7702::{Authorization, SignedAuthorization};
use alloy_primitives::{Address, Bytes, U256};
use retrie_engine::pool::{
    PoolConfig, PooledTransaction, SubPoolLimit, TransactionOrigin, TransactionPool,
};
use retrie_pipeline::testkit::{CHAIN_ID, TestWallet};

const IN_FLIGHT: &str = "in-flight transaction limit reached for delegated accounts";
const RESERVED: &str = "authority already reserved";
const VICTIM: u8 = 1;

/// An authorization of an account, for a chain and a nonce.
fn authorization(from: u8, chain_id: u64, nonce: u64) -> SignedAuthorization {
    let address = Address::repeat_byte(0xde);
    let inner = Authorization { chain_id: U256::from(chain_id), address, nonce };
    let signature = TestWallet::new(from).sign(inner.signature_hash());
    inner.into_signed(signature)
}

/// A set-code transaction with these authorizations.
fn carrier(from: u8, nonce: u64, list: Vec<SignedAuthorization>) -> PooledTransaction {
    let tx = transfer(from, nonce).delegating(&[]);
    sign(from, TxEip7702 { gas_limit: 1_000_000, authorization_list: list, ..tx })
}

fn add(pool: &TransactionPool, world: &HeadFixture, tx: PooledTransaction) -> Result<(), String> {
    let added = pool.add(tx, TransactionOrigin::External, world);
    pool.check_invariants().unwrap();
    added.map(drop).map_err(|error| error.to_string())
}

/// Number of transactions, from nonce `first` on, that the victim can have in the pool at once.
fn sent_by_victim(pool: &TransactionPool, world: &HeadFixture, first: u64) -> usize {
    let sent = (first..).map(|nonce| add(pool, world, transfer(VICTIM, nonce).signed()));
    sent.take_while(Result::is_ok).count()
}

/// Cause: every signed authorization counted against its signer. A stranger could copy one from
/// another chain, or one with a used nonce, and limit the signer to one pending transaction
/// (reth#25909, reth#26077).
#[test]
fn an_authorization_that_cannot_be_applied_limits_no_account() {
    let mut world = HeadFixture::new("prague");
    world.account_mut(VICTIM).nonce = 5;
    let list = vec![
        authorization(VICTIM, 5, 5),
        authorization(VICTIM, 1, 6),
        authorization(VICTIM, CHAIN_ID, 4),
        authorization(VICTIM, 0, 0),
        authorization(VICTIM, CHAIN_ID, 5 + 16),
        authorization(VICTIM, CHAIN_ID, u64::MAX),
    ];
    // Whether it can be executed or waits for ever.
    for nonce in [0, 7] {
        let pool = world.pool(PoolConfig::default());
        add(&pool, &world, carrier(0, nonce, list.clone())).unwrap();
        assert_eq!(sent_by_victim(&pool, &world, 5), 16, "the limit of every account");
        // The victim's transactions do not keep it out either.
        let pool = world.pool(PoolConfig::default());
        assert_eq!(sent_by_victim(&pool, &world, 5), 16);
        add(&pool, &world, carrier(0, nonce, list.clone())).unwrap();
    }
}

#[test]
fn one_that_can_be_applied_limits_what_it_overtakes() {
    let mut world = HeadFixture::new("prague");
    world.account_mut(VICTIM).nonce = 5;
    for (chain_id, nonce, sent) in [(CHAIN_ID, 5, 1), (0, 5, 1), (CHAIN_ID, 7, 3), (0, 21, 16)] {
        let pool = world.pool(PoolConfig::default());
        add(&pool, &world, carrier(0, 0, vec![authorization(VICTIM, chain_id, nonce)])).unwrap();
        assert_eq!(sent_by_victim(&pool, &world, 5), sent, "chain {chain_id}, nonce {nonce}");
        let next = transfer(VICTIM, 5 + sent as u64).signed();
        let limit = if sent == 16 { "account limit exceeded: pooled 16 txs" } else { IN_FLIGHT };
        assert_eq!(add(&pool, &world, next), Err(limit.into()));
    }
    // The other way round: what overtakes more than one is refused.
    let pool = world.pool(PoolConfig::default());
    assert_eq!(sent_by_victim(&pool, &world, 5), 16);
    let overtaking = |nonce| carrier(0, 0, vec![authorization(VICTIM, 0, nonce)]);
    assert_eq!(add(&pool, &world, overtaking(5)), Err(RESERVED.into()));
    assert_eq!(add(&pool, &world, overtaking(19)), Err(RESERVED.into()));
    add(&pool, &world, overtaking(20)).unwrap();
}

#[test]
fn a_limit_ends_with_the_nonce_that_the_authorization_is_for() {
    let mut world = HeadFixture::new("prague");
    let pool = world.pool(PoolConfig::default());
    // It waits for ever, and costs its sender nothing.
    add(&pool, &world, carrier(0, 9, vec![authorization(VICTIM, 0, 0)])).unwrap();
    assert_eq!(sent_by_victim(&pool, &world, 0), 1);
    let tx = pool.get(transfer(VICTIM, 0).signed().tx_hash()).unwrap();
    let mined = world.mine(&[tx]);
    world.go(&pool, &mined, vec![]);
    assert_eq!(sent_by_victim(&pool, &world, 1), 16);
}

/// Cause: the limit for delegated accounts also applied to local users. Their second
/// self-delegation was refused, while geth 1.17.8 keeps it and sends it when the first is mined.
#[test]
fn a_user_may_delegate_twice_in_a_row() {
    // Each uses two nonces: its own, and that of its authorization.
    let own = |nonce| carrier(0, nonce, vec![authorization(0, CHAIN_ID, nonce + 1)]);
    let mut world = HeadFixture::new("prague");
    let pool = world.pool(PoolConfig::default());
    let first = pool.add(own(0), TransactionOrigin::Local, &world).unwrap();
    assert_eq!(add(&pool, &world, own(2)), Err("gapped-nonce tx from delegated accounts".into()));
    pool.add(own(2), TransactionOrigin::Local, &world).unwrap();
    assert_eq!(status(&pool), (1, 1));
    let mined = world.mine(&[pool.get(&first).unwrap()]);
    world.account_mut(0).nonce = 2;
    world.set_code(0, [&[0xef, 0x01, 0x00][..], &[7; 20]].concat().into());
    world.go(&pool, &mined, vec![]);
    assert_eq!(status(&pool), (1, 0));
    assert_eq!(add(&pool, &world, transfer(0, 3).signed()), Err(IN_FLIGHT.into()));
    pool.add(transfer(0, 3).signed(), TransactionOrigin::Local, &world).unwrap();
    // A sponsor's user signs for it while both wait.
    let sponsored = carrier(2, 0, vec![authorization(0, 0, 2)]);
    assert_eq!(add(&pool, &world, sponsored.clone()), Err(RESERVED.into()));
    pool.add(sponsored, TransactionOrigin::Local, &world).unwrap();

    let pool =
        HeadFixture::new("prague").pool(PoolConfig { no_locals: true, ..Default::default() });
    pool.add(own(0), TransactionOrigin::Local, &HeadFixture::new("prague")).unwrap();
    pool.add(own(2), TransactionOrigin::Local, &HeadFixture::new("prague")).unwrap_err();
}

/// Cause: transactions that wait behind a gap counted as in flight, so that the one which closes
/// the gap was refused. In geth 1.17.8 only those count that follow the account's nonce.
#[test]
fn what_waits_behind_a_gap_is_not_in_flight() {
    let world = HeadFixture::new("prague");
    let pool = world.pool(PoolConfig::default());
    let own = |nonce| carrier(0, nonce, vec![authorization(0, CHAIN_ID, nonce + 1)]);
    add(&pool, &world, own(2)).unwrap();
    add(&pool, &world, own(0)).unwrap();
    assert_eq!(status(&pool), (1, 1));

    // An account that is delegated by now, with one left from before.
    let mut world = HeadFixture::new("prague");
    let pool = world.pool(PoolConfig::default());
    add(&pool, &world, transfer(3, 4).signed()).unwrap();
    world.set_code(3, [&[0xef, 0x01, 0x00][..], &[7; 20]].concat().into());
    world.sequence += 1;
    world.go(&pool, &[], vec![]);
    add(&pool, &world, carrier(3, 0, vec![authorization(3, 0, 1)])).unwrap();
    assert_eq!(add(&pool, &world, transfer(3, 1).signed()), Err(IN_FLIGHT.into()));
    assert_eq!(status(&pool), (1, 1));
}

#[test]
fn ones_own_earlier_transactions_do_not_stand_in_the_way_of_a_delegation() {
    let world = HeadFixture::new("prague");
    let pool = world.pool(PoolConfig::default());
    for nonce in 0..4 {
        add(&pool, &world, transfer(0, nonce).signed()).unwrap();
    }
    // They are executed before it.
    add(&pool, &world, carrier(0, 4, vec![authorization(0, CHAIN_ID, 5)])).unwrap();
    add(&pool, &world, transfer(0, 5).signed()).unwrap();
    assert_eq!(add(&pool, &world, transfer(0, 6).signed()), Err(IN_FLIGHT.into()));
    // An authorization for the transaction's own nonce never applies, since the nonce is
    // incremented before.
    add(&pool, &world, carrier(2, 0, vec![authorization(2, CHAIN_ID, 0)])).unwrap();
    for nonce in 1..16 {
        add(&pool, &world, transfer(2, nonce).signed()).unwrap();
    }
}

#[test]
fn a_contract_is_limited_by_no_authorization() {
    // Of an impersonated account of a dev chain.
    let mut world = HeadFixture::new("prague");
    world.set_code(VICTIM, Bytes::from_static(&[0]));
    let pool = world.pool(PoolConfig::default());
    add(&pool, &world, carrier(0, 0, vec![authorization(VICTIM, 0, 0)])).unwrap();
    for nonce in 0..3 {
        pool.add_unsigned(transfer(VICTIM, nonce).signed(), address(VICTIM), &world).unwrap();
    }
    add(&pool, &world, carrier(2, 0, vec![authorization(VICTIM, 0, 0)])).unwrap();
}

#[test]
fn slots_and_replacements_are_the_senders_own() {
    let world = HeadFixture::new("prague");
    let pool = world.pool(PoolConfig::default());
    add(&pool, &world, transfer(VICTIM, 0).signed()).unwrap();
    for nonce in 0..16 {
        add(&pool, &world, transfer(0, nonce).fee(1000 * GWEI, 900 * GWEI).signed()).unwrap();
    }
    add(&pool, &world, transfer(0, 16).signed()).unwrap_err();
    assert_eq!(sent_by_victim(&pool, &world, 1), 15);
    assert_eq!(pool.content_from(&address(VICTIM)).pending.len(), 16);
}

/// An executable transaction is only evicted by executable transactions that pay more, and not by
/// transactions that wait for a nonce, for funds or for lower fees, whatever their fee is.
#[test]
fn what_cannot_be_executed_pushes_out_nothing_that_can() {
    let world = HeadFixture::new("prague");
    let limit = |max_txs| SubPoolLimit { max_txs, ..Default::default() };
    let (pending, basefee, queued) = (limit(3), limit(3), limit(3));
    let pool = world.pool(PoolConfig { pending, basefee, queued, ..Default::default() });
    let own = [1, 2, 3].map(|n| transfer(n, 0).fee(11 * GWEI, 1).signed());
    for tx in &own {
        add(&pool, &world, tx.clone()).unwrap();
    }
    for from in 4..16 {
        let promise = transfer(from, 0).fee(20_000 * GWEI, 20_000 * GWEI);
        // Behind a gap; without funds for both; with a first transaction that is too cheap for this
        // block.
        let _ = add(&pool, &world, TestTransfer { nonce: 9, ..promise }.signed());
        let _ =
            add(&pool, &world, transfer(from, 0).fee(9 * GWEI, 9 * GWEI).value(8 * ETHER).signed());
        let _ = add(&pool, &world, TestTransfer { nonce: 1, ..promise }.value(5 * ETHER).signed());
    }
    assert!(own.iter().all(|tx| pool.is_pending(tx.tx_hash())));
    let stats = pool.stats();
    assert_eq!((stats.pending.txs, stats.basefee.txs, stats.queued.txs), (3, 3, 3));
}

/// Cause: waiting blob transactions were ranked by their gas fee alone. With a blob fee that no
/// block accepts, that fee could be any sum at no cost, and evict all others.
#[test]
fn a_blob_fee_that_no_block_takes_buys_no_room() {
    let mut world = HeadFixture::new("prague");
    world.next.blob_base_fee = Some(100 * GWEI);
    let blob = SubPoolLimit { max_txs: 2, ..Default::default() };
    let pool = world.pool(PoolConfig { blob, ..Default::default() });
    let sidecar = true_sidecar(&[1]);
    let blobs =
        |from, fee, blob_fee| transfer(from, 0).fee(fee, GWEI).blobs(blob_fee, sidecar.clone());
    let fair = blobs(1, 30 * GWEI, 99 * GWEI);
    add(&pool, &world, fair.clone()).unwrap();
    for from in 2..6 {
        let _ = add(&pool, &world, blobs(from, 10_000 * GWEI, 1 + u128::from(from)));
    }
    assert!(pool.get(fair.tx_hash()).is_some());
    let better = blobs(6, 20 * GWEI, 98 * GWEI);
    add(&pool, &world, better.clone()).unwrap();
    assert!(pool.get(fair.tx_hash()).is_some() && pool.get(better.tx_hash()).is_some());
}

#[test]
fn an_address_is_reserved_for_blobs_by_its_owner_alone() {
    let world = HeadFixture::new("prague");
    let pool = world.pool(PoolConfig::default());
    let sidecar = true_sidecar(&[1]);
    add(&pool, &world, transfer(0, 0).blobs(10, sidecar.clone())).unwrap();
    // A delegation by other senders does not keep blobs out, and blobs do not block a delegation
    // that cannot overtake them.
    add(&pool, &world, carrier(2, 0, vec![authorization(0, 0, 1)])).unwrap();
    add(&pool, &world, carrier(3, 0, vec![authorization(0, 5, 0)])).unwrap();
    let overtaking = carrier(4, 0, vec![authorization(0, 0, 0)]);
    assert_eq!(add(&pool, &world, overtaking), Err(RESERVED.into()));
    add(&pool, &world, carrier(5, 0, vec![authorization(VICTIM, 9, 0)])).unwrap();
    add(&pool, &world, transfer(VICTIM, 0).blobs(10, sidecar.clone())).unwrap();
    add(&pool, &world, transfer(VICTIM, 1).blobs(10, sidecar)).unwrap();
}

/// Cause: authorizations and access lists were counted by their encoding, which is smaller than
/// their size in memory.
#[test]
fn what_a_transaction_takes_in_memory_counts_in_full() {
    let world = HeadFixture::new("prague");
    let pool = world.pool(PoolConfig { max_tx_input_bytes: 1 << 20, ..Default::default() });
    let list = vec![authorization(VICTIM, 5, 0); 1000];
    let tx = transfer(0, 0).delegating(&[]);
    let tx = sign(0, TxEip7702 { gas_limit: 29_000_000, authorization_list: list, ..tx });
    let hash = *tx.tx_hash();
    add(&pool, &world, tx).unwrap();
    let least = 1000 * size_of::<SignedAuthorization>();
    assert!(pool.get(&hash).unwrap().size() > least);
}
