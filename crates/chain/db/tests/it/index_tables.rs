//! Index tables compared with the receipts: growth, reorganisations, pruning, damage.

use crate::{
    common::FullBlock,
    logs::{SplitMix64, assert_whole, extend, options},
};
use alloy_primitives::{Address, U256};
use retrie_db::{ChainRead, DatabaseEnv, HistoryKept, KeptBlocks, OpenOptions, ReadTxn};
use retrie_log_tables::{EntryKey, TABLE_SIZES, TableProof, TableReader, TableSpan};
use std::sync::atomic::AtomicBool;

fn keep(db: &DatabaseEnv) {
    while db.keep_index_tables(0, &AtomicBool::new(false)).unwrap() {}
}

/// Whole spans of blocks `from` to `to`.
fn spans(from: u64, to: u64) -> impl Iterator<Item = TableSpan> {
    TABLE_SIZES.into_iter().flat_map(move |size| {
        let firsts = (from.div_ceil(size) * size..=to).step_by(size as usize);
        firsts
            .filter_map(move |first| TableSpan::new(first, size))
            .filter(move |it| it.last() <= to)
    })
}

/// Each stored table has the root of its blocks, and proofs from it lead there.
fn assert_tables(read: &ReadTxn, from: u64, to: u64) {
    let address = EntryKey::address(&Address::from_word(U256::from(3).into()));
    for span in spans(from, to) {
        let made = read.make_index_table(span).unwrap().unwrap();
        let stored = read.index_table(span).unwrap().unwrap_or_else(|| panic!("{span:?}"));
        assert_eq!(stored.root(), made.root(), "{span:?}");
        assert_eq!(stored.count(), made.count());
        assert_eq!(stored.entries(0..stored.count()).unwrap(), made.all());
        let single = [stored.count() / 2, stored.count().saturating_sub(1)];
        let single = if stored.count() > 0 { &single[..] } else { &[] };
        let proof = TableProof::of(&stored, &[address], single).unwrap();
        assert_eq!(proof, TableProof::of(&made, &[address], single).unwrap());
        assert_eq!(proof.root(), Ok(made.root()), "{span:?}");
    }
}

fn rows(db: &DatabaseEnv, name: &str) -> u64 {
    db.stats().unwrap().tables.iter().find(|table| table.name == name).unwrap().rows
}

#[test]
fn index_tables_are_those_of_the_receipts_over_growth_and_reorganisations() {
    let dir = tempfile::tempdir().unwrap();
    let db = DatabaseEnv::create(dir.path(), &options()).unwrap();
    let (mut chain, mut random) = (Vec::<FullBlock>::new(), SplitMix64(5));
    keep(&db);
    extend(&db, &mut chain, 300, &mut random);
    keep(&db);
    let read = db.begin_read().unwrap();
    assert_tables(&read, 0, 299);
    assert_eq!(read.first_block_in_tables().unwrap(), Some(0));
    let large = read.index_table(TableSpan::new(0, 256).unwrap()).unwrap().unwrap();
    assert!(large.count() > 512, "several chunks: {}", large.count());
    drop(large);
    drop(read);

    // A revert takes the tables above along, at once; other blocks get other tables.
    let mut txn = db.begin_write().unwrap();
    txn.unset_canonical_above(249).unwrap();
    txn.commit().unwrap();
    chain.truncate(250);
    let read = db.begin_read().unwrap();
    for span in spans(0, 299) {
        assert_eq!(read.has_index_table(span).unwrap(), span.last() < 250, "{span:?}");
    }
    assert_whole(&read);
    drop(read);
    extend(&db, &mut chain, 60, &mut random);
    keep(&db);
    let read = db.begin_read().unwrap();
    assert_tables(&read, 0, 309);
    assert_whole(&read);
    drop(read);

    // A stopped step has no effect.
    extend(&db, &mut chain, 20, &mut random);
    let before = rows(&db, "IndexTables");
    assert!(!db.keep_index_tables(0, &AtomicBool::new(true)).unwrap());
    assert_eq!(rows(&db, "IndexTables"), before);
}

#[test]
fn index_tables_begin_where_receipts_and_the_rules_do() {
    let dir = tempfile::tempdir().unwrap();
    let receipts = KeptBlocks { from: u64::MAX, last: 40 };
    let kept = HistoryKept { receipts, ..HistoryKept::default() };
    let db = DatabaseEnv::create(dir.path(), &OpenOptions { kept, ..options() }).unwrap();
    let (mut chain, mut random) = (Vec::new(), SplitMix64(9));
    for _ in 0..10 {
        extend(&db, &mut chain, 15, &mut random);
        keep(&db);
        let read = db.begin_read().unwrap();
        let top = chain.len() as u64 - 1;
        let pruned = read.receipts_pruned_below().unwrap();
        assert_tables(&read, pruned, top);
        let first = read.first_block_in_tables().unwrap().unwrap();
        assert!(first >= pruned, "a table of block {first}, receipts from {pruned} on");
        assert_whole(&read);
    }
    assert!(db.begin_read().unwrap().receipts_pruned_below().unwrap() > 50);

    let dir = tempfile::tempdir().unwrap();
    let db = DatabaseEnv::create(dir.path(), &options()).unwrap();
    extend(&db, &mut Vec::new(), 60, &mut random);
    while db.keep_index_tables(18, &AtomicBool::new(false)).unwrap() {}
    let read = db.begin_read().unwrap();
    assert_tables(&read, 18, 59);
    assert_eq!(read.first_block_in_tables().unwrap(), Some(18));
    assert!(!read.has_index_table(TableSpan::new(16, 4).unwrap()).unwrap());
}
