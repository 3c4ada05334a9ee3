//! The preimage file: `address (20) | number of slots (4, big-endian) | slots (32 each)` for each
//! account, accounts in the order of keccak-256 of the address, slots in that of keccak-256 of the
//! slot.

use super::{
    FileDigest, MigrationError, MigrationFile,
    file::{DigestReader, DigestWriter},
};
use alloy_primitives::{Address, B256, keccak256};
use std::io::{Read, Write};

/// An item of a preimage file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preimage {
    /// The next account.
    Account(Address),
    /// A slot of the last account.
    Slot(B256),
}

/// Reads a preimage file.
#[derive(Debug)]
pub struct PreimageReader<R> {
    file: DigestReader<R>,
    /// Hash of the last address.
    account: Option<B256>,
    /// Slots of the last account that are still to come.
    slots: u32,
    /// Hash of its last slot.
    slot: Option<B256>,
}

impl<R: Read> PreimageReader<R> {
    /// A reader of the file with these bytes.
    pub fn new(input: R) -> Self {
        let file = DigestReader::new(MigrationFile::Preimages, input);
        Self { file, account: None, slots: 0, slot: None }
    }

    /// The next item; `None` at the end.
    ///
    /// # Errors
    /// If the file cannot be read, ends within a record, or is not in order. The reader cannot be used
    /// any more.
    pub fn next_item(&mut self) -> Result<Option<Preimage>, MigrationError> {
        let place = self.file.begin();
        if self.slots > 0 {
            let slot = self.file.hash()?;
            self.slots -= 1;
            let hash = keccak256(slot);
            let last = self.slot.replace(hash);
            super::check_order(place, last, hash, || format!("slot {slot}"))?;
            return Ok(Some(Preimage::Slot(slot)));
        }
        if self.file.is_at_end()? {
            return Ok(None);
        }
        let address = Address::from(self.file.array::<20>()?);
        self.slots = u32::from_be_bytes(self.file.array()?);
        self.slot = None;
        let hash = keccak256(address);
        let last = self.account.replace(hash);
        super::check_order(place, last, hash, || format!("account {address}"))?;
        Ok(Some(Preimage::Account(address)))
    }

    /// Checks that the file is at its end, and returns its digest.
    ///
    /// # Errors
    /// [`MigrationError::TrailingBytes`].
    pub fn finish(self) -> Result<FileDigest, MigrationError> {
        self.file.finish()
    }
}

/// Writes a preimage file. The caller gives accounts and slots in the order of their hashes.
#[derive(Debug)]
pub struct PreimageWriter<W: Write>(DigestWriter<W>);

impl<W: Write> PreimageWriter<W> {
    /// A writer of an empty file.
    pub fn new(out: W) -> Self {
        Self(DigestWriter::new(MigrationFile::Preimages, out))
    }

    /// Begins an account with `slots` slots, which follow.
    ///
    /// # Errors
    /// If the file cannot be written; so for all methods.
    pub fn account(&mut self, address: &Address, slots: u32) -> Result<(), MigrationError> {
        self.0.put(&address[..])?;
        self.0.put(&slots.to_be_bytes())
    }

    /// Adds a slot to the last account.
    pub fn slot(&mut self, slot: &B256) -> Result<(), MigrationError> {
        self.0.put(&slot[..])
    }

    /// Gives all bytes to the writer below, and returns it with the file's digest.
    pub fn finish(self) -> Result<(FileDigest, W), MigrationError> {
        self.0.finish()
    }
}
