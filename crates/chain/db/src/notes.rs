//! Notes: short named values, in table `Metadata` under `note/NAME`. The note `unfinished` says
//! that a datadir is incomplete: only commands that complete it can open it.

use crate::{
    DatabaseEnv, OpenError, ReadError, ReadTxn, Result, WriteTxn, raw::RawRead, tables::ChainTable,
};
use alloy_primitives::Bytes;

/// Name of the note that says what the datadir lacks, as a line of text.
const UNFINISHED: &str = "unfinished";

/// Key of a note.
pub(crate) fn key(name: &str) -> Vec<u8> {
    [b"note/", name.as_bytes()].concat()
}

/// The note with this name, if it exists.
pub(crate) fn read<R: RawRead + ?Sized>(read: &R, name: &str) -> Result<Option<Bytes>, ReadError> {
    read.raw_get(read.chain(ChainTable::Metadata), &key(name))
}

impl WriteTxn {
    /// Writes a short note, e.g. the finalised block. The caller chooses the name.
    pub fn put_note(&mut self, name: &str, note: &[u8]) -> Result<()> {
        self.raw_put(self.chain(ChainTable::Metadata), &key(name), note)
    }

    /// Removes a note; returns whether it existed.
    pub fn delete_note(&mut self, name: &str) -> Result<bool> {
        self.raw_delete(self.chain(ChainTable::Metadata), &key(name))
    }

    /// Records what the datadir lacks; `None` if it is complete. An incomplete datadir can be
    /// opened only with [`OpenOptions::unfinished`](crate::OpenOptions::unfinished).
    pub fn set_unfinished(&mut self, what: Option<&str>) -> Result<()> {
        match what {
            Some(what) => self.put_note(UNFINISHED, what.as_bytes()),
            None => self.delete_note(UNFINISHED).map(drop),
        }
    }
}

impl ReadTxn {
    /// What the datadir lacks; `None` if it is complete.
    pub fn unfinished(&self) -> Result<Option<String>, ReadError> {
        let note = read(self, UNFINISHED)?;
        Ok(note.map(|what| String::from_utf8_lossy(&what).into_owned()))
    }
}

impl DatabaseEnv {
    /// Fails if the datadir is incomplete.
    pub(crate) fn check_complete(self) -> Result<Self> {
        match self.begin_read()?.unfinished()? {
            None => Ok(self),
            Some(what) => {
                Err(OpenError::Unfinished { path: self.datadir().to_owned(), what }.into())
            }
        }
    }
}
