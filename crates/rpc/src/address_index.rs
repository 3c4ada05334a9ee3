//! What the address index answers, for `ots` and `eth`: the transactions of an account, the
//! transaction of a nonce, the creation of a contract.
//!
//! The index covers durable blocks. Blocks above it are few: they are executed again, and the results
//! are cached. Without the index, or below it, nonces and creations are found by a binary search on
//! old states, if these are kept.

use crate::{RpcResult, error::AddressIndexError};
use alloy_consensus::Transaction as _;
use alloy_primitives::{Address, B256, KECCAK256_EMPTY};
use retrie_db::{AccountTransactions, BlockParticipants, ChainRead, TransactionParticipants};
use retrie_engine::{LiveView, PostState};
use retrie_state::{ScanDirection, StateReader};
use std::{
    ops::RangeInclusive,
    sync::Arc,
    time::{Duration, Instant},
};

/// Most blocks above the index that a search executes again.
const MOST_UNINDEXED: u64 = 256;
/// Longest time that it executes them.
const MOST_TIME: Duration = Duration::from_secs(60);

/// The position of a transaction in the canonical chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TransactionPosition {
    /// Number of the block.
    pub(crate) block: u64,
    /// Index in the block.
    pub(crate) index: u32,
}

/// Transactions that an account takes part in, by block.
#[derive(Clone, Debug)]
pub(crate) struct AccountHistory {
    /// In the order of the search: at least as many transactions as asked for, unless there are
    /// fewer; all of each block.
    pub(crate) found: Vec<AccountTransactions>,
    /// Whether there are more beyond.
    pub(crate) has_more: bool,
    /// The blocks that are indexed.
    pub(crate) indexed: RangeInclusive<u64>,
}

/// Searches the canonical blocks of `blocks` for transactions of `account`, upwards or downwards.
///
/// # Errors
/// [`AddressIndexError`] if there is no index, or it is too far behind.
pub(crate) fn history(
    view: &LiveView,
    account: &Address,
    blocks: RangeInclusive<u64>,
    direction: ScanDirection,
    count: usize,
) -> RpcResult<AccountHistory> {
    let indexed = view.indexed_addresses()?.ok_or(AddressIndexError::Off)?;
    let last = (*blocks.end()).min(view.head().number);
    let first = *blocks.start().max(indexed.start());
    let below = first..=last.min(*indexed.end());
    let above = first.max(indexed.end() + 1)..=last;
    let mut history = AccountHistory { found: Vec::new(), has_more: false, indexed };
    let mut search = HistorySearch { view, account, count, history: &mut history };
    match direction {
        ScanDirection::Forward => {
            search.indexed(below, direction)?;
            search.not_indexed(above.clone(), &above)?;
        }
        ScanDirection::Backward => {
            search.not_indexed(above.clone().rev(), &above)?;
            search.indexed(below, direction)?;
        }
    }
    Ok(history)
}

struct HistorySearch<'a> {
    view: &'a LiveView,
    account: &'a Address,
    count: usize,
    history: &'a mut AccountHistory,
}

impl HistorySearch<'_> {
    /// Number of transactions that are still to be found.
    fn missing(&self) -> usize {
        let found: usize = self.history.found.iter().map(|block| block.indexes.len()).sum();
        self.count.saturating_sub(found)
    }

    /// Adds the transactions of a block; returns whether the search goes on.
    fn add(&mut self, found: AccountTransactions) -> bool {
        if self.missing() == 0 {
            self.history.has_more = true;
        } else {
            self.history.found.push(found);
        }
        !self.history.has_more
    }

    fn indexed(&mut self, blocks: RangeInclusive<u64>, direction: ScanDirection) -> RpcResult<()> {
        if self.history.has_more {
            return Ok(());
        }
        // Each row has a transaction at least; one row more says whether there are more.
        let limit = self.missing() + 1;
        let rows =
            self.view.durable().account_transactions(self.account, blocks, direction, limit)?;
        for row in rows {
            if !self.add(row) {
                break;
            }
        }
        Ok(())
    }

    fn not_indexed(
        &mut self,
        numbers: impl Iterator<Item = u64>,
        blocks: &RangeInclusive<u64>,
    ) -> RpcResult<()> {
        if self.history.has_more || blocks.is_empty() {
            return Ok(());
        }
        check_behind(blocks)?;
        trace_each(self.view, numbers, blocks, |block| {
            let takes_part = |(index, one): (u32, &TransactionParticipants)| {
                one.accounts.contains(self.account).then_some(index)
            };
            let indexes: Vec<u32> = (0..).zip(&block.transactions).filter_map(takes_part).collect();
            indexes.is_empty() || self.add(AccountTransactions { block: block.number, indexes })
        })
    }
}

/// Fails if these blocks above the index are too many.
fn check_behind(blocks: &RangeInclusive<u64>) -> Result<(), AddressIndexError> {
    match blocks.end().saturating_sub(*blocks.start()) < MOST_UNINDEXED {
        true => Ok(()),
        false => Err(behind(blocks)),
    }
}

fn behind(blocks: &RangeInclusive<u64>) -> AddressIndexError {
    AddressIndexError::Behind { indexed: blocks.start().saturating_sub(1), wanted: *blocks.end() }
}

/// Passes who takes part in canonical blocks above the index, `blocks`, in the order of `numbers`,
/// until `visit` returns false.
fn trace_each(
    view: &LiveView,
    numbers: impl Iterator<Item = u64>,
    blocks: &RangeInclusive<u64>,
    mut visit: impl FnMut(&BlockParticipants) -> bool,
) -> RpcResult<()> {
    let end = Instant::now() + MOST_TIME;
    for number in numbers {
        // What was executed is cached, so another request comes further.
        if Instant::now() > end {
            return Err(behind(blocks).into());
        }
        let found = participants(view, number)?;
        if !visit(&found) {
            break;
        }
    }
    Ok(())
}

/// Who takes part in the canonical block `number`.
fn participants(view: &LiveView, number: u64) -> RpcResult<Arc<BlockParticipants>> {
    let hash = view.canonical_hash(number)?;
    let found = hash.map(|hash| view.participants(&hash)).transpose()?.flatten();
    found.ok_or_else(|| AddressIndexError::NoBlock { number }.into())
}

/// The canonical transaction with which `sender` used `nonce`; `None` if there is none.
///
/// # Errors
/// [`AddressIndexError`] if neither the index nor old states can tell.
pub(crate) fn transaction_of_nonce(
    view: &LiveView,
    sender: &Address,
    nonce: u64,
) -> RpcResult<Option<TransactionPosition>> {
    let used = |state: &PostState| -> RpcResult<bool> {
        let account = state.account(sender)?;
        Ok(account.is_some_and(|account| account.nonce > nonce))
    };
    if !used(&view.state(&view.head().hash())?)? {
        return Ok(None);
    }
    if let Some(indexed) = view.indexed_addresses()? {
        let found = view.durable().transaction_of_nonce(sender, nonce)?;
        if let Some((block, index)) = found.filter(|(block, _)| indexed.contains(block)) {
            return Ok(Some(TransactionPosition { block, index }));
        }
        let above = indexed.end() + 1..=view.head().number;
        if check_behind(&above).is_ok() {
            for number in above.rev() {
                if let Some(found) = in_block(view, number, sender, nonce)? {
                    return Ok(Some(found));
                }
            }
            if is_complete(view, &indexed)? {
                // A contract's nonce, or one that a delegation has used (EIP-7702).
                return Ok(None);
            }
        }
    }
    match first_block_where(view, used)? {
        Some(number) => in_block(view, number, sender, nonce),
        None => Ok(None),
    }
}

fn in_block(
    view: &LiveView,
    number: u64,
    sender: &Address,
    nonce: u64,
) -> RpcResult<Option<TransactionPosition>> {
    let Some(hash) = view.canonical_hash(number)? else { return Ok(None) };
    let Some(block) = view.block(&hash)? else { return Ok(None) };
    let mut all = block.senders().iter().zip(&block.body().transactions);
    let found = all.position(|(from, transaction)| from == sender && transaction.nonce() == nonce);
    Ok(found.map(|index| TransactionPosition { block: number, index: index as u32 }))
}

/// The creation of a contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CreationPosition {
    /// The transaction.
    pub(crate) transaction: TransactionPosition,
    /// The account that created the contract: the sender, or another contract.
    pub(crate) creator: Address,
}

/// How the contract at `address` was created, the last time if more than once; `None` if the account
/// has no code at the head, or has it from genesis or by a delegation (EIP-7702).
///
/// # Errors
/// [`AddressIndexError`] if neither the index nor old states can tell.
pub(crate) fn creation_of(
    view: &LiveView,
    address: &Address,
) -> RpcResult<Option<CreationPosition>> {
    let has_code = |state: &PostState| -> RpcResult<bool> {
        let account = state.account(address)?;
        Ok(account.is_some_and(|account| account.code_hash != KECCAK256_EMPTY))
    };
    if !has_code(&view.state(&view.head().hash())?)? {
        return Ok(None);
    }
    if let Some(indexed) = view.indexed_addresses()? {
        let above = indexed.end() + 1..=view.head().number;
        if check_behind(&above).is_ok() {
            let mut newest = None;
            trace_each(view, above.clone().rev(), &above, |block| {
                newest = created_in(block, address);
                newest.is_none()
            })?;
            if newest.is_some() {
                return Ok(newest);
            }
            if let Some(found) = view.durable().creation_of(address, indexed.clone())? {
                let transaction = TransactionPosition { block: found.block, index: found.index };
                return Ok(Some(CreationPosition { transaction, creator: found.creator }));
            }
            if is_complete(view, &indexed)? && view.durable().addresses_traced_from()? == 0 {
                return Ok(None);
            }
        }
    }
    let Some(number) = first_block_where(view, has_code)? else { return Ok(None) };
    let block = participants(view, number)?;
    match created_in(&block, address) {
        None if !block.is_traced => Err(AddressIndexError::NoTrace { number }.into()),
        found => Ok(found),
    }
}

fn created_in(block: &BlockParticipants, address: &Address) -> Option<CreationPosition> {
    let mut last = None;
    for (index, transaction) in (0..).zip(&block.transactions) {
        for creation in transaction.created.iter().filter(|one| one.contract == *address) {
            let transaction = TransactionPosition { block: block.number, index };
            last = Some(CreationPosition { transaction, creator: creation.creator });
        }
    }
    last
}

/// Whether no block below the index has a body and a parent.
fn is_complete(view: &LiveView, indexed: &RangeInclusive<u64>) -> RpcResult<bool> {
    let first = view.durable().first()?.map_or(0, |first| first.number);
    Ok(*indexed.start() <= first)
}

/// A block that `test` begins to hold after: not on the state of its parent, but on its own. `test`
/// must hold at the head. `None` if it holds from the first block on.
fn first_block_where(
    view: &LiveView,
    test: impl Fn(&PostState) -> RpcResult<bool>,
) -> RpcResult<Option<u64>> {
    let holds = |number: u64| -> RpcResult<bool> {
        let hash = view.canonical_hash(number)?;
        let hash = hash.ok_or(AddressIndexError::NoBlock { number })?;
        match view.state(&hash) {
            Err(error) if error.lacks_state() && !view.has_lost_state() => {
                Err(AddressIndexError::NoState { number, reason: error.to_string() }.into())
            }
            state => test(&state?),
        }
    };
    let mut below = view.durable().first()?.map_or(0, |first| first.number);
    if holds(below)? {
        return Ok(None);
    }
    let mut first = view.head().number;
    while first - below > 1 {
        let middle = below.midpoint(first);
        if holds(middle)? {
            first = middle;
        } else {
            below = middle;
        }
    }
    Ok(Some(first))
}

/// The hash of a transaction.
pub(crate) fn transaction_hash(
    view: &LiveView,
    position: TransactionPosition,
) -> RpcResult<Option<B256>> {
    let Some(hash) = view.canonical_hash(position.block)? else { return Ok(None) };
    Ok(view.transaction_hash(&hash, position.index)?)
}
