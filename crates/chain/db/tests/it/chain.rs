//! The chain tables: round trips of real and made-up blocks, forks, atomicity.

use crate::common;

use alloy_primitives::{B256, Bytes, U256, keccak256};
use common::{ALL_TYPES, FullBlock, child, transactions};
use retrie_chainspec::primitives::{Receipt, RecoveredBlock};
use retrie_db::{
    BlockError, ChainRead, DatabaseEnv, DbError, HistoryKept, KeptBlocks, MetadataError, NewBlock,
    OpenError, OpenOptions, PrunedBody, ReadError, RetentionSetting, SyncMode, TableError,
};
use retrie_state::BlockRef;

fn fresh() -> (tempfile::TempDir, DatabaseEnv) {
    let dir = tempfile::tempdir().unwrap();
    let db = DatabaseEnv::create(dir.path(), &OpenOptions::default()).unwrap();
    (dir, db)
}

/// Checks all reads of a stored, executed block.
fn assert_stored(read: &impl ChainRead, full: &FullBlock) {
    let hash = &full.hash;
    let number = full.block.header.number;
    assert_eq!(read.header(hash).unwrap().unwrap(), full.block.header);
    assert_eq!(read.block_number(hash).unwrap(), Some(number));
    assert_eq!(read.body(hash).unwrap().unwrap(), full.block.body);
    assert_eq!(read.block(hash).unwrap().unwrap(), full.block);
    assert_eq!(read.transactions(hash).unwrap().unwrap(), full.block.body.transactions);
    assert_eq!(read.senders(hash).unwrap().unwrap(), full.senders);
    assert_eq!(read.receipts(hash).unwrap().unwrap(), full.receipts);
    assert_eq!(read.total_difficulty(hash).unwrap(), Some(full.total_difficulty));
    assert!(read.hashes_at(number).unwrap().contains(hash));
    for (i, receipt) in full.receipts.iter().enumerate() {
        assert_eq!(read.receipt(hash, i as u32).unwrap().as_ref(), Some(receipt));
    }
    assert_eq!(read.receipt(hash, full.receipts.len() as u32).unwrap(), None);
    assert_eq!(read.access_list(hash).unwrap().map(Vec::from), full.access_list);
    let recovered = read.recovered_block(hash).unwrap().unwrap();
    assert_eq!(recovered.hash(), *hash);
    assert_eq!(recovered.senders(), full.senders);
}

fn assert_canonical(read: &impl ChainRead, full: &FullBlock) {
    let number = full.block.header.number;
    assert_eq!(read.canonical_hash(number).unwrap(), Some(full.hash));
    assert!(read.is_canonical(&full.hash).unwrap());
    assert_eq!(read.header_by_number(number).unwrap().unwrap(), full.block.header);
    for (i, tx) in full.block.body.transactions.iter().enumerate() {
        let found = read.transaction_by_hash(tx.tx_hash()).unwrap().unwrap();
        assert_eq!(found.transaction, *tx);
        assert_eq!(found.sender, full.senders[i]);
        assert_eq!((found.block, found.index), (BlockRef::new(number, full.hash), i as u32));
    }
}

fn assert_absent(read: &impl ChainRead, full: &FullBlock) {
    let hash = &full.hash;
    assert_eq!(read.header(hash).unwrap(), None);
    assert_eq!(read.body(hash).unwrap(), None);
    assert_eq!(read.block(hash).unwrap(), None);
    assert_eq!(read.receipts(hash).unwrap(), None);
    assert_eq!(read.senders(hash).unwrap(), None);
    assert_eq!(read.access_list(hash).unwrap(), None);
    assert_eq!(read.total_difficulty(hash).unwrap(), None);
    assert_eq!(read.root(hash, "mpt").unwrap(), None);
    assert!(!read.hashes_at(full.block.header.number).unwrap().contains(hash));
    for tx in &full.block.body.transactions {
        assert!(read.transaction_by_hash(tx.tx_hash()).unwrap().is_none());
    }
}

#[test]
fn real_blocks_with_ommers_come_back_and_iterate_in_order() {
    let Some(data) = common::data() else { return };
    let rlp = common::gunzip(data.join("mainnet/chain/mainnet-16384-20999.rlp.gz"));
    let blocks = common::blocks(&rlp, 600);
    assert!(blocks.iter().any(|block| !block.body.ommers.is_empty()), "no block with ommers");
    let (dir, db) = fresh();
    let mut total_difficulty = U256::ZERO;
    let full: Vec<FullBlock> = blocks
        .into_iter()
        .map(|block| {
            total_difficulty += block.header.difficulty;
            FullBlock::of(block, total_difficulty)
        })
        .collect();
    for batch in full.chunks(100) {
        let mut txn = db.begin_write().unwrap();
        for block in batch {
            txn.insert_block(&block.new_block()).unwrap();
        }
        txn.commit().unwrap();
    }
    drop(db);
    let db = DatabaseEnv::open(dir.path(), &OpenOptions::default()).unwrap();
    let read = db.begin_read().unwrap();
    for block in &full {
        assert_stored(&read, block);
        assert_canonical(&read, block);
    }
    let last = full.last().unwrap();
    assert_eq!(read.first().unwrap(), Some(BlockRef::new(16_384, full[0].hash)));
    assert_eq!(read.tip().unwrap(), Some(BlockRef::new(16_983, last.hash)));
    let from = 16_500;
    let listed: Vec<_> = read.canonical_headers(from).map(Result::unwrap).collect();
    let expected: Vec<_> =
        full[116..].iter().map(|full| (full.hash, full.block.header.clone())).collect();
    assert_eq!(listed, expected);
    assert_eq!(read.canonical_headers(20_000).count(), 0);
}

#[test]
fn real_blocks_of_every_transaction_type_come_back() {
    let Some(data) = common::data() else { return };
    let (_dir, db) = fresh();
    let mut types = std::collections::BTreeSet::new();
    let mut stored = Vec::new();
    let mut files: Vec<_> = std::fs::read_dir(data.join("mainnet/witness"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "gz"))
        .collect();
    files.sort();
    for path in files {
        let json: serde_json::Value = serde_json::from_slice(&common::gunzip(path)).unwrap();
        let rlp: Bytes = json["block"].as_str().unwrap().parse().unwrap();
        let block = common::blocks(&rlp, 1).remove(0);
        types.extend(block.body.transactions.iter().map(|tx| tx.tx_type() as u8));
        let full = FullBlock::of(block, U256::from(1));
        assert_eq!(json["hash"].as_str().unwrap(), full.hash.to_string());
        let mut txn = db.begin_write().unwrap();
        for code in json["codes"].as_array().unwrap() {
            let code: Bytes = code.as_str().unwrap().parse().unwrap();
            txn.insert_code(&keccak256(&code), &code).unwrap();
        }
        // These blocks do not form a chain: each is the whole chain for a moment.
        txn.insert_block(&full.new_block()).unwrap();
        assert_canonical(&txn, &full);
        txn.unset_canonical_above(0).unwrap();
        txn.commit().unwrap();
        stored.push((full, json));
    }
    assert_eq!(types.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    let read = db.begin_read().unwrap();
    let mut longest = 0;
    for (full, json) in &stored {
        assert_stored(&read, full);
        for code in json["codes"].as_array().unwrap() {
            let code: Bytes = code.as_str().unwrap().parse().unwrap();
            longest = longest.max(code.len());
            assert_eq!(db.code(&keccak256(&code)).unwrap(), Some(code));
        }
    }
    assert!(longest > 16_352, "no code of more than one piece");
}

#[test]
fn all_transaction_and_receipt_types_and_long_values_come_back() {
    let (_dir, db) = fresh();
    let genesis = child(None, 0, vec![]);
    let mut one = child(Some(&genesis), 1, transactions(1));
    assert_eq!(one.receipts.iter().map(|r| r.tx_type).collect::<Vec<_>>(), ALL_TYPES);
    // Logs and inputs of several pieces.
    one.receipts[2].logs.push(alloy_primitives::Log::new_unchecked(
        alloy_primitives::Address::ZERO,
        vec![],
        Bytes::from(vec![7; 100_000]),
    ));
    let mut long = transactions(2);
    let tx = alloy_consensus::TxLegacy { input: vec![1; 70_000].into(), ..Default::default() };
    let signature = alloy_primitives::Signature::test_signature();
    long.insert(1, alloy_consensus::SignableTransaction::into_signed(tx, signature).into());
    let two = child(Some(&one), 2, long);
    let mut txn = db.begin_write().unwrap();
    for block in [&genesis, &one, &two] {
        txn.insert_block(&block.new_block()).unwrap();
        assert_stored(&txn, block);
    }
    txn.commit().unwrap();
    let read = db.begin_read().unwrap();
    for block in [&genesis, &one, &two] {
        assert_stored(&read, block);
        assert_canonical(&read, block);
    }
}

#[test]
fn recovered_blocks_can_be_stored_as_they_are() {
    let (_dir, db) = fresh();
    let full = child(None, 4, transactions(4));
    let recovered = RecoveredBlock::new(full.block.clone(), full.senders.clone(), full.hash);
    let mut txn = db.begin_write().unwrap();
    let block = NewBlock::recovered(&recovered, Some(&full.receipts), full.total_difficulty);
    txn.insert_block(&block).unwrap();
    txn.commit().unwrap();
    let read = db.begin_read().unwrap();
    assert_stored(&read, &full);
    let erased: &dyn ChainRead = &read;
    assert_eq!(erased.tip().unwrap(), Some(BlockRef::new(0, full.hash)));
}

#[test]
fn forks_are_kept_side_by_side_and_switched_between() {
    let (_dir, db) = fresh();
    let genesis = child(None, 0, vec![]);
    let shared = transactions(9);
    let a1 = child(Some(&genesis), 1, transactions(1));
    let a2 = child(Some(&a1), 2, shared.clone());
    let a3 = child(Some(&a2), 3, transactions(3));
    let b2 = child(Some(&a1), 12, [shared[..2].to_vec(), transactions(12)].concat());
    let b3 = child(Some(&b2), 13, shared[2..].to_vec());
    let mut txn = db.begin_write().unwrap();
    for block in [&genesis, &a1, &a2, &a3] {
        txn.insert_block(&block.new_block()).unwrap();
    }
    // Side blocks below the tip: their rows do not sort last.
    txn.insert_side_block(&b2.unexecuted()).unwrap();
    txn.insert_side_block(&b3.new_block()).unwrap();
    txn.commit().unwrap();

    let read = db.begin_read().unwrap();
    assert_eq!(read.tip().unwrap(), Some(BlockRef::new(3, a3.hash)));
    assert_eq!(read.hashes_at(2).unwrap(), [a2.hash, b2.hash]);
    assert_eq!(read.hashes_at(4).unwrap(), [B256::ZERO; 0]);
    for block in [&genesis, &a1, &a2, &a3] {
        assert_stored(&read, block);
        assert_canonical(&read, block);
    }
    assert_stored(&read, &b3);
    assert_eq!(read.block(&b2.hash).unwrap().unwrap(), b2.block);
    assert_eq!(read.receipts(&b2.hash).unwrap(), None, "b2 was not executed");
    assert!(!read.is_canonical(&b2.hash).unwrap());
    assert!(read.transaction_by_hash(transactions(12)[0].tx_hash()).unwrap().is_none());

    // Executed later: storing it again adds the receipts and nothing else.
    let mut txn = db.begin_write().unwrap();
    txn.insert_side_block(&b2.new_block()).unwrap();
    let removed = txn.unset_canonical_above(1).unwrap();
    assert_eq!(removed, [BlockRef::new(3, a3.hash), BlockRef::new(2, a2.hash)]);
    assert_eq!(txn.tip().unwrap(), Some(BlockRef::new(1, a1.hash)));
    txn.set_canonical(2, &b2.hash).unwrap();
    txn.set_canonical(2, &b2.hash).unwrap();
    txn.set_canonical(3, &b3.hash).unwrap();
    txn.commit().unwrap();

    // The old snapshot still shows the old chain.
    assert_canonical(&read, &a3);
    let read = db.begin_read().unwrap();
    for block in [&genesis, &a1, &b2, &b3] {
        assert_stored(&read, block);
        assert_canonical(&read, block);
    }
    assert_eq!(read.hashes_at(2).unwrap(), [a2.hash, b2.hash]);
    assert_stored(&read, &a3);
    for tx in transactions(3) {
        assert!(read.transaction_by_hash(tx.tx_hash()).unwrap().is_none());
    }

    // A side block can be removed, its number's place is reused, a canonical one stays.
    let mut txn = db.begin_write().unwrap();
    txn.insert_root(&a2.hash, "mpt", &B256::repeat_byte(1)).unwrap();
    assert!(txn.remove_block(&a2.hash).unwrap());
    assert!(!txn.remove_block(&a2.hash).unwrap());
    assert!(matches!(
        txn.remove_block(&b2.hash),
        Err(DbError::Block(BlockError::Canonical { number: 2, .. }))
    ));
    assert_eq!(txn.header(&a2.hash).unwrap(), None);
    assert_eq!(txn.hashes_at(2).unwrap(), [b2.hash]);
    let c2 = child(Some(&a1), 22, transactions(22));
    txn.insert_side_block(&c2.new_block()).unwrap();
    assert_stored(&txn, &c2);
    assert_stored(&txn, &b2);
    assert_canonical(&txn, &b2);
    txn.commit().unwrap();
}

#[test]
fn what_does_not_extend_the_chain_is_refused() {
    let (_dir, db) = fresh();
    let genesis = child(None, 0, vec![]);
    let one = child(Some(&genesis), 1, transactions(1));
    let two = child(Some(&one), 2, transactions(2));
    let other = child(Some(&genesis), 3, transactions(3));
    let mut txn = db.begin_write().unwrap();
    txn.insert_block(&genesis.new_block()).unwrap();
    let gap = txn.insert_block(&two.new_block()).unwrap_err();
    assert!(matches!(gap, DbError::Block(BlockError::NotLinked { number: 2, .. })), "{gap:?}");
    assert!(gap.to_string().contains(&one.hash.to_string()), "{gap}");
    txn.insert_block(&one.new_block()).unwrap();
    let sibling = txn.insert_block(&other.new_block()).unwrap_err();
    assert!(
        matches!(sibling, DbError::Block(BlockError::NotLinked { number: 1, .. })),
        "{sibling:?}"
    );
    let wrong_number = txn.set_canonical(7, &two.hash).unwrap_err();
    assert!(
        matches!(wrong_number, DbError::Block(BlockError::NotLinked { number: 7, .. })),
        "{wrong_number:?}"
    );
    let unknown = B256::repeat_byte(1);
    assert!(
        matches!(txn.set_canonical(2, &unknown), Err(DbError::Block(BlockError::UnknownBlock { hash })) if hash == unknown)
    );
    assert!(matches!(
        txn.insert_root(&unknown, "mpt", &unknown),
        Err(DbError::Block(BlockError::UnknownBlock { .. }))
    ));
    let senders = NewBlock { senders: &[], ..other.new_block() };
    assert!(matches!(
        txn.insert_side_block(&senders),
        Err(DbError::Block(BlockError::BadBlock { .. }))
    ));
    let receipts = NewBlock { receipts: Some(&one.receipts[1..]), ..other.new_block() };
    assert!(matches!(
        txn.insert_side_block(&receipts),
        Err(DbError::Block(BlockError::BadBlock { .. }))
    ));
    // The transaction is still valid.
    txn.commit().unwrap();
    assert_canonical(&db.begin_read().unwrap(), &one);
}

#[test]
fn dropped_transaction_leaves_nothing() {
    let (_dir, db) = fresh();
    let genesis = child(None, 0, transactions(0));
    let code = vec![0x60; 20_000];
    let hash = keccak256(&code);
    let mut txn = db.begin_write().unwrap();
    txn.insert_block(&genesis.new_block()).unwrap();
    txn.insert_code(&hash, &code).unwrap();
    txn.insert_root(&genesis.hash, "mpt", &B256::repeat_byte(1)).unwrap();
    txn.put_note("finalised", b"1").unwrap();
    assert_stored(&txn, &genesis);
    drop(txn);
    let read = db.begin_read().unwrap();
    assert_absent(&read, &genesis);
    assert_eq!(read.tip().unwrap(), None);
    assert_eq!(read.first().unwrap(), None);
    assert_eq!(read.code(&hash).unwrap(), None);
    assert_eq!(read.note("finalised").unwrap(), None);
}

#[test]
fn codes_roots_and_notes_come_back() {
    let (_dir, db) = fresh();
    let genesis = child(None, 0, vec![]);
    let mut txn = db.begin_write().unwrap();
    txn.insert_block(&genesis.new_block()).unwrap();
    let codes: Vec<Vec<u8>> =
        [0, 1, 16_352, 24_576, 65_536].map(|len| (0..len).map(|i| (i * 7) as u8).collect()).into();
    for code in &codes {
        txn.insert_code(&keccak256(code), code).unwrap();
        txn.insert_code(&keccak256(code), code).unwrap();
    }
    txn.insert_root(&genesis.hash, "mpt", &B256::repeat_byte(1)).unwrap();
    txn.insert_root(&genesis.hash, "mpt-archive", &B256::repeat_byte(2)).unwrap();
    txn.defer_root(&genesis.hash, "raw").unwrap();
    txn.put_note("finalised", b"12").unwrap();
    txn.commit().unwrap();
    for code in &codes {
        assert_eq!(db.code(&keccak256(code)).unwrap().unwrap(), *code);
    }
    assert_eq!(db.code(&B256::ZERO).unwrap(), None);
    let read = db.begin_read().unwrap();
    assert_eq!(read.root(&genesis.hash, "mpt").unwrap(), Some(B256::repeat_byte(1)));
    assert_eq!(read.root(&genesis.hash, "lvmt").unwrap(), None);
    let roots = [("mpt", 1), ("mpt-archive", 2)];
    assert_eq!(
        read.roots(&genesis.hash).unwrap(),
        roots.map(|(name, byte)| (name.to_owned(), B256::repeat_byte(byte)))
    );
    // No root was computed and none is returned, but `root_rows` lists the backend.
    assert_eq!(read.root(&genesis.hash, "raw").unwrap(), None);
    let rows = [("mpt", Some(1)), ("mpt-archive", Some(2)), ("raw", None)];
    assert_eq!(
        read.root_rows(&genesis.hash).unwrap(),
        rows.map(|(name, byte)| (name.to_owned(), byte.map(B256::repeat_byte)))
    );
    assert_eq!(read.note("finalised").unwrap().unwrap(), b"12"[..]);
    let mut txn = db.begin_write().unwrap();
    assert!(txn.delete_note("finalised").unwrap());
    assert!(!txn.delete_note("finalised").unwrap());
    let long = "x".repeat(65);
    assert!(matches!(
        txn.insert_root(&genesis.hash, &long, &B256::ZERO),
        Err(DbError::Table(TableError::KeyTooLong { max: 64, .. }))
    ));
}

#[test]
fn patches_of_blocks_are_replaced_and_go_with_their_block() {
    let (_dir, db) = fresh();
    let genesis = child(None, 0, vec![]);
    let first = child(Some(&genesis), 0, vec![]);
    let mut txn = db.begin_write().unwrap();
    txn.insert_block(&genesis.new_block()).unwrap();
    txn.insert_block(&first.new_block()).unwrap();
    assert!(!txn.has_patches().unwrap());
    assert!(matches!(
        txn.insert_patch(&B256::ZERO, b"x"),
        Err(DbError::Block(BlockError::UnknownBlock { .. }))
    ));
    // A shorter one leaves nothing of a longer one, which takes several rows.
    for len in [40_000, 16_352, 3] {
        let patch = vec![7; len];
        txn.insert_patch(&first.hash, &patch).unwrap();
        assert_eq!(txn.patch(&first.hash).unwrap().unwrap(), patch);
        assert_eq!(txn.patch(&genesis.hash).unwrap(), None);
    }
    txn.commit().unwrap();
    assert_no_faults(&db);
    let mut txn = db.begin_write().unwrap();
    assert!(txn.has_patches().unwrap());
    txn.unset_canonical_above(0).unwrap();
    assert_eq!(txn.remove_blocks_above(0).unwrap(), 1);
    assert!(!txn.has_patches().unwrap());
    assert_eq!(txn.patch(&first.hash).unwrap(), None);
}

#[test]
fn a_retention_is_kept_unless_a_user_named_another_one() {
    let (_dir, db) = fresh();
    let kept = || db.begin_read().unwrap().retention().unwrap();
    let of = |blocks, is_named| RetentionSetting { blocks, is_explicit: is_named };
    assert_eq!(kept(), None);
    for retention in [of(128, false), of(10_000, false), of(6, true)] {
        db.store_retention(retention).unwrap();
        assert_eq!(kept(), Some(retention));
    }
    db.store_retention(of(6, false)).unwrap();
    for other in [of(9, true), of(9, false)] {
        let refused = db.store_retention(other);
        let refused = matches!(
            refused,
            Err(DbError::Metadata(MetadataError::RetentionMismatch { found: 6, expected: 9, .. }))
        );
        assert!(refused);
    }
    assert_eq!(kept(), Some(of(6, true)));
}

#[test]
fn empty_block_has_an_empty_list_of_receipts() {
    let (_dir, db) = fresh();
    let genesis = child(None, 0, vec![]);
    let mut txn = db.begin_write().unwrap();
    txn.insert_block(&genesis.new_block()).unwrap();
    assert_eq!(txn.receipts(&genesis.hash).unwrap(), Some(Vec::<Receipt>::new()));
}

/// A chain of 30 blocks, some of them empty, and a database that grows with them.
struct GrowingChain {
    chain: Vec<FullBlock>,
    dir: tempfile::TempDir,
}

impl GrowingChain {
    fn new() -> Self {
        let mut chain = vec![child(None, 0, transactions(0))];
        for n in 1..30 {
            chain.push(child(chain.last(), n, if n % 7 == 3 { vec![] } else { transactions(n) }));
        }
        Self { chain, dir: tempfile::tempdir().unwrap() }
    }

    fn open(&self, kept: HistoryKept) -> DatabaseEnv {
        let options = OpenOptions { kept, sync: SyncMode::NoSync, ..OpenOptions::default() };
        DatabaseEnv::open_or_create(self.dir.path(), &options).unwrap()
    }

    fn insert(&self, db: &DatabaseEnv, blocks: std::ops::Range<usize>) {
        let mut txn = db.begin_write().unwrap();
        let blocks = &self.chain[blocks];
        blocks.iter().for_each(|block| txn.insert_block(&block.new_block()).unwrap());
        txn.commit().unwrap();
    }
}

fn assert_no_faults(db: &DatabaseEnv) {
    let mut faults = Vec::new();
    let read = db.begin_read().unwrap();
    read.check_chain(&mut |_| {}, &mut |fault| faults.push(fault.to_string())).unwrap();
    assert_eq!(faults, [] as [String; 0]);
}

const LAST_5: KeptBlocks = KeptBlocks { from: u64::MAX, last: 5 };

#[test]
fn bodies_of_old_blocks_go_with_all_that_is_read_from_them() {
    let growing = GrowingChain::new();
    let chain = &growing.chain;
    let check = |db: &DatabaseEnv, stored: usize, first: usize| {
        let read = db.begin_read().unwrap();
        for (n, block) in chain[..stored].iter().enumerate() {
            if n == 0 || n >= first {
                assert_stored(&read, block);
                assert_canonical(&read, block);
                continue;
            }
            assert_eq!(read.header(&block.hash).unwrap().unwrap(), block.block.header);
            assert_eq!(read.canonical_hash(n as u64).unwrap(), Some(block.hash));
            assert_eq!(read.total_difficulty(&block.hash).unwrap(), Some(block.total_difficulty));
            let number = n as u64;
            let is_pruned = |error| match error {
                Some(ReadError::Pruned(PrunedBody { number: of, first: from })) => {
                    (of, from) == (number, first as u64)
                }
                _ => false,
            };
            assert!(is_pruned(read.body(&block.hash).err()));
            assert!(is_pruned(read.block(&block.hash).err()));
            assert!(is_pruned(read.recovered_block(&block.hash).err()));
            assert!(is_pruned(read.transactions(&block.hash).err()));
            assert!(is_pruned(read.senders(&block.hash).err()));
            assert_eq!(read.receipts(&block.hash).unwrap(), None);
            for tx in &block.block.body.transactions {
                assert!(read.transaction_by_hash(tx.tx_hash()).unwrap().is_none());
            }
        }
        assert_no_faults(db);
    };
    let db = growing.open(HistoryKept { bodies: LAST_5, ..HistoryKept::default() });
    growing.insert(&db, 0..12);
    check(&db, 12, 6);
    let mut txn = db.begin_write().unwrap();
    let side = child(Some(&chain[11]), 99, transactions(99));
    txn.insert_side_block(&side.new_block()).unwrap();
    txn.commit().unwrap();
    growing.insert(&db, 12..20);
    check(&db, 20, 14);
    assert!(db.begin_read().unwrap().block(&side.hash).is_err(), "side blocks go too");
    drop(db);
    // Pruned parts stay pruned, whatever the options; reverts and the same blocks again work as
    // usual.
    let db = growing.open(HistoryKept::default());
    let mut txn = db.begin_write().unwrap();
    assert_eq!(txn.unset_canonical_above(10).unwrap().len(), 9);
    assert_eq!(txn.remove_blocks_above(10).unwrap(), 10);
    txn.commit().unwrap();
    assert_no_faults(&db);
    growing.insert(&db, 11..30);
    let read = db.begin_read().unwrap();
    assert!(matches!(
        read.body(&chain[10].hash),
        Err(ReadError::Pruned(PrunedBody { number: 10, .. }))
    ));
    chain[11..].iter().for_each(|block| assert_stored(&read, block));
    assert_no_faults(&db);
}

/// The database is opened anew for each step, and a larger step is lost before it.
#[test]
fn after_every_step_of_pruning_the_chain_is_what_the_notes_say() {
    let growing = GrowingChain::new();
    let chain = &growing.chain;
    let db = growing.open(HistoryKept::default());
    growing.insert(&db, 0..30);
    assert!(!db.prune_history(1).unwrap(), "all is kept");
    drop(db);
    let receipts = KeptBlocks { from: u64::MAX, last: 2 };
    let kept = HistoryKept { bodies: LAST_5, receipts, lookup: LAST_5, ..HistoryKept::default() };
    let next = child(chain.last(), 30, transactions(30));
    let (mut steps, mut before) = (0, [0; 3]);
    loop {
        let db = growing.open(kept);
        let mut lost = db.begin_write().unwrap();
        lost.insert_block(&next.new_block()).unwrap();
        assert!(lost.bodies_pruned_below().unwrap() >= 25);
        drop(lost);
        let more = db.prune_history(7).unwrap();
        let read = db.begin_read().unwrap();
        let bodies = read.bodies_pruned_below().unwrap();
        let receipts = read.receipts_pruned_below().unwrap();
        let lookup = read.lookup_pruned_below().unwrap();
        for (number, block) in (0_u64..).zip(chain) {
            let has_body = read.body(&block.hash).is_ok();
            assert_eq!(has_body, number == 0 || number >= bodies, "{number}");
            if number >= receipts {
                assert_eq!(read.receipts(&block.hash).unwrap(), Some(block.receipts.clone()));
            }
            for tx in &block.block.body.transactions {
                let is_found = read.transaction_by_hash(tx.tx_hash()).unwrap().is_some();
                assert!(is_found || number < bodies.max(lookup), "{number}");
            }
        }
        let now = [bodies, receipts, lookup];
        assert!(now.iter().zip(before).all(|(now, before)| *now >= before), "{now:?}");
        before = now;
        drop(read);
        assert_no_faults(&db);
        if !more {
            break;
        }
        steps += 1;
    }
    assert_eq!(before, [24, 27, 24]);
    assert!(steps > 10, "{steps}");
}

#[test]
fn old_transactions_are_found_by_hash_no_more_and_all_else_stays() {
    let growing = GrowingChain::new();
    let check = |db: &DatabaseEnv, stored: usize, first: usize| {
        let read = db.begin_read().unwrap();
        for (n, block) in growing.chain[..stored].iter().enumerate() {
            assert_stored(&read, block);
            for tx in &block.block.body.transactions {
                let found = read.transaction_by_hash(tx.tx_hash()).unwrap();
                assert_eq!(found.is_some(), n >= first, "block {n}");
            }
        }
        assert_eq!(read.lookup_pruned_below().unwrap(), first as u64);
        assert_no_faults(db);
    };
    let db = growing.open(HistoryKept { lookup: LAST_5, ..HistoryKept::default() });
    growing.insert(&db, 0..20);
    check(&db, 20, 14);
    drop(db);
    let db = growing
        .open(HistoryKept { lookup: KeptBlocks { from: 16, last: 3 }, ..HistoryKept::default() });
    growing.insert(&db, 20..25);
    check(&db, 25, 16);
    drop(db);
    let db = growing.open(HistoryKept::default());
    growing.insert(&db, 25..30);
    check(&db, 30, 16);
}

#[test]
fn headers_without_bodies_begin_a_chain() {
    let growing = GrowingChain::new();
    let chain = &growing.chain;
    let db = growing.open(HistoryKept::default());
    let mut txn = db.begin_write().unwrap();
    for block in &chain[5..8] {
        let FullBlock { hash, block, total_difficulty, .. } = block;
        txn.insert_header(*hash, &block.header, *total_difficulty).unwrap();
    }
    txn.set_anchor(7, 8).unwrap();
    txn.commit().unwrap();
    growing.insert(&db, 8..12);
    let read = db.begin_read().unwrap();
    assert_eq!(read.first().unwrap().unwrap().number, 5);
    assert_eq!((read.anchor().unwrap(), read.bodies_pruned_below().unwrap()), (7, 8));
    assert_eq!(read.header_by_number(6).unwrap().unwrap(), chain[6].block.header);
    assert!(matches!(
        read.block(&chain[7].hash),
        Err(ReadError::Pruned(PrunedBody { number: 7, first: 8 }))
    ));
    assert_eq!(read.receipts(&chain[7].hash).unwrap(), None);
    chain[8..12].iter().for_each(|block| assert_canonical(&read, block));
    assert_no_faults(&db);
}

#[test]
fn receipts_of_old_blocks_go_and_nothing_else() {
    let growing = GrowingChain::new();
    let chain = &growing.chain;
    let open = |from, last| {
        growing.open(HistoryKept { receipts: KeptBlocks { from, last }, ..HistoryKept::default() })
    };
    // All of `stored` blocks are unchanged, but blocks below `first` have no receipts.
    let check = |db: &DatabaseEnv, stored: usize, first: usize| {
        let read = db.begin_read().unwrap();
        for (n, block) in chain[..stored].iter().enumerate() {
            if n >= first {
                assert_stored(&read, block);
            } else {
                let expected = block.receipts.is_empty().then(Vec::new);
                assert_eq!(read.receipts(&block.hash).unwrap(), expected, "block {n}");
                assert_eq!(read.receipt(&block.hash, 0).unwrap(), None);
                assert_eq!(read.block(&block.hash).unwrap().unwrap(), block.block);
            }
            assert_canonical(&read, block);
        }
        let pruned = read.receipts_pruned_below().unwrap() as usize;
        assert!(pruned <= first && chain[pruned..first].iter().all(|b| b.receipts.is_empty()));
        assert_no_faults(db);
    };
    let db = open(0, 0);
    growing.insert(&db, 0..10);
    check(&db, 10, 0);
    drop(db);
    // Never above the named block, nor among the last ones.
    let db = open(4, 2);
    growing.insert(&db, 10..11);
    check(&db, 11, 4);
    drop(db);
    let db = open(u64::MAX, 5);
    growing.insert(&db, 11..20);
    check(&db, 20, 14);
    // A dropped transaction prunes nothing.
    let mut txn = db.begin_write().unwrap();
    txn.insert_block(&chain[20].new_block()).unwrap();
    drop(txn);
    check(&db, 20, 14);
    drop(db);
    let db = open(0, 0);
    growing.insert(&db, 20..30);
    check(&db, 30, 14);
    // Blocks that are inserted again after a longer chain have their receipts.
    let mut txn = db.begin_write().unwrap();
    txn.unset_canonical_above(8).unwrap();
    assert_eq!(txn.remove_blocks_above(8).unwrap(), 21);
    txn.commit().unwrap();
    growing.insert(&db, 9..12);
    let read = db.begin_read().unwrap();
    chain[9..12].iter().for_each(|block| assert_stored(&read, block));
}

#[test]
fn datadir_that_is_not_whole_is_opened_by_its_maker_alone() {
    let growing = GrowingChain::new();
    let set = |db: &DatabaseEnv, what| {
        let mut txn = db.begin_write().unwrap();
        txn.set_unfinished(what).unwrap();
        txn.commit().unwrap();
    };
    let db = growing.open(HistoryKept::default());
    growing.insert(&db, 0..3);
    set(&db, Some("half of it is there"));
    drop(db);
    let path = growing.dir.path();
    for options in [OpenOptions::default(), OpenOptions::read_only()] {
        let error = DatabaseEnv::open(path, &options).unwrap_err();
        assert!(matches!(&error, DbError::Open(OpenError::Unfinished { .. })), "{error:?}");
        assert!(error.to_string().contains("half of it is there"), "{error}");
    }
    let maker = OpenOptions { unfinished: Some("all of it".into()), ..OpenOptions::default() };
    let db = DatabaseEnv::open_or_create(path, &maker).unwrap();
    assert_eq!(db.begin_read().unwrap().tip().unwrap().unwrap().number, 2);
    set(&db, None);
    drop(db);
    assert_eq!(
        growing.open(HistoryKept::default()).begin_read().unwrap().unfinished().unwrap(),
        None
    );
}

/// Blocks with access lists, on a genesis without one.
fn chain_with_lists(lengths: &[usize]) -> Vec<FullBlock> {
    let mut chain = vec![child(None, 0, transactions(0))];
    for (n, length) in (1..).zip(lengths) {
        chain.push(child(chain.last(), n, transactions(n)).with_access_list(*length));
    }
    chain
}

#[test]
fn access_lists_come_back_and_go_with_their_block() {
    let (_dir, db) = fresh();
    let chain = chain_with_lists(&[0, 1, 16_349, 16_350, 40_000]);
    let mut txn = db.begin_write().unwrap();
    chain.iter().for_each(|block| txn.insert_block(&block.new_block()).unwrap());
    let side = child(Some(&chain[3]), 99, transactions(99)).with_access_list(20_000);
    txn.insert_side_block(&side.unexecuted()).unwrap();
    assert_eq!(txn.access_list(&side.hash).unwrap(), None);
    // What is missing is added later.
    txn.insert_side_block(&side.new_block()).unwrap();
    txn.commit().unwrap();
    assert_no_faults(&db);
    let read = db.begin_read().unwrap();
    chain.iter().chain([&side]).for_each(|block| assert_stored(&read, block));
    assert_eq!(read.access_list(&B256::repeat_byte(9)).unwrap(), None);
    drop(read);
    // A reorganisation keeps the lists of both branches; a removed block takes its own with it.
    let mut txn = db.begin_write().unwrap();
    txn.unset_canonical_above(3).unwrap();
    txn.set_canonical(4, &side.hash).unwrap();
    chain.iter().chain([&side]).for_each(|block| assert_stored(&txn, block));
    assert!(txn.remove_block(&chain[4].hash).unwrap());
    assert_absent(&txn, &chain[4]);
    txn.unset_canonical_above(1).unwrap();
    assert_eq!(txn.remove_blocks_above(1).unwrap(), 4);
    txn.commit().unwrap();
    assert_no_faults(&db);
    assert_stored(&db.begin_read().unwrap(), &chain[1]);
}

#[test]
fn access_lists_of_old_blocks_go_and_all_else_stays() {
    let chain = chain_with_lists(&[300; 29]);
    let growing = GrowingChain { chain, dir: tempfile::tempdir().unwrap() };
    let db = growing.open(HistoryKept { access_lists: LAST_5, ..HistoryKept::default() });
    growing.insert(&db, 0..12);
    let mut txn = db.begin_write().unwrap();
    let side = child(Some(&growing.chain[11]), 99, transactions(99)).with_access_list(7);
    txn.insert_side_block(&side.new_block()).unwrap();
    txn.commit().unwrap();
    growing.insert(&db, 12..20);
    let check = |db: &DatabaseEnv, first: usize| {
        let read = db.begin_read().unwrap();
        for (n, block) in growing.chain[..20].iter().enumerate() {
            let kept = block.access_list.clone().filter(|_| n >= first);
            assert_stored(&read, &FullBlock { access_list: kept, ..block.clone() });
        }
        assert_eq!(read.access_list(&side.hash).unwrap(), None, "side blocks go too");
        assert_no_faults(db);
    };
    check(&db, 14);
    drop(db);
    // They stay pruned. By default none of these blocks is old.
    let db = growing.open(HistoryKept::default());
    check(&db, 14);
    growing.insert(&db, 20..30);
    growing.chain[14..].iter().for_each(|block| assert_stored(&db.begin_read().unwrap(), block));
}

#[test]
fn an_access_list_that_its_header_does_not_name_is_a_fault() {
    let wrong = |list: &[u8], block: FullBlock, words: &str| {
        let (_dir, db) = fresh();
        let genesis = child(None, 0, vec![]);
        let mut txn = db.begin_write().unwrap();
        txn.insert_block(&genesis.new_block()).unwrap();
        let new = NewBlock { access_list: Some(list), ..block.unexecuted() };
        txn.insert_side_block(&new).unwrap();
        txn.commit().unwrap();
        let mut faults = Vec::new();
        let read = db.begin_read().unwrap();
        read.check_chain(&mut |_| {}, &mut |fault| faults.push(fault.to_string())).unwrap();
        assert!(matches!(&faults[..], [one] if one.contains(words)), "{faults:?}");
    };
    let genesis = child(None, 0, vec![]);
    let child = || child(Some(&genesis), 1, vec![]);
    wrong(&[0xc1, 6], child().with_access_list(1), "AccessLists");
    wrong(&[0xc1, 6], child(), "names no list");
}
