//! Notes: short values by name, in table `Metadata` under `note/NAME`. One of them, `unfinished`,
//! says that a datadir is not whole, and keeps everybody out but those who make it whole.

use crate::{Db, DbError, ReadTxn, Result, WriteTxn, raw::RawRead, tables::ChainTable};
use alloy_primitives::Bytes;

/// What the datadir lacks, as a line of text.
const UNFINISHED: &str = "unfinished";

/// Key of a note.
pub(crate) fn key(name: &str) -> Vec<u8> {
    [b"note/", name.as_bytes()].concat()
}

/// A note, if there is one of this name.
pub(crate) fn read<R: RawRead + ?Sized>(read: &R, name: &str) -> Result<Option<Bytes>> {
    read.raw_get(read.chain(ChainTable::Metadata), &key(name))
}

impl WriteTxn {
    /// Leaves a short note for later, e.g. the finalised block. Names are the caller's.
    pub fn put_note(&mut self, name: &str, note: &[u8]) -> Result<()> {
        self.raw_put(self.chain(ChainTable::Metadata), &key(name), note)
    }

    /// Removes a note; says whether there was one.
    pub fn delete_note(&mut self, name: &str) -> Result<bool> {
        self.raw_delete(self.chain(ChainTable::Metadata), &key(name))
    }

    /// Says what the datadir lacks to be whole: from then on it is opened with
    /// [`OpenOptions::unfinished`](crate::OpenOptions::unfinished) alone. `None` when it is whole.
    pub fn set_unfinished(&mut self, what: Option<&str>) -> Result<()> {
        match what {
            Some(what) => self.put_note(UNFINISHED, what.as_bytes()),
            None => self.delete_note(UNFINISHED).map(drop),
        }
    }
}

impl ReadTxn {
    /// What the datadir lacks to be whole; `None` if it is.
    pub fn unfinished(&self) -> Result<Option<String>> {
        let note = read(self, UNFINISHED)?;
        Ok(note.map(|what| String::from_utf8_lossy(&what).into_owned()))
    }
}

impl Db {
    /// Refuses a datadir that is not whole.
    pub(crate) fn check_whole(self) -> Result<Self> {
        match self.begin_read()?.unfinished()? {
            None => Ok(self),
            Some(what) => Err(DbError::Unfinished { path: self.datadir().to_owned(), what }),
        }
    }
}
