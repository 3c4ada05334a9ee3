//! Writes of the chain tables.

use super::read::{self, ChainRead, block_id, canonical, encode_canonical, encode_position};
use crate::{
    BlockError, CorruptRow, ReadError, Result, TableError, WriteTxn, codecs, pieces,
    raw::RawRead,
    tables::{BlockId, ChainTable},
};
use alloy_primitives::{Address, B256, U256, keccak256};
use retrie_chainspec::primitives::{BlockBody, Header, Receipt, RecoveredBlock};
use retrie_state::{BlockRef, ScanDirection};

/// Longest name of a backend in bytes.
const MAX_BACKEND_NAME: usize = 64;

/// A block to be stored.
#[derive(Clone, Copy, Debug)]
pub struct NewBlock<'a> {
    /// keccak-256 of the header; not computed again here.
    pub hash: B256,
    /// Its header.
    pub header: &'a Header,
    /// Its transactions, ommers and withdrawals.
    pub body: &'a BlockBody,
    /// Sender of each transaction.
    pub senders: &'a [Address],
    /// Receipt of each transaction; `None` if the block was not executed.
    pub receipts: Option<&'a [Receipt]>,
    /// RLP of its block access list (EIP-7928); `None` if it has none, or it is not known.
    pub access_list: Option<&'a [u8]>,
    /// Sum of the difficulties up to and including this block.
    pub total_difficulty: U256,
}

impl<'a> NewBlock<'a> {
    /// A block with recovered senders, without an access list.
    pub fn recovered(
        block: &'a RecoveredBlock,
        receipts: Option<&'a [Receipt]>,
        total_difficulty: U256,
    ) -> Self {
        Self {
            hash: block.hash(),
            header: block.header(),
            body: block.body(),
            senders: block.senders(),
            receipts,
            access_list: None,
            total_difficulty,
        }
    }

    fn check(&self) -> Result<(), BlockError> {
        let transactions = self.body.transactions.len();
        let what = if self.senders.len() != transactions {
            format!("it has {transactions} transactions, but {} senders", self.senders.len())
        } else if let Some(receipts) = self.receipts
            && receipts.len() != transactions
        {
            format!("it has {transactions} transactions, but {} receipts", receipts.len())
        } else if u32::try_from(transactions).is_err() {
            format!("{transactions} transactions are too many")
        } else {
            return Ok(());
        };
        Err(BlockError::BadBlock { number: self.header.number, hash: self.hash, what })
    }
}

impl WriteTxn {
    /// Stores a block and makes it the tip of the canonical chain. Any block may be the first;
    /// every other block must be the child of the tip, else [`BlockError::NotLinked`]. It also
    /// prunes a bounded part of the old blocks that are no longer
    /// [kept](crate::OpenOptions::kept).
    pub fn insert_block(&mut self, block: &NewBlock<'_>) -> Result<()> {
        let id = self.store_block(block)?;
        let hashes = block.body.transactions.iter().map(|tx| *tx.tx_hash()).collect();
        self.extend_canonical(id, block.hash, &block.header.parent_hash, hashes)
    }

    /// Stores the header of a block whose body is not available, and makes it the tip of the
    /// canonical chain, as [`insert_block`](Self::insert_block) does. `hash` is the keccak-256 of
    /// the header.
    pub fn insert_header(
        &mut self,
        hash: B256,
        header: &Header,
        total_difficulty: U256,
    ) -> Result<()> {
        let (id, append) = self.next_id(header.number, hash)?;
        self.store_header(id, append, hash, header, total_difficulty)?;
        self.lacks_body(header.number)?;
        self.extend_canonical(id, hash, &header.parent_hash, Vec::new())
    }

    /// Stores a block beside the canonical chain. If it is stored already, only missing receipts
    /// and a missing access list are added.
    pub fn insert_side_block(&mut self, block: &NewBlock<'_>) -> Result<()> {
        self.store_block(block).map(|_| ())
    }

    /// Makes a stored block the tip of the canonical chain, under the conditions of
    /// [`insert_block`](Self::insert_block). No change if it is canonical already.
    pub fn set_canonical(&mut self, number: u64, hash: &B256) -> Result<()> {
        let id = block_id(self, hash)?.ok_or(BlockError::UnknownBlock { hash: *hash })?;
        if id.number != number {
            let what = format!("it is stored as block {}", id.number);
            return Err(BlockError::NotLinked { number, hash: *hash, what }.into());
        }
        let parent = read::header_at(self, id)?.parent_hash;
        let hashes = self.transaction_hashes(id)?;
        self.extend_canonical(id, *hash, &parent, hashes)
    }

    /// Removes all blocks above `number` from the canonical chain, and their transactions from the
    /// lookup table. They become side blocks. Returns them, highest first.
    pub fn unset_canonical_above(&mut self, number: u64) -> Result<Vec<BlockRef>> {
        let mut removed = Vec::new();
        while let Some(tip) = self.tip()?.filter(|tip| tip.number > number) {
            self.unset_tip(tip)?;
            removed.push(tip);
        }
        Ok(removed)
    }

    /// Deletes a side block with all its rows; returns whether it was stored.
    pub fn remove_block(&mut self, hash: &B256) -> Result<bool> {
        let Some(id) = block_id(self, hash)? else { return Ok(false) };
        if canonical(self, id.number)?.is_some_and(|(_, canonical)| canonical == id) {
            return Err(BlockError::Canonical { number: id.number, hash: *hash }.into());
        }
        for table in [
            ChainTable::Headers,
            ChainTable::Bodies,
            ChainTable::Transactions,
            ChainTable::Receipts,
            ChainTable::TotalDifficulty,
            ChainTable::BackendRoots,
            ChainTable::DevPatches,
            ChainTable::AccessLists,
        ] {
            let table = self.chain(table);
            pieces::delete_prefix(self, table, &id.to_bytes())?;
        }
        self.raw_delete(self.chain(ChainTable::BlockIndex), hash.as_slice())
    }

    /// Deletes all stored blocks above `number`, which must not be canonical; returns their number.
    /// Contract code is not deleted.
    pub fn remove_blocks_above(&mut self, number: u64) -> Result<u64> {
        let headers = self.chain(ChainTable::Headers);
        let mut removed = 0;
        while let Some((key, header)) = self.raw_seek(headers, None, ScanDirection::Backward)? {
            let bad = |what| CorruptRow::new(headers.name, &key, what);
            let id = BlockId::from_bytes(&key).ok_or_else(|| bad("the key is not a block id"))?;
            if id.number <= number {
                break;
            }
            if !self.remove_block(&keccak256(&header))? {
                return Err(bad("the index does not know this header").into());
            }
            removed += 1;
        }
        Ok(removed)
    }

    /// Stores contract code under its keccak-256, unless it is stored already.
    pub fn insert_code(&mut self, hash: &B256, code: &[u8]) -> Result<()> {
        let table = self.chain(ChainTable::Codes);
        if self.raw_get(table, hash.as_slice())?.is_some() {
            return Ok(());
        }
        pieces::put(self, table, hash.as_slice(), code, false)
    }

    /// Stores the changes that the user of a dev chain made to the state before a stored block.
    /// They are deleted with the block.
    pub fn insert_patch(&mut self, block: &B256, patch: &[u8]) -> Result<()> {
        let id = block_id(self, block)?.ok_or(BlockError::UnknownBlock { hash: *block })?;
        let table = self.chain(ChainTable::DevPatches);
        // A block that was reverted and produced again may have other changes.
        pieces::delete_prefix(self, table, &id.to_bytes())?;
        pieces::put(self, table, &id.to_bytes(), patch, false)
    }

    /// Records the state root that `backend` gives a stored block.
    pub fn insert_root(&mut self, block: &B256, backend: &str, root: &B256) -> Result<()> {
        self.put_root(block, backend, root.as_slice())
    }

    /// Records that `backend` computed no state root for a stored block, because it applied a batch
    /// of blocks: the next root above belongs to the whole batch.
    pub fn defer_root(&mut self, block: &B256, backend: &str) -> Result<()> {
        self.put_root(block, backend, &[])
    }

    fn put_root(&mut self, block: &B256, backend: &str, root: &[u8]) -> Result<()> {
        let id = block_id(self, block)?.ok_or(BlockError::UnknownBlock { hash: *block })?;
        if backend.len() > MAX_BACKEND_NAME {
            return Err(TableError::KeyTooLong {
                table: ChainTable::BackendRoots.name().to_owned(),
                len: backend.len(),
                max: MAX_BACKEND_NAME,
            }
            .into());
        }
        let table = self.chain(ChainTable::BackendRoots);
        self.raw_put(table, &read::root_key(id, backend), root)
    }

    /// Stores the rows of a block, unless it is stored already.
    fn store_block(&mut self, block: &NewBlock<'_>) -> Result<BlockId> {
        block.check()?;
        if let Some(id) = block_id(self, &block.hash)? {
            if let Some(receipts) = block.receipts
                && self.receipts(&block.hash)?.is_none()
            {
                self.store_receipts(id, receipts, false)?;
            }
            if let Some(list) = block.access_list
                && self.access_list(&block.hash)?.is_none()
            {
                self.store_access_list(id, list, false)?;
            }
            return Ok(id);
        }
        let NewBlock { header, body, .. } = *block;
        let (id, append) = self.next_id(header.number, block.hash)?;
        self.store_header(id, append, block.hash, header, block.total_difficulty)?;
        let row =
            codecs::encode_body(body.transactions.len(), &body.ommers, body.withdrawals.as_ref());
        pieces::put(self, self.chain(ChainTable::Bodies), &id.to_bytes(), &row, append)?;
        let table = self.chain(ChainTable::Transactions);
        for (index, (transaction, sender)) in
            (0_u32..).zip(body.transactions.iter().zip(block.senders))
        {
            let row = codecs::encode_transaction(transaction, sender);
            pieces::put(self, table, &id.item(index), &row, append)?;
        }
        if let Some(receipts) = block.receipts {
            self.store_receipts(id, receipts, append)?;
        }
        if let Some(list) = block.access_list {
            self.store_access_list(id, list, append)?;
        }
        Ok(id)
    }

    fn store_header(
        &mut self,
        id: BlockId,
        append: bool,
        hash: B256,
        header: &Header,
        total_difficulty: U256,
    ) -> Result<()> {
        let key = id.to_bytes();
        self.raw_put(self.chain(ChainTable::BlockIndex), hash.as_slice(), &key)?;
        let table = self.chain(ChainTable::Headers);
        pieces::put(self, table, &key, &codecs::encode_header(header), append)?;
        let difficulty = codecs::encode_difficulty(total_difficulty);
        pieces::put(self, self.chain(ChainTable::TotalDifficulty), &key, &difficulty, append)
    }

    fn store_receipts(&mut self, id: BlockId, receipts: &[Receipt], append: bool) -> Result<()> {
        let table = self.chain(ChainTable::Receipts);
        for (index, receipt) in (0_u32..).zip(receipts) {
            let row = codecs::encode_receipt(receipt);
            pieces::put(self, table, &id.item(index), &row, append)?;
        }
        Ok(())
    }

    fn store_access_list(&mut self, id: BlockId, list: &[u8], append: bool) -> Result<()> {
        let table = self.chain(ChainTable::AccessLists);
        pieces::put(self, table, &id.to_bytes(), list, append)
    }

    /// A new id for a block, and whether it sorts after all others.
    fn next_id(&self, number: u64, hash: B256) -> Result<(BlockId, bool)> {
        let headers = self.chain(ChainTable::Headers);
        let id_before = |key: Option<&[u8]>| -> Result<_, ReadError> {
            let row = self.raw_seek(headers, key, ScanDirection::Backward)?;
            let Some((key, _)) = row else { return Ok(None) };
            match BlockId::from_bytes(&key) {
                Some(id) => Ok(Some(id)),
                None => Err(ReadError::corrupt(headers.name, &key, "the key is not a block id")),
            }
        };
        let last = id_before(None)?;
        let append = last.is_none_or(|last| last.number <= number);
        let before = if append {
            last
        } else {
            id_before(Some(&BlockId { number, ordinal: u16::MAX }.to_bytes()))?
        };
        let ordinal = match before.filter(|id| id.number == number) {
            None => 0,
            Some(id) => id.ordinal.checked_add(1).ok_or_else(|| BlockError::BadBlock {
                number,
                hash,
                what: "65,536 blocks of this number are stored; remove some".to_owned(),
            })?,
        };
        Ok((BlockId { number, ordinal }, append))
    }

    fn extend_canonical(
        &mut self,
        id: BlockId,
        hash: B256,
        parent: &B256,
        transactions: Vec<B256>,
    ) -> Result<()> {
        let number = id.number;
        if canonical(self, number)?.is_some_and(|(canonical, _)| canonical == hash) {
            return Ok(());
        }
        if let Some(tip) = self.tip()?
            && (tip.number.checked_add(1) != Some(number) || tip.hash != *parent)
        {
            let what = format!(
                "its parent is {parent}, the tip of the canonical chain is {tip}; unwind or \
                 extend the chain to the parent first"
            );
            return Err(BlockError::NotLinked { number, hash, what }.into());
        }
        let key = number.to_be_bytes();
        self.raw_append(self.chain(ChainTable::Canonical), &key, &encode_canonical(&hash, id))?;
        let count = transactions.len();
        let mut rows: Vec<_> = (0_u32..).zip(transactions).collect();
        // In key order, rows of one page are written one after the other.
        rows.sort_unstable_by_key(|(_, hash)| *hash);
        let lookup = self.chain(ChainTable::TxLookup);
        for (index, hash) in rows {
            self.raw_put(lookup, hash.as_slice(), &encode_position(number, index))?;
        }
        self.prune_blocks(number, count)
    }

    fn unset_tip(&mut self, tip: BlockRef) -> Result<()> {
        let Some((_, id)) = canonical(self, tip.number)? else { return Ok(()) };
        let transactions = self.transaction_hashes(id)?;
        self.delete_lookup(tip.number, &transactions)?;
        self.raw_delete(self.chain(ChainTable::Canonical), &tip.number.to_be_bytes())?;
        Ok(())
    }

    /// Hashes of the transactions of a stored block, without decoding them.
    pub(super) fn transaction_hashes(&self, id: BlockId) -> Result<Vec<B256>, ReadError> {
        let hash = |(key, row): &(alloy_primitives::Bytes, alloy_primitives::Bytes)| {
            let (_, encoded) = codecs::split_transaction(row)
                .map_err(|e| ReadError::corrupt(ChainTable::Transactions.name(), key, e))?;
            Ok(keccak256(encoded))
        };
        read::items(self, ChainTable::Transactions, id)?.iter().map(hash).collect()
    }
}
