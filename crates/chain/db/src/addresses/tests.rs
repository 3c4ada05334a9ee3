//! Rows byte by byte, and damaged rows.

use super::{
    rows::{
        BlockKeys, BlockRows, account_key, decode_creation, decode_indexes, encode_creation,
        encode_indexes,
    },
    *,
};
use crate::{
    ChainRead, DatabaseEnv, NewBlock, OpenOptions, ReadTxn, SyncMode, WriteTxn,
    chain::{decode_position, encode_position},
    raw::RowRange,
};
use alloy_consensus::{SignableTransaction, TxLegacy};
use alloy_primitives::{Signature, U256, hex};
use retrie_chainspec::primitives::{Block, Header, Receipt, TxType};
use retrie_state::TableRow;
use std::sync::atomic::AtomicBool;

fn account(byte: u8) -> Address {
    Address::repeat_byte(byte)
}

/// Transactions of account 1 with nonces from 5 on; the second creates contract 4 by contract 3.
fn participants(number: u64, hash: B256) -> BlockParticipants {
    let transaction = |nonce, others: &[u8]| TransactionParticipants {
        sender: account(1),
        nonce,
        accounts: others.iter().copied().chain([1]).map(account).collect(),
        created: Vec::new(),
    };
    let created = vec![ContractCreation { contract: account(4), creator: account(3) }];
    let nonce = 5 + 3 * number;
    let transactions = vec![
        transaction(nonce, &[2]),
        TransactionParticipants { created, ..transaction(nonce + 1, &[3, 4]) },
        transaction(nonce + 2, &[2]),
    ];
    BlockParticipants { number, hash, is_traced: true, transactions }
}

#[test]
fn rows_of_the_index_are_these_bytes() {
    let block = participants(0, B256::repeat_byte(0xab));
    let rows = BlockRows::of(&block);
    let keys = rows.keys(&block);
    let row = keys.encode();
    let expected = [
        "ab".repeat(32),
        "01".into(),
        "04".into(),
        ["01", "02", "03", "04"].map(|byte| byte.repeat(20)).concat(),
        "03000500060007".into(),
        "0103".into(),
    ];
    assert_eq!(hex::encode(&row), expected.concat());
    assert_eq!(BlockKeys::decode(&row), Ok(keys));
    let history: Vec<_> = rows.history.values().map(|indexes| encode_indexes(indexes)).collect();
    assert_eq!(history, [vec![0, 3], vec![0, 1, 1, 1], vec![1, 1], vec![1, 1]]);
    let key = account_key(&account(1), 0x0102);
    assert_eq!(key[..], hex!("01010101010101010101010101010101010101010000000000000102"));
    assert_eq!(encode_position(7, 8), hex!("000000000000000700000008"));
    assert_eq!(decode_position(&encode_position(7, 8)), Some((7, 8)));
    let row = encode_creation(9, &account(3));
    assert_eq!(row[..], hex!("000000090303030303030303030303030303030303030303"));
    assert_eq!(decode_creation(&row), Some((9, account(3))));
}

#[test]
fn indexes_of_all_shapes_come_back_and_broken_ones_are_refused() {
    let all: Vec<u32> = (0..3_000).collect();
    let odd: Vec<u32> = (0..3_000).filter(|index| index % 2 == 1).collect();
    for indexes in [&[0][..], &[7], &[0, 1, 2, 9, 10, 400], &all[..], &odd[..]] {
        let row = encode_indexes(indexes);
        assert_eq!(decode_indexes(&row).as_deref(), Ok(indexes));
    }
    assert_eq!(encode_indexes(&all).len(), 3);
    let endless = [&[0_u8][..], &[0xff; 9], &[1]].concat();
    for broken in [&[][..], &[0], &[0, 0], &[0x80], &[0, 1, 0], &endless[..]] {
        assert!(decode_indexes(broken).is_err(), "{broken:?}");
    }
}

fn db() -> (tempfile::TempDir, DatabaseEnv) {
    let dir = tempfile::tempdir().unwrap();
    let options = OpenOptions { sync: SyncMode::NoSync, ..OpenOptions::default() };
    let db = DatabaseEnv::create(dir.path(), &options).unwrap();
    (dir, db)
}

/// A chain of blocks whose transactions are those of [`participants`].
fn chain(db: &DatabaseEnv, blocks: u64) {
    let mut txn = db.begin_write().unwrap();
    let mut parent_hash = B256::ZERO;
    for number in 0..blocks {
        let header = Header { number, parent_hash, ..Header::default() };
        let mut block = Block { header, ..Block::default() };
        for (nonce, to) in (5 + 3 * number..).zip([account(2), account(3), account(2)]) {
            let tx = TxLegacy { nonce, to: to.into(), ..TxLegacy::default() };
            block.body.transactions.push(tx.into_signed(Signature::test_signature()).into());
        }
        let receipt = |gas| Receipt {
            tx_type: TxType::Legacy,
            success: true,
            cumulative_gas_used: gas,
            logs: Vec::new(),
        };
        parent_hash = block.header.hash_slow();
        txn.insert_block(&NewBlock {
            hash: parent_hash,
            header: &block.header,
            body: &block.body,
            senders: &[account(1); 3],
            receipts: Some(&[receipt(1), receipt(2), receipt(3)]),
            access_list: None,
            total_difficulty: U256::ZERO,
        })
        .unwrap();
    }
    txn.commit().unwrap();
}

fn index(db: &DatabaseEnv, bounds: &AddressBounds) {
    let known = |hash: &B256| -> Result<Option<BlockParticipants>> {
        let number = db.begin_read()?.block_number(hash)?;
        Ok(number.map(|number| participants(number, *hash)))
    };
    while db.index_addresses(bounds, &AtomicBool::new(false), known).unwrap() {}
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

const TABLES: [ChainTable; 4] = [
    ChainTable::AddressBlocks,
    ChainTable::AddressHistory,
    ChainTable::SenderNonces,
    ChainTable::ContractCreators,
];

/// Rows with right checksums and wrong contents, or none at all.
#[test]
fn damaged_rows_of_the_index_are_errors_or_are_found_and_never_panic() {
    let (_dir, db) = db();
    chain(&db, 4);
    index(&db, &AddressBounds { participants: 5, blocks: 3 });
    let read = db.begin_read().unwrap();
    assert!(faults(&read).is_empty(), "{:?}", faults(&read));
    let rows = TABLES.map(|table| (table, all(&read, table)));
    drop(read);
    assert_eq!(rows.each_ref().map(|(_, rows)| rows.len()), [4, 16, 12, 4]);
    let put = |damage: &dyn Fn(&mut WriteTxn)| {
        let mut txn = db.begin_write().unwrap();
        damage(&mut txn);
        txn.commit().unwrap();
    };
    for (table, rows) in &rows {
        let handle = db.begin_read().unwrap().chain(*table);
        for (key, value) in rows {
            let shorter = value[..value.len() - 1].to_vec();
            let longer = [&value[..], &[0x80]].concat();
            for damaged in [Some(shorter), Some(longer), None] {
                match &damaged {
                    Some(row) => put(&|txn| txn.raw_put(handle, key, row).unwrap()),
                    None => put(&|txn| assert!(txn.raw_delete(handle, key).unwrap())),
                }
                let read = db.begin_read().unwrap();
                // They end, with an answer or an error.
                let _ = read.indexed_addresses();
                for byte in 1..5 {
                    let both = [ScanDirection::Forward, ScanDirection::Backward];
                    for direction in both {
                        let _ = read.account_transactions(&account(byte), 0..=9, direction, 99);
                    }
                    let _ = read.creation_of(&account(byte), 0..=9);
                    for nonce in 5..20 {
                        let _ = read.transaction_of_nonce(&account(byte), nonce);
                    }
                }
                let faults = faults(&read);
                let named = faults
                    .iter()
                    .any(|fault| TABLES.iter().any(|table| fault.table == table.name()));
                assert!(named, "{table:?} {key} {damaged:?}: {faults:?}");
                drop(read);
                put(&|txn| txn.raw_put(handle, key, value).unwrap());
            }
            put(&|txn| txn.put_stored(handle, key, &[1, 2, 3]));
            let read = db.begin_read().unwrap();
            assert!(faults(&read).iter().any(|fault| fault.table == table.name()));
            drop(read);
            put(&|txn| txn.raw_put(handle, key, value).unwrap());
        }
    }
    assert!(faults(&db.begin_read().unwrap()).is_empty());
}

/// A row that its block does not list is left over.
#[test]
fn a_row_that_no_block_lists_is_found() {
    let (_dir, db) = db();
    chain(&db, 2);
    index(&db, &AddressBounds::default());
    for (table, key, row) in [
        (ChainTable::AddressHistory, account_key(&account(9), 1).to_vec(), vec![0, 1]),
        (ChainTable::SenderNonces, account_key(&account(9), 1).to_vec(), vec![0; 12]),
        (ChainTable::ContractCreators, account_key(&account(9), 1).to_vec(), vec![0; 24]),
    ] {
        let mut txn = db.begin_write().unwrap();
        let handle = txn.chain(table);
        txn.raw_put(handle, &key, &row).unwrap();
        txn.commit().unwrap();
        let found = faults(&db.begin_read().unwrap());
        assert!(found.iter().any(|fault| fault.table == table.name()), "{table:?}: {found:?}");
        let mut txn = db.begin_write().unwrap();
        assert!(txn.raw_delete(handle, &key).unwrap());
        txn.commit().unwrap();
    }
}

/// A block whose participants fill several pieces of its row.
#[test]
fn the_row_of_a_large_block_comes_and_goes_whole() {
    let (_dir, db) = db();
    chain(&db, 3);
    let large = |hash: &B256| -> Result<Option<BlockParticipants>> {
        let number = db.begin_read()?.block_number(hash)?.unwrap();
        let mut block = participants(number, *hash);
        let more = (0..5_000_u64).map(|n| Address::left_padding_from(&(n << 8).to_be_bytes()));
        block.transactions[0].accounts.extend(more);
        Ok(Some(block))
    };
    let stop = AtomicBool::new(false);
    while db.index_addresses(&AddressBounds::default(), &stop, large).unwrap() {}
    let read = db.begin_read().unwrap();
    assert!(all(&read, ChainTable::AddressBlocks).len() > 3 * 5);
    assert!(faults(&read).is_empty());
    assert_eq!(read.indexed_addresses().unwrap(), Some(0..=2));
    drop(read);
    let mut txn = db.begin_write().unwrap();
    txn.unset_canonical_above(0).unwrap();
    txn.commit().unwrap();
    while db.index_addresses(&AddressBounds::default(), &stop, large).unwrap() {}
    let read = db.begin_read().unwrap();
    assert_eq!(read.indexed_addresses().unwrap(), Some(0..=0));
    assert_eq!(all(&read, ChainTable::SenderNonces).len(), 3);
    assert!(faults(&read).is_empty());
}
