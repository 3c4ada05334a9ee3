//! How many blocks of a datadir can be reverted, stored in it, so that commands need not name it
//! again.
//!
//! It is the note `retention`: the number (8 bytes, big-endian), and a byte that is 1 if a user has
//! set it. Otherwise it is the default of the command that created the datadir, and a user may
//! replace it.

use crate::{
    ChainRead, DatabaseEnv, MetadataError, ReadError, ReadTxn, Result, RetentionSetting, notes,
    tables::ChainTable,
};

const NOTE: &str = "retention";

impl DatabaseEnv {
    /// Stores a retention, for [`ReadTxn::retention`].
    ///
    /// # Errors
    /// [`MetadataError::RetentionMismatch`] if a user has set another number before.
    pub fn store_retention(&self, wanted: RetentionSetting) -> Result<()> {
        match self.begin_read()?.retention()? {
            Some(kept) if kept == wanted => return Ok(()),
            Some(kept) if kept.is_explicit && kept.blocks == wanted.blocks => return Ok(()),
            Some(kept) if kept.is_explicit => {
                let (path, found) = (self.datadir().to_owned(), kept.blocks);
                let expected = wanted.blocks;
                return Err(MetadataError::RetentionMismatch { path, found, expected }.into());
            }
            _ => {}
        }
        let mut txn = self.begin_write()?;
        let note = [&wanted.blocks.to_be_bytes()[..], &[wanted.is_explicit.into()]].concat();
        txn.put_note(NOTE, &note)?;
        Ok(txn.commit()?)
    }
}

impl ReadTxn {
    /// The retention of this datadir; `None` if it was created before datadirs stored it.
    pub fn retention(&self) -> Result<Option<RetentionSetting>, ReadError> {
        let Some(note) = self.note(NOTE)? else { return Ok(None) };
        let bad = || {
            let what = "the retention is not a number of blocks";
            ReadError::corrupt(ChainTable::Metadata.name(), &notes::key(NOTE), what)
        };
        let (blocks, rest) = note.split_first_chunk::<8>().ok_or_else(bad)?;
        let is_named = match rest {
            [0] => false,
            [1] => true,
            _ => return Err(bad()),
        };
        Ok(Some(RetentionSetting { blocks: u64::from_be_bytes(*blocks), is_explicit: is_named }))
    }
}
