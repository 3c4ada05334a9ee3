//! Reads of the chain tables.

use crate::{
    DatabaseEnv, DatadirMetadata, KeyPreimage, PrunedBody, ReadError, Result, codecs, notes,
    pieces,
    raw::{RawRead, RowRange},
    tables::{BlockId, ChainTable},
};
use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use retrie_chainspec::primitives::{
    Block, BlockBody, Header, Receipt, RecoveredBlock, Transaction,
};
use retrie_state::{BlockRef, ScanDirection};

/// A canonical transaction and its position.
#[derive(Clone, Debug)]
pub struct StoredTransaction {
    /// The transaction.
    pub transaction: Transaction,
    /// Its sender.
    pub sender: Address,
    /// Its block.
    pub block: BlockRef,
    /// Its position in the block, from 0.
    pub index: u32,
}

/// Reads of the chain, the same on a snapshot ([`ReadTxn`](crate::ReadTxn)) and in a write
/// transaction ([`WriteTxn`](crate::WriteTxn)), where they include its writes.
///
/// `None` means "not stored". Every method fails with [`ReadError::Corrupt`] on rows that cannot be
/// right, and with other errors if MDBX fails.
pub trait ChainRead: RawRead {
    /// Header of a stored block.
    fn header(&self, hash: &B256) -> Result<Option<Header>, ReadError> {
        match block_id(self, hash)? {
            Some(id) => header_at(self, id).map(Some),
            None => Ok(None),
        }
    }

    /// Header of the canonical block `number`.
    fn header_by_number(&self, number: u64) -> Result<Option<Header>, ReadError> {
        match canonical(self, number)? {
            Some((_, id)) => header_at(self, id).map(Some),
            None => Ok(None),
        }
    }

    /// Number of a stored block.
    fn block_number(&self, hash: &B256) -> Result<Option<u64>, ReadError> {
        Ok(block_id(self, hash)?.map(|id| id.number))
    }

    /// Hash of the canonical block `number`.
    fn canonical_hash(&self, number: u64) -> Result<Option<B256>, ReadError> {
        Ok(canonical(self, number)?.map(|(hash, _)| hash))
    }

    /// Whether a block is stored and canonical.
    fn is_canonical(&self, hash: &B256) -> Result<bool, ReadError> {
        match block_id(self, hash)? {
            Some(id) => Ok(self.canonical_hash(id.number)? == Some(*hash)),
            None => Ok(false),
        }
    }

    /// Hashes of all stored blocks of a number, canonical or not, in the order they were stored.
    fn hashes_at(&self, number: u64) -> Result<Vec<B256>, ReadError> {
        let headers = self.chain(ChainTable::Headers);
        let rows = self.raw_scan(headers, prefix_range(&number.to_be_bytes(), &end_of(number)))?;
        Ok(rows.iter().map(|(_, header)| keccak256(header)).collect())
    }

    /// The highest canonical block.
    fn tip(&self) -> Result<Option<BlockRef>, ReadError> {
        end_of_chain(self, ScanDirection::Backward)
    }

    /// The lowest canonical block: genesis, unless the chain was started at another block.
    fn first(&self) -> Result<Option<BlockRef>, ReadError> {
        end_of_chain(self, ScanDirection::Forward)
    }

    /// Canonical headers from block `from` upwards, lazily, with their hashes.
    fn canonical_headers(&self, from: u64) -> CanonicalHeaders<'_, Self>
    where
        Self: Sized,
    {
        CanonicalHeaders { read: self, next: Some(from) }
    }

    /// Transactions, ommers and withdrawals of a stored block.
    ///
    /// This method and all others that read bodies fail with [`ReadError::Pruned`] if the block is
    /// stored without its body.
    fn body(&self, hash: &B256) -> Result<Option<BlockBody>, ReadError> {
        match block_id(self, hash)? {
            Some(id) => Ok(Some(kept_body(self, id)?.0)),
            None => Ok(None),
        }
    }

    /// A stored block.
    fn block(&self, hash: &B256) -> Result<Option<Block>, ReadError> {
        let Some(id) = block_id(self, hash)? else { return Ok(None) };
        let header = header_at(self, id)?;
        Ok(Some(Block { header, body: kept_body(self, id)?.0 }))
    }

    /// A stored block with the senders of its transactions.
    fn recovered_block(&self, hash: &B256) -> Result<Option<RecoveredBlock>, ReadError> {
        let Some(id) = block_id(self, hash)? else { return Ok(None) };
        let header = header_at(self, id)?;
        let (body, senders) = kept_body(self, id)?;
        Ok(Some(RecoveredBlock::new(Block { header, body }, senders, *hash)))
    }

    /// Transactions of a stored block.
    fn transactions(&self, hash: &B256) -> Result<Option<Vec<Transaction>>, ReadError> {
        match block_id(self, hash)? {
            Some(id) => Ok(Some(kept_body(self, id)?.0.transactions)),
            None => Ok(None),
        }
    }

    /// Senders of the transactions of a stored block.
    fn senders(&self, hash: &B256) -> Result<Option<Vec<Address>>, ReadError> {
        let Some(id) = block_id(self, hash)? else { return Ok(None) };
        if body_row(self, id)?.is_none() {
            return Err(pruned(self, id)?.into());
        }
        let rows = items(self, ChainTable::Transactions, id)?;
        let sender = |(key, row): &(Bytes, Bytes)| {
            let (sender, _) = codecs::split_transaction(row)
                .map_err(|e| ReadError::corrupt(ChainTable::Transactions.name(), key, e))?;
            Ok(sender)
        };
        rows.iter().map(sender).collect::<Result<_, _>>().map(Some)
    }

    /// Receipts of a stored block; `None` also if they are pruned, or the block was stored without
    /// them (a side block that was not executed).
    fn receipts(&self, hash: &B256) -> Result<Option<Vec<Receipt>>, ReadError> {
        let Some(id) = block_id(self, hash)? else { return Ok(None) };
        let rows = items(self, ChainTable::Receipts, id)?;
        let Some(expected) = body_row(self, id)?.map(|row| row.transactions) else {
            return Ok(None);
        };
        if rows.is_empty() && expected > 0 {
            return Ok(None);
        }
        check_count(ChainTable::Receipts, id, rows.len(), expected)?;
        let decode = |(key, row): &(Bytes, Bytes)| {
            codecs::decode_receipt(row)
                .map_err(|e| ReadError::corrupt(ChainTable::Receipts.name(), key, e))
        };
        rows.iter().map(decode).collect::<Result<_, _>>().map(Some)
    }

    /// RLP of the block access list (EIP-7928) of a stored block; `None` also if it is pruned, or the
    /// block was stored without it.
    fn access_list(&self, hash: &B256) -> Result<Option<Bytes>, ReadError> {
        let Some(id) = block_id(self, hash)? else { return Ok(None) };
        let (table, key) = (self.chain(ChainTable::AccessLists), id.to_bytes());
        let Some(row) = pieces::get(self, table, &key)? else { return Ok(None) };
        let mut rest = &row[..];
        match alloy_rlp::Header::decode_bytes(&mut rest, true) {
            Ok(_) if rest.is_empty() => Ok(Some(row)),
            _ => Err(ReadError::corrupt(table.name, &key, "the value is not one RLP list")),
        }
    }

    /// From this number on all stored, executed blocks have their receipts. Receipts of lower
    /// blocks may be [pruned](crate::HistoryKept).
    fn receipts_pruned_below(&self) -> Result<u64, ReadError> {
        super::prune::receipts_below(self)
    }

    /// From this number on all stored blocks have their bodies.
    fn bodies_pruned_below(&self) -> Result<u64, ReadError> {
        super::prune::bodies_below(self)
    }

    /// From this number on all canonical transactions are found by their hashes.
    fn lookup_pruned_below(&self) -> Result<u64, ReadError> {
        super::prune::lookup_below(self)
    }

    /// Number of the block whose state this chain was [started from](crate::WriteTxn::set_anchor);
    /// 0 if that is genesis. Blocks below it have at most headers.
    fn anchor(&self) -> Result<u64, ReadError> {
        super::prune::anchor(self)
    }

    /// The receipt of the `index`-th transaction of a stored block.
    fn receipt(&self, hash: &B256, index: u32) -> Result<Option<Receipt>, ReadError> {
        let Some(id) = block_id(self, hash)? else { return Ok(None) };
        let key = id.item(index);
        let Some(row) = pieces::get(self, self.chain(ChainTable::Receipts), &key)? else {
            return Ok(None);
        };
        let receipt = codecs::decode_receipt(&row);
        receipt.map(Some).map_err(|e| ReadError::corrupt(ChainTable::Receipts.name(), &key, e))
    }

    /// Block number and index of a canonical transaction; `None` also if they are not
    /// [kept](crate::HistoryKept::lookup).
    fn transaction_position(&self, hash: &B256) -> Result<Option<(u64, u32)>, ReadError> {
        let lookup = self.chain(ChainTable::TxLookup);
        let Some(row) = self.raw_get(lookup, hash.as_slice())? else { return Ok(None) };
        match decode_position(&row) {
            Some(position) => Ok(Some(position)),
            None => Err(ReadError::corrupt(lookup.name, hash.as_slice(), WRONG_LENGTH)),
        }
    }

    /// A canonical transaction by its hash.
    fn transaction_by_hash(&self, hash: &B256) -> Result<Option<StoredTransaction>, ReadError> {
        let Some((number, index)) = self.transaction_position(hash)? else { return Ok(None) };
        let lost = |what| ReadError::corrupt(ChainTable::TxLookup.name(), hash.as_slice(), what);
        let (block_hash, id) = canonical(self, number)?
            .ok_or_else(|| lost(format!("it names block {number}, which is not canonical")))?;
        let key = id.item(index);
        let table = self.chain(ChainTable::Transactions);
        let row = pieces::get(self, table, &key)?
            .ok_or_else(|| lost(format!("block {number} has no transaction {index}")))?;
        let (transaction, sender) = codecs::decode_transaction(&row)
            .map_err(|e| ReadError::corrupt(table.name, &key, e))?;
        let block = BlockRef::new(number, block_hash);
        Ok(Some(StoredTransaction { transaction, sender, block, index }))
    }

    /// Hash of the `index`-th transaction of a stored block; `None` also if the block has no such
    /// transaction, or no body.
    fn transaction_hash(&self, hash: &B256, index: u32) -> Result<Option<B256>, ReadError> {
        let Some(id) = block_id(self, hash)? else { return Ok(None) };
        let (table, key) = (self.chain(ChainTable::Transactions), id.item(index));
        let Some(row) = pieces::get(self, table, &key)? else { return Ok(None) };
        let (_, encoded) =
            codecs::split_transaction(&row).map_err(|e| ReadError::corrupt(table.name, &key, e))?;
        Ok(Some(keccak256(encoded)))
    }

    /// Contract code by its keccak-256.
    fn code(&self, hash: &B256) -> Result<Option<Bytes>, ReadError> {
        pieces::get(self, self.chain(ChainTable::Codes), hash.as_slice())
    }

    /// Sum of the difficulties up to and including a stored block.
    fn total_difficulty(&self, hash: &B256) -> Result<Option<U256>, ReadError> {
        let Some(id) = block_id(self, hash)? else { return Ok(None) };
        let row = required(self, ChainTable::TotalDifficulty, id)?;
        codecs::decode_difficulty(&row)
            .map(Some)
            .map_err(|e| ReadError::corrupt(ChainTable::TotalDifficulty.name(), &id.to_bytes(), e))
    }

    /// State root that `backend` gave a stored block.
    fn root(&self, hash: &B256, backend: &str) -> Result<Option<B256>, ReadError> {
        let Some(id) = block_id(self, hash)? else { return Ok(None) };
        let key = root_key(id, backend);
        match self.raw_get(self.chain(ChainTable::BackendRoots), &key)? {
            Some(row) => decode_root(&key, &row),
            None => Ok(None),
        }
    }

    /// All backends that gave a stored block a state root, with the roots, by name.
    fn roots(&self, hash: &B256) -> Result<Vec<(String, B256)>, ReadError> {
        let rows = self.root_rows(hash)?.into_iter();
        Ok(rows.filter_map(|(backend, root)| Some((backend, root?))).collect())
    }

    /// All backends that have a state of a stored block, by name, each with its root; `None` if it
    /// computed no root ([`WriteTxn::defer_root`](crate::WriteTxn::defer_root)).
    fn root_rows(&self, hash: &B256) -> Result<Vec<(String, Option<B256>)>, ReadError> {
        let Some(id) = block_id(self, hash)? else { return Ok(Vec::new()) };
        let (start, end) = (id.to_bytes(), following(id));
        let rows =
            self.raw_scan(self.chain(ChainTable::BackendRoots), prefix_range(&start, &end))?;
        let decode = |(key, row): (Bytes, Bytes)| {
            let name = String::from_utf8_lossy(&key[BlockId::LEN..]).into_owned();
            Ok((name, decode_root(&key, &row)?))
        };
        rows.into_iter().map(decode).collect()
    }

    /// The changes that the user of a dev chain made to the state before a stored block, as passed
    /// to [`insert_patch`](crate::WriteTxn::insert_patch).
    fn patch(&self, block: &B256) -> Result<Option<Bytes>, ReadError> {
        match block_id(self, block)? {
            Some(id) => pieces::get(self, self.chain(ChainTable::DevPatches), &id.to_bytes()),
            None => Ok(None),
        }
    }

    /// Whether any stored block has a [`patch`](Self::patch), which only happens on a dev chain.
    fn has_patches(&self) -> Result<bool, ReadError> {
        let table = self.chain(ChainTable::DevPatches);
        Ok(self.raw_seek(table, None, ScanDirection::Forward)?.is_some())
    }

    /// The address or slot with this keccak-256, if it is stored.
    fn preimage(&self, hash: &B256) -> Result<Option<KeyPreimage>, ReadError> {
        super::preimages::read(self, hash)
    }

    /// Stored addresses and slots in the order of their hashes, from `start` on, at most `limit`.
    fn preimages_from(
        &self,
        start: &B256,
        limit: usize,
    ) -> Result<Vec<(B256, KeyPreimage)>, ReadError> {
        super::preimages::page(self, start, limit)
    }

    /// The metadata of this datadir; `None` before it is initialised.
    fn metadata(&self) -> Result<Option<DatadirMetadata>> {
        super::metadata::read(self)
    }

    /// A note that was written with [`put_note`](crate::WriteTxn::put_note).
    fn note(&self, name: &str) -> Result<Option<Bytes>, ReadError> {
        notes::read(self, name)
    }
}

impl<T: RawRead + ?Sized> ChainRead for T {}

impl DatabaseEnv {
    /// Contract code by hash, from a new snapshot; for execution threads.
    pub fn code(&self, hash: &B256) -> Result<Option<Bytes>, ReadError> {
        self.begin_read()?.code(hash)
    }
}

/// Canonical headers in ascending order; see [`ChainRead::canonical_headers`].
#[derive(Debug)]
pub struct CanonicalHeaders<'a, R> {
    read: &'a R,
    next: Option<u64>,
}

impl<R: ChainRead> Iterator for CanonicalHeaders<'_, R> {
    type Item = Result<(B256, Header), ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        let number = self.next.take()?;
        let found = canonical(self.read, number)
            .and_then(|found| {
                let Some((hash, id)) = found else { return Ok(None) };
                Ok(Some((hash, header_at(self.read, id)?)))
            })
            .transpose()?;
        // An error ends the iteration.
        if found.is_ok() {
            self.next = number.checked_add(1);
        }
        Some(found)
    }
}

const WRONG_LENGTH: &str = "the value has a wrong length";
const MISSING: &str = "the row of a stored block is missing";

/// Key of a stored block's rows.
pub(super) fn block_id<R: RawRead + ?Sized>(
    read: &R,
    hash: &B256,
) -> Result<Option<BlockId>, ReadError> {
    let index = read.chain(ChainTable::BlockIndex);
    let Some(row) = read.raw_get(index, hash.as_slice())? else { return Ok(None) };
    match BlockId::from_bytes(&row) {
        Some(id) => Ok(Some(id)),
        None => Err(ReadError::corrupt(index.name, hash.as_slice(), WRONG_LENGTH)),
    }
}

/// Hash and key of the canonical block `number`.
pub(crate) fn canonical<R: RawRead + ?Sized>(
    read: &R,
    number: u64,
) -> Result<Option<(B256, BlockId)>, ReadError> {
    let table = read.chain(ChainTable::Canonical);
    let key = number.to_be_bytes();
    match read.raw_get(table, &key)? {
        Some(row) => decode_canonical(&key, &row).map(Some),
        None => Ok(None),
    }
}

pub(super) fn encode_canonical(hash: &B256, id: BlockId) -> [u8; 34] {
    let mut row = [0; 34];
    row[..32].copy_from_slice(hash.as_slice());
    row[32..].copy_from_slice(&id.ordinal.to_be_bytes());
    row
}

fn decode_canonical(key: &[u8], row: &[u8]) -> Result<(B256, BlockId), ReadError> {
    let parts = || {
        let number = u64::from_be_bytes(key.try_into().ok()?);
        let (hash, ordinal) = row.split_first_chunk::<32>()?;
        let ordinal = u16::from_be_bytes(ordinal.try_into().ok()?);
        Some((B256::from(*hash), BlockId { number, ordinal }))
    };
    parts().ok_or_else(|| ReadError::corrupt(ChainTable::Canonical.name(), key, WRONG_LENGTH))
}

fn end_of_chain<R: RawRead + ?Sized>(
    read: &R,
    direction: ScanDirection,
) -> Result<Option<BlockRef>, ReadError> {
    match read.raw_seek(read.chain(ChainTable::Canonical), None, direction)? {
        Some((key, row)) => {
            let (hash, id) = decode_canonical(&key, &row)?;
            Ok(Some(BlockRef::new(id.number, hash)))
        }
        None => Ok(None),
    }
}

/// A row that every stored block has.
fn required<R: RawRead + ?Sized>(
    read: &R,
    table: ChainTable,
    id: BlockId,
) -> Result<Bytes, ReadError> {
    let key = id.to_bytes();
    pieces::get(read, read.chain(table), &key)?
        .ok_or_else(|| ReadError::corrupt(table.name(), &key, MISSING))
}

pub(crate) fn header_at<R: RawRead + ?Sized>(read: &R, id: BlockId) -> Result<Header, ReadError> {
    let row = required(read, ChainTable::Headers, id)?;
    codecs::decode_header(&row)
        .map_err(|e| ReadError::corrupt(ChainTable::Headers.name(), &id.to_bytes(), e))
}

/// The body row; `None` if the block may lack its body, and does.
fn body_row<R: RawRead + ?Sized>(
    read: &R,
    id: BlockId,
) -> Result<Option<codecs::BodyRow>, ReadError> {
    let key = id.to_bytes();
    let Some(row) = pieces::get(read, read.chain(ChainTable::Bodies), &key)? else {
        if id.number < read.bodies_pruned_below()? {
            return Ok(None);
        }
        return Err(ReadError::corrupt(ChainTable::Bodies.name(), &key, MISSING));
    };
    codecs::decode_body(&row)
        .map(Some)
        .map_err(|e| ReadError::corrupt(ChainTable::Bodies.name(), &key, e))
}

/// The error for a block without its body.
fn pruned<R: RawRead + ?Sized>(read: &R, id: BlockId) -> Result<PrunedBody, ReadError> {
    Ok(PrunedBody { number: id.number, first: read.bodies_pruned_below()? })
}

fn kept_body<R: RawRead + ?Sized>(
    read: &R,
    id: BlockId,
) -> Result<(BlockBody, Vec<Address>), ReadError> {
    match body_at(read, id)? {
        Some(body) => Ok(body),
        None => Err(pruned(read, id)?.into()),
    }
}

/// Body and senders; `None` if the block may lack them, and does.
pub(super) fn body_at<R: RawRead + ?Sized>(
    read: &R,
    id: BlockId,
) -> Result<Option<(BlockBody, Vec<Address>)>, ReadError> {
    let Some(row) = body_row(read, id)? else { return Ok(None) };
    let rows = transactions_at(read, id)?;
    check_count(ChainTable::Transactions, id, rows.len(), row.transactions)?;
    let (transactions, senders) = rows.into_iter().unzip();
    let body = BlockBody { transactions, ommers: row.ommers, withdrawals: row.withdrawals };
    Ok(Some((body, senders)))
}

fn transactions_at<R: RawRead + ?Sized>(
    read: &R,
    id: BlockId,
) -> Result<Vec<(Transaction, Address)>, ReadError> {
    let decode = |(key, row): &(Bytes, Bytes)| {
        codecs::decode_transaction(row)
            .map_err(|e| ReadError::corrupt(ChainTable::Transactions.name(), key, e))
    };
    items(read, ChainTable::Transactions, id)?.iter().map(decode).collect()
}

/// Rows of a block, one per transaction.
pub(super) fn items<R: RawRead + ?Sized>(
    read: &R,
    table: ChainTable,
    id: BlockId,
) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
    pieces::scan_prefix(read, read.chain(table), &id.to_bytes(), 4)
}

fn check_count(
    table: ChainTable,
    id: BlockId,
    found: usize,
    expected: u64,
) -> Result<(), ReadError> {
    if found as u64 == expected {
        return Ok(());
    }
    let what = format!("{found} rows instead of {expected}");
    Err(ReadError::corrupt(table.name(), &id.to_bytes(), what))
}

/// Encodes the position of a transaction: the block's number and its index.
pub(crate) fn encode_position(number: u64, index: u32) -> [u8; 12] {
    let mut row = [0; 12];
    row[..8].copy_from_slice(&number.to_be_bytes());
    row[8..].copy_from_slice(&index.to_be_bytes());
    row
}

/// Decodes number and index.
pub(crate) fn decode_position(row: &[u8]) -> Option<(u64, u32)> {
    let (number, index) = row.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*number), u32::from_be_bytes(index.try_into().ok()?)))
}

pub(super) fn root_key(id: BlockId, backend: &str) -> Vec<u8> {
    [&id.to_bytes(), backend.as_bytes()].concat()
}

fn decode_root(key: &[u8], row: &[u8]) -> Result<Option<B256>, ReadError> {
    if row.is_empty() {
        return Ok(None);
    }
    B256::try_from(row)
        .map(Some)
        .map_err(|_| ReadError::corrupt(ChainTable::BackendRoots.name(), key, WRONG_LENGTH))
}

fn prefix_range<'a>(start: &'a [u8], end: &'a Option<Vec<u8>>) -> RowRange<'a> {
    RowRange { start, end: end.as_deref(), direction: ScanDirection::Forward, limit: usize::MAX }
}

/// First key after the keys of all blocks of a number.
fn end_of(number: u64) -> Option<Vec<u8>> {
    retrie_state::prefix_end(&number.to_be_bytes())
}

/// First key after the keys of a block.
fn following(id: BlockId) -> Option<Vec<u8>> {
    retrie_state::prefix_end(&id.to_bytes())
}
