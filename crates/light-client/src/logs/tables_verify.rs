//! Verifies that an answer of `state_getLogs` in the form `tables` has all logs of its range.
//!
//! ```text
//!  trusted hash --> header --> state root --> index contract: roots of the tables
//!                                                                |
//!  tables: all entries of a condition of the filter  ------------'
//!     |    of several conditions: places that they share
//!     '--> places: block, transaction, log
//!            |
//!            +- entry of the block: its hash --> header --> root of receipts --> receipt --> log
//!            '- entry of the transaction: its hash, the number of logs before it
//! ```

use super::{
    receipt_paths::ReceiptPaths,
    tables_response::LogTablesResponse,
    verify::{LogsHeader, VerifiedLog, asked_blocks, first_difference},
};
use crate::{LightClientError, LogsFault, StateVerifier, TableFault, TrustBasis, TrustedRoot};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    vec::Vec,
};
use alloy_primitives::{B256, keccak256};
use alloy_rpc_types_eth::{BlockNumberOrTag, Filter, FilterBlockOption};
use core::ops::{Range, RangeInclusive};
use retrie_log_tables::{
    EntryKey, EntryKind, EntryPosition, INDEX_CONTRACT, TableProof, TableSpan,
};

/// Why the roots of tables are trusted.
#[derive(Clone, Copy, Debug)]
pub enum TableTrust<'a> {
    /// They are in the storage of the index contract, in the state of the trusted block.
    State {
        /// The verifier of the store.
        verifier: &'a StateVerifier,
        /// The root of that state, if the header has another one.
        root: Option<B256>,
    },
    /// The caller knows them.
    Roots(&'a [(TableSpan, B256)]),
}

/// All logs of a range of blocks that match a filter, as index tables show them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "these logs were proven; what the answer says besides was not"]
pub struct TabledLogs {
    /// Numbers of the blocks.
    pub blocks: RangeInclusive<u64>,
    /// The logs, in the order of the chain.
    pub logs: Vec<VerifiedLog>,
    /// Why the state with the roots is trusted; `None` if the caller gave the roots.
    pub trust: Option<TrustBasis>,
}

/// Verifies the answer of `state_getLogs` to `filter` in the form `tables`: every log that matches, and
/// no other, in the blocks of its range. The block with the `trusted` hash is the last of the range, or
/// a later one.
///
/// A bound of the filter is a number, or a tag that stands for the trusted block: `latest`, `safe`
/// or `finalized`.
///
/// # Errors
/// A [`LightClientError`] if header or roots are not those of the trusted block, if the tables do not
/// cover the range or leave entries out, if receipts are missing or not those of their headers, if
/// anything is there that is not needed, or if the answer states other logs.
pub fn verify_log_tables(
    response: &LogTablesResponse,
    filter: &Filter,
    trusted: B256,
    trust: TableTrust<'_>,
) -> Result<TabledLogs, LightClientError> {
    let LogTablesResponse { version, form, logs: stated, header, .. } = response;
    if *version != LogTablesResponse::VERSION || form != LogTablesResponse::FORM {
        return Err(LightClientError::LogsVersion { version: *version });
    }
    let refused = |fault| LightClientError::Header { hash: trusted, fault };
    let anchor = LogsHeader::open(trusted, header).map_err(refused)?;
    let blocks = asked_range(filter, &anchor)?;
    let mut tables = open_tables(response, &blocks, anchor.block.number)?;
    let trust = check_roots(response, &tables, &anchor, trust)?;

    let conditions = conditions(filter);
    let mut places = BTreeMap::<u64, BTreeMap<u32, BTreeSet<u32>>>::new();
    for table in &mut tables {
        for EntryPosition { block, transaction, log } in table.places(&conditions)? {
            places.entry(block).or_default().entry(transaction).or_default().insert(log);
        }
    }
    let mut logs = Vec::new();
    let mut shown = response.blocks.iter();
    for (block, receipts) in places {
        let refused = |fault| LightClientError::Logs { block, fault };
        let with_paths = shown.next().ok_or_else(|| refused(LogsFault::MissingReceipts))?;
        let hash = keccak256(&with_paths.header);
        let header = LogsHeader::open(hash, &with_paths.header)
            .map_err(|fault| LightClientError::Header { hash, fault })?;
        let is_trusted = header.block == anchor.block;
        if header.block.number != block || !(is_trusted || show_block(&mut tables, &header)) {
            return Err(refused(LogsFault::OtherBlock(hash)));
        }
        let mut paths =
            ReceiptPaths::new(header.receipts_root, &with_paths.receipts).map_err(refused)?;
        for (transaction, indices) in receipts {
            let found = matching(filter, &mut paths, transaction, &indices).map_err(refused)?;
            if found.is_empty() {
                continue;
            }
            let shown = show_transaction(&mut tables, block, transaction);
            let (hash, logs_before) =
                shown.ok_or_else(|| refused(LogsFault::MissingTransaction(transaction)))?;
            logs.extend(found.into_iter().map(|(index, log)| VerifiedLog {
                log,
                block: header.block,
                timestamp: header.timestamp,
                transaction_index: transaction.into(),
                transaction_hash: Some(hash),
                log_index: u64::from(logs_before) + u64::from(index),
            }));
        }
        paths.finish().map_err(refused)?;
    }
    if shown.next().is_some() {
        let block = *blocks.end();
        return Err(LightClientError::Logs { block, fault: LogsFault::SurplusReceipts });
    }
    tables.iter().try_for_each(OpenTable::finish)?;
    match first_difference(stated, &logs, *blocks.end()) {
        Some(block) => Err(LightClientError::Logs { block, fault: LogsFault::StatedLogs }),
        None => Ok(TabledLogs { blocks, logs, trust }),
    }
}

/// The blocks of the filter.
fn asked_range(
    filter: &Filter,
    anchor: &LogsHeader,
) -> Result<RangeInclusive<u64>, LightClientError> {
    let last = anchor.block.number;
    let range = match filter.block_option {
        FilterBlockOption::AtBlockHash(hash) => (hash == anchor.block.hash).then_some(last..=last),
        FilterBlockOption::Range { from_block, to_block } => {
            let bound = |tag: Option<BlockNumberOrTag>| match tag.unwrap_or_default() {
                BlockNumberOrTag::Number(number) => Some(number),
                BlockNumberOrTag::Earliest | BlockNumberOrTag::Pending => None,
                _ => Some(last),
            };
            bound(from_block).zip(bound(to_block)).map(|(from, to)| from..=to)
        }
    };
    let fits = |range: &RangeInclusive<u64>| !range.is_empty() && *range.end() <= last;
    range.filter(fits).ok_or_else(|| LightClientError::OtherRange {
        asked: asked_blocks(&filter.block_option),
        shown: format!("blocks up to {last}, hash {}", anchor.block.hash),
    })
}

/// Conditions by their numbers: keys of entries, of which a log that matches has at least one.
fn conditions(filter: &Filter) -> BTreeMap<u8, Vec<EntryKey>> {
    let addresses: Vec<_> = filter.address.iter().map(EntryKey::address).collect();
    let topics = (0..).zip(&filter.topics).map(|(place, topics)| {
        let keys = topics.iter().map(|topic| EntryKey::topic(place, topic));
        (place + 1, keys.collect::<Vec<_>>())
    });
    let mut all: BTreeMap<_, _> = core::iter::once((0, addresses)).chain(topics).collect();
    all.retain(|_, keys| !keys.is_empty());
    if all.is_empty() {
        all.insert(0, [EntryKey::any_address()].into());
    }
    all
}

/// A table of an answer.
struct OpenTable {
    span: TableSpan,
    /// The blocks of the range that no earlier table has; none of a table behind the range.
    asked: Option<RangeInclusive<u64>>,
    /// Conditions of the filter of which it shows all entries, in ascending order.
    shows: Vec<u8>,
    proof: TableProof,
    /// Indices of the entries that are needed.
    needed: Vec<Range<u64>>,
    /// Entries of blocks and transactions, by type, block and index.
    marks: BTreeMap<(u8, u64, u32), (u64, EntryPosition, B256)>,
}

impl OpenTable {
    fn refused(&self, fault: TableFault) -> LightClientError {
        LightClientError::Table { first: self.span.first(), size: self.span.size(), fault }
    }

    fn has(&self, block: u64) -> bool {
        (self.span.first()..=self.span.last()).contains(&block)
    }

    /// The places that have an entry of each condition that it shows; it must show at least one.
    fn places(
        &mut self,
        conditions: &BTreeMap<u8, Vec<EntryKey>>,
    ) -> Result<BTreeSet<EntryPosition>, LightClientError> {
        let incomplete = || self.refused(TableFault::Incomplete);
        let Some(asked) = self.asked.clone() else {
            return match self.shows.is_empty() {
                true => Ok(BTreeSet::new()),
                false => Err(self.refused(TableFault::Surplus)),
            };
        };
        let mut needed = Vec::new();
        let mut found: Option<BTreeSet<EntryPosition>> = None;
        for condition in &self.shows {
            let keys = conditions.get(condition).ok_or_else(incomplete)?;
            let shown = keys.iter().map(|key| self.proof.complete(key));
            let shown = shown.collect::<Option<Vec<_>>>().ok_or_else(incomplete)?;
            needed.extend(shown.iter().map(|of_key| of_key.needed.clone()));
            let entries = shown.iter().flat_map(|of_key| of_key.entries);
            let places = entries.map(|entry| entry.position());
            let places = places.filter(|place| asked.contains(&place.block)).collect();
            found = Some(match found {
                None => places,
                Some(found) => found.intersection(&places).copied().collect(),
            });
        }
        let found = found.ok_or_else(incomplete)?;
        self.needed = needed;
        Ok(found)
    }

    /// The content of the entry of a block or transaction, and its position. It is needed from then on.
    fn mark(&mut self, kind: EntryKind, block: u64, index: u32) -> Option<(B256, EntryPosition)> {
        let (at, position, hash) = *self.marks.get(&(kind as u8, block, index))?;
        self.needed.push(at..at + 1);
        Some((hash, position))
    }

    fn finish(&self) -> Result<(), LightClientError> {
        let is_used = self.asked.is_some() || !self.needed.is_empty();
        match is_used && self.proof.is_exactly(self.needed.clone()) {
            true => Ok(()),
            false => Err(self.refused(TableFault::Surplus)),
        }
    }
}

/// The tables of an answer, which cover the range without gap, none of them for nothing.
fn open_tables(
    response: &LogTablesResponse,
    blocks: &RangeInclusive<u64>,
    at: u64,
) -> Result<Vec<OpenTable>, LightClientError> {
    let (mut next, last) = (Some(*blocks.start()), *blocks.end());
    let mut is_behind = false;
    let mut tables = Vec::with_capacity(response.tables.len());
    for slice in &response.tables {
        let (first, size) = (slice.first_block.to(), slice.size.to());
        let refused = |fault| LightClientError::Table { first, size, fault };
        let (span, proof) = slice.open().ok_or_else(|| refused(TableFault::Malformed))?;
        if !slice.shows.is_sorted_by(|one, next| one < next) {
            return Err(refused(TableFault::Malformed));
        }
        // The contract has no roots of earlier blocks than its first, and those read as zero.
        if !span.is_referenced_at(at, 0) {
            return Err(refused(TableFault::NotStored));
        }
        let asked = match next {
            // The table of the block behind the range.
            None if !is_behind && last < at => {
                is_behind = true;
                match span.first() <= last + 1 && last < span.last() {
                    true => None,
                    false => return Err(refused(TableFault::Surplus)),
                }
            }
            None => return Err(refused(TableFault::Surplus)),
            Some(next) if span.first() <= next && next <= span.last() => {
                Some(next..=span.last().min(last))
            }
            Some(_) => return Err(refused(TableFault::Gap)),
        };
        next = next.and_then(|_| span.last().checked_add(1)).filter(|next| *next <= last);
        let mut marks = BTreeMap::new();
        for (index, entry) in proof.entries() {
            let position = entry.position();
            if let (0 | 1, Some(hash)) = (entry.kind(), entry.hash()) {
                let place = (entry.kind(), position.block, position.transaction);
                marks.insert(place, (index, position, hash));
            }
        }
        let (shows, needed) = (slice.shows.clone(), Vec::new());
        tables.push(OpenTable { span, asked, shows, proof, needed, marks });
    }
    match next {
        None => Ok(tables),
        Some(first) => Err(LightClientError::Table { first, size: 1, fault: TableFault::Gap }),
    }
}

/// Checks that the proofs lead to the roots that are trusted.
fn check_roots(
    response: &LogTablesResponse,
    tables: &[OpenTable],
    anchor: &LogsHeader,
    trust: TableTrust<'_>,
) -> Result<Option<TrustBasis>, LightClientError> {
    let (roots, trust) = match (trust, &response.state) {
        (TableTrust::State { verifier, root }, Some(state)) => {
            let slots = tables.iter().map(|table| table.span.slot());
            let is_asked = state.address == INDEX_CONTRACT
                && state.as_of.is_none()
                && state.storage.iter().map(|slot| slot.key).eq(slots);
            if !is_asked {
                let fault = LogsFault::OtherState;
                return Err(LightClientError::Logs { block: anchor.block.number, fault });
            }
            let root = match root {
                Some(root) => TrustedRoot::Checkpoint { number: anchor.block.number, root },
                None => {
                    TrustedRoot::Header { hash: anchor.block.hash, rlp: response.header.clone() }
                }
            };
            let verified = verifier.verify_response(state, &root)?;
            let root_of = |slot: &crate::SlotClaim| {
                Some(B256::from(slot.value)).filter(|root| !root.is_zero())
            };
            (state.storage.iter().map(root_of).collect::<Vec<_>>(), Some(verified.trust))
        }
        (TableTrust::Roots(known), None) => {
            let root_of = |table: &OpenTable| {
                known.iter().find(|(span, _)| *span == table.span).map(|(_, root)| *root)
            };
            (tables.iter().map(root_of).collect(), None)
        }
        (TableTrust::State { .. }, None) | (TableTrust::Roots(_), Some(_)) => {
            let fault = LogsFault::OtherState;
            return Err(LightClientError::Logs { block: anchor.block.number, fault });
        }
    };
    for (table, expected) in tables.iter().zip(roots) {
        let expected = expected.ok_or_else(|| table.refused(TableFault::NotStored))?;
        let root = table.proof.root().map_err(|fault| table.refused(TableFault::Proof(fault)))?;
        if root != expected {
            return Err(table.refused(TableFault::Root(root)));
        }
    }
    Ok(trust)
}

/// Whether a table has the entry of this block: the first one that has the block behind it.
fn show_block(tables: &mut [OpenTable], header: &LogsHeader) -> bool {
    let Some(behind) = header.block.number.checked_add(1) else { return false };
    let table = tables.iter_mut().find(|table| table.has(behind));
    let shown = table.and_then(|table| table.mark(EntryKind::Block, header.block.number, 0));
    shown.is_some_and(|(hash, _)| hash == header.block.hash)
}

/// The hash of a transaction, and the number of logs before it in its block.
fn show_transaction(tables: &mut [OpenTable], block: u64, index: u32) -> Option<(B256, u32)> {
    let table = tables.iter_mut().find(|table| table.has(block))?;
    let (hash, position) = table.mark(EntryKind::Transaction, block, index)?;
    Some((hash, position.log))
}

/// The logs of a receipt at these indices that match the filter.
fn matching(
    filter: &Filter,
    paths: &mut ReceiptPaths<'_>,
    transaction: u32,
    indices: &BTreeSet<u32>,
) -> Result<Vec<(u32, alloy_primitives::Log)>, LogsFault> {
    let logs = (0..).zip(paths.logs(transaction)?);
    let matching = logs.filter(|(index, log)| indices.contains(index) && filter.matches(log));
    Ok(matching.collect())
}
