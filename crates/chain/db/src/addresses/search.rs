//! Searches of the address index.

use super::{
    indexed, outermost,
    rows::{account_key, decode_creation, decode_indexes, number_in_key},
};
use crate::{
    ChainRead, ReadError, ReadTxn, Result,
    chain::decode_position,
    notes,
    raw::{RawRead, RowRange},
    tables::ChainTable,
};
use alloy_primitives::Address;
use retrie_state::ScanDirection;
use std::ops::RangeInclusive;

/// Name of the note with the number of a block (8 bytes, big-endian): internal calls of indexed blocks
/// below may be missing.
pub(super) const UNTRACED: &str = "addresses-untraced";

/// The transactions of a block that an account takes part in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountTransactions {
    /// Number of the block.
    pub block: u64,
    /// Their indexes, in ascending order; at least one.
    pub indexes: Vec<u32>,
}

/// The creation of a contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredCreation {
    /// Number of the block.
    pub block: u64,
    /// Index of the transaction.
    pub index: u32,
    /// The account that created the contract.
    pub creator: Address,
}

impl ReadTxn {
    /// The canonical blocks of the address index that have bodies and receipts; `None` if there are
    /// none.
    ///
    /// # Errors
    /// [`ReadError::Corrupt`], with table and key, if a row is damaged; this holds for all methods
    /// below.
    pub fn indexed_addresses(&self) -> Result<Option<RangeInclusive<u64>>, ReadError> {
        let Some(lowest) = outermost(self, ScanDirection::Forward)? else { return Ok(None) };
        let mut highest = outermost(self, ScanDirection::Backward)?;
        while let Some(block) = highest
            && !block.is_valid(self)?
        {
            // The index has no gaps.
            highest = match block.number.checked_sub(1) {
                Some(below) => indexed(self, below)?,
                None => None,
            };
        }
        let bottom = self.receipts_pruned_below()?.max(self.bodies_pruned_below()?);
        let range = highest.map(|highest| lowest.number.max(bottom)..=highest.number);
        Ok(range.filter(|range| !range.is_empty()))
    }

    /// Internal calls of indexed blocks below this number may be missing, as the states that they
    /// were executed on were not kept.
    pub fn addresses_traced_from(&self) -> Result<u64, ReadError> {
        traced_from(self)
    }

    /// The transactions that `account` takes part in, of at most `limit` blocks, from one end of
    /// `blocks`. The caller passes a part of [`indexed_addresses`](Self::indexed_addresses).
    pub fn account_transactions(
        &self,
        account: &Address,
        blocks: RangeInclusive<u64>,
        direction: ScanDirection,
        limit: usize,
    ) -> Result<Vec<AccountTransactions>, ReadError> {
        if blocks.is_empty() {
            return Ok(Vec::new());
        }
        let table = self.chain(ChainTable::AddressHistory);
        let start = account_key(account, *blocks.start());
        let end = [&account_key(account, *blocks.end())[..], &[0]].concat();
        let range = RowRange { start: &start, end: Some(&end), direction, limit };
        let mut found = Vec::new();
        for (key, row) in self.raw_scan(table, range)? {
            let damaged = |what| ReadError::corrupt(table.name, &key, what);
            let block = number_in_key(&key).ok_or_else(|| damaged("the key is too short"))?;
            let indexes = decode_indexes(&row).map_err(damaged)?;
            found.push(AccountTransactions { block, indexes });
        }
        Ok(found)
    }

    /// Block and index of the transaction with which `sender` used `nonce`; `None` also if it is in
    /// no indexed block. The block may be one that is not canonical any more: the caller compares it
    /// with [`indexed_addresses`](Self::indexed_addresses).
    pub fn transaction_of_nonce(
        &self,
        sender: &Address,
        nonce: u64,
    ) -> Result<Option<(u64, u32)>, ReadError> {
        let table = self.chain(ChainTable::SenderNonces);
        let key = account_key(sender, nonce);
        let Some(row) = self.raw_get(table, &key)? else { return Ok(None) };
        let position = decode_position(&row);
        let damaged = || ReadError::corrupt(table.name, &key, "it has not 12 bytes");
        position.map(Some).ok_or_else(damaged)
    }

    /// The last creation of `contract` in one of `blocks`, a part of
    /// [`indexed_addresses`](Self::indexed_addresses).
    pub fn creation_of(
        &self,
        contract: &Address,
        blocks: RangeInclusive<u64>,
    ) -> Result<Option<StoredCreation>, ReadError> {
        let table = self.chain(ChainTable::ContractCreators);
        let last = account_key(contract, *blocks.end());
        let row = self.raw_seek(table, Some(&last), ScanDirection::Backward)?;
        let Some((key, row)) = row.filter(|(key, _)| key.starts_with(contract.as_slice())) else {
            return Ok(None);
        };
        let damaged = || ReadError::corrupt(table.name, &key, "it is not a block and a creator");
        let block = number_in_key(&key).ok_or_else(damaged)?;
        let (index, creator) = decode_creation(&row).ok_or_else(damaged)?;
        let creation = StoredCreation { block, index, creator };
        Ok(blocks.contains(&block).then_some(creation))
    }
}

/// See [`ReadTxn::addresses_traced_from`].
pub(super) fn traced_from<R: ChainRead + ?Sized>(read: &R) -> Result<u64, ReadError> {
    let Some(note) = read.note(UNTRACED)? else { return Ok(0) };
    let number = <[u8; 8]>::try_from(&note[..]).map(u64::from_be_bytes);
    number.map_err(|_| {
        let (table, key) = (ChainTable::Metadata.name(), notes::key(UNTRACED));
        ReadError::corrupt(table, &key, "the note is not a block number")
    })
}
