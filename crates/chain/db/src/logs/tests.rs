//! Rows byte by byte, and damaged rows.

use super::*;
use crate::{
    DatabaseEnv, NewBlock, OpenOptions, ReadTxn, SyncMode, WriteTxn,
    logs::postings::{LogPosting, PostingReader},
};
use alloy_consensus::{SignableTransaction, TxLegacy};
use alloy_primitives::{Address, Bytes, Log, Signature, U256, address, b256, hex, logs_bloom};
use retrie_chainspec::primitives::{Block, Header, TxType};
use std::sync::atomic::AtomicBool;

fn db() -> (tempfile::TempDir, DatabaseEnv) {
    let dir = tempfile::tempdir().unwrap();
    let options = OpenOptions { sync: SyncMode::NoSync, ..OpenOptions::default() };
    let db = DatabaseEnv::create(dir.path(), &options).unwrap();
    (dir, db)
}

fn log(number: u64) -> Log {
    let topics = vec![B256::repeat_byte(9), U256::from(number).into()];
    Log::new_unchecked(Address::repeat_byte((number % 3) as u8), topics, Bytes::new())
}

/// A chain of blocks from number 5 on, each with a transaction and a log.
fn chain(db: &DatabaseEnv, blocks: u64) {
    let mut txn = db.begin_write().unwrap();
    let mut parent_hash = B256::ZERO;
    for number in 5..5 + blocks {
        let logs = vec![log(number)];
        let header =
            Header { number, parent_hash, logs_bloom: logs_bloom(&logs), ..Header::default() };
        let mut block = Block { header, ..Block::default() };
        let tx = TxLegacy { nonce: number, ..TxLegacy::default() };
        block.body.transactions.push(tx.into_signed(Signature::test_signature()).into());
        let (tx_type, cumulative_gas_used) = (TxType::Legacy, 1);
        let receipt = Receipt { tx_type, success: true, cumulative_gas_used, logs };
        parent_hash = block.header.hash_slow();
        txn.insert_block(&NewBlock {
            hash: parent_hash,
            header: &block.header,
            body: &block.body,
            senders: &[Address::ZERO],
            receipts: Some(&[receipt]),
            access_list: None,
            total_difficulty: U256::from(1),
        })
        .unwrap();
    }
    txn.commit().unwrap();
}

fn index(db: &DatabaseEnv, bounds: LogBounds) {
    while db.index_logs(&bounds, &AtomicBool::new(false)).unwrap() {}
}

/// The queries of these tests: an address and a topic, many topics, none.
fn queries() -> [LogQuery; 3] {
    let (none, two) = ([].as_slice(), [Address::repeat_byte(1)]);
    let topics: Vec<B256> = (0..200).map(|number| U256::from(number).into()).collect();
    [
        LogQuery::new(&two, [&[B256::repeat_byte(9)][..], none, none, none]),
        LogQuery::new(&[], [none, &topics, none, none]),
        LogQuery::new(&[Address::repeat_byte(7)], [none, none, none, none]),
    ]
}

fn faults(read: &ReadTxn) -> Vec<CorruptRow> {
    let mut faults = Vec::new();
    read.check_chain(&mut |_| {}, &mut |fault| faults.push(fault)).unwrap();
    faults
}

fn all(read: &ReadTxn, table: ChainTable) -> Vec<TableRow> {
    let direction = ScanDirection::Forward;
    let range = RowRange { start: &[], end: None, direction, limit: usize::MAX };
    read.raw_scan(read.chain(table), range).unwrap()
}

#[test]
fn terms_are_hashes_of_place_and_value() {
    let token = address!("a0b86991c6218b36c1d19d4a2e9eb0ce3606eb48");
    let transfer = b256!("ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef");
    assert_eq!(term(0, token.as_slice()).to_be_bytes(), hex!("9ea95c43"));
    assert_eq!(term(1, transfer.as_slice()).to_be_bytes(), hex!("d6146e08"));
    assert_ne!(term(2, transfer.as_slice()), term(1, transfer.as_slice()));
    // Rare before frequent, whatever the order of the request.
    let topics = [transfer];
    let (topic, none) = (topics.as_slice(), [].as_slice());
    let query = LogQuery::new(&[token], [topic, none, topic, none]);
    let lists =
        [term(3, transfer.as_slice()), term(0, token.as_slice()), term(1, transfer.as_slice())];
    assert_eq!(query.lists, lists.map(|term| vec![term]));
}

#[test]
fn rows_of_the_index_are_these_bytes() {
    let (_dir, db) = db();
    let segment =
        LogSegment { first: 0x0102, last: 0x0105, hash: B256::repeat_byte(0xab), postings: 4 };
    let posting = |term, offset| LogPosting { term, offset };
    let postings = [posting(7, 1), posting(7, 3), posting(8, 0), posting(0x0100_0000, 2)];
    let mut txn = db.begin_write().unwrap();
    postings::write(&mut txn, &segment, &postings).unwrap();
    let rows = postings::rows(&txn, &segment).unwrap();
    let [(key, value)] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!(key[..], hex!("0000000000000102000000070001"));
    // One offset further, the next term at 0, 0xfffff7 terms beyond at 2.
    assert_eq!(value[..], hex!("030000eeffff0f02"));
    let read: Vec<_> = PostingReader::of(&segment, &rows[0]).unwrap().map(Result::unwrap).collect();
    assert_eq!(read, postings);
    let row = segment.encode();
    let expected = ["0000000000000105", &"ab".repeat(32), "00000004"].concat();
    assert_eq!(hex::encode(&row), expected);
    assert_eq!(
        LogSegment::decode(&(Bytes::copy_from_slice(&segment.key()), row.into())).unwrap(),
        segment
    );
}

#[test]
fn postings_of_all_sizes_come_back_in_rows_of_a_quarter_of_a_page() {
    let (_dir, db) = db();
    let segment = LogSegment { first: 9, last: 9 + 0xffff, hash: B256::ZERO, postings: 0 };
    let mut postings = Vec::new();
    let mut term = 0_u32;
    for number in 0..20_000_u32 {
        if number % 7 != 3 {
            term = term.wrapping_add(number.wrapping_mul(0x9e37_79b9) >> (number % 24));
        }
        let offset = (number.wrapping_mul(40_503) & 0xffff) as u16;
        postings.push(LogPosting { term, offset });
    }
    postings.extend([0, 1, u16::MAX].map(|offset| LogPosting { term: 5, offset }));
    postings.extend((0..5_000).map(|offset| LogPosting { term: 6, offset }));
    postings.push(LogPosting { term: u32::MAX, offset: u16::MAX });
    postings.sort();
    postings.dedup();
    let mut txn = db.begin_write().unwrap();
    postings::write(&mut txn, &segment, &postings).unwrap();
    let rows = postings::rows(&txn, &segment).unwrap();
    let read: Vec<_> = rows
        .iter()
        .flat_map(|row| PostingReader::of(&segment, row).unwrap().map(Result::unwrap))
        .collect();
    assert!(read == postings);
    assert!(rows.iter().all(|(_, value)| value.len() <= 990));
    assert!(rows.iter().rev().skip(1).all(|(_, value)| value.len() > 980), "rows are full");
}

/// Rows with right checksums and wrong contents, or none at all.
#[test]
fn damaged_rows_of_the_index_are_errors_or_are_found_and_never_panic() {
    let (_dir, db) = db();
    chain(&db, 40);
    index(&db, LogBounds { postings: 30, blocks: 20, behind: 1 });
    let read = db.begin_read().unwrap();
    assert!(faults(&read).is_empty());
    let rows =
        [ChainTable::LogSegments, ChainTable::LogPostings].map(|table| (table, all(&read, table)));
    drop(read);
    let put = |damage: &dyn Fn(&mut WriteTxn)| {
        let mut txn = db.begin_write().unwrap();
        damage(&mut txn);
        txn.commit().unwrap();
    };
    let (queries, mut refused) = (queries(), 0);
    for (table, rows) in &rows {
        let handle = db.begin_read().unwrap().chain(*table);
        for (at, (key, value)) in rows.iter().enumerate() {
            let flipped = |at: usize| {
                let mut row = value.to_vec();
                if let Some(byte) = row.get_mut(at) {
                    *byte ^= 0x55;
                }
                row
            };
            let shorter = value[..value.len().saturating_sub(1)].to_vec();
            let longer = [&value[..], &[0x80]].concat();
            let (first, last) = (flipped(0), flipped(value.len().saturating_sub(1)));
            for damaged in [Some(shorter), Some(longer), Some(first), Some(last), None] {
                match &damaged {
                    Some(row) => put(&|txn| txn.raw_put(handle, key, row).unwrap()),
                    None => put(&|txn| assert!(txn.raw_delete(handle, key).unwrap())),
                }
                let read = db.begin_read().unwrap();
                for query in &queries {
                    let found = read.log_candidates(query, 0..=50, 50);
                    let found: Result<Vec<u64>, ReadError> = found.and_then(Iterator::collect);
                    match found {
                        Ok(found) => assert!(found.is_sorted() && found.last() <= Some(&50)),
                        Err(ReadError::Corrupt(CorruptRow { table, .. })) => {
                            assert!(table.starts_with("Log"), "{table}");
                            refused += 1;
                        }
                        Err(other) => panic!("{other}"),
                    }
                }
                let is_same = damaged.as_deref() == Some(&value[..]);
                let faults = faults(&read);
                let named = faults.iter().any(|fault| fault.to_string().contains("table Log"));
                assert!(named || is_same, "{table:?} row {at} {damaged:?}: {faults:?}");
                drop(read);
                put(&|txn| txn.raw_put(handle, key, value).unwrap());
            }
            // A wrong checksum is reported with its row, and hides no other fault.
            put(&|txn| txn.put_stored(handle, key, &[1, 2, 3]));
            let read = db.begin_read().unwrap();
            assert!(faults(&read).iter().any(|fault| fault.to_string().contains(table.name())));
            drop(read);
            put(&|txn| txn.raw_put(handle, key, value).unwrap());
        }
    }
    assert!(refused > 20, "{refused}");
    assert!(faults(&db.begin_read().unwrap()).is_empty());
}

/// The index of reverted blocks, as a version of this program without an index leaves it too.
#[test]
fn segments_of_blocks_that_went_do_not_count_until_they_come_back() {
    let (_dir, db) = db();
    chain(&db, 40);
    index(&db, LogBounds { postings: 1000, blocks: 20, behind: 1 });
    let nothing = &queries()[2];
    let looked_at = || {
        let read = db.begin_read().unwrap();
        assert!(faults(&read).is_empty());
        let found = read.log_candidates(nothing, 0..=100, 100).unwrap();
        found.map(Result::unwrap).collect::<Vec<_>>()
    };
    let outside: Vec<u64> = (0..5).chain(45..=100).collect();
    assert_eq!(looked_at(), outside);
    let mut txn = db.begin_write().unwrap();
    let removed = txn.unset_canonical_above(30).unwrap();
    txn.commit().unwrap();
    assert_eq!(looked_at(), [&outside[..5], &(25..=100).collect::<Vec<_>>()].concat());
    let mut txn = db.begin_write().unwrap();
    for block in removed.iter().rev() {
        txn.set_canonical(block.number, &block.hash).unwrap();
    }
    txn.commit().unwrap();
    assert_eq!(looked_at(), outside);
    // The next step removes the invalid segment, and the blocks are indexed again.
    let mut txn = db.begin_write().unwrap();
    txn.unset_canonical_above(30).unwrap();
    txn.commit().unwrap();
    index(&db, LogBounds { postings: 1000, blocks: 20, behind: 1 });
    assert_eq!(looked_at(), [&outside[..5], &(31..=100).collect::<Vec<_>>()].concat());
}
