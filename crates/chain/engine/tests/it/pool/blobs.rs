//! Blob transactions, with valid proofs.

use super::fixtures::*;
use alloy_consensus::TxEip4844WithSidecar;
use alloy_eips::{eip2718::Encodable2718, eip7594::Cell};
use alloy_primitives::B256;
use retrie_engine::pool::{BlobSidecar, PoolConfig, PooledTransaction, TransactionOrigin};

#[test]
fn wrong_blobs_are_refused() {
    let world = HeadFixture::new("prague");
    let pool = world.pool(PoolConfig::default());
    let t = transfer(0, 0);
    let good = true_sidecar(&[1, 2]);
    let mut bad = good.clone();
    bad.proofs.swap(0, 1);
    let message = refusal(&pool, &world, t.blobs(GWEI, bad));
    assert_eq!(message, "KZG verification error: invalid KZG proof");
    let mut bad = good.clone();
    bad.proofs.pop();
    let message = refusal(&pool, &world, t.blobs(GWEI, bad));
    assert!(message.starts_with("KZG verification error: KZG error"), "{message}");
    let PooledTransaction::Eip4844(tx) = t.blobs(GWEI, good.clone()) else { unreachable!() };
    let (mut tx, sidecar) = tx.strip_signature().into_parts();
    tx.blob_versioned_hashes.swap(0, 1);
    let bad = sign(0, TxEip4844WithSidecar::from_tx_and_sidecar(tx, sidecar));
    let message = refusal(&pool, &world, bad);
    assert!(message.starts_with("KZG verification error: wrong versioned hash"), "{message}");
    assert_eq!(status(&pool), (0, 0));

    // One sender cannot mix blob transactions with others, and blob transactions need all nonces
    // and funds.
    pool.add(t.blobs(GWEI, good.clone()), TransactionOrigin::External, &world).unwrap();
    assert_eq!(refusal(&pool, &world, transfer(0, 1).signed()), "address already reserved");
    let message = refusal(&pool, &world, transfer(0, 2).blobs(GWEI, good.clone()));
    assert_eq!(message, "nonce too high: tx nonce 2, gapped nonce 1");
    let debt = transfer(0, 1).value(10 * ETHER - ETHER / 2000);
    let message = refusal(&pool, &world, debt.blobs(1, good.clone()));
    assert!(message.contains(", queued cost "), "{message}");
    let message = refusal(&pool, &world, sign(1, transfer(1, 0).delegating(&[0])));
    assert_eq!(message, "authority already reserved");

    // Replacements pay twice.
    let dearer = |blob_fee| t.fee(40 * GWEI, 4 * GWEI).blobs(blob_fee, good.clone());
    let message = refusal(&pool, &world, dearer(2 * GWEI - 1));
    assert_eq!(message, "replacement transaction underpriced");
    pool.add(dearer(2 * GWEI), TransactionOrigin::External, &world).unwrap();
    assert_eq!(status(&pool), (1, 0));
}

#[test]
fn blobs_are_served_while_pooled_and_after() {
    let mut world = HeadFixture::new("prague");
    let before = world.clone();
    let pool = world.pool(PoolConfig::default());
    let sidecar = true_sidecar(&[1, 2]);
    let versioned: Vec<B256> = sidecar.versioned_hashes().collect();
    let tx = transfer(0, 0).blobs(2 * GWEI, sidecar.clone());
    let hash = pool.add(tx.clone(), TransactionOrigin::External, &world).unwrap();
    assert_eq!(status(&pool), (1, 0));
    assert_eq!(pool.stats().blob.txs, 1);
    assert_eq!(pool.get(&hash).unwrap().to_pooled(), Some(tx.clone()));
    assert_eq!(pool.get(&hash).unwrap().pooled_length(), tx.encode_2718_len());
    let served = pool.blobs(&[versioned[1], B256::ZERO]);
    let blob = served[0].as_ref().unwrap();
    assert!(served[1].is_none() && blob.v2().is_none());
    let cells = pool.blob_cells(&versioned, [0xff_u8; 16].into());
    assert!(cells.iter().all(Option::is_none), "one proof a blob: no proofs of cells");
    let v1 = blob.v1().unwrap();
    assert_eq!((*v1.blob, v1.proof), (sidecar.blobs[1], sidecar.proofs[1]));
    // Another transaction with the same blobs.
    let twin = transfer(1, 0).blobs(2 * GWEI, sidecar);
    let twin = pool.add(twin, TransactionOrigin::External, &world).unwrap();

    // They wait for lower blob fees, and a builder without room for blobs skips them.
    world.next.blob_base_fee = Some(3 * GWEI);
    world.go(&pool, &[], vec![]);
    assert_eq!(status(&pool), (0, 2));
    assert_eq!(pool.best(0, Some(1)).count(), 2);
    assert_eq!(pool.best(0, None).count(), 0);
    let mut iter = pool.best(0, Some(1));
    iter.skip_blobs();
    assert_eq!(iter.count(), 0);

    // Once mined they are still served, and come back with a reorg.
    let pooled = pool.get(&hash).unwrap();
    let hashes = world.mine(&[pooled]);
    world.go(&pool, &hashes, vec![]);
    pool.remove(&twin).unwrap();
    assert_eq!(status(&pool), (0, 0));
    assert!(pool.blobs(&versioned).iter().all(Option::is_some));
    assert!(pool.stats().mined_blobs_size > 2 * 131_072);
    before.go(&pool, &[], vec![mined(&tx)]);
    assert_eq!(status(&pool), (1, 0));
    assert_eq!(pool.get(&hash).unwrap().pooled_length(), tx.encode_2718_len());
    assert_eq!(pool.get(&hash).unwrap().to_pooled(), Some(tx));
    assert_eq!(pool.stats().mined_blobs_size, 0);
    pool.remove(&hash).unwrap();
    assert!(pool.blobs(&versioned).iter().all(Option::is_none));
}

#[test]
fn mined_blobs_are_kept_within_their_budget() {
    let mut world = HeadFixture::new("prague");
    let before = world.clone();
    let pool = world.pool(PoolConfig { mined_blobs_max_size: 200_000, ..Default::default() });
    let txs = [0, 1].map(|n| transfer(n, 0).blobs(GWEI, true_sidecar(&[1 + n])));
    for tx in &txs {
        pool.add(tx.clone(), TransactionOrigin::External, &world).unwrap();
    }
    let hashes = world.mine(&txs.each_ref().map(|tx| pool.get(tx.tx_hash()).unwrap()));
    world.go(&pool, &hashes, vec![]);
    let kept = txs.each_ref().map(|tx| pool.sidecar(tx.tx_hash()).is_some());
    assert_eq!(kept, [false, true], "the older one goes");
    // Without its sidecar a blob transaction cannot come back.
    before.go(&pool, &[], txs.each_ref().map(mined).to_vec());
    assert_eq!(status(&pool), (1, 0));
}

#[test]
fn cell_proofs_are_taken_from_osaka_on() {
    let world = HeadFixture::new("osaka");
    let pool = world.pool(PoolConfig::default());
    let t = transfer(0, 0);
    let old = true_sidecar(&[9]);
    let message = refusal(&pool, &world, t.blobs(GWEI, old.clone()));
    assert_eq!(message, "Wrong sidecar format: unexpected sidecar version, want: 1, got: 0");
    let new = BlobSidecar::from(old).try_into_eip7594().unwrap();
    let mut bad = new.clone();
    bad.cell_proofs.swap(3, 4);
    let message = refusal(&pool, &world, t.blobs(GWEI, bad));
    assert_eq!(message, "KZG verification error: invalid KZG proof");
    let message = refusal(&pool, &world, t.blobs(GWEI, fake_cell_sidecar(7)));
    assert_eq!(message, "transaction blob limit exceeded: blob count 7, limit 6");
    pool.add(t.blobs(GWEI, new.clone()), TransactionOrigin::External, &world).unwrap();
    // Replacements that pay too little: false blobs are an offence of a peer all the same.
    let cheap = |sidecar| t.fee(40 * GWEI, 4 * GWEI).blobs(GWEI, sidecar);
    let underpriced = "replacement transaction underpriced";
    let mut bad = new.clone();
    bad.cell_proofs.rotate_left(1);
    let message = refusal(&pool, &world, cheap(bad.clone()));
    assert_eq!(message, "KZG verification error: invalid KZG proof");
    let of_user = pool.add(cheap(bad), TransactionOrigin::Local, &world).unwrap_err();
    assert_eq!(of_user.to_string(), underpriced);
    let versioned: Vec<B256> = new.versioned_hashes().collect();
    let served = pool.blobs(&versioned);
    let blob = served[0].as_ref().unwrap();
    assert!(blob.v1().is_none());
    let v2 = blob.v2().unwrap();
    assert_eq!((*v2.blob, v2.proofs), (new.blobs[0], new.cell_proofs.clone()));
    let all = pool.blob_cells(&versioned, [0xff_u8; 16].into()).remove(0).unwrap();
    let cells: Vec<Cell> = all.blob_cells.into_iter().flatten().collect();
    assert_eq!(cells, new.compute_cells().unwrap());
    assert_eq!(all.proofs.into_iter().flatten().collect::<Vec<_>>(), new.cell_proofs);
}
