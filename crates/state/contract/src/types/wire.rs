//! Decoding of untrusted bytes: one strict reader, and its writer, for the rows, files and proofs
//! of all backends.
//!
//! Every number has one form only: fixed widths are big-endian, a *varint* is LEB128 (seven bits a
//! byte, the lowest first) in its shortest form and at most 2^64 - 1. So two different byte strings
//! never mean the same. Reading allocates no more memory than the input has bytes.

use alloc::vec::Vec;
use alloy_primitives::B256;
use core::fmt;

/// Why bytes cannot be read. The caller adds what the bytes are: a row, a file, a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// The bytes end too early.
    UnexpectedEnd,
    /// A varint has more than 64 bits, or is not in its shortest form.
    BadVarint,
    /// Bytes follow the end.
    TrailingBytes,
}

impl WireError {
    /// What is wrong, for messages.
    pub const fn what(self) -> &'static str {
        match self {
            Self::UnexpectedEnd => "it ends early",
            Self::BadVarint => "a number is too large, or not in its shortest form",
            Self::TrailingBytes => "bytes after the end",
        }
    }
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what())
    }
}

impl core::error::Error for WireError {}

impl From<WireError> for crate::ProofError {
    fn from(error: WireError) -> Self {
        Self::Malformed { what: error.what() }
    }
}

/// Reads bytes from the front.
#[derive(Clone, Debug)]
pub struct WireReader<'a> {
    rest: &'a [u8],
}

impl<'a> WireReader<'a> {
    /// A reader of `bytes`.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The bytes that are not read yet.
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Whether all is read.
    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Checks that all is read.
    ///
    /// # Errors
    /// [`WireError::TrailingBytes`].
    pub const fn finish(self) -> Result<(), WireError> {
        if self.rest.is_empty() { Ok(()) } else { Err(WireError::TrailingBytes) }
    }

    /// The next `len` bytes.
    ///
    /// # Errors
    /// [`WireError::UnexpectedEnd`]; so for all fixed widths.
    pub const fn take(&mut self, len: usize) -> Result<&'a [u8], WireError> {
        match self.rest.split_at_checked(len) {
            Some((head, rest)) => {
                self.rest = rest;
                Ok(head)
            }
            None => Err(WireError::UnexpectedEnd),
        }
    }

    /// The next `N` bytes.
    pub const fn array<const N: usize>(&mut self) -> Result<&'a [u8; N], WireError> {
        match self.rest.split_first_chunk() {
            Some((head, rest)) => {
                self.rest = rest;
                Ok(head)
            }
            None => Err(WireError::UnexpectedEnd),
        }
    }

    /// One byte.
    pub const fn u8(&mut self) -> Result<u8, WireError> {
        match self.array::<1>() {
            Ok([byte]) => Ok(*byte),
            Err(error) => Err(error),
        }
    }

    /// Two bytes, big-endian.
    pub fn u16(&mut self) -> Result<u16, WireError> {
        self.array().map(|bytes| u16::from_be_bytes(*bytes))
    }

    /// Four bytes, big-endian.
    pub fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(|bytes| u32::from_be_bytes(*bytes))
    }

    /// Eight bytes, big-endian.
    pub fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(|bytes| u64::from_be_bytes(*bytes))
    }

    /// A hash of 32 bytes.
    pub fn hash(&mut self) -> Result<B256, WireError> {
        self.array::<32>().map(B256::from)
    }

    /// A varint.
    ///
    /// # Errors
    /// [`WireError::UnexpectedEnd`], [`WireError::BadVarint`].
    pub const fn varint(&mut self) -> Result<u64, WireError> {
        let (mut number, mut shift) = (0, 0);
        while shift < 64 {
            let byte = match self.u8() {
                Ok(byte) => byte,
                Err(error) => return Err(error),
            };
            let bits = (byte & 0x7f) as u64;
            // Refuses bits beyond 64, and a last byte of zero bits.
            if bits << shift >> shift != bits || (byte == 0 && shift > 0) {
                return Err(WireError::BadVarint);
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
            shift += 7;
        }
        Err(WireError::BadVarint)
    }

    /// A varint that counts the items that follow, each of `size` bytes or more.
    ///
    /// # Errors
    /// [`WireError::UnexpectedEnd`] if fewer bytes follow.
    pub const fn count(&mut self, size: usize) -> Result<usize, WireError> {
        match self.varint() {
            Err(error) => Err(error),
            Ok(count) if count > self.rest.len() as u64 => Err(WireError::UnexpectedEnd),
            Ok(count) => match (count as usize).checked_mul(size) {
                Some(bytes) if bytes <= self.rest.len() => Ok(count as usize),
                _ => Err(WireError::UnexpectedEnd),
            },
        }
    }
}

/// Appends a varint. All other fields are appended with `extend_from_slice`.
pub fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Bytes that [`put_varint`] appends, 1 to 10.
pub const fn varint_len(number: u64) -> usize {
    let bits = 64 - (number | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn varint(bytes: &[u8]) -> Result<u64, WireError> {
        let mut reader = WireReader::new(bytes);
        let number = reader.varint()?;
        reader.finish().map(|()| number)
    }

    #[test]
    fn every_number_comes_back_and_is_as_long_as_said() {
        let edges = (0..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, (1 << bit) + 1]);
        for number in edges.chain([u64::MAX]) {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, number);
            assert_eq!(varint(&bytes), Ok(number));
            assert_eq!(varint_len(number), bytes.len(), "{number}");
            // A byte more or less is another number or none.
            assert_eq!(varint(&bytes[..bytes.len() - 1]), Err(WireError::UnexpectedEnd));
            bytes.push(0);
            assert_eq!(varint(&bytes), Err(WireError::TrailingBytes));
        }
    }

    #[test]
    fn a_number_has_no_second_form() {
        for bytes in [&[0x80, 0][..], &[0xff, 0], &[0x80, 0x80, 0], &[0x81, 0x80, 0]] {
            assert_eq!(varint(bytes), Err(WireError::BadVarint), "{bytes:02x?}");
        }
        let mut beyond = [0xff; 10];
        beyond[9] = 1;
        assert_eq!(varint(&beyond), Ok(u64::MAX));
        beyond[9] = 2;
        assert_eq!(varint(&beyond), Err(WireError::BadVarint));
        assert_eq!(varint(&[0x80; 11]), Err(WireError::BadVarint));
    }

    #[test]
    fn counts_never_promise_more_than_there_is() {
        let mut bytes = Vec::new();
        put_varint(&mut bytes, 3);
        bytes.extend([0; 96]);
        assert_eq!(WireReader::new(&bytes).count(32), Ok(3));
        assert_eq!(WireReader::new(&bytes).count(33), Err(WireError::UnexpectedEnd));
        bytes.clear();
        put_varint(&mut bytes, u64::MAX);
        assert_eq!(WireReader::new(&bytes).count(usize::MAX), Err(WireError::UnexpectedEnd));
    }
}
