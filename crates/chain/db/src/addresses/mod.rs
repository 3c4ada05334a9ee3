//! The address index: which transactions an account takes part in, which transaction of a sender has
//! a nonce, and which one created a contract.
//!
//! # Vocabulary
//!
//! * *Participant* of a transaction: its sender; its recipient, or the contract that it creates;
//!   senders and recipients of its internal calls, failed ones too; the beneficiary of a
//!   SELFDESTRUCT; the contracts that log. The caller finds them ([`BlockParticipants`]): this crate
//!   executes nothing.
//! * *Indexed block*: a canonical block with a row in `AddressBlocks`. That row lists the keys of all
//!   other rows of the block, so that they can be removed without its body.
//! * *Traced block*: an indexed block whose internal calls are known. Of others, whose state was not
//!   kept, only what block and receipts show is indexed.
//!
//! ```text
//!  blocks      bottom ........ lowest                    highest ... tip    in memory
//!              |  not indexed, |       indexed, no gaps        |  the caller's work  |
//!              <-- grows down  '-------------------------------'  grows up -->
//! ```
//!
//! # Soundness
//!
//! As for the [log index](crate::LogQuery): writes of the chain do not touch the index. A row of
//! `AddressBlocks` has the hash of its block, and a block is only added beside one that is canonical
//! in the same transaction. So if a block's hash is the canonical one, all indexed blocks below it
//! are canonical too, and the others above are removed by the next step. Searches use the canonical
//! part alone. All rows of a block come and go in one transaction, so the rows of `AddressBlocks` are
//! also the progress that a restart continues from.
//!
//! Blocks whose bodies or receipts are pruned are not searched, and their rows are removed.

mod build;
mod check;
mod rows;
mod search;

#[cfg(test)]
mod tests;

pub use build::AddressBounds;
pub(crate) use check::{AddressRows, check_addresses};
pub use search::{AccountTransactions, StoredCreation};

use crate::{CorruptRow, ReadError, Result, chain::canonical, raw::RawRead, tables::ChainTable};
use alloy_primitives::{Address, B256};
use retrie_state::ScanDirection;
use std::collections::BTreeSet;

/// A contract that a transaction created, successfully.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContractCreation {
    /// The contract.
    pub contract: Address,
    /// The account that created it: the sender, or another contract.
    pub creator: Address,
}

/// Who takes part in a transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransactionParticipants {
    /// The sender.
    pub sender: Address,
    /// The transaction's nonce.
    pub nonce: u64,
    /// All participants, the sender included.
    pub accounts: BTreeSet<Address>,
    /// The contracts that it created, in the order of their completion.
    pub created: Vec<ContractCreation>,
}

/// Who takes part in the transactions of a block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockParticipants {
    /// Number of the block.
    pub number: u64,
    /// Its hash.
    pub hash: B256,
    /// Whether internal calls are included.
    pub is_traced: bool,
    /// Its transactions, in order.
    pub transactions: Vec<TransactionParticipants>,
}

impl BlockParticipants {
    /// Number of participants of all transactions.
    pub fn count(&self) -> usize {
        self.transactions.iter().map(|transaction| transaction.accounts.len()).sum()
    }
}

/// An indexed block, as the beginning of its row names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct IndexedBlock {
    number: u64,
    hash: B256,
}

impl IndexedBlock {
    /// Whether the block is canonical.
    fn is_valid<R: RawRead + ?Sized>(&self, read: &R) -> Result<bool, ReadError> {
        Ok(canonical(read, self.number)?.is_some_and(|(hash, _)| hash == self.hash))
    }
}

/// The indexed block of this number.
fn indexed<R: RawRead + ?Sized>(read: &R, number: u64) -> Result<Option<IndexedBlock>, ReadError> {
    let table = read.chain(ChainTable::AddressBlocks);
    let key = number.to_be_bytes();
    let Some(row) = read.raw_get(table, &key)? else { return Ok(None) };
    let hash = row.first_chunk::<32>().ok_or_else(|| damaged_block(&key, "it has no hash"))?;
    Ok(Some(IndexedBlock { number, hash: hash.into() }))
}

/// The lowest or the highest indexed block.
fn outermost<R: RawRead + ?Sized>(
    read: &R,
    direction: ScanDirection,
) -> Result<Option<IndexedBlock>, ReadError> {
    let table = read.chain(ChainTable::AddressBlocks);
    let Some((key, _)) = read.raw_seek(table, None, direction)? else { return Ok(None) };
    // The last row may be a later piece of a long value.
    let number = key.first_chunk::<8>().map(|number| u64::from_be_bytes(*number));
    let number = number.ok_or_else(|| damaged_block(&key, "the key is not a block number"))?;
    match indexed(read, number)? {
        Some(block) => Ok(Some(block)),
        None => Err(damaged_block(&key, "the beginning of its value is missing").into()),
    }
}

fn damaged_block(key: &[u8], what: &str) -> CorruptRow {
    CorruptRow::new(ChainTable::AddressBlocks.name(), key, what)
}
