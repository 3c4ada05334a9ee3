//! The journal: accepted transactions survive a restart.

use super::fixtures::*;
use crate::common::{NodeSetup, TestNode};
use alloy_consensus::TxEip1559;
use alloy_eips::eip2718::Encodable2718;
use retrie_engine::pool::{JournalError, PoolConfig, TransactionOrigin, TransactionPool};
use retrie_pipeline::testkit::{TestChain, TestRules};
use retrie_storage_mpt::Mpt;
use std::{
    io::Write,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

/// A pool as after a start, restored from its journal.
fn restarted(world: &HeadFixture, journal: &Path) -> (TransactionPool, usize) {
    let pool = world.pool(PoolConfig::default());
    let restored = pool.keep_journal(journal, world).unwrap();
    pool.check_invariants().unwrap();
    (pool, restored)
}

#[test]
fn accepted_transactions_come_back_with_their_origin() {
    let (folder, world) = (tempfile::tempdir().unwrap(), HeadFixture::new("prague"));
    let journal = folder.path().join("deep/txpool.journal");
    let (pool, restored) = restarted(&world, &journal);
    assert_eq!(restored, 0);
    let local = pool.add(transfer(0, 0).signed(), TransactionOrigin::Local, &world).unwrap();
    let remote = pool.add(transfer(1, 0).signed(), TransactionOrigin::External, &world).unwrap();
    let gapped = pool.add(transfer(2, 7).signed(), TransactionOrigin::Local, &world).unwrap();
    let replaced = pool.add(transfer(3, 0).signed(), TransactionOrigin::Local, &world).unwrap();
    let dearer = transfer(3, 0).fee(40 * GWEI, 4 * GWEI);
    let replacement = pool.add(dearer.signed(), TransactionOrigin::Local, &world).unwrap();
    let sidecar = true_sidecar(&[1, 2]);
    let blobs =
        pool.add(transfer(4, 0).blobs(10, sidecar), TransactionOrigin::External, &world).unwrap();
    pool.add(transfer(5, 0).value(100 * ETHER).signed(), TransactionOrigin::Local, &world)
        .unwrap_err();
    // A kill: no shutdown code runs.
    drop(pool);

    let (pool, restored) = restarted(&world, &journal);
    assert_eq!(restored, 6, "the one that was replaced, too");
    assert_eq!(status(&pool), (4, 1));
    let is_local = |hash| pool.get(&hash).unwrap().is_local;
    assert!(is_local(local) && !is_local(remote) && is_local(gapped) && is_local(replacement));
    assert!(pool.get(&replaced).is_none());
    assert_eq!(pool.get(&blobs).unwrap().sidecar.as_ref().unwrap().blobs().len(), 2);
    // And again, from the rewritten journal.
    drop(pool);
    let (pool, restored) = restarted(&world, &journal);
    assert_eq!((restored, status(&pool)), (5, (4, 1)));
}

#[test]
fn what_is_mined_does_not_come_back_and_what_a_lost_block_paid_for_waits() {
    let (folder, mut world) = (tempfile::tempdir().unwrap(), HeadFixture::new("prague"));
    let before = world.clone();
    let journal = folder.path().join("txpool.journal");
    let (pool, _) = restarted(&world, &journal);
    let first = pool.add(transfer(0, 0).signed(), TransactionOrigin::Local, &world).unwrap();
    let hashes = world.mine(&[pool.get(&first).unwrap()]);
    // A sender without funds gets them in this block.
    world.account_mut(9).balance = alloy_primitives::U256::from(5 * ETHER);
    world.go(&pool, &hashes, vec![]);
    pool.add(transfer(0, 1).signed(), TransactionOrigin::Local, &world).unwrap();
    pool.add(transfer(9, 0).value(2 * ETHER).signed(), TransactionOrigin::Local, &world).unwrap();
    drop(pool);

    let (pool, _) = restarted(&world, &journal);
    assert_eq!(status(&pool), (2, 0), "the block is durable");
    drop(pool);
    // The block was not durable, and its transaction was still in the journal.
    let mut poor = before;
    poor.account_mut(9).balance = alloy_primitives::U256::ZERO;
    let pool = poor.pool(PoolConfig::default());
    pool.add(transfer(0, 0).signed(), TransactionOrigin::Local, &poor).unwrap();
    pool.keep_journal(&journal, &poor).unwrap();
    assert_eq!(status(&pool), (2, 1), "no transaction is lost for lack of funds");
    let hashes = poor.mine(&[pool.get(&first).unwrap()]);
    poor.account_mut(9).balance = alloy_primitives::U256::from(5 * ETHER);
    poor.go(&pool, &hashes, vec![]);
    assert_eq!(status(&pool), (2, 0));
}

#[test]
fn what_a_reorg_puts_back_is_in_the_journal() {
    let (folder, world) = (tempfile::tempdir().unwrap(), HeadFixture::new("prague"));
    let journal = folder.path().join("txpool.journal");
    let (pool, _) = restarted(&world, &journal);
    let stranger = transfer(5, 0).signed();
    world.go(&pool, &[], vec![mined(&stranger)]);
    assert_eq!(status(&pool), (1, 0));
    drop(pool);
    let (pool, _) = restarted(&world, &journal);
    assert!(!pool.get(stranger.tx_hash()).expect("it is kept").is_local);
}

#[test]
fn a_torn_or_damaged_end_costs_only_itself() {
    let (folder, world) = (tempfile::tempdir().unwrap(), HeadFixture::new("prague"));
    let journal = folder.path().join("txpool.journal");
    let (pool, _) = restarted(&world, &journal);
    let mut lengths = vec![std::fs::metadata(&journal).unwrap().len()];
    for nonce in 0..5 {
        pool.add(transfer(0, nonce).signed(), TransactionOrigin::Local, &world).unwrap();
        lengths.push(std::fs::metadata(&journal).unwrap().len());
    }
    drop(pool);
    let whole = std::fs::read(&journal).unwrap();
    for end in 0..whole.len() {
        std::fs::write(&journal, &whole[..end]).unwrap();
        let expected = lengths.iter().skip(1).filter(|length| **length <= end as u64).count();
        let (pool, restored) = restarted(&world, &journal);
        assert_eq!(restored, expected, "cut at {end}");
        // The journal continues from there.
        pool.add(transfer(1, 0).signed(), TransactionOrigin::Local, &world).unwrap();
        drop(pool);
        assert_eq!(restarted(&world, &journal).1, expected + 1, "cut at {end}");
    }
    let mut flipped = whole;
    flipped[lengths[3] as usize + 20] ^= 1;
    std::fs::write(&journal, &flipped).unwrap();
    assert_eq!(restarted(&world, &journal).1, 3);
}

#[test]
fn another_file_is_left_alone() {
    let (folder, world) = (tempfile::tempdir().unwrap(), HeadFixture::new("prague"));
    let file = folder.path().join("letters.txt");
    std::fs::File::create(&file).unwrap().write_all(b"Dear all, this is no journal").unwrap();
    let pool = world.pool(PoolConfig::default());
    let refused = pool.keep_journal(&file, &world).unwrap_err();
    assert!(matches!(refused, JournalError::Foreign { .. }), "{refused}");
    assert!(std::fs::read(&file).unwrap().starts_with(b"Dear all"));
}

/// Cause: the file was created with the process's default mode, so that other users of the machine
/// could read private transactions, and see which ones were sent from this node.
#[cfg(unix)]
#[test]
fn only_the_user_of_the_node_reads_it() {
    use std::{fs::Permissions, os::unix::fs::PermissionsExt};
    let (folder, world) = (tempfile::tempdir().unwrap(), HeadFixture::new("prague"));
    let journal = folder.path().join("txpool.journal");
    let mode = || std::fs::metadata(&journal).unwrap().permissions().mode() & 0o777;
    let open_to_all = |path: &Path| {
        std::fs::set_permissions(path, Permissions::from_mode(0o644)).unwrap();
    };
    let (pool, _) = restarted(&world, &journal);
    assert_eq!(mode(), 0o600, "a new one");
    pool.add(transfer(0, 0).signed(), TransactionOrigin::Private, &world).unwrap();
    drop(pool);
    // A file of an old version, and a partial new file of a killed process.
    open_to_all(&journal);
    let next = folder.path().join("txpool.journal.next");
    std::fs::write(&next, "half of it").unwrap();
    open_to_all(&next);
    assert_eq!(restarted(&world, &journal).1, 1);
    assert_eq!((mode(), next.exists()), (0o600, false), "written anew");
    assert_eq!(restarted(&world, &journal).1, 1);

    // For a foreign file, not even the mode is changed.
    std::fs::write(&journal, "Dear all, this is no journal").unwrap();
    open_to_all(&journal);
    world.pool(PoolConfig::default()).keep_journal(&journal, &world).unwrap_err();
    assert_eq!(mode(), 0o644);
}

/// Cause: the file was only rewritten at a new head, and grew without limit by replacements until
/// then.
#[test]
fn it_does_not_grow_without_bound_between_two_heads() {
    let chain = TestChain::new(TestRules::Cancun, Arc::new(Mpt::default()));
    let node = TestNode::new(&chain.spec, NodeSetup::MPT).start();
    let _maintainer = node.maintainer();
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("txpool.journal");
    node.pool.keep_journal(&journal, &node.live).unwrap();
    let (input, mut fee, mut written) = (vec![0; 120_000], 10, 0);
    // The largest file that is never rewritten.
    while written <= 16 << 20 {
        let transfer = transfer(0, 0).gas(2_000_000).fee(fee, fee).value(0);
        let tx = sign(0, TxEip1559 { input: input.clone().into(), ..transfer.tx() });
        node.pool.add(tx, TransactionOrigin::External, &node.live).unwrap();
        fee += fee / 10 + 1;
        written += input.len();
    }
    let length = || std::fs::metadata(&journal).unwrap().len();
    let deadline = Instant::now() + Duration::from_secs(60);
    while length() > 200_000 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!((120_000..200_000).contains(&length()), "the last one alone, not {}", length());
}

/// docs/formats/txpool-journal.md.
#[test]
fn the_file_is_as_documented() {
    let (folder, world) = (tempfile::tempdir().unwrap(), HeadFixture::new("prague"));
    let journal = folder.path().join("txpool.journal");
    let (pool, _) = restarted(&world, &journal);
    let (local, remote) = (transfer(0, 0).signed(), transfer(1, 0).signed());
    let unsigned = transfer(2, 0).signed();
    pool.add(local.clone(), TransactionOrigin::Local, &world).unwrap();
    pool.add(remote.clone(), TransactionOrigin::External, &world).unwrap();
    pool.add_unsigned(unsigned.clone(), address(9), &world).unwrap();
    let mut expected = b"retrie-txpool-1\n".to_vec();
    let sender = address(9);
    for (kind, sender, tx) in
        [(0, &[][..], local), (1, &[][..], remote), (0x80, &sender[..], unsigned)]
    {
        let payload = [&[kind][..], sender, &tx.encoded_2718()].concat();
        expected.extend((payload.len() as u32).to_le_bytes());
        expected.extend(crc32fast::hash(&payload).to_le_bytes());
        expected.extend(payload);
    }
    assert_eq!(std::fs::read(&journal).unwrap(), expected);
    drop(pool);
    let (pool, restored) = restarted(&world, &journal);
    assert_eq!((restored, status(&pool)), (3, (3, 0)));
    assert_eq!(pool.nonce(&sender), Some(1), "it is still that account's");
}
