//! Writes state dumps, in a form that reth reads, too.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use alloy_primitives::{Address, B256, Bytes, U256};

use crate::{error::SourceError, export::FileSink};

/// What a dump calls an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DumpedName {
    /// By its address.
    Address(Address),
    /// By the keccak-256 of its address, which is not known.
    Hash(B256),
}

/// Writes a state dump to a file that appears under its name only when it is complete. A
/// name ending in `.gz` selects gzip. Accounts should come in the order of their addresses, slots
/// in the order of their keys: then equal states give equal bytes.
#[derive(Debug)]
pub struct StateDumpWriter {
    target: PathBuf,
    sink: FileSink,
    line: Vec<u8>,
    /// The object of slots that was begun; `None` outside of accounts.
    begun: Option<BegunSlots>,
}

/// How far the line of an account is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BegunSlots {
    None,
    Plain,
    Hashed,
}

impl StateDumpWriter {
    /// Starts the dump of the state with this root, which is in the block's header.
    ///
    /// # Errors
    /// If no file can be created in the folder.
    pub fn create(target: impl AsRef<Path>, root: B256) -> Result<Self, SourceError> {
        let target = target.as_ref().to_owned();
        let sink = FileSink::create(&target)?;
        let mut writer = Self { target, sink, line: Vec::new(), begun: None };
        writer.write(|line| writeln!(line, "{{\"root\":\"{root}\"}}"))?;
        Ok(writer)
    }

    /// Begins an account. The following slots belong to it.
    ///
    /// # Errors
    /// If the file cannot be written. The writer cannot be used any more.
    pub fn account(
        &mut self,
        name: &DumpedName,
        nonce: u64,
        balance: U256,
        code: &Bytes,
    ) -> Result<(), SourceError> {
        self.end_account()?;
        self.begun = Some(BegunSlots::None);
        self.write(|line| {
            match name {
                DumpedName::Address(address) => write!(line, "{{\"address\":\"{address:#x}\"")?,
                DumpedName::Hash(hash) => write!(line, "{{\"key\":\"{hash}\"")?,
            }
            write!(line, ",\"balance\":\"{balance:#x}\",\"nonce\":{nonce}")?;
            if code.is_empty() { Ok(()) } else { write!(line, ",\"code\":\"{code}\"") }
        })
    }

    /// Adds a slot to the last account.
    ///
    /// # Errors
    /// As [`account`](Self::account).
    pub fn slot(&mut self, slot: &B256, value: U256) -> Result<(), SourceError> {
        let before = if self.begun == Some(BegunSlots::Plain) { "," } else { ",\"storage\":{" };
        self.begun = Some(BegunSlots::Plain);
        self.write(|line| write!(line, "{before}\"{slot}\":\"{}\"", B256::from(value)))
    }

    /// Adds a slot of which only the hash is known to the last account, behind its other slots.
    ///
    /// # Errors
    /// As [`account`](Self::account).
    pub fn hashed_slot(&mut self, hash: &B256, value: U256) -> Result<(), SourceError> {
        let before = match self.begun {
            Some(BegunSlots::Hashed) => ",",
            Some(BegunSlots::Plain) => "},\"storageByHash\":{",
            Some(BegunSlots::None) | None => ",\"storageByHash\":{",
        };
        self.begun = Some(BegunSlots::Hashed);
        self.write(|line| write!(line, "{before}\"{hash}\":\"{}\"", B256::from(value)))
    }

    fn end_account(&mut self) -> Result<(), SourceError> {
        let end = match self.begun.take() {
            None => return Ok(()),
            Some(BegunSlots::None) => "}\n",
            Some(BegunSlots::Plain | BegunSlots::Hashed) => "}}\n",
        };
        self.write(|line| line.write_all(end.as_bytes()))
    }

    fn write(
        &mut self,
        what: impl FnOnce(&mut Vec<u8>) -> io::Result<()>,
    ) -> Result<(), SourceError> {
        self.line.clear();
        what(&mut self.line)
            .and_then(|()| self.sink.write_all(&self.line))
            .map_err(|error| SourceError::io(&self.target, "write the file", error))
    }

    /// Makes the file durable and gives it its name.
    ///
    /// # Errors
    /// If writing, syncing or renaming fails. The target is then unchanged.
    pub fn finish(mut self) -> Result<(), SourceError> {
        self.end_account()?;
        self.sink.finish(&self.target)
    }
}
