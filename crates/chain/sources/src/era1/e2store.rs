//! The container below era1: a sequence of entries `type (u16 LE), length (u32 LE), zero (u16),
//! data`, and the block index that closes the file.

use std::{
    fmt,
    io::{self, BufReader, Cursor, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use snap::read::FrameDecoder;

use super::MAX_BLOCKS;
use crate::{
    check::same_number,
    error::{SourceError, SourceErrorKind, SourcePlace},
    input::MAX_ITEM_BYTES,
};

/// Bytes of type, length and reserved field in front of the data of an entry.
pub(super) const ENTRY_HEADER: u64 = 8;

/// Entry types of era1.
pub(super) mod entry_type {
    pub(in super::super) const VERSION: u16 = 0x3265;
    pub(in super::super) const HEADER: u16 = 0x03;
    pub(in super::super) const BODY: u16 = 0x04;
    pub(in super::super) const RECEIPTS: u16 = 0x05;
    pub(in super::super) const TOTAL_DIFFICULTY: u16 = 0x06;
    pub(in super::super) const ACCUMULATOR: u16 = 0x07;
    pub(in super::super) const BLOCK_INDEX: u16 = 0x3266;
}

/// First chunk of every snappy framed stream.
const SNAPPY_STREAM_IDENTIFIER: &[u8] = b"\xff\x06\x00\x00sNaPpY";

/// Position and data of one entry.
#[derive(Debug)]
pub(super) struct E2Entry {
    pub(super) offset: u64,
    pub(super) kind: u16,
    pub(super) data: Vec<u8>,
}

/// The block index at the end of an era1 file.
#[derive(Debug)]
pub(super) struct BlockIndex {
    /// Number of the first block.
    pub(super) start: u64,
    /// File offset of each block's header entry.
    pub(super) offsets: Vec<u64>,
    /// File offset of the index entry itself.
    pub(super) offset: u64,
}

/// The input of an era1 reader.
pub(super) trait SeekableBytes: Read + Seek + Send {}

impl<T: Read + Seek + Send> SeekableBytes for T {}

/// Sequential reader of the entries in front of the block index.
pub(super) struct EntryReader {
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
    /// Reads version and block index, and positions itself before the first block. `path` is for
    /// messages.
    pub(super) fn new(
        path: &Path,
        mut file: Box<dyn SeekableBytes>,
    ) -> Result<(Self, BlockIndex), SourceError> {
        let size = |e| SourceError::io(path, "read the file's size", e);
        let len = file.seek(SeekFrom::End(0)).map_err(size)?;
        file.rewind().map_err(size)?;
        let mut this = Self {
            path: path.to_owned(),
            file: BufReader::with_capacity(256 << 10, file),
            position: 0,
            end: len,
            snappy: FrameDecoder::new(Cursor::new(Vec::new())),
        };
        let version = this.next(None, entry_type::VERSION, "era1 version")?;
        if !version.data.is_empty() {
            return Err(this.error_at(
                0,
                None,
                SourceErrorKind::Format("the version entry has data"),
            ));
        }
        let index = this.read_index(len)?;
        this.end = index.offset;
        this.seek(ENTRY_HEADER)?;
        Ok((this, index))
    }

    /// The index is found from the end of the file: the last 8 bytes are the number of blocks,
    /// which gives the length of the index.
    fn read_index(&mut self, len: u64) -> Result<BlockIndex, SourceError> {
        const MISSING: SourceErrorKind = SourceErrorKind::Format(
            "the file does not end with a block index: truncated, or not era1; fetch it again",
        );
        let fail = |this: &Self, offset, kind| this.error_at(offset, None, kind);

        let tail = len.checked_sub(8).ok_or_else(|| fail(self, 0, MISSING))?;
        self.seek(tail)?;
        let count = self.read_u64()?;
        let data_len = 16 + 8 * count.min(MAX_BLOCKS);
        let offset = len
            .checked_sub(ENTRY_HEADER + data_len)
            .filter(|offset| *offset >= ENTRY_HEADER && (1..=MAX_BLOCKS).contains(&count))
            .ok_or_else(|| fail(self, tail, MISSING))?;
        self.seek(offset)?;
        let entry = self
            .next(None, entry_type::BLOCK_INDEX, "block index")
            .map_err(|e| if e.is_io() { e } else { fail(self, offset, MISSING) })?;
        same_number("length of the block index", data_len, entry.data.len() as u64)
            .map_err(|kind| fail(self, offset, kind))?;

        let mut words = entry.data.chunks_exact(8).map(|word| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(word);
            u64::from_le_bytes(bytes)
        });
        let start = words.next().unwrap_or_default();
        if start.checked_add(count).is_none() {
            let kind = SourceErrorKind::Format("the first block number overflows");
            return Err(fail(self, offset, kind));
        }
        // Offsets are signed and relative to the index; a wrapping addition is two's complement.
        // They are only compared with the position of the entry that is read.
        let offsets =
            words.take(count as usize).map(|relative| offset.wrapping_add(relative)).collect();
        Ok(BlockIndex { start, offsets, offset })
    }

    /// Offset of the next entry.
    pub(super) const fn position(&self) -> u64 {
        self.position
    }

    /// The next entry, which must have the given type. `block` is for the error message.
    pub(super) fn next(
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
    pub(super) fn next_any(&mut self, what: &'static str) -> Result<E2Entry, SourceError> {
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
        if self.end - offset < ENTRY_HEADER {
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
    pub(super) fn unpack(
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

    pub(super) fn error_at(
        &self,
        offset: u64,
        block: Option<u64>,
        kind: SourceErrorKind,
    ) -> SourceError {
        SourceError::new(&self.path, SourcePlace::Entry { offset, block }, kind)
    }

    fn seek(&mut self, position: u64) -> Result<(), SourceError> {
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
    fn is_io(&self) -> bool {
        matches!(*self.kind, SourceErrorKind::Io { .. } | SourceErrorKind::Object(_))
    }
}
