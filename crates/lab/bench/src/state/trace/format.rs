//! The bytes of a trace file (`docs/formats/access-trace.md`).

use std::io::{self, Write};

/// The first bytes of a file. The version follows (4 bytes, little endian).
pub(super) const MAGIC: &[u8; 12] = b"retrie-trace";
/// The version that is written and read.
pub(super) const VERSION: u32 = 1;
/// Bytes before the compressed payload.
pub(super) const HEADER_BYTES: u64 = 16;
/// Length of the file (8), CRC-32 of all bytes before (4), [`END`] (4).
pub(super) const FOOTER_BYTES: u64 = 16;
/// The last bytes of a file.
pub(super) const END: &[u8; 4] = b"rte\n";

/// Tag of the record after the last block.
pub(super) const END_RECORD: u8 = 0;
/// Tag of a block.
pub(super) const BLOCK_RECORD: u8 = 1;
/// Tag of an account in the key table.
pub(super) const ACCOUNT_KEY: u8 = 0;
/// Tag of a slot in the key table.
pub(super) const SLOT_KEY: u8 = 1;
/// Bytes of the name of the source, at most.
pub(super) const MAX_SOURCE_BYTES: u64 = 4096;

/// Appends an unsigned LEB128 number in its shortest form.
pub(super) fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Appends a value: its length, 0 if it is absent, and its bytes.
pub(super) fn put_value(out: &mut Vec<u8>, value: Option<&[u8]>) {
    let value = value.unwrap_or_default();
    put_varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

/// Counts the bytes that are written, and computes their checksum.
pub(super) struct ChecksumWriter<W> {
    pub(super) inner: W,
    pub(super) bytes: u64,
    pub(super) crc: crc32fast::Hasher,
}

impl<W> ChecksumWriter<W> {
    pub(super) fn new(inner: W) -> Self {
        Self { inner, bytes: 0, crc: crc32fast::Hasher::new() }
    }
}

impl<W: Write> Write for ChecksumWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.crc.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
