//! Building the address index, a bounded part at a time.

use super::{
    BlockParticipants, IndexedBlock, damaged_block, indexed, outermost,
    rows::{BlockKeys, BlockRows, account_key, encode_creation, encode_indexes},
    search::{UNTRACED, traced_from},
};
use crate::{
    ChainRead, DatabaseEnv, DbError, ReadError, ReadTxn, Result, WriteTxn,
    chain::{decode_position, encode_position},
    pieces,
    raw::RawRead,
    tables::ChainTable,
};
use alloy_primitives::B256;
use retrie_state::ScanDirection;
use std::sync::atomic::{AtomicBool, Ordering};

/// How much a step adds or removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressBounds {
    /// A step ends at this many participants, each of about fifty bytes in memory.
    pub participants: usize,
    /// A step has at most this many blocks. Work on a step that a stop interrupts is done again.
    pub blocks: u64,
}

impl Default for AddressBounds {
    fn default() -> Self {
        Self { participants: 1 << 16, blocks: 256 }
    }
}

enum AddressStep {
    /// Removes blocks that are not canonical any more, or whose bodies or receipts are pruned.
    Remove(Vec<u64>),
    /// Adds these blocks, of which the first is next to `beside`, in this order.
    Add { hashes: Vec<B256>, beside: Option<IndexedBlock> },
}

impl DatabaseEnv {
    /// Takes one step in extending the address index, first up to the durable tip, then down to the
    /// oldest block with body and receipts. `participants` says who takes part in a block; `None`
    /// ends the step, for a block that it does not know, or knows no longer. Returns whether there
    /// may be more to do. A step is written in one transaction, and waits for no other writer before.
    /// It has no effect if `stop` is set, or if the chain has been reorganised meanwhile.
    ///
    /// # Errors
    /// Those of `participants`; [`DbError::Corrupt`] for damaged rows; any failure of the database.
    pub fn index_addresses<E: From<DbError>>(
        &self,
        bounds: &AddressBounds,
        stop: &AtomicBool,
        mut participants: impl FnMut(&B256) -> Result<Option<BlockParticipants>, E>,
    ) -> Result<bool, E> {
        let (hashes, beside) = match self.next_addresses(bounds)? {
            None => return Ok(false),
            Some(AddressStep::Remove(numbers)) => {
                self.remove_addresses(&numbers)?;
                return Ok(true);
            }
            Some(AddressStep::Add { hashes, beside }) => (hashes, beside),
        };
        let (mut blocks, mut count) = (Vec::new(), 0);
        for hash in &hashes {
            if stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
            let Some(block) = participants(hash)? else { return Ok(false) };
            count += block.count();
            blocks.push(block);
            if count >= bounds.participants {
                break;
            }
        }
        self.add_addresses(&blocks, beside)?;
        Ok(true)
    }

    /// The next step. Its snapshot is dropped at once, as a caller may execute for long.
    fn next_addresses(&self, bounds: &AddressBounds) -> Result<Option<AddressStep>> {
        Ok(self.begin_read()?.next_addresses(bounds.blocks.max(1))?)
    }

    fn remove_addresses(&self, numbers: &[u64]) -> Result<()> {
        let mut txn = self.begin_write()?;
        for number in numbers {
            txn.remove_addresses(*number)?;
        }
        Ok(txn.commit()?)
    }

    fn add_addresses(
        &self,
        blocks: &[BlockParticipants],
        beside: Option<IndexedBlock>,
    ) -> Result<()> {
        let mut txn = self.begin_write()?;
        if !txn.has_address_edge(beside)? {
            return Ok(());
        }
        for block in blocks {
            let added = IndexedBlock { number: block.number, hash: block.hash };
            if !added.is_valid(&txn)? {
                return Ok(());
            }
            txn.add_addresses(block)?;
        }
        Ok(txn.commit()?)
    }
}

impl ReadTxn {
    fn next_addresses(&self, most: u64) -> Result<Option<AddressStep>, ReadError> {
        let (Some(first), Some(tip)) = (self.first()?, self.tip()?) else { return Ok(None) };
        let bottom = self.receipts_pruned_below()?.max(self.bodies_pruned_below()?);
        let bottom = bottom.max(first.number);
        let lowest = outermost(self, ScanDirection::Forward)?;
        let highest = outermost(self, ScanDirection::Backward)?;
        let (Some(lowest), Some(highest)) = (lowest, highest) else {
            return self.downwards(tip.number, bottom, most, None);
        };
        if !highest.is_valid(self)? {
            return Ok(Some(AddressStep::Remove(self.not_canonical(highest, most)?)));
        }
        if lowest.number < bottom {
            let end = bottom.min(highest.number + 1).min(lowest.number.saturating_add(most));
            return Ok(Some(AddressStep::Remove((lowest.number..end).collect())));
        }
        if tip.number > highest.number {
            let last = tip.number.min(highest.number.saturating_add(most));
            let hashes = self.hashes_of(highest.number + 1..=last)?;
            return Ok(Some(AddressStep::Add { hashes, beside: Some(highest) }));
        }
        match lowest.number.checked_sub(1) {
            Some(below) => self.downwards(below, bottom, most, Some(lowest)),
            None => Ok(None),
        }
    }

    /// A step from block `from` down towards `bottom`.
    fn downwards(
        &self,
        from: u64,
        bottom: u64,
        most: u64,
        beside: Option<IndexedBlock>,
    ) -> Result<Option<AddressStep>, ReadError> {
        if from < bottom {
            return Ok(None);
        }
        let last = bottom.max((from + 1).saturating_sub(most));
        let hashes = self.hashes_of((last..=from).rev())?;
        Ok(Some(AddressStep::Add { hashes, beside }))
    }

    fn hashes_of(&self, numbers: impl Iterator<Item = u64>) -> Result<Vec<B256>, ReadError> {
        let hash = |number: u64| {
            let gap = || {
                let (table, key) = (ChainTable::Canonical.name(), number.to_be_bytes());
                ReadError::corrupt(table, &key, "the chain has a gap here")
            };
            self.canonical_hash(number)?.ok_or_else(gap)
        };
        numbers.map(hash).collect()
    }

    /// The indexed blocks from `highest` down that are not canonical.
    fn not_canonical(&self, highest: IndexedBlock, most: u64) -> Result<Vec<u64>, ReadError> {
        let mut numbers = vec![highest.number];
        let mut at = highest.number;
        while (numbers.len() as u64) < most
            && let Some(below) = at.checked_sub(1)
            && let Some(block) = indexed(self, below)?
            && !block.is_valid(self)?
        {
            numbers.push(below);
            at = below;
        }
        Ok(numbers)
    }
}

impl WriteTxn {
    /// Whether `beside` is still at an end of the index, and canonical. For `None`: whether there is
    /// still no index.
    fn has_address_edge(&self, beside: Option<IndexedBlock>) -> Result<bool, ReadError> {
        let ends =
            [outermost(self, ScanDirection::Forward)?, outermost(self, ScanDirection::Backward)?];
        match beside {
            None => Ok(ends == [None, None]),
            Some(block) => Ok(ends.contains(&beside) && block.is_valid(self)?),
        }
    }

    fn add_addresses(&mut self, block: &BlockParticipants) -> Result<()> {
        let number = block.number;
        let rows = BlockRows::of(block);
        let (table, key) = (self.chain(ChainTable::AddressBlocks), number.to_be_bytes());
        pieces::put(self, table, &key, &rows.keys(block).encode(), true)?;
        let history = self.chain(ChainTable::AddressHistory);
        for (account, indexes) in &rows.history {
            self.raw_put(history, &account_key(account, number), &encode_indexes(indexes))?;
        }
        let nonces = self.chain(ChainTable::SenderNonces);
        for (index, transaction) in (0..).zip(&block.transactions) {
            let key = account_key(&transaction.sender, transaction.nonce);
            self.raw_put(nonces, &key, &encode_position(number, index))?;
        }
        let creators = self.chain(ChainTable::ContractCreators);
        for (contract, (index, creator)) in &rows.creations {
            let row = encode_creation(*index, creator);
            self.raw_put(creators, &account_key(contract, number), &row)?;
        }
        if !block.is_traced && traced_from(self)? <= number {
            self.put_note(UNTRACED, &(number + 1).to_be_bytes())?;
        }
        Ok(())
    }

    fn remove_addresses(&mut self, number: u64) -> Result<()> {
        let (table, key) = (self.chain(ChainTable::AddressBlocks), number.to_be_bytes());
        let Some(row) = pieces::get(self, table, &key)? else { return Ok(()) };
        let keys = BlockKeys::decode(&row).map_err(|what| damaged_block(&key, what))?;
        let history = self.chain(ChainTable::AddressHistory);
        for account in &keys.accounts {
            self.raw_delete(history, &account_key(account, number))?;
        }
        let nonces = self.chain(ChainTable::SenderNonces);
        for (sender, nonce) in &keys.nonces {
            let key = account_key(sender, *nonce);
            // A row that names another block must stay.
            let row = self.raw_get(nonces, &key)?;
            let here = row.and_then(|row| decode_position(&row));
            if here.is_some_and(|(at, _)| at == number) {
                self.raw_delete(nonces, &key)?;
            }
        }
        let creators = self.chain(ChainTable::ContractCreators);
        for contract in &keys.contracts {
            self.raw_delete(creators, &account_key(contract, number))?;
        }
        pieces::delete_prefix(self, table, &key)?;
        Ok(())
    }
}
