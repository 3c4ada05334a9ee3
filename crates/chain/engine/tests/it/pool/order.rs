//! The order of checks: expensive checks come after all cheap checks that can refuse a transaction.

use super::fixtures::*;
use alloy_consensus::TxEip7702;
use alloy_primitives::{B256, U256};
use retrie_engine::pool::{
    PoolConfig, PooledTransaction, SubPoolLimit, TransactionOrigin, TransactionPool,
};

/// Number of expensive checks so far: recovered authorizations, checked blob proofs.
fn costly(pool: &TransactionPool) -> (u64, u64) {
    let counters = pool.stats().counters;
    (counters.authorizations_recovered, counters.blobs_proven)
}

fn set_code(tx: TestTransfer) -> PooledTransaction {
    let authorities: Vec<u8> = (6..12).collect();
    sign(tx.from, TxEip7702 { value: U256::from(tx.value), ..tx.delegating(&authorities) })
}

/// Cause: proofs were checked of transactions for which a full pool had no room (50 to 105 ms each,
/// in one thread for all peers), and signers of 600 authorizations recovered before a replacement
/// was found to pay too little.
#[test]
fn a_refusal_for_cheap_reasons_costs_no_proofs_and_no_signatures() {
    let mut world = HeadFixture::new("osaka");
    world.account_mut(1).nonce = 5;
    let one = SubPoolLimit { max_txs: 1, ..Default::default() };
    let (pending, blob) = (SubPoolLimit { max_txs: 2, ..one }, one);
    let pool = world.pool(PoolConfig { pending, blob, ..Default::default() });
    let t = transfer(0, 0).fee(100 * GWEI, 10 * GWEI);
    let sidecar = cell_sidecar(&[1]);
    let add = |tx: PooledTransaction| pool.add(tx, TransactionOrigin::External, &world);
    add(t.blobs(GWEI, sidecar)).unwrap();
    add(set_code(TestTransfer { from: 2, ..t })).unwrap();
    add(TestTransfer { from: 3, ..t }.signed()).unwrap();
    assert_eq!(costly(&pool), (6, 1));

    // The proofs are invalid: a pool that checked them would refuse with another message.
    let fake = |tx: TestTransfer| tx.blobs(GWEI, fake_cell_sidecar(6));
    let poor = TestTransfer { from: 4, ..t }.value(11 * ETHER);
    let past = TestTransfer { from: 1, ..t };
    let low = TestTransfer { from: 5, ..t }.fee(50 * GWEI, GWEI);
    let other = |tx: TestTransfer| tx.blobs(GWEI, fake_sidecar(1));
    let cases = [
        (fake(t.fee(120 * GWEI, 12 * GWEI)), "replacement transaction underpriced"),
        (fake(past), "nonce too low"),
        (fake(poor), "insufficient funds"),
        (fake(TestTransfer { nonce: 1, from: 4, ..t }), "nonce too high"),
        (fake(TestTransfer { from: 3, nonce: 1, ..t }), "address already reserved"),
        (fake(low), "txpool is full"),
        (fake(TestTransfer { from: 4, ..t }.fee(6, 6)), "transaction underpriced"),
        (other(TestTransfer { from: 4, ..t }), "Wrong sidecar format"),
        (set_code(past), "nonce too low"),
        (set_code(poor), "insufficient funds"),
        (set_code(TestTransfer { from: 2, ..t }.fee(101 * GWEI, GWEI)), "replacement transaction"),
        (set_code(low), "txpool is full"),
        (
            sign(5, TxEip7702 { gas_limit: 100_000, ..t.delegating(&[6; 6]) }),
            "intrinsic gas too low",
        ),
    ];
    // False blobs of a peer's replacement that pays too little are found out, once in as many seconds
    // as there are blobs.
    let false_blobs = t.fee(120 * GWEI, 12 * GWEI).blobs(GWEI, fake_cell_sidecar(5));
    assert!(refusal(&pool, &world, false_blobs).starts_with("KZG verification error"));
    assert_eq!(costly(&pool), (6, 6));
    for (tx, words) in cases {
        let message = refusal(&pool, &world, tx);
        assert!(message.starts_with(words), "{message}, not {words}");
        assert_eq!(costly(&pool), (6, 6), "{message}");
    }
    // A transaction that would evict the other is checked.
    let message =
        refusal(&pool, &world, fake(TestTransfer { from: 5, ..t }.fee(200 * GWEI, 20 * GWEI)));
    assert!(message.starts_with("KZG verification error"), "{message}");
    assert_eq!(costly(&pool), (6, 12));
}

/// Room in bytes: the worst are counted together with what follows them.
#[test]
fn room_is_told_as_it_turns_out() {
    let world = HeadFixture::new("prague");
    let sidecars = [1, 2, 3].map(|count| true_sidecar(&(1..=count).collect::<Vec<u8>>()));
    let blobs = |from, nonce, tip, count: usize| {
        let tx = TestTransfer { nonce, ..transfer(from, 0) }.fee(100 * GWEI, tip * GWEI);
        tx.blobs(GWEI, sidecars[count - 1].clone())
    };
    // Room for five blobs or so.
    let blob = SubPoolLimit { max_txs: 100, max_size: 6 * 132_000 };
    let pool = world.pool(PoolConfig { blob, ..Default::default() });
    let add = |tx| {
        let before = costly(&pool).1;
        let added =
            pool.add(tx, TransactionOrigin::External, &world).map_err(|error| error.to_string());
        pool.check_invariants().unwrap();
        (added, costly(&pool).1 - before)
    };
    let full = || Err::<B256, _>("txpool is full".to_owned());
    // A chain whose first pays least, and one that pays more.
    for (from, nonce, tip) in [(0, 0, 2), (0, 1, 9), (1, 0, 5)] {
        assert!(add(blobs(from, nonce, tip, 2)).0.is_ok());
    }
    assert_eq!(add(blobs(2, 0, 1, 1)), (full(), 0), "less than all");
    assert_eq!(add(blobs(0, 2, 8, 1)), (full(), 0), "what it builds on would go first");
    let (added, proven) = add(blobs(3, 0, 3, 3));
    assert!(added.is_ok(), "the two of wallet 0 make room: {added:?}");
    assert_eq!((proven, status(&pool)), (3, (2, 0)));
    assert_eq!(add(blobs(4, 0, 4, 3)).0.map(drop), Ok(()));
    assert_eq!(add(blobs(5, 0, 3, 3)), (full(), 0));
}
