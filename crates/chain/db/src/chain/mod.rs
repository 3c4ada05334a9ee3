//! Blocks: their reads ([`ChainRead`]) and writes.

mod check;
mod metadata;
mod preimages;
mod prune;
mod read;
mod retention;
mod write;

pub(crate) use read::{canonical, decode_position, encode_position, header_at};

pub use check::StoredBlock;
pub use metadata::{DatadirMetadata, SCHEMA_VERSION, StateRootMode, StoredKeyForm};
pub use preimages::KeyPreimage;
pub use read::{CanonicalHeaders, ChainRead, StoredTransaction};
pub use write::NewBlock;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        CorruptRow, DatabaseEnv, OpenOptions, ReadError, ReadTxn, WriteTxn,
        raw::{RawRead, RowRange},
        tables::ChainTable,
    };
    use alloy_consensus::{SignableTransaction, TxLegacy};
    use alloy_primitives::{Address, B256, Signature, U256, keccak256};
    use retrie_chainspec::primitives::{Block, Header, Receipt, TxType};
    use retrie_state::ScanDirection;

    fn block() -> Block {
        let mut block =
            Block { header: Header { number: 5, ..Header::default() }, ..Block::default() };
        for nonce in 0..3 {
            let tx = TxLegacy { nonce, ..TxLegacy::default() };
            block.body.transactions.push(tx.into_signed(Signature::test_signature()).into());
        }
        block.body.ommers.push(Header::default());
        block
    }

    fn store(txn: &mut WriteTxn, block: &Block) -> B256 {
        let hash = block.header.hash_slow();
        let receipt = |i| Receipt {
            tx_type: TxType::Legacy,
            success: true,
            cumulative_gas_used: i,
            logs: vec![],
        };
        txn.insert_block(&NewBlock {
            hash,
            header: &block.header,
            body: &block.body,
            senders: &[Address::ZERO; 3],
            receipts: Some(&[receipt(1), receipt(2), receipt(3)]),
            access_list: Some(&[0xc2, 1, 2]),
            total_difficulty: U256::from(300),
        })
        .unwrap();
        txn.insert_root(&hash, "mpt", &B256::repeat_byte(1)).unwrap();
        txn.insert_code(&keccak256(b"code"), b"code").unwrap();
        hash
    }

    /// Calls every read; counts those that fail as corrupt.
    fn ask(read: &ReadTxn, hash: &B256, tx: &B256) -> usize {
        fn corrupt<T>(asked: Result<T, ReadError>) -> usize {
            match asked {
                Ok(_) => 0,
                Err(ReadError::Corrupt(CorruptRow { table, .. })) => {
                    assert!(!table.is_empty());
                    1
                }
                Err(other) => panic!("not said to be corrupt: {other:?}"),
            }
        }
        corrupt(read.header(hash))
            + corrupt(read.header_by_number(5))
            + corrupt(read.is_canonical(hash))
            + corrupt(read.hashes_at(5))
            + corrupt(read.tip())
            + corrupt(read.first())
            + corrupt(read.body(hash))
            + corrupt(read.block(hash))
            + corrupt(read.recovered_block(hash))
            + corrupt(read.transactions(hash))
            + corrupt(read.senders(hash))
            + corrupt(read.receipts(hash))
            + corrupt(read.receipt(hash, 1))
            + corrupt(read.access_list(hash))
            + corrupt(read.transaction_by_hash(tx))
            + corrupt(read.total_difficulty(hash))
            + corrupt(read.root(hash, "mpt"))
            + corrupt(read.roots(hash))
            + read.canonical_headers(5).map(corrupt).sum::<usize>()
    }

    #[test]
    fn damaged_rows_are_errors_and_never_panics() {
        let dir = tempfile::tempdir().unwrap();
        let options = OpenOptions { sync: crate::SyncMode::NoSync, ..OpenOptions::default() };
        let db = DatabaseEnv::create(dir.path(), &options).unwrap();
        let block = block();
        let mut txn = db.begin_write().unwrap();
        let hash = store(&mut txn, &block);
        txn.commit().unwrap();
        let tx = *block.body.transactions[1].tx_hash();
        assert_eq!(ask(&db.begin_read().unwrap(), &hash, &tx), 0);
        let all = |read: &ReadTxn, table| {
            let range = RowRange {
                start: &[],
                end: None,
                direction: ScanDirection::Forward,
                limit: usize::MAX,
            };
            read.raw_scan(read.chain(table), range).unwrap()
        };
        for table in ChainTable::ALL {
            for (key, value) in all(&db.begin_read().unwrap(), table) {
                let shorter = value[..value.len() - 1].to_vec();
                let longer = [&value[..], &[1]].concat();
                let mut first = value.to_vec();
                first[0] ^= 0xff;
                let mut last = value.to_vec();
                *last.last_mut().unwrap() ^= 0xff;
                for (kind, damaged) in
                    [shorter, longer, first, last, vec![]].into_iter().enumerate()
                {
                    let put = |row: &[u8]| {
                        let mut txn = db.begin_write().unwrap();
                        let handle = txn.chain(table);
                        txn.raw_put(handle, &key, row).unwrap();
                        txn.commit().unwrap();
                    };
                    put(&damaged);
                    let found = ask(&db.begin_read().unwrap(), &hash, &tx);
                    // Another length must be noticed; other bytes may be another valid value. The
                    // reads above do not check the length of code and of difficulties.
                    let variable = matches!(table, ChainTable::Codes | ChainTable::TotalDifficulty);
                    let other_transaction = table == ChainTable::TxLookup && key[..] != tx[..];
                    if kind < 2 && !variable && !other_transaction {
                        assert!(found > 0, "{table:?} {key}: damage {kind} goes unnoticed");
                    }
                    put(&value);
                }
            }
        }
        assert_eq!(ask(&db.begin_read().unwrap(), &hash, &tx), 0);
    }

    #[test]
    fn missing_rows_of_a_stored_block_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let db = DatabaseEnv::create(dir.path(), &OpenOptions::default()).unwrap();
        let block = block();
        let mut txn = db.begin_write().unwrap();
        let hash = store(&mut txn, &block);
        txn.commit().unwrap();
        let id = [0, 0, 0, 0, 0, 0, 0, 5, 0, 0];
        let second = [&id[..], &[0, 0, 0, 1]].concat();
        for (table, key) in [
            (ChainTable::Headers, &id[..]),
            (ChainTable::Bodies, &id),
            (ChainTable::TotalDifficulty, &id),
            (ChainTable::Transactions, &second),
            (ChainTable::Receipts, &second),
        ] {
            let mut txn = db.begin_write().unwrap();
            let handle = txn.chain(table);
            assert!(txn.raw_delete(handle, key).unwrap(), "{table:?}");
            let asked = match table {
                ChainTable::Headers => txn.header(&hash).map(drop),
                ChainTable::TotalDifficulty => txn.total_difficulty(&hash).map(drop),
                ChainTable::Receipts => txn.receipts(&hash).map(drop),
                _ => txn.block(&hash).map(drop),
            };
            assert!(matches!(asked, Err(ReadError::Corrupt(_))), "{table:?}: {asked:?}");
        }
    }
}
