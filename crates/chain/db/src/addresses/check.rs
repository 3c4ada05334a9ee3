//! Comparison of the address index with the blocks, for `retrie db verify`.

use super::{
    IndexedBlock, damaged_block,
    rows::{BlockKeys, account_key, decode_creation, decode_indexes},
};
use crate::{
    ChainRead, CorruptRow, ReadError, ReadTxn, Result,
    chain::decode_position,
    pieces,
    raw::{RawRead, RowRange, TableHandle},
    tables::ChainTable,
};
use alloy_consensus::Transaction as _;
use alloy_primitives::{Address, Bytes};
use retrie_state::ScanDirection;

/// Rows read at a time.
const PAGE: usize = 256;

/// Numbers of rows of the index that indexed blocks account for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AddressRows {
    pub(crate) blocks: u64,
    pub(crate) history: u64,
    pub(crate) nonces: u64,
    pub(crate) creators: u64,
}

/// Checks that indexed blocks have no gaps between them, that those that are not canonical are at the
/// upper end, that each has the rows that it lists, and that these show what the block shows: sender,
/// nonce and recipient of each transaction, and the contracts that log. Internal calls are not
/// compared.
pub(crate) fn check_addresses(
    read: &ReadTxn,
    fault: &mut dyn FnMut(CorruptRow),
) -> Result<AddressRows, ReadError> {
    let table = read.chain(ChainTable::AddressBlocks);
    let mut check = AddressCheck { read, fault, rows: AddressRows::default(), before: None };
    let mut start = Vec::new();
    loop {
        let range =
            RowRange { start: &start, end: None, direction: ScanDirection::Forward, limit: PAGE };
        let keys = read.stored_scan(table, range)?;
        let Some((last, _)) = keys.last() else { return Ok(check.rows) };
        let next = [&last[..], &[0]].concat();
        for (key, _) in &keys {
            match <[u8; 8]>::try_from(&key[..]) {
                Ok(number) => check.block(u64::from_be_bytes(number))?,
                // A later piece of a long value.
                Err(_) if key.len() == 10 => {}
                Err(_) => (check.fault)(damaged_block(key, "the key is not a block number")),
            }
        }
        start = next;
    }
}

struct AddressCheck<'a> {
    read: &'a ReadTxn,
    fault: &'a mut dyn FnMut(CorruptRow),
    rows: AddressRows,
    /// Number of the block before, and whether it is canonical.
    before: Option<(u64, bool)>,
}

impl AddressCheck<'_> {
    /// The result of a read. Damage is reported; other failures end the check.
    fn read<T>(&mut self, outcome: Result<T, ReadError>) -> Result<Option<T>, ReadError> {
        match outcome {
            Ok(value) => Ok(Some(value)),
            Err(ReadError::Corrupt(damage)) => {
                (self.fault)(damage);
                Ok(None)
            }
            Err(other) => Err(other),
        }
    }

    fn block(&mut self, number: u64) -> Result<(), ReadError> {
        let (read, key) = (self.read, number.to_be_bytes());
        let before = self.before.take();
        let row = pieces::get(read, read.chain(ChainTable::AddressBlocks), &key);
        let Some(Some(row)) = self.read(row)? else { return Ok(()) };
        self.rows.blocks += pieces::count(row.len());
        let keys = match BlockKeys::decode(&row) {
            Ok(keys) => keys,
            Err(what) => {
                (self.fault)(damaged_block(&key, what));
                return Ok(());
            }
        };
        let valid = IndexedBlock { number, hash: keys.hash }.is_valid(read);
        let is_valid = self.read(valid)?.unwrap_or_default();
        match before {
            Some((below, _)) if below + 1 != number => {
                (self.fault)(damaged_block(&key, "there is a gap below it"));
            }
            Some((_, false)) if is_valid => {
                (self.fault)(damaged_block(&key, "the block below it has another hash"));
            }
            _ => {}
        }
        self.before = Some((number, is_valid));
        self.listed_rows(number, &keys)?;
        if is_valid { self.shown_by_block(number, &keys) } else { Ok(()) }
    }

    /// The rows that a block lists.
    fn listed_rows(&mut self, number: u64, keys: &BlockKeys) -> Result<(), ReadError> {
        let (read, most) = (self.read, keys.nonces.len());
        let table = read.chain(ChainTable::AddressHistory);
        for account in &keys.accounts {
            let key = account_key(account, number);
            if let Some(row) = self.row(table, &key)? {
                self.rows.history += 1;
                match decode_indexes(&row) {
                    Ok(indexes) if indexes.last().is_some_and(|last| (*last as usize) < most) => {}
                    Ok(_) => self.bad(table, &key, "it names a transaction beyond the last one"),
                    Err(what) => self.bad(table, &key, what),
                }
            }
        }
        let table = read.chain(ChainTable::SenderNonces);
        for (index, (sender, nonce)) in (0_u32..).zip(&keys.nonces) {
            let key = account_key(sender, *nonce);
            if let Some(row) = self.row(table, &key)? {
                self.rows.nonces += 1;
                if decode_position(&row) != Some((number, index)) {
                    self.bad(table, &key, "it names another transaction");
                }
            }
        }
        let table = read.chain(ChainTable::ContractCreators);
        for contract in &keys.contracts {
            let key = account_key(contract, number);
            if let Some(row) = self.row(table, &key)? {
                self.rows.creators += 1;
                match decode_creation(&row) {
                    Some((index, _)) if (index as usize) < most => {}
                    _ => self.bad(table, &key, "it names no transaction of its block"),
                }
            }
        }
        Ok(())
    }

    /// Senders, nonces, recipients and contracts that log, as far as the block is kept.
    fn shown_by_block(&mut self, number: u64, keys: &BlockKeys) -> Result<(), ReadError> {
        let read = self.read;
        let body = match read.recovered_block(&keys.hash) {
            Err(ReadError::Pruned(_)) => return Ok(()),
            // A damaged block is reported by the check of blocks.
            Err(ReadError::Corrupt(_)) | Ok(None) => return Ok(()),
            body => body?,
        };
        let Some(block) = body else { return Ok(()) };
        let table = ChainTable::AddressBlocks.name();
        let mut differs = |what: String| {
            (self.fault)(CorruptRow::new(table, &number.to_be_bytes(), what));
        };
        let transactions = &block.body().transactions;
        if transactions.len() != keys.nonces.len() {
            differs(format!(
                "it has {} transactions, not {}",
                keys.nonces.len(),
                transactions.len()
            ));
            return Ok(());
        }
        let lists = |account: &Address| keys.accounts.binary_search(account).is_ok();
        let senders = block.senders().iter();
        for (index, ((transaction, sender), listed)) in
            transactions.iter().zip(senders).zip(&keys.nonces).enumerate()
        {
            if *listed != (*sender, transaction.nonce()) {
                differs(format!("transaction {index} has another sender or nonce"));
            }
            if transaction.to().is_some_and(|to| !lists(&to)) {
                differs(format!("the recipient of transaction {index} is missing"));
            }
        }
        let receipts = match read.receipts(&keys.hash) {
            Err(ReadError::Corrupt(_)) => return Ok(()),
            receipts => receipts?.unwrap_or_default(),
        };
        for (index, receipt) in receipts.iter().enumerate() {
            if receipt.logs.iter().any(|log| !lists(&log.address)) {
                differs(format!("a contract that logs in transaction {index} is missing"));
            }
        }
        Ok(())
    }

    /// A row that a block lists; reports one that is missing or damaged.
    fn row(&mut self, table: TableHandle, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        let row = self.read.raw_get(table, key);
        match self.read(row)? {
            Some(Some(row)) => Ok(Some(row)),
            Some(None) => {
                self.bad(table, key, "an indexed block lists this row, and it is missing");
                Ok(None)
            }
            None => Ok(None),
        }
    }

    fn bad(&mut self, table: TableHandle, key: &[u8], what: &str) {
        (self.fault)(CorruptRow::new(table.name, key, what));
    }
}
