//! e2store, the container below era1 and ere: a sequence of entries `type (u16 LE), length (u32 LE),
//! zero (u16), data`. The last entry is an index of the blocks, and the last 8 bytes of the file are
//! their number.

use std::{
    fmt,
    io::{self, BufReader, Cursor, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use alloy_primitives::B256;
use sha2::{Digest, Sha256};
use snap::read::FrameDecoder;

use crate::{
    error::{SourceError, SourceErrorKind, SourcePlace},
    input::MAX_ITEM_BYTES,
    objects::SeekableBytes,
};

/// Blocks in an era1 or ere file, at most.
pub(crate) const MAX_BLOCKS: u64 = 8192;

/// Bytes of type, length and reserved field in front of the data of an entry.
pub(crate) const ENTRY_HEADER: u64 = 8;

/// Entry types of era1 and ere.
pub(crate) mod entry_type {
    pub(crate) const VERSION: u16 = 0x3265;
    pub(crate) const HEADER: u16 = 0x03;
    pub(crate) const BODY: u16 = 0x04;
    pub(crate) const RECEIPTS: u16 = 0x05;
    pub(crate) const TOTAL_DIFFICULTY: u16 = 0x06;
    pub(crate) const ACCUMULATOR: u16 = 0x07;
    pub(crate) const SLIM_RECEIPTS: u16 = 0x0a;
    pub(crate) const PROOF: u16 = 0x0b;
    /// The index of era1.
    pub(crate) const BLOCK_INDEX: u16 = 0x3266;
    /// The index of ere.
    pub(crate) const DYNAMIC_BLOCK_INDEX: u16 = 0x3267;
}

/// First chunk of every snappy framed stream.
const SNAPPY_STREAM_IDENTIFIER: &[u8] = b"\xff\x06\x00\x00sNaPpY";

/// SHA-256 of two hashes: a node of an SSZ tree.
pub(crate) fn hash_pair(left: B256, right: B256) -> B256 {
    let digest = Sha256::new_with_prefix(left).chain_update(right).finalize();
    B256::from_slice(&digest)
}

/// The root of an SSZ tree in which `leaf` has this generalized index, and `branch` the hashes beside
/// its way up.
pub(crate) fn fold_branch(leaf: B256, branch: &[B256], index: u64) -> B256 {
    let step = |(node, index): (B256, u64), beside: &B256| match index & 1 {
        0 => (hash_pair(node, *beside), index >> 1),
        _ => (hash_pair(*beside, node), index >> 1),
    };
    branch.iter().fold((leaf, index), step).0
}

/// Position and data of one entry.
#[derive(Debug)]
pub(crate) struct E2Entry {
    pub(crate) offset: u64,
    pub(crate) kind: u16,
    pub(crate) data: Vec<u8>,
}

/// Reader of the entries in front of the block index.
pub(crate) struct EntryReader {
    path: PathBuf,
    file: BufReader<Box<dyn SeekableBytes>>,
    position: u64,
    end: u64,
    /// Kept across entries, as each decoder owns 140 KB of buffers. It is reused only after a
    /// stream that ended without an error.
    snappy: FrameDecoder<Cursor<Vec<u8>>>,
}

impl fmt::Debug for EntryReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EntryReader")
            .field("path", &self.path)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

impl EntryReader {
    /// Reads the version. `path` is for messages; `buffer` is how many bytes are read ahead.
    pub(crate) fn new(
        path: &Path,
        mut file: Box<dyn SeekableBytes>,
        buffer: usize,
    ) -> Result<Self, SourceError> {
        let size = |e| SourceError::io(path, "read the file's size", e);
        let len = file.seek(SeekFrom::End(0)).map_err(size)?;
        file.rewind().map_err(size)?;
        let mut this = Self {
            path: path.to_owned(),
            file: BufReader::with_capacity(buffer, file),
            position: 0,
            end: len,
            snappy: FrameDecoder::new(Cursor::new(Vec::new())),
        };
        let version = this.next(None, entry_type::VERSION, "e2store version")?;
        if !version.data.is_empty() {
            return Err(this.error_at(
                0,
                None,
                SourceErrorKind::Format("the version entry has data"),
            ));
        }
        Ok(this)
    }

    /// The `N` numbers of 8 bytes at the end of the file; `None` if it is shorter.
    pub(crate) fn last_words<const N: usize>(&mut self) -> Result<Option<[u64; N]>, SourceError> {
        let Some(tail) = self.end.checked_sub(8 * N as u64) else { return Ok(None) };
        self.seek(tail)?;
        let mut words = [0; N];
        for word in &mut words {
            *word = self.read_u64()?;
        }
        Ok(Some(words))
    }

    /// Reads the index, which must be the last entry, with `data_len` bytes of data. From then on
    /// the entries end before it. Returns its offset and its data.
    pub(crate) fn read_index(
        &mut self,
        kind: u16,
        data_len: u64,
    ) -> Result<(u64, Vec<u64>), SourceError> {
        let offset = self
            .end
            .checked_sub(ENTRY_HEADER + data_len)
            .filter(|offset| *offset >= ENTRY_HEADER)
            .ok_or_else(|| self.no_index())?;
        self.seek(offset)?;
        let entry = self.next(None, kind, "block index").map_err(|error| match error.is_io() {
            true => error,
            false => self.no_index(),
        })?;
        if entry.data.len() as u64 != data_len {
            return Err(self.no_index());
        }
        self.end = offset;
        let words = entry.data.chunks_exact(8).map(|word| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(word);
            u64::from_le_bytes(bytes)
        });
        Ok((offset, words.collect()))
    }

    /// The error for a file whose end is not that of such an index.
    pub(crate) fn no_index(&self) -> SourceError {
        let kind = SourceErrorKind::Format(
            "the file does not end with a block index: truncated, or of another format; fetch it \
             again",
        );
        self.error_at(self.end.saturating_sub(8), None, kind)
    }

    /// Type of the entry at this offset.
    pub(crate) fn kind_at(&mut self, offset: u64) -> Result<u16, SourceError> {
        self.seek(offset)?;
        Ok(self.entry_header(None, "an entry")?.0)
    }

    /// Passes the next entry, which must have the given type, without reading its data.
    pub(crate) fn skip(
        &mut self,
        block: Option<u64>,
        expected: u16,
        what: &'static str,
    ) -> Result<(), SourceError> {
        let offset = self.position;
        let (kind, len) = self.entry_header(block, what)?;
        if kind != expected {
            let kind = SourceErrorKind::EntryType { what, expected, got: kind };
            return Err(self.error_at(offset, block, kind));
        }
        if len > self.end - self.position {
            return Err(self.error_at(offset, block, SourceErrorKind::Truncated { what }));
        }
        self.seek(self.position + len)
    }

    /// Offset of the next entry.
    pub(crate) const fn position(&self) -> u64 {
        self.position
    }

    /// The next entry, which must have the given type. `block` is for the error message.
    pub(crate) fn next(
        &mut self,
        block: Option<u64>,
        expected: u16,
        what: &'static str,
    ) -> Result<E2Entry, SourceError> {
        let offset = self.position;
        let (kind, len) = self.entry_header(block, what)?;
        if kind != expected {
            let kind = SourceErrorKind::EntryType { what, expected, got: kind };
            return Err(self.error_at(offset, block, kind));
        }
        self.entry_data(offset, block, kind, len, what)
    }

    /// The next entry, whatever its type.
    pub(crate) fn next_any(&mut self, what: &'static str) -> Result<E2Entry, SourceError> {
        let offset = self.position;
        let (kind, len) = self.entry_header(None, what)?;
        self.entry_data(offset, None, kind, len, what)
    }

    fn entry_header(
        &mut self,
        block: Option<u64>,
        what: &'static str,
    ) -> Result<(u16, u64), SourceError> {
        let offset = self.position;
        if self.end.saturating_sub(offset) < ENTRY_HEADER {
            return Err(self.error_at(offset, block, SourceErrorKind::Truncated { what }));
        }
        let mut header = [0; ENTRY_HEADER as usize];
        self.read_exact(&mut header)?;
        let [t0, t1, l0, l1, l2, l3, r0, r1] = header;
        if [r0, r1] != [0, 0] {
            let kind = SourceErrorKind::Format("reserved bytes of the entry are not zero: damaged");
            return Err(self.error_at(offset, block, kind));
        }
        Ok((u16::from_le_bytes([t0, t1]), u64::from(u32::from_le_bytes([l0, l1, l2, l3]))))
    }

    fn entry_data(
        &mut self,
        offset: u64,
        block: Option<u64>,
        kind: u16,
        len: u64,
        what: &'static str,
    ) -> Result<E2Entry, SourceError> {
        if len > MAX_ITEM_BYTES {
            let kind = SourceErrorKind::TooLarge { what, claimed: len, limit: MAX_ITEM_BYTES };
            return Err(self.error_at(offset, block, kind));
        }
        if len > self.end - self.position {
            return Err(self.error_at(offset, block, SourceErrorKind::Truncated { what }));
        }
        // The file has these bytes, so its size bounds the allocation.
        let mut data = vec![0; len as usize];
        self.read_exact(&mut data)?;
        Ok(E2Entry { offset, kind, data })
    }

    /// Decompresses a snappy framed entry (with its CRC-32C checks).
    pub(crate) fn unpack(
        &mut self,
        entry: E2Entry,
        block: u64,
        what: &'static str,
    ) -> Result<Vec<u8>, SourceError> {
        let E2Entry { offset, data, .. } = entry;
        if !data.starts_with(SNAPPY_STREAM_IDENTIFIER) {
            let kind = SourceErrorKind::Format("the entry is not in snappy framed format: damaged");
            return Err(self.error_at(offset, Some(block), kind));
        }
        let mut out = Vec::with_capacity(data.len());
        *self.snappy.get_mut() = Cursor::new(data);
        let read = self
            .snappy
            .by_ref()
            .take(MAX_ITEM_BYTES + 1)
            .read_to_end(&mut out)
            .map_err(|e| self.error_at(offset, Some(block), SourceErrorKind::Snappy(e)))?
            as u64;
        if read > MAX_ITEM_BYTES {
            let kind = SourceErrorKind::TooLarge { what, claimed: read, limit: MAX_ITEM_BYTES };
            return Err(self.error_at(offset, Some(block), kind));
        }
        Ok(out)
    }

    pub(crate) fn error_at(
        &self,
        offset: u64,
        block: Option<u64>,
        kind: SourceErrorKind,
    ) -> SourceError {
        SourceError::new(&self.path, SourcePlace::Entry { offset, block }, kind)
    }

    /// Goes to the entry at this offset.
    pub(crate) fn seek(&mut self, position: u64) -> Result<(), SourceError> {
        self.file
            .seek(SeekFrom::Start(position))
            .map_err(|e| SourceError::io(&self.path, "seek in the file", e))?;
        self.position = position;
        Ok(())
    }

    fn read_u64(&mut self) -> Result<u64, SourceError> {
        let mut bytes = [0; 8];
        self.read_exact(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn read_exact(&mut self, out: &mut [u8]) -> Result<(), SourceError> {
        self.file.read_exact(out).map_err(|error| match error.kind() {
            // The file is shorter than its size was when it was opened.
            io::ErrorKind::UnexpectedEof => {
                self.error_at(self.position, None, SourceErrorKind::Truncated { what: "an entry" })
            }
            _ => SourceError::io(&self.path, "read the file", error),
        })?;
        self.position += out.len() as u64;
        Ok(())
    }
}

impl SourceError {
    /// Whether it is a failure of the disk or the network, and not a fault of the file.
    pub(crate) fn is_io(&self) -> bool {
        matches!(*self.kind, SourceErrorKind::Io { .. } | SourceErrorKind::Object(_))
    }
}
