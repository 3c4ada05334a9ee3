//! `state_getLogs` in the form `tables`: index tables (EIP-8304), whose roots are in the state, show
//! where matching logs may be, and that there are no other ones.
//!
//! Of each table the proof has all entries of the condition of the filter that has the fewest, and of
//! further ones if they leave out receipts that are longer than these entries.

use super::logs::{self, FoundLogs};
use crate::context::ResolveBlock;
use crate::{RpcContext, RpcError, RpcResult, replay::ExecutionClock};
use alloy_consensus::TxReceipt;
use alloy_eips::{BlockId, eip2718::Encodable2718};
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::{B256, Bytes};
use alloy_rpc_types_eth::{Filter, FilterBlockOption};
use alloy_trie::{HashBuilder, Nibbles, proof::ProofRetainer};
use retrie_chainspec::primitives::{Receipt, SealedHeader};
use retrie_engine::{LiveTable, LiveView};
use retrie_light_client::{HeaderWithPaths, LogTablesResponse, StateProofResponse, TableSlice};
use retrie_log_tables::{
    EntryKey, EntryPosition, INDEX_CONTRACT, TableProof, TableReader, TableSpan,
};
use retrie_state::{StateError, StateReader};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
    time::{Duration, Instant},
};

/// Most places of one request whose receipts are shown.
const MAX_PLACES: usize = 100_000;
/// About how many bytes an entry, or a receipt with its path and its block's header, takes.
const ENTRY_BYTES: u64 = 20;
const RECEIPT_BYTES: u64 = 1500;

/// The matching logs, and the parts of tables that show them, under the root of the block `at`.
pub(super) fn search(
    rpc: &RpcContext,
    view: &LiveView,
    filter: &Filter,
    at: BlockId,
) -> RpcResult<LogTablesResponse> {
    logs::check(filter)?;
    let anchor = view.resolve(at)?;
    let blocks = match filter.block_option {
        FilterBlockOption::AtBlockHash(hash) if hash == anchor.hash() => {
            anchor.number..=anchor.number
        }
        FilterBlockOption::AtBlockHash(_) => {
            let what = "a filter of one block by its hash needs the state of this block: name it as \
                        the third parameter, or leave out the form";
            return Err(RpcError::InvalidParams(what.into()));
        }
        FilterBlockOption::Range { from_block, to_block } => {
            logs::range(view, from_block, to_block)?
        }
    };
    if *blocks.end() > anchor.number || !view.is_canonical(&anchor.hash())? {
        let what =
            format!("block {} is not canonical, or before the end of the range", anchor.number);
        return Err(RpcError::InvalidParams(what));
    }
    let mut found = FoundLogs::new(rpc);
    found.check_range(&blocks)?;
    let deadline = ExecutionClock::new(Duration::MAX).deadline();
    let mut search =
        TableSearch { rpc, view, filter, anchor, deadline, tables: Vec::new(), size: 0 };
    let places = search.open(&blocks)?;
    let shown = search.blocks(places, &mut found)?;
    search.answer(found, shown)
}

/// A table of the answer, and what it must show.
struct SearchedTable<'a> {
    span: TableSpan,
    table: LiveTable<'a>,
    /// Conditions of the filter of which all entries are shown, and their keys.
    shown: ShownKeys,
    /// Indices of entries of blocks and transactions.
    single: Vec<u64>,
}

/// Conditions of the filter by their numbers, and all their keys.
#[derive(Default)]
struct ShownKeys {
    conditions: Vec<u8>,
    keys: Vec<EntryKey>,
}

/// Places by block and transaction.
type PlacesByBlock = BTreeMap<u64, BTreeSet<u32>>;

struct TableSearch<'a> {
    rpc: &'a RpcContext,
    view: &'a LiveView,
    filter: &'a Filter,
    /// The block whose state has the roots.
    anchor: SealedHeader,
    deadline: Instant,
    tables: Vec<SearchedTable<'a>>,
    /// Bytes of the answer so far, in hexadecimal.
    size: usize,
}

impl<'a> TableSearch<'a> {
    /// Opens the tables that cover these blocks. Returns the places that must be shown.
    fn open(&mut self, blocks: &RangeInclusive<u64>) -> RpcResult<PlacesByBlock> {
        let conditions = conditions(self.filter);
        let mut places = PlacesByBlock::new();
        let mut count = 0;
        let mut next = *blocks.start();
        for span in self.cover(*blocks.start(), *blocks.end())? {
            self.check_time()?;
            let table = self.table(span)?;
            let asked = next..=span.last().min(*blocks.end());
            next = span.last() + 1;
            let (shown, found) = choose(&table, &conditions, &asked)?;
            count += found.len();
            if count > MAX_PLACES {
                return Err(too_large("has too many places to look at"));
            }
            for EntryPosition { block, transaction, .. } in found {
                places.entry(block).or_default().insert(transaction);
            }
            self.tables.push(SearchedTable { span, table, shown, single: Vec::new() });
        }
        let last = *blocks.end();
        let is_shown = |table: &SearchedTable<'_>| table.span.last() > last;
        let needs_more = last < self.anchor.number && places.contains_key(&last);
        if needs_more && !self.tables.last().is_some_and(is_shown) {
            let span = self.cover(last + 1, last + 1)?.swap_remove(0);
            let table = self.table(span)?;
            let (shown, single) = (ShownKeys::default(), Vec::new());
            self.tables.push(SearchedTable { span, table, shown, single });
        }
        Ok(places)
    }

    /// Spans that cover these blocks, of tables whose roots the state has, if any.
    fn cover(&self, from: u64, to: u64) -> RpcResult<Vec<TableSpan>> {
        let active_from = self.active_from();
        let at = self.anchor.number;
        let is_there = |span: TableSpan| {
            Ok::<_, RpcError>(
                span.is_referenced_at(at, active_from.unwrap_or_default())
                    && self.view.has_index_table(span)?,
            )
        };
        TableSpan::cover(from, to, is_there)?.map_err(|block| {
            let first = self.view.durable().first_block_in_tables().ok().flatten();
            let kept = match first {
                Some(first) => format!("it has some from block {first} on"),
                None => "it keeps none: start it with --logs.tables".into(),
            };
            RpcError::Rejected(format!(
                "this node has no index table of block {block} whose root the state of block {at} \
                 has; {kept}. The form `headers` needs none"
            ))
        })
    }

    /// The block from which on the state has roots of tables; `None` without the index contract.
    fn active_from(&self) -> Option<u64> {
        self.rpc.live.spec().index_tables_block()
    }

    fn table(&self, span: TableSpan) -> RpcResult<LiveTable<'a>> {
        self.view.index_table(span)?.ok_or_else(|| {
            RpcError::Rejected(format!(
                "the index table of blocks {} to {} cannot be made: their receipts are not all kept",
                span.first(),
                span.last()
            ))
        })
    }

    fn check_time(&self) -> RpcResult<()> {
        match Instant::now() >= self.deadline {
            true => Err(too_large("takes too long")),
            false => Ok(()),
        }
    }

    fn add_size(&mut self, bytes: usize) -> RpcResult<()> {
        self.size += 2 * bytes;
        let most = self.rpc.limits.max_response_size;
        if self.size > most {
            return Err(too_large(&format!("exceeds max response size {most}")));
        }
        Ok(())
    }

    /// The blocks of these places: header, and the paths to the receipts. Adds their logs to `found`,
    /// and what the tables must show of them.
    fn blocks(
        &mut self,
        places: PlacesByBlock,
        found: &mut FoundLogs,
    ) -> RpcResult<Vec<HeaderWithPaths>> {
        let mut shown = Vec::new();
        for (number, transactions) in places {
            self.check_time()?;
            let header = self.view.header_by_number(number)?.ok_or(RpcError::HeaderNotFound)?;
            let hash = header.hash();
            let logs_before = found.logs.len();
            let receipts = match found.search_block(self.view, self.filter, &header)? {
                Some(receipts) => receipts,
                None => {
                    let receipts = self.view.receipts(&hash)?;
                    receipts.ok_or_else(|| RpcError::no_receipts(self.view, &hash))?
                }
            };
            if !self.rpc.live.spec().is_byzantium_active_at_block(number) {
                let what = format!(
                    "the receipts of block {number} have state roots, as all before Byzantium: leave \
                     out the form"
                );
                return Err(RpcError::Rejected(what));
            }
            let new = found.logs[logs_before..].iter().filter_map(|log| log.transaction_hash);
            let matching: BTreeSet<B256> = new.collect();
            for transaction in matching {
                self.show(number, &EntryKey::transaction(&transaction))?;
            }
            if number != self.anchor.number {
                self.show(number + 1, &EntryKey::block(&hash))?;
            }
            let receipts = paths(&receipts, &transactions);
            let header = Bytes::from(alloy_rlp::encode(header.header()));
            self.add_size(header.len() + receipts.iter().map(|node| node.len()).sum::<usize>())?;
            shown.push(HeaderWithPaths { header, receipts });
        }
        Ok(shown)
    }

    /// Lets the first table that has a block show the entry of a key.
    fn show(&mut self, block: u64, key: &EntryKey) -> RpcResult<()> {
        let mut tables = self.tables.iter_mut();
        let table = tables.find(|one| one.span.first() <= block && block <= one.span.last());
        let unknown = || RpcError::Internal(format!("no index table of block {block} is open"));
        let table = table.ok_or_else(unknown)?;
        table.single.push(table.table.lower_bound(key.as_bytes())?);
        Ok(())
    }

    fn answer(
        mut self,
        found: FoundLogs,
        blocks: Vec<HeaderWithPaths>,
    ) -> RpcResult<LogTablesResponse> {
        let mut tables = Vec::with_capacity(self.tables.len());
        for one in std::mem::take(&mut self.tables) {
            self.check_time()?;
            let proof = TableProof::of(&one.table, &one.shown.keys, &one.single)?;
            let slice = TableSlice::of(one.span, one.shown.conditions, &proof);
            let runs = slice.runs.iter().map(|run| run.entries.len()).sum::<usize>();
            self.add_size(runs + slice.nodes.len())?;
            tables.push(slice);
        }
        Ok(LogTablesResponse {
            version: LogTablesResponse::VERSION,
            form: LogTablesResponse::FORM.into(),
            logs: found.logs,
            header: alloy_rlp::encode(self.anchor.header()).into(),
            state: self.active_from().map(|_| self.roots(&tables)).transpose()?,
            tables,
            blocks,
        })
    }

    /// The roots of tables in the index contract, with their proof.
    fn roots(&self, tables: &[TableSlice]) -> RpcResult<StateProofResponse> {
        let _permit = self.rpc.eth.proofs.acquire(self.rpc.limits.proof_permits)?;
        let span = |table: &TableSlice| TableSpan::new(table.first_block.to(), table.size.to());
        let slots = tables.iter().filter_map(span).map(|span| span.slot());
        let slots: Vec<B256> = slots.collect();
        let state = self.view.provable_state(&self.anchor.hash(), &INDEX_CONTRACT)?;
        let keys = StateProofResponse::keys_of(INDEX_CONTRACT, slots.iter().copied());
        let proof = state.prove(&keys)?;
        if proof.as_of.is_some() {
            let backend = self.rpc.live.backend().identity().name;
            let what = "index tables under the root of such an old block";
            return Err(StateError::Unsupported { backend, what }.into());
        }
        let value = |slot: B256| Ok((slot, state.slot(&INDEX_CONTRACT, &slot)?));
        let storage = slots.into_iter().map(value).collect::<Result<Vec<_>, StateError>>()?;
        let account = state.account(&INDEX_CONTRACT)?;
        Ok(StateProofResponse::new(proof, INDEX_CONTRACT, account, storage))
    }
}

fn too_large(why: &str) -> RpcError {
    RpcError::InvalidParams(format!("query {why}, retry with fewer blocks"))
}

/// Conditions by their numbers: keys of entries, of which a log that matches has at least one.
fn conditions(filter: &Filter) -> Vec<(u8, Vec<EntryKey>)> {
    let mut all: Vec<(u8, Vec<_>)> =
        vec![(0, filter.address.iter().map(EntryKey::address).collect())];
    for (place, topics) in (0..).zip(&filter.topics) {
        let keys = topics.iter().map(|topic| EntryKey::topic(place, topic));
        all.push((place + 1, keys.collect()));
    }
    all.retain(|(_, keys)| !keys.is_empty());
    if all.is_empty() {
        all.push((0, vec![EntryKey::any_address()]));
    }
    all
}

/// What a table shows, and the places that have an entry of each of their conditions.
fn choose(
    table: &LiveTable<'_>,
    conditions: &[(u8, Vec<EntryKey>)],
    asked: &RangeInclusive<u64>,
) -> RpcResult<(ShownKeys, BTreeSet<EntryPosition>)> {
    let mut counted = Vec::with_capacity(conditions.len());
    for (condition, keys) in conditions {
        let ranges = keys.iter().map(|key| table.range_of(key));
        let ranges = ranges.collect::<Result<Vec<_>, _>>()?;
        let count: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        counted.push((count, *condition, keys, ranges));
    }
    counted.sort_by_key(|(count, ..)| *count);
    let mut shown = ShownKeys::default();
    let mut found: Option<BTreeSet<EntryPosition>> = None;
    for (count, condition, keys, ranges) in counted {
        let price = ENTRY_BYTES * count + RECEIPT_BYTES * keys.len() as u64 / 4;
        let most = found.as_ref().map_or(u64::MAX, |found| RECEIPT_BYTES * found.len() as u64);
        if price >= most {
            break;
        }
        let mut places = BTreeSet::new();
        for range in ranges {
            let entries = table.entries(range)?;
            let of_blocks = entries.iter().map(|entry| entry.position());
            places.extend(of_blocks.filter(|place| asked.contains(&place.block)));
        }
        match &mut found {
            None => found = Some(places),
            Some(before) => {
                let both: BTreeSet<_> = before.intersection(&places).copied().collect();
                if RECEIPT_BYTES * (before.len() - both.len()) as u64 <= price {
                    continue;
                }
                *before = both;
            }
        }
        shown.conditions.push(condition);
        shown.keys.extend_from_slice(keys);
    }
    shown.conditions.sort_unstable();
    Ok((shown, found.unwrap_or_default()))
}

/// The nodes of the trie of receipts from its root to the receipts of these transactions, each once.
fn paths(receipts: &[Receipt], transactions: &BTreeSet<u32>) -> Vec<Bytes> {
    let key = |index: u32| Nibbles::unpack(alloy_rlp::encode(index));
    let wanted = transactions.iter().map(|index| key(*index)).collect();
    let mut builder = HashBuilder::default().with_proof_retainer(ProofRetainer::new(wanted));
    let mut leaves: Vec<_> = (0..).zip(receipts).map(|(index, one)| (key(index), one)).collect();
    leaves.sort_unstable_by_key(|(key, _)| *key);
    for (key, receipt) in leaves {
        builder.add_leaf(key, &receipt.with_bloom_ref().encoded_2718());
    }
    builder.root();
    let nodes = builder.take_proof_nodes().into_nodes_sorted();
    nodes.into_iter().map(|(_, node)| node).collect()
}

/// The form that a request asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum LogsForm {
    /// Headers, and all receipts of blocks whose blooms match.
    #[default]
    Headers,
    /// Parts of index tables.
    Tables,
}
