//! Receipts of old blocks: they go when the chain has grown far enough beyond them.

use super::read::ChainRead;
use crate::{
    DbError, Result, WriteTxn, pieces,
    raw::RawRead,
    tables::{BlockId, ChainTable},
};
use retrie_state::Direction;

/// Of which blocks receipts are kept: of those from `from` on, and of those at most `last` blocks
/// below the canonical tip. The default keeps all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptReceipts {
    /// Number of the first block of the first kind.
    pub from: u64,
    /// How many blocks below the tip receipts are kept in any case.
    pub last: u64,
}

/// Note with the number of a block (8 bytes, big-endian): receipts of blocks below may be gone.
const PRUNED: &str = "receipts-pruned";

/// A new tip takes about as many rows of old receipts away as it has transactions, and so many more
/// to catch up.
const BEYOND: usize = 512;

/// Receipts of stored blocks below this number may have been pruned.
pub(super) fn pruned_below<R: ChainRead + ?Sized>(read: &R) -> Result<u64> {
    let Some(note) = read.note(PRUNED)? else { return Ok(0) };
    let number = <[u8; 8]>::try_from(&note[..]).map(u64::from_be_bytes);
    number.map_err(|_| {
        let key = super::read::note_key(PRUNED);
        DbError::corrupt(ChainTable::Metadata.name(), &key, "the note is not a block number")
    })
}

impl WriteTxn {
    /// Deletes receipts that are not kept now that `tip`, with so many transactions, is the tip:
    /// oldest blocks first, side blocks too, a bounded part.
    pub(super) fn prune_receipts(&mut self, tip: u64, transactions: usize) -> Result<()> {
        let KeptReceipts { from, last } = self.kept_receipts();
        let keep_from = from.min(tip.saturating_sub(last));
        let table = self.chain(ChainTable::Receipts);
        let (mut deleted, mut pruned) = (0, None);
        while keep_from > 0 && deleted < transactions + BEYOND {
            let Some((key, _)) = self.raw_seek(table, Some(&[]), Direction::Forward)? else {
                break;
            };
            let id = key.get(..BlockId::LEN).and_then(BlockId::from_bytes);
            let bad = || DbError::corrupt(table.name, &key, "the key is not that of a receipt");
            let id = id.ok_or_else(bad)?;
            if id.number >= keep_from {
                break;
            }
            deleted += pieces::delete_prefix(self, table, &id.to_bytes())?;
            pruned = Some(id.number + 1);
        }
        pruned.map_or(Ok(()), |number: u64| self.put_note(PRUNED, &number.to_be_bytes()))
    }
}
