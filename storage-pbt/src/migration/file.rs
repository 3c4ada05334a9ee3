//! Reading and writing a file once, from front to back, with its digest.

use super::MigrationError;
use alloy_primitives::{B256, Keccak256};
use std::{
    fmt,
    io::{self, BufRead, BufReader, BufWriter, Read, Write},
};

const BUFFER: usize = 256 << 10;

/// One of the two files of EIP-8347.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrationFile {
    /// The addresses and slots of a state.
    Preimages,
    /// The leaves of its tree.
    Snapshot,
}

impl fmt::Display for MigrationFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Preimages => "preimage file",
            Self::Snapshot => "snapshot",
        })
    }
}

/// A place in a file, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilePlace {
    /// The file.
    pub file: MigrationFile,
    /// Offset in bytes from its start: that of the record.
    pub offset: u64,
}

impl fmt::Display for FilePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {} of the {}", self.offset, self.file)
    }
}

/// What names a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileDigest {
    /// Its length in bytes.
    pub bytes: u64,
    /// keccak-256 of its bytes.
    pub digest: B256,
}

impl FileDigest {
    /// Checks that `file` has the digest that the caller was told.
    ///
    /// # Errors
    /// [`MigrationError::Digest`].
    pub fn expect(&self, file: MigrationFile, expected: B256) -> Result<(), MigrationError> {
        match self.digest == expected {
            true => Ok(()),
            false => Err(MigrationError::Digest { file, expected, found: self.digest }),
        }
    }
}

/// Reads a file, and keeps count of the bytes.
pub(super) struct DigestReader<R> {
    input: BufReader<R>,
    file: MigrationFile,
    digest: Keccak256,
    offset: u64,
    /// Where the current record begins.
    start: u64,
}

impl<R: Read> DigestReader<R> {
    pub(super) fn new(file: MigrationFile, input: R) -> Self {
        let input = BufReader::with_capacity(BUFFER, input);
        Self { input, file, digest: Keccak256::new(), offset: 0, start: 0 }
    }

    /// Begins a record.
    pub(super) const fn begin(&mut self) -> FilePlace {
        self.start = self.offset;
        self.place()
    }

    /// The current record.
    pub(super) const fn place(&self) -> FilePlace {
        FilePlace { file: self.file, offset: self.start }
    }

    /// Whether all bytes are read.
    pub(super) fn is_at_end(&mut self) -> Result<bool, MigrationError> {
        loop {
            match self.input.fill_buf() {
                Ok(buffer) => return Ok(buffer.is_empty()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(MigrationError::Io { place: self.place(), source }),
            }
        }
    }

    /// Fills `bytes` with the next ones of the record.
    pub(super) fn fill(&mut self, bytes: &mut [u8]) -> Result<(), MigrationError> {
        self.input.read_exact(bytes).map_err(|source| match source.kind() {
            io::ErrorKind::UnexpectedEof => MigrationError::Truncated { place: self.place() },
            _ => MigrationError::Io { place: self.place(), source },
        })?;
        self.digest.update(&*bytes);
        self.offset += bytes.len() as u64;
        Ok(())
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], MigrationError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn byte(&mut self) -> Result<u8, MigrationError> {
        Ok(self.array::<1>()?[0])
    }

    pub(super) fn hash(&mut self) -> Result<B256, MigrationError> {
        Ok(self.array::<32>()?.into())
    }

    pub(super) fn u64(&mut self) -> Result<u64, MigrationError> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// Checks that nothing follows.
    pub(super) fn finish(mut self) -> Result<FileDigest, MigrationError> {
        self.start = self.offset;
        if !self.is_at_end()? {
            return Err(MigrationError::TrailingBytes { place: self.place() });
        }
        Ok(FileDigest { bytes: self.offset, digest: self.digest.finalize() })
    }
}

impl<R> fmt::Debug for DigestReader<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, offset, .. } = self;
        f.debug_struct("DigestReader").field("file", file).field("offset", offset).finish()
    }
}

/// Writes a file, and keeps count of the bytes.
pub(super) struct DigestWriter<W: Write> {
    out: BufWriter<W>,
    file: MigrationFile,
    digest: Keccak256,
    offset: u64,
}

impl<W: Write> DigestWriter<W> {
    pub(super) fn new(file: MigrationFile, out: W) -> Self {
        let out = BufWriter::with_capacity(BUFFER, out);
        Self { out, file, digest: Keccak256::new(), offset: 0 }
    }

    pub(super) fn put(&mut self, bytes: &[u8]) -> Result<(), MigrationError> {
        self.digest.update(bytes);
        self.out.write_all(bytes).map_err(|source| self.failed(source))?;
        self.offset += bytes.len() as u64;
        Ok(())
    }

    const fn failed(&self, source: io::Error) -> MigrationError {
        let place = FilePlace { file: self.file, offset: self.offset };
        MigrationError::Io { place, source }
    }

    /// Gives all bytes to the file below, and returns it.
    pub(super) fn finish(mut self) -> Result<(FileDigest, W), MigrationError> {
        self.out.flush().map_err(|source| self.failed(source))?;
        let (file, bytes) = (self.file, self.offset);
        let out = self.out.into_inner().map_err(|error| {
            let place = FilePlace { file, offset: bytes };
            MigrationError::Io { place, source: error.into_error() }
        })?;
        Ok((FileDigest { bytes, digest: self.digest.finalize() }, out))
    }
}

impl<W: Write> fmt::Debug for DigestWriter<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, offset, .. } = self;
        f.debug_struct("DigestWriter").field("file", file).field("offset", offset).finish()
    }
}
