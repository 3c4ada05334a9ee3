//! The address index compared with all blocks: random growth, reorganisations, restarts; pruning.

use crate::{
    common::FullBlock,
    logs::{SplitMix64, assert_whole, extend, options},
};
use alloy_consensus::Transaction as _;
use alloy_primitives::{Address, B256, U256};
use retrie_db::{
    AccountTransactions, AddressBounds, BlockParticipants, ChainRead, ContractCreation,
    DatabaseEnv, DbError, HistoryKept, KeptBlocks, OpenOptions, ReadTxn, TransactionParticipants,
};
use retrie_state::ScanDirection;
use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
};

const BOUNDS: AddressBounds = AddressBounds { participants: 20, blocks: 7 };

fn some_account(number: u64) -> Address {
    Address::from_word(U256::from(0xacc0 + number).into())
}

/// Made-up participants of a stored block, which depend on its hash alone: what it shows, a few
/// internal calls, and creations.
fn participants(read: &ReadTxn, hash: &B256) -> Option<BlockParticipants> {
    let block = read.recovered_block(hash).unwrap()?;
    let receipts = read.receipts(hash).unwrap()?;
    let mut random = SplitMix64(hash[0].into());
    let mut transactions = Vec::new();
    let body = block.body().transactions.iter().zip(block.senders());
    for ((transaction, sender), receipt) in body.zip(&receipts) {
        let (sender, nonce) = (*sender, transaction.nonce());
        let mut one = TransactionParticipants { sender, nonce, ..Default::default() };
        one.accounts.insert(sender);
        one.accounts.extend(transaction.to());
        one.accounts.extend(receipt.logs.iter().map(|log| log.address));
        one.accounts.extend((0..random.below(4)).map(|_| some_account(random.below(9))));
        if random.below(3) == 0 {
            let (contract, creator) = (some_account(20 + random.below(4)), sender);
            one.accounts.insert(contract);
            one.created.push(ContractCreation { contract, creator });
        }
        transactions.push(one);
    }
    let is_traced = block.number % 5 != 3;
    Some(BlockParticipants { number: block.number, hash: *hash, is_traced, transactions })
}

fn step(db: &DatabaseEnv, stop: &AtomicBool) -> bool {
    let known = |hash: &B256| Ok::<_, DbError>(participants(&db.begin_read()?, hash));
    db.index_addresses(&BOUNDS, stop, known).unwrap()
}

fn index(db: &DatabaseEnv) {
    while step(db, &AtomicBool::new(false)) {}
}

/// Every search of the indexed blocks gives what the blocks have.
fn assert_indexed(read: &ReadTxn, chain: &[FullBlock]) {
    let Some(indexed) = read.indexed_addresses().unwrap() else { return };
    let mut history: BTreeMap<Address, Vec<AccountTransactions>> = BTreeMap::new();
    let mut creations = BTreeMap::new();
    for number in indexed.clone() {
        let block = participants(read, &chain[number as usize].hash).unwrap();
        for (index, transaction) in (0..).zip(&block.transactions) {
            for account in &transaction.accounts {
                let found = history.entry(*account).or_default();
                match found.last_mut().filter(|last| last.block == number) {
                    Some(last) => last.indexes.push(index),
                    None => found.push(AccountTransactions { block: number, indexes: vec![index] }),
                }
            }
            let found = read.transaction_of_nonce(&transaction.sender, transaction.nonce).unwrap();
            assert_eq!(found, Some((number, index)));
            for creation in &transaction.created {
                creations.insert(creation.contract, (number, index, creation.creator));
            }
        }
    }
    let (forward, backward) = (ScanDirection::Forward, ScanDirection::Backward);
    for (account, expected) in &history {
        let search = |direction, limit| {
            read.account_transactions(account, indexed.clone(), direction, limit).unwrap()
        };
        assert_eq!(search(forward, 999), *expected);
        let mut reversed = expected.clone();
        reversed.reverse();
        assert_eq!(search(backward, 999), reversed);
        assert_eq!(search(forward, 1), expected[..1]);
        let last = expected[expected.len() - 1].block;
        let below = *indexed.start()..=last.saturating_sub(1);
        let found = read.account_transactions(account, below, backward, 999).unwrap();
        let is_above = usize::from(last > 0);
        assert_eq!(found, reversed[is_above..]);
    }
    for (contract, expected) in &creations {
        let found = read.creation_of(contract, indexed.clone()).unwrap().unwrap();
        assert_eq!((found.block, found.index, found.creator), *expected);
    }
    let unused = Address::repeat_byte(0x99);
    let found = read.account_transactions(&unused, indexed.clone(), forward, 9).unwrap();
    assert!(found.is_empty());
    assert_eq!(read.creation_of(&unused, indexed).unwrap(), None);
}

#[test]
fn the_index_is_that_of_the_blocks_over_growth_reorganisations_and_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let mut db = DatabaseEnv::create(dir.path(), &options()).unwrap();
    let (mut chain, mut random) = (Vec::<FullBlock>::new(), SplitMix64(17));
    let go = AtomicBool::new(false);
    assert!(!step(&db, &go), "there is nothing to index");
    for round in 0..40 {
        match random.below(8) {
            0..=2 => {
                let count = random.below(9);
                extend(&db, &mut chain, count, &mut random);
            }
            3..=5 => {
                for _ in 0..random.below(5) {
                    step(&db, &go);
                }
            }
            6 if chain.len() > 1 => {
                let depth = 1 + random.below(15_u64.min(chain.len() as u64 - 1)) as usize;
                chain.truncate(chain.len() - depth);
                let mut txn = db.begin_write().unwrap();
                txn.unset_canonical_above(chain.len() as u64 - 1).unwrap();
                txn.commit().unwrap();
            }
            7 => {
                drop(db);
                db = DatabaseEnv::open(dir.path(), &options()).unwrap();
            }
            _ => {}
        }
        let read = db.begin_read().unwrap();
        assert_indexed(&read, &chain);
        if round % 5 == 0 {
            assert_whole(&read);
        }
    }
    extend(&db, &mut chain, 30, &mut random);
    // A stopped step has no effect, and one whose blocks are not known none either.
    index(&db);
    extend(&db, &mut chain, 5, &mut random);
    let before = db.begin_read().unwrap().indexed_addresses().unwrap();
    assert!(!step(&db, &AtomicBool::new(true)));
    let unknown = |_: &B256| Ok::<_, DbError>(None);
    assert!(!db.index_addresses(&BOUNDS, &go, unknown).unwrap());
    assert_eq!(db.begin_read().unwrap().indexed_addresses().unwrap(), before);
    index(&db);
    let read = db.begin_read().unwrap();
    assert_eq!(read.indexed_addresses().unwrap(), Some(0..=chain.len() as u64 - 1));
    assert_indexed(&read, &chain);
    assert_whole(&read);
    // The highest block without internal calls is noted.
    let untraced = (0..chain.len() as u64).rev().find(|number| number % 5 == 3).unwrap();
    assert!(read.addresses_traced_from().unwrap() > untraced);
}

/// Cause: blocks that a reorganisation removes while a step collects its blocks.
#[test]
fn a_reorganisation_within_a_step_discards_it() {
    let dir = tempfile::tempdir().unwrap();
    let db = DatabaseEnv::create(dir.path(), &options()).unwrap();
    let (mut chain, mut random) = (Vec::<FullBlock>::new(), SplitMix64(3));
    extend(&db, &mut chain, 12, &mut random);
    let is_done = AtomicBool::new(false);
    let known = |hash: &B256| {
        let found = participants(&db.begin_read()?, hash);
        if !is_done.swap(true, Ordering::Relaxed) {
            let mut txn = db.begin_write()?;
            txn.unset_canonical_above(4)?;
            txn.commit()?;
        }
        Ok::<_, DbError>(found)
    };
    assert!(db.index_addresses(&BOUNDS, &AtomicBool::new(false), known).unwrap());
    let read = db.begin_read().unwrap();
    assert_eq!(read.indexed_addresses().unwrap(), None);
    assert_whole(&read);
    drop(read);
    index(&db);
    assert_eq!(db.begin_read().unwrap().indexed_addresses().unwrap(), Some(0..=4));
}

#[test]
fn pruned_bodies_and_receipts_bound_the_index_and_take_it_along() {
    for is_body in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let last = KeptBlocks { from: u64::MAX, last: 20 };
        let kept = match is_body {
            true => HistoryKept { bodies: last, ..HistoryKept::default() },
            false => HistoryKept { receipts: last, ..HistoryKept::default() },
        };
        let db = DatabaseEnv::create(dir.path(), &OpenOptions { kept, ..options() }).unwrap();
        let (mut chain, mut random) = (Vec::new(), SplitMix64(23));
        for _ in 0..8 {
            extend(&db, &mut chain, 10, &mut random);
            let read = db.begin_read().unwrap();
            let pruned = read.receipts_pruned_below().unwrap();
            // Searches stop there at once, before the rows are gone.
            let indexed = read.indexed_addresses().unwrap();
            assert!(indexed.is_none_or(|indexed| *indexed.start() >= pruned));
            assert_whole(&read);
            drop(read);
            index(&db);
            let read = db.begin_read().unwrap();
            let (first, top) = (pruned, chain.len() as u64 - 1);
            assert_eq!(read.indexed_addresses().unwrap(), Some(first..=top));
            assert_indexed(&read, &chain);
            assert_whole(&read);
        }
        let stats = db.stats().unwrap();
        let rows = stats.tables.iter().find(|table| table.name == "AddressBlocks").unwrap().rows;
        let pruned = db.begin_read().unwrap().receipts_pruned_below().unwrap();
        assert!(pruned > 40, "{pruned}");
        assert_eq!(rows, chain.len() as u64 - pruned);
    }
}
