//! Preimage files of EIP-8347: the addresses and slots of a state, in the order of their hashes.
//!
//! ```text
//! per account: address (20), number of slots (4, big-endian), the slots (32 each)
//! ```
//!
//! Accounts come in ascending order of keccak-256(address), the slots of each in that of
//! keccak-256(slot), none twice. There is nothing before the first account or after the last one,
//! so a state has one such file, whose keccak-256 is its digest. A name ending in `.gz` selects
//! gzip; the digest is that of the bytes in it.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use alloy_primitives::{Address, B256, Keccak256, keccak256};
use flate2::bufread::MultiGzDecoder;

use crate::{
    error::{SourceError, SourceErrorKind, SourcePlace},
    export::{FileSink, is_gzip_name},
};

const BUFFER: usize = 256 << 10;
const ACCOUNT: &str = "an account of the preimages";

/// An address or a slot of a preimage file, with its keccak-256.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilePreimage {
    /// The address of the next account.
    Account(B256, Address),
    /// A slot of the last account.
    Slot(B256, B256),
}

/// Reader of a preimage file. Yields each account, followed by its slots. It ends after an error,
/// which names the account and the byte.
pub struct PreimageFile {
    path: PathBuf,
    reader: Box<dyn BufRead + Send>,
    offset: u64,
    /// Accounts begun so far.
    accounts: u64,
    /// Hash of the last address.
    account: Option<B256>,
    /// Slots of the last account that are not read yet.
    slots: u32,
    /// Hash of its last slot.
    slot: Option<B256>,
    ended: bool,
}

impl std::fmt::Debug for PreimageFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PreimageFile")
            .field("path", &self.path)
            .field("offset", &self.offset)
            .finish_non_exhaustive()
    }
}

impl PreimageFile {
    /// Opens a file.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, SourceError> {
        let path = path.as_ref().to_owned();
        let file = File::open(&path).map_err(|e| SourceError::io(&path, "open the file", e))?;
        let file = BufReader::with_capacity(BUFFER, file);
        // By the name alone: the first address may begin as a gzip stream does.
        let reader: Box<dyn BufRead + Send> = match is_gzip_name(&path) {
            true => Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(file))),
            false => Box::new(file),
        };
        Ok(Self {
            path,
            reader,
            offset: 0,
            accounts: 0,
            account: None,
            slots: 0,
            slot: None,
            ended: false,
        })
    }

    /// Bytes read so far.
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    fn read<const N: usize>(&mut self) -> Result<[u8; N], SourceErrorKind> {
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => SourceErrorKind::Truncated { what: ACCOUNT },
            _ => SourceErrorKind::Io { action: "read the file", error },
        })?;
        self.offset += N as u64;
        Ok(bytes)
    }

    fn is_at_end(&mut self) -> Result<bool, SourceErrorKind> {
        loop {
            match self.reader.fill_buf() {
                Ok(buffer) => return Ok(buffer.is_empty()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(SourceErrorKind::Io { action: "read the file", error }),
            }
        }
    }

    fn next_preimage(&mut self) -> Result<Option<FilePreimage>, SourceErrorKind> {
        const ORDER: SourceErrorKind = SourceErrorKind::Format(
            "keys are not in the ascending order of their hashes: not a preimage file of EIP-8347",
        );
        if self.slots > 0 {
            self.slots -= 1;
            let slot = B256::from(self.read::<32>()?);
            let hash = keccak256(slot);
            if self.slot.replace(hash).is_some_and(|last| last >= hash) {
                return Err(ORDER);
            }
            return Ok(Some(FilePreimage::Slot(hash, slot)));
        }
        if self.is_at_end()? {
            return Ok(None);
        }
        self.accounts += 1;
        let address = Address::from(self.read::<20>()?);
        let hash = keccak256(address);
        if self.account.replace(hash).is_some_and(|last| last >= hash) {
            return Err(ORDER);
        }
        self.slots = u32::from_be_bytes(self.read::<4>()?);
        self.slot = None;
        Ok(Some(FilePreimage::Account(hash, address)))
    }
}

impl Iterator for PreimageFile {
    type Item = Result<FilePreimage, SourceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.next_preimage();
        self.ended = !matches!(next, Ok(Some(_)));
        let place = |kind| {
            let index = self.accounts.saturating_sub(1);
            let place = SourcePlace::Account { index, offset: self.offset };
            SourceError::new(&self.path, place, kind)
        };
        next.map_err(place).transpose()
    }
}

impl std::iter::FusedIterator for PreimageFile {}

/// Writes a preimage file, which appears under its name only when it is complete. The caller gives
/// accounts and slots in the order of their hashes.
#[derive(Debug)]
pub struct PreimageWriter {
    target: PathBuf,
    sink: FileSink,
    digest: Keccak256,
    bytes: u64,
}

impl PreimageWriter {
    /// Starts a file.
    ///
    /// # Errors
    /// If no file can be created in the folder.
    pub fn create(target: impl AsRef<Path>) -> Result<Self, SourceError> {
        let target = target.as_ref().to_owned();
        let sink = FileSink::create(&target)?;
        Ok(Self { target, sink, digest: Keccak256::new(), bytes: 0 })
    }

    /// Begins an account with `slots` slots, which follow.
    ///
    /// # Errors
    /// If the file cannot be written. The writer cannot be used any more.
    pub fn account(&mut self, address: &Address, slots: u32) -> Result<(), SourceError> {
        self.write(address.as_slice())?;
        self.write(&slots.to_be_bytes())
    }

    /// Adds a slot to the last account.
    ///
    /// # Errors
    /// As [`account`](Self::account).
    pub fn slot(&mut self, slot: &B256) -> Result<(), SourceError> {
        self.write(slot.as_slice())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), SourceError> {
        self.digest.update(bytes);
        self.bytes += bytes.len() as u64;
        let written = self.sink.write_all(bytes);
        written.map_err(|error| SourceError::io(&self.target, "write the file", error))
    }

    /// Makes the file durable and gives it its name. Returns its length and its digest.
    ///
    /// # Errors
    /// If writing, syncing or renaming fails. The target is then unchanged.
    pub fn finish(self) -> Result<(u64, B256), SourceError> {
        self.sink.finish(&self.target)?;
        Ok((self.bytes, self.digest.finalize()))
    }
}
