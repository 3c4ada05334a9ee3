//! Checks that the chain's tables agree with each other, for `retrie db verify`.

use super::{
    preimages,
    read::{self, ChainRead, canonical, items},
};
use crate::{
    CorruptRow, ReadError, ReadTxn, Result,
    addresses::{AddressRows, check_addresses},
    checksum, codecs,
    index_tables::check_tables,
    logs::LogCheck,
    pieces,
    raw::{RawRead, RowRange},
    tables::{BlockId, ChainTable},
};
use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use retrie_chainspec::primitives::{BlockBody, Header, Receipt};
use retrie_state::ScanDirection;

/// A stored block, as far as its rows can be read.
#[derive(Clone, Debug)]
pub struct StoredBlock {
    /// keccak-256 of the stored header.
    pub hash: B256,
    /// Its header.
    pub header: Header,
    /// Whether it is canonical.
    pub is_canonical: bool,
    /// Body and senders; `None` if they are not kept, or damaged (which has been reported).
    pub body: Option<(BlockBody, Vec<Address>)>,
    /// Receipts; `None` if there are none, or they are damaged.
    pub receipts: Option<Vec<Receipt>>,
    /// Backends and their roots of the block; `None` if the block was applied in a batch.
    pub roots: Vec<(String, Option<B256>)>,
    /// The changes that the user of a dev chain made to the state before the block.
    pub patch: Option<Bytes>,
}

/// Rows read at a time.
const PAGE: usize = 1024;

impl ReadTxn {
    /// Reads all stored blocks in the order of their ids and passes each to `block`. Checks that
    /// tables agree: indices by hash and number in both directions, the canonical chain (without
    /// gaps, and linked by parents), total difficulties, the lookup table of transactions, hashes
    /// of code, of access lists and of keys, the log and address indexes, and that no row is left
    /// over. Faults go to `fault`.
    pub fn check_chain(
        &self,
        block: &mut dyn FnMut(StoredBlock),
        fault: &mut dyn FnMut(CorruptRow),
    ) -> Result<(), ReadError> {
        let logs = LogCheck::new(self, fault)?;
        let mut check = ChainCheck {
            read: self,
            fault,
            rows: [0; ChainTable::ALL.len()],
            lookup_pruned: 0,
            logs,
        };
        let pruned = self.lookup_pruned_below();
        check.lookup_pruned = check.read(pruned)?.unwrap_or(0);
        let headers = self.chain(ChainTable::Headers);
        let mut start = Vec::new();
        loop {
            let keys = self.stored_scan(headers, range(&start))?;
            let Some((last, _)) = keys.last() else { break };
            // A damaged key may sort anywhere; the scan must not go back.
            let next = [&last[..], &[0]].concat();
            for (key, _) in &keys {
                match BlockId::from_bytes(key) {
                    Some(id) => {
                        if let Some(stored) = check.block(id)? {
                            block(stored);
                        }
                    }
                    // A later piece of a long header.
                    None if key.len() == BlockId::LEN + 2 => {}
                    None => check.bad(ChainTable::Headers, key, "the key is not a block id"),
                }
            }
            if next <= start {
                break;
            }
            start = next;
        }
        check.codes()?;
        check.preimages()?;
        check.canonical_chain()?;
        check.all_logs()?;
        check.index_tables()?;
        check.addresses()?;
        check.nothing_left_over()
    }
}

fn range(start: &[u8]) -> RowRange<'_> {
    RowRange { start, end: None, direction: ScanDirection::Forward, limit: PAGE }
}

struct ChainCheck<'a> {
    read: &'a ReadTxn,
    fault: &'a mut dyn FnMut(CorruptRow),
    /// Rows of each table that belong to a stored block.
    rows: [u64; ChainTable::ALL.len()],
    /// Transactions of lower blocks need not be in the lookup table.
    lookup_pruned: u64,
    logs: LogCheck<'a>,
}

impl ChainCheck<'_> {
    fn bad(&mut self, table: ChainTable, key: &[u8], what: impl std::fmt::Display) {
        (self.fault)(CorruptRow::new(table.name(), key, what));
    }

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

    fn count(&mut self, table: ChainTable, value_len: usize) {
        self.rows[table as usize] += pieces::count(value_len);
    }

    fn block(&mut self, id: BlockId) -> Result<Option<StoredBlock>, ReadError> {
        let read = self.read;
        let key = id.to_bytes();
        let row = pieces::get(read, read.chain(ChainTable::Headers), &key);
        let Some(Some(row)) = self.read(row)? else { return Ok(None) };
        self.count(ChainTable::Headers, row.len());
        let hash = keccak256(&row);
        let header = match codecs::decode_header(&row) {
            Ok(header) => header,
            Err(e) => {
                self.bad(ChainTable::Headers, &key, e);
                return Ok(None);
            }
        };
        if header.number != id.number {
            let what = format!("it is the header of block {}", header.number);
            self.bad(ChainTable::Headers, &key, what);
        }
        self.rows[ChainTable::BlockIndex as usize] += 1;
        let indexed = read::block_id(read, &hash);
        if let Some(indexed) = self.read(indexed)?
            && indexed != Some(id)
        {
            let what = "it does not lead to the stored header of this hash";
            self.bad(ChainTable::BlockIndex, hash.as_slice(), what);
        }
        let found = canonical(read, id.number);
        let found = self.read(found)?.flatten();
        let is_canonical = found.is_some_and(|(_, canonical)| canonical == id);
        if is_canonical && found.is_some_and(|(named, _)| named != hash) {
            let what = format!("it names another hash than the stored header, which has {hash}");
            self.bad(ChainTable::Canonical, &id.number.to_be_bytes(), what);
        }
        self.difficulty(id, &hash, &header)?;
        let roots = read.root_rows(&hash);
        let roots = self.read(roots)?.unwrap_or_default();
        self.rows[ChainTable::BackendRoots as usize] += roots.len() as u64;
        let patch = pieces::get(read, read.chain(ChainTable::DevPatches), &key);
        let patch = self.read(patch)?.flatten();
        if let Some(patch) = &patch {
            self.count(ChainTable::DevPatches, patch.len());
        }
        self.access_list(id, &header)?;
        let body = self.body(id, is_canonical)?;
        let receipts = self.receipts(id, &hash)?;
        if is_canonical {
            self.logs.block(id.number, receipts.as_deref(), self.fault)?;
        }
        Ok(Some(StoredBlock { hash, header, is_canonical, body, receipts, roots, patch }))
    }

    fn difficulty(&mut self, id: BlockId, hash: &B256, header: &Header) -> Result<(), ReadError> {
        let read = self.read;
        let total = read.total_difficulty(hash);
        let Some(Some(total)) = self.read(total)? else { return Ok(()) };
        self.count(ChainTable::TotalDifficulty, 0);
        let parent = if header.number == 0 {
            Some(U256::ZERO)
        } else {
            let parent = read.total_difficulty(&header.parent_hash);
            self.read(parent)?.flatten()
        };
        if let Some(parent) = parent
            && parent.checked_add(header.difficulty) != Some(total)
        {
            let what = format!("{total} is not the parent's {parent} and {}", header.difficulty);
            self.bad(ChainTable::TotalDifficulty, &id.to_bytes(), what);
        }
        Ok(())
    }

    fn access_list(&mut self, id: BlockId, header: &Header) -> Result<(), ReadError> {
        let key = id.to_bytes();
        // As stored: a list that is damaged counts as a row, too.
        let list = pieces::get(self.read, self.read.chain(ChainTable::AccessLists), &key);
        let Some(Some(list)) = self.read(list)? else { return Ok(()) };
        self.count(ChainTable::AccessLists, list.len());
        match header.block_access_list_hash {
            Some(named) if named == keccak256(&list) => {}
            Some(named) => {
                let what = format!("its hash is not the header's, {named}");
                self.bad(ChainTable::AccessLists, &key, what);
            }
            None => {
                self.bad(ChainTable::AccessLists, &key, "the header of its block names no list");
            }
        }
        Ok(())
    }

    fn body(
        &mut self,
        id: BlockId,
        is_canonical: bool,
    ) -> Result<Option<(BlockBody, Vec<Address>)>, ReadError> {
        let read = self.read;
        let row = pieces::get(read, read.chain(ChainTable::Bodies), &id.to_bytes());
        if let Some(Some(row)) = self.read(row)? {
            self.count(ChainTable::Bodies, row.len());
        }
        let rows = items(read, ChainTable::Transactions, id);
        for (_, row) in self.read(rows)?.unwrap_or_default() {
            self.count(ChainTable::Transactions, row.len());
        }
        let body = read::body_at(read, id);
        let Some((body, senders)) = self.read(body)?.flatten() else { return Ok(None) };
        if is_canonical {
            for (index, transaction) in (0_u32..).zip(&body.transactions) {
                let hash = transaction.tx_hash();
                let found = read.transaction_position(hash);
                let found = self.read(found)?;
                if found == Some(None) && id.number < self.lookup_pruned {
                    continue;
                }
                self.rows[ChainTable::TxLookup as usize] += 1;
                if let Some(found) = found
                    && found != Some((id.number, index))
                {
                    let what = format!(
                        "it does not lead to transaction {index} of block {}, which has this hash",
                        id.number
                    );
                    self.bad(ChainTable::TxLookup, hash.as_slice(), what);
                }
            }
        }
        Ok(Some((body, senders)))
    }

    fn receipts(&mut self, id: BlockId, hash: &B256) -> Result<Option<Vec<Receipt>>, ReadError> {
        let rows = items(self.read, ChainTable::Receipts, id);
        for (_, row) in self.read(rows)?.unwrap_or_default() {
            self.count(ChainTable::Receipts, row.len());
        }
        let receipts = self.read.receipts(hash);
        Ok(self.read(receipts)?.flatten())
    }

    /// Checks that canonical blocks are stored, linked, and without gaps.
    fn canonical_chain(&mut self) -> Result<(), ReadError> {
        let table = self.read.chain(ChainTable::Canonical);
        let mut before: Option<(u64, B256)> = None;
        let mut start = Vec::new();
        loop {
            let rows = self.read.stored_scan(table, range(&start))?;
            let Some((last, _)) = rows.last() else { return Ok(()) };
            let next = [&last[..], &[0]].concat();
            for (key, _) in &rows {
                self.rows[ChainTable::Canonical as usize] += 1;
                let Ok(number) = <[u8; 8]>::try_from(&key[..]).map(u64::from_be_bytes) else {
                    self.bad(ChainTable::Canonical, key, "the key is not a block number");
                    continue;
                };
                let found = canonical(self.read, number);
                let Some(Some((hash, id))) = self.read(found)? else {
                    before = None;
                    continue;
                };
                let header = read::header_at(self.read, id);
                if let Some(header) = self.read(header)?
                    && let Some((below, parent)) = before
                    && (below.checked_add(1) != Some(number) || parent != header.parent_hash)
                {
                    let what = format!("block {number} is not a child of block {below} ({parent})");
                    self.bad(ChainTable::Canonical, key, what);
                }
                before = Some((number, hash));
            }
            if next <= start {
                return Ok(());
            }
            start = next;
        }
    }

    /// Checks the rest of the log index.
    fn all_logs(&mut self) -> Result<(), ReadError> {
        let (segments, postings) = self.logs.finish(self.fault)?;
        self.rows[ChainTable::LogSegments as usize] += segments;
        self.rows[ChainTable::LogPostings as usize] += postings;
        Ok(())
    }

    fn index_tables(&mut self) -> Result<(), ReadError> {
        let (tables, entries) = check_tables(self.read, self.fault)?;
        self.rows[ChainTable::IndexTables as usize] += tables;
        self.rows[ChainTable::IndexEntries as usize] += entries;
        Ok(())
    }

    fn addresses(&mut self) -> Result<(), ReadError> {
        let AddressRows { blocks, history, nonces, creators } =
            check_addresses(self.read, self.fault)?;
        self.rows[ChainTable::AddressBlocks as usize] += blocks;
        self.rows[ChainTable::AddressHistory as usize] += history;
        self.rows[ChainTable::SenderNonces as usize] += nonces;
        self.rows[ChainTable::ContractCreators as usize] += creators;
        Ok(())
    }

    fn codes(&mut self) -> Result<(), ReadError> {
        let table = self.read.chain(ChainTable::Codes);
        let mut start = Vec::new();
        loop {
            // A few at a time: codes are long.
            let page = RowRange { limit: 64, ..range(&start) };
            let rows = self.read.stored_scan(table, page)?;
            let Some((last, _)) = rows.last() else { return Ok(()) };
            let next = [&last[..], &[0]].concat();
            for (key, _) in &rows {
                if key.len() != 32 {
                    // A later piece. If it has no first piece, it counts as left over.
                    continue;
                }
                let code = pieces::get(self.read, table, key);
                if let Some(Some(code)) = self.read(code)? {
                    self.count(ChainTable::Codes, code.len());
                    if keccak256(&code)[..] != key[..] {
                        self.bad(ChainTable::Codes, key, "the code has another hash");
                    }
                }
            }
            if next <= start {
                return Ok(());
            }
            start = next;
        }
    }

    fn preimages(&mut self) -> Result<(), ReadError> {
        let table = self.read.chain(ChainTable::Preimages);
        let mut start = Vec::new();
        loop {
            let rows = self.read.stored_scan(table, range(&start))?;
            let Some((last, _)) = rows.last() else { return Ok(()) };
            let next = [&last[..], &[0]].concat();
            for (key, row) in rows {
                self.rows[ChainTable::Preimages as usize] += 1;
                let row = checksum::open(table, &key, row);
                if let Err(damage) = row.and_then(|row| preimages::decode(&key, &row)) {
                    (self.fault)(damage);
                }
            }
            if next <= start {
                return Ok(());
            }
            start = next;
        }
    }

    /// Checks that every row belongs to a stored block, is code, or a preimage.
    fn nothing_left_over(&mut self) -> Result<(), ReadError> {
        for table in ChainTable::ALL {
            let expected = self.rows[table as usize];
            let found = match self.read.raw_stat(self.read.chain(table))? {
                Some(stat) => stat.entries() as u64,
                None => 0,
            };
            if table != ChainTable::Metadata && found != expected {
                let what = format!("{found} rows, of which stored blocks account for {expected}");
                self.bad(table, &[], what);
            }
        }
        Ok(())
    }
}
