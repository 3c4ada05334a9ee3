//! Pruning of old blocks: bodies, receipts, access lists and rows of the lookup table are deleted once
//! the chain has grown far enough above them. A chain that was started from a state has only headers up to
//! that block.
//!
//! Every new tip prunes about what it adds. Where more is old, because flags have changed or a chain was
//! copied, [`DatabaseEnv::prune_history`] deletes it step by step. The rows of a step, and the notes that
//! say from which block on each kind is whole, change in one transaction: after a crash the chain is as
//! after one of the steps.

use super::read::{self, ChainRead, canonical};
use crate::{
    DatabaseEnv, HistoryKept, ReadError, ReadTxn, Result, WriteTxn, notes, pieces,
    raw::RawRead,
    tables::{BlockId, ChainTable},
};
use alloy_primitives::B256;
use retrie_state::ScanDirection;

/// Notes with the number of a block (8 bytes, big-endian): blocks below may lack receipts ...
const RECEIPTS: &str = "receipts-pruned";
/// ... bodies ...
const BODIES: &str = "bodies-pruned";
/// ... rows of the lookup table.
const LOOKUP: &str = "lookup-pruned";
/// Note with the number of the block that the chain was started from, unless it is genesis.
const ANCHOR: &str = "anchor";

/// A new tip prunes about as many rows of each kind as it has transactions, and at most this many
/// more to catch up.
const BEYOND: usize = 512;

/// Receipts of stored blocks below this number may be missing.
pub(super) fn receipts_below<R: ChainRead + ?Sized>(read: &R) -> Result<u64, ReadError> {
    number_in(read, RECEIPTS)
}

/// Bodies of stored blocks below this number may be missing.
pub(super) fn bodies_below<R: ChainRead + ?Sized>(read: &R) -> Result<u64, ReadError> {
    number_in(read, BODIES)
}

/// The lookup table may lack the transactions of blocks below this number.
pub(super) fn lookup_below<R: ChainRead + ?Sized>(read: &R) -> Result<u64, ReadError> {
    number_in(read, LOOKUP)
}

/// The block that the chain was started from.
pub(super) fn anchor<R: ChainRead + ?Sized>(read: &R) -> Result<u64, ReadError> {
    number_in(read, ANCHOR)
}

fn number_in<R: ChainRead + ?Sized>(read: &R, name: &str) -> Result<u64, ReadError> {
    let Some(note) = read.note(name)? else { return Ok(0) };
    let number = <[u8; 8]>::try_from(&note[..]).map(u64::from_be_bytes);
    number.map_err(|_| {
        let key = notes::key(name);
        ReadError::corrupt(ChainTable::Metadata.name(), &key, "the note is not a block number")
    })
}

/// The oldest block from number `from` on and below `keep_from` that has rows in `table`.
fn oldest<R: RawRead + ?Sized>(
    read: &R,
    table: ChainTable,
    from: u64,
    keep_from: u64,
) -> Result<Option<BlockId>, ReadError> {
    if keep_from <= from {
        return Ok(None);
    }
    let table = read.chain(table);
    let row = read.raw_seek(table, Some(&from.to_be_bytes()), ScanDirection::Forward)?;
    let Some((key, _)) = row else { return Ok(None) };
    let id = key.get(..BlockId::LEN).and_then(BlockId::from_bytes);
    let bad = || ReadError::corrupt(table.name, &key, "the key does not begin with a block id");
    let id = id.ok_or_else(bad)?;
    Ok((id.number < keep_from).then_some(id))
}

/// Whether blocks below the tip `tip` have a part that is no longer kept.
fn has_old_parts<R: ChainRead + ?Sized>(
    read: &R,
    kept: HistoryKept,
    tip: u64,
) -> Result<bool, ReadError> {
    for (table, from, kept) in [
        (ChainTable::Bodies, 1, kept.bodies),
        (ChainTable::Receipts, 0, kept.receipts),
        (ChainTable::AccessLists, 0, kept.access_lists),
    ] {
        if oldest(read, table, from, kept.first(tip))?.is_some() {
            return Ok(true);
        }
    }
    let first = read.first()?.map_or(0, |first| first.number);
    Ok(lookup_below(read)?.max(first) < kept.lookup.first(tip))
}

impl DatabaseEnv {
    /// Takes one step in deleting what is no longer [kept](crate::OpenOptions::kept) of old blocks:
    /// oldest blocks first, including side blocks, about `rows` rows of each kind (up to the end of a
    /// block) in one transaction. Returns whether there may be more to do. It does not wait for other
    /// writers if there is nothing to delete.
    ///
    /// # Errors
    /// [`DbError::Corrupt`](crate::DbError::Corrupt) for damaged rows; any failure of the database.
    pub fn prune_history(&self, rows: usize) -> Result<bool> {
        let kept = self.inner.kept;
        let read = self.begin_read()?;
        let Some(tip) = read.tip()? else { return Ok(false) };
        if !has_old_parts(&read, kept, tip.number)? {
            return Ok(false);
        }
        // Do not hold the snapshot while waiting for the write transaction.
        drop(read);
        let mut txn = self.begin_write()?;
        // The chain may have been unwound since.
        let Some(tip) = txn.tip()? else { return Ok(false) };
        txn.prune_rows(tip.number, rows.max(1))?;
        txn.commit()?;
        Ok(true)
    }
}

impl WriteTxn {
    /// Prunes old blocks below the new tip `tip`, which has `transactions` transactions: oldest
    /// blocks first, including side blocks, a bounded part of each kind.
    pub(super) fn prune_blocks(&mut self, tip: u64, transactions: usize) -> Result<()> {
        self.prune_rows(tip, transactions + BEYOND)
    }

    /// The same, about `budget` rows of each kind.
    fn prune_rows(&mut self, tip: u64, budget: usize) -> Result<()> {
        let HistoryKept { bodies, receipts, lookup, access_lists } = self.kept();
        // Bodies first: pruning a body also deletes the block's receipts and lookup rows.
        self.prune_bodies(bodies.first(tip), budget)?;
        self.prune_receipts(receipts.first(tip), budget)?;
        self.prune_access_lists(access_lists.first(tip), budget)?;
        self.prune_lookup(lookup.first(tip), budget)
    }

    fn prune_bodies(&mut self, keep_from: u64, budget: usize) -> Result<()> {
        let table = self.chain(ChainTable::Bodies);
        let (mut deleted, mut pruned) = (0, 0);
        while deleted < budget
            && let Some(id) = oldest(self, ChainTable::Bodies, 1, keep_from)?
        {
            let is_canonical = canonical(self, id.number)?.is_some_and(|(_, of)| of == id);
            if is_canonical {
                let hashes = self.transaction_hashes(id)?;
                self.delete_lookup(id.number, &hashes)?;
            }
            for table in [ChainTable::Transactions, ChainTable::Receipts] {
                deleted += pieces::delete_prefix(self, self.chain(table), &id.to_bytes())?;
            }
            deleted += pieces::delete_prefix(self, table, &id.to_bytes())?;
            pruned = id.number;
        }
        if pruned > 0 {
            self.lacks_body(pruned)?;
        }
        Ok(())
    }

    fn prune_receipts(&mut self, keep_from: u64, budget: usize) -> Result<()> {
        let table = self.chain(ChainTable::Receipts);
        let (mut deleted, mut pruned) = (0, None);
        while deleted < budget
            && let Some(id) = oldest(self, ChainTable::Receipts, 0, keep_from)?
        {
            deleted += pieces::delete_prefix(self, table, &id.to_bytes())?;
            pruned = Some(id.number + 1);
        }
        pruned.map_or(Ok(()), |number| self.raise(RECEIPTS, number))
    }

    fn prune_access_lists(&mut self, keep_from: u64, budget: usize) -> Result<()> {
        let table = self.chain(ChainTable::AccessLists);
        let mut deleted = 0;
        while deleted < budget
            && let Some(id) = oldest(self, ChainTable::AccessLists, 0, keep_from)?
        {
            deleted += pieces::delete_prefix(self, table, &id.to_bytes())?;
        }
        Ok(())
    }

    fn prune_lookup(&mut self, keep_from: u64, budget: usize) -> Result<()> {
        if keep_from == 0 {
            return Ok(());
        }
        // The table is sorted by hash, so its rows are found through the blocks.
        let first = self.first()?.map_or(0, |first| first.number);
        let from = lookup_below(self)?.max(first);
        let (mut deleted, mut number) = (0, from);
        while deleted < budget && number < keep_from {
            if let Some((_, id)) = canonical(self, number)? {
                let hashes = self.transaction_hashes(id)?;
                self.delete_lookup(number, &hashes)?;
                // A block without transactions costs time too.
                deleted += hashes.len() + 1;
            }
            number += 1;
        }
        if number > from { self.raise(LOOKUP, number) } else { Ok(()) }
    }

    /// Removes the transactions of the canonical block `number` from the lookup table.
    pub(super) fn delete_lookup(&mut self, number: u64, transactions: &[B256]) -> Result<()> {
        let lookup = self.chain(ChainTable::TxLookup);
        for hash in transactions {
            // A row that names another block must stay.
            let row = self.raw_get(lookup, hash.as_slice())?;
            let here = row.and_then(|row| read::decode_position(&row));
            if here.is_some_and(|(at, _)| at == number) {
                self.raw_delete(lookup, hash.as_slice())?;
            }
        }
        Ok(())
    }

    /// Records that the chain starts at block `number`, the canonical tip, with the state after it.
    /// Ancestors may be stored. Receipts of blocks below `receipts_from` are missing.
    pub fn set_anchor(&mut self, number: u64, receipts_from: u64) -> Result<()> {
        self.raise(RECEIPTS, receipts_from)?;
        self.put_note(ANCHOR, &number.to_be_bytes())
    }

    /// The same if the blocks up to `number` have been copied from the chain of `read`, with the
    /// receipts and bodies that they have there. With `number` 0 the chain starts at genesis.
    pub fn set_anchor_on_copies(&mut self, number: u64, read: &ReadTxn) -> Result<()> {
        self.raise(RECEIPTS, receipts_below(read)?)?;
        self.raise(BODIES, bodies_below(read)?)?;
        if number > 0 { self.put_note(ANCHOR, &number.to_be_bytes()) } else { Ok(()) }
    }

    /// Records that blocks up to and including `number` may lack bodies and receipts.
    pub(super) fn lacks_body(&mut self, number: u64) -> Result<()> {
        self.raise(BODIES, number.saturating_add(1))?;
        self.raise(RECEIPTS, number.saturating_add(1))
    }

    fn raise(&mut self, name: &str, number: u64) -> Result<()> {
        if number_in(self, name)? >= number {
            return Ok(());
        }
        self.put_note(name, &number.to_be_bytes())
    }
}
