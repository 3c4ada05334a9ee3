//! How many blocks a datadir lets be reverted, kept in it, so that no command has to be told again.
//!
//! It is the note `retention`: the number (8 bytes, big-endian), and a byte that is 1 if a user named it.
//! What nobody named is the default of whoever made the datadir, and whoever names a number replaces it.

use crate::{ChainRead, Db, DbError, ReadTxn, Result, Retention, notes, tables::ChainTable};

const NOTE: &str = "retention";

impl Db {
    /// Keeps a retention, for [`ReadTxn::retention`].
    ///
    /// # Errors
    /// [`DbError::RetentionMismatch`] if a user has named another number before.
    pub fn keep_retention(&self, wanted: Retention) -> Result<()> {
        match self.begin_read()?.retention()? {
            Some(kept) if kept == wanted => return Ok(()),
            Some(kept) if kept.is_named && kept.blocks == wanted.blocks => return Ok(()),
            Some(kept) if kept.is_named => {
                let (path, found) = (self.datadir().to_owned(), kept.blocks);
                return Err(DbError::RetentionMismatch { path, found, expected: wanted.blocks });
            }
            _ => {}
        }
        let mut txn = self.begin_write()?;
        let note = [&wanted.blocks.to_be_bytes()[..], &[wanted.is_named.into()]].concat();
        txn.put_note(NOTE, &note)?;
        txn.commit()
    }
}

impl ReadTxn {
    /// The retention of this datadir; `None` of one that was made before datadirs kept it.
    pub fn retention(&self) -> Result<Option<Retention>> {
        let Some(note) = self.note(NOTE)? else { return Ok(None) };
        let bad = || {
            let what = "the retention is no number of blocks";
            DbError::corrupt(ChainTable::Metadata.name(), &notes::key(NOTE), what)
        };
        let (blocks, rest) = note.split_first_chunk::<8>().ok_or_else(bad)?;
        let is_named = match rest {
            [0] => false,
            [1] => true,
            _ => return Err(bad()),
        };
        Ok(Some(Retention { blocks: u64::from_be_bytes(*blocks), is_named }))
    }
}
