//! The packed form of a genesis allocation.
//!
//! As JSON, mainnet's allocation alone takes 700 KB. Packed, the allocations are small enough to
//! be embedded in the binary. The file is one zlib stream (RFC 1950) of:
//!
//! | bytes | meaning |
//! |---|---|
//! | 4 | magic `RGEN` |
//! | 1 | version, `1` |
//! | varint | number of accounts, `n` |
//! | 20 n | the addresses, strictly ascending |
//! | n records | one per account, in the same order |
//!
//! A record is
//!
//! | bytes | meaning |
//! |---|---|
//! | 1 | flags: bit 0 nonce follows, bit 1 code follows, bit 2 storage follows; others zero |
//! | 1 + len | balance in wei: length 0..=32, then big-endian bytes without leading zeros |
//! | varint | nonce, if bit 0 |
//! | varint + len | code, if bit 1 |
//! | varint + entries | storage, if bit 2: count, then per slot key and value, each like a balance; keys strictly ascending |
//!
//! `varint` is unsigned LEB128 of at most 10 bytes, in its shortest form. Addresses do not
//! compress, so they stand apart from the records, which do. Nothing may follow the last record.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
};

use alloy_genesis::GenesisAccount;
use alloy_primitives::{Address, B256, Bytes, U256};
use flate2::{Compression, read::ZlibDecoder, write::ZlibEncoder};

use crate::AllocError;

const MAGIC: &[u8; 5] = b"RGEN\x01";
const HAS_NONCE: u8 = 1;
const HAS_CODE: u8 = 2;
const HAS_STORAGE: u8 = 4;

/// Unpacks an allocation.
///
/// # Errors
/// [`AllocError`] when the data is not exactly one well-formed packed allocation.
pub fn unpack_alloc(packed: &[u8]) -> Result<BTreeMap<Address, GenesisAccount>, AllocError> {
    let mut data = Vec::new();
    ZlibDecoder::new(packed)
        .read_to_end(&mut data)
        .map_err(|error| AllocError::Zlib(error.to_string()))?;
    let mut cursor = AllocReader { data: &data, offset: 0 };

    let magic = cursor.take(MAGIC.len())?;
    if magic != MAGIC {
        return Err(AllocError::Header { got: magic.to_vec() });
    }
    let count = cursor.length()?;
    let addresses =
        cursor.take(count.checked_mul(20).ok_or_else(|| cursor.malformed("account count"))?)?;
    let mut alloc = BTreeMap::new();
    let mut previous: Option<Address> = None;
    for address in addresses.chunks_exact(20).map(Address::from_slice) {
        if previous.is_some_and(|previous| previous >= address) {
            return Err(cursor.malformed("address out of order"));
        }
        previous = Some(address);
        alloc.insert(address, cursor.account()?);
    }
    if cursor.offset != data.len() {
        return Err(cursor.malformed("bytes after the last account"));
    }
    Ok(alloc)
}

/// Packs an allocation; [`unpack_alloc`] restores it.
///
/// Empty code, empty storage, zero slots and a zero nonce mean the same as their absence and are
/// left out, as are private keys.
///
/// # Errors
/// [`AllocError::Zlib`] if compression fails, which it does not on an in-memory buffer.
pub fn pack_alloc(alloc: &BTreeMap<Address, GenesisAccount>) -> Result<Vec<u8>, AllocError> {
    let mut data = MAGIC.to_vec();
    put_varint(&mut data, alloc.len() as u64);
    for address in alloc.keys() {
        data.extend_from_slice(address.as_slice());
    }
    for account in alloc.values() {
        let nonce = account.nonce.filter(|nonce| *nonce != 0);
        let code = account.non_empty_code();
        let storage: Vec<_> =
            account.storage_slots().filter(|(_, value)| !value.is_zero()).collect();
        let flags = if nonce.is_some() { HAS_NONCE } else { 0 }
            | if code.is_some() { HAS_CODE } else { 0 }
            | if storage.is_empty() { 0 } else { HAS_STORAGE };
        data.push(flags);
        put_word(&mut data, account.balance);
        if let Some(nonce) = nonce {
            put_varint(&mut data, nonce);
        }
        if let Some(code) = code {
            put_varint(&mut data, code.len() as u64);
            data.extend_from_slice(code);
        }
        if !storage.is_empty() {
            put_varint(&mut data, storage.len() as u64);
            for (slot, value) in storage {
                put_word(&mut data, U256::from_be_bytes(slot.0));
                put_word(&mut data, value);
            }
        }
    }
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    encoder
        .write_all(&data)
        .and_then(|()| encoder.finish())
        .map_err(|error| AllocError::Zlib(error.to_string()))
}

/// Reads the inflated stream, keeping the offset for error messages.
struct AllocReader<'a> {
    data: &'a [u8],
    offset: usize,
}

impl<'a> AllocReader<'a> {
    const fn malformed(&self, what: &'static str) -> AllocError {
        AllocError::Malformed { what, offset: self.offset }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], AllocError> {
        let end = self.offset.checked_add(len).filter(|end| *end <= self.data.len());
        let end = end.ok_or(AllocError::Truncated { offset: self.data.len() })?;
        let taken = &self.data[self.offset..end];
        self.offset = end;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, AllocError> {
        Ok(self.take(1)?[0])
    }

    fn varint(&mut self) -> Result<u64, AllocError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if (bits << shift) >> shift != bits {
                return Err(self.malformed("integer above 64 bits"));
            }
            if byte == 0 && shift > 0 {
                return Err(self.malformed("integer that is not in its shortest form"));
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.malformed("integer above 64 bits"))
    }

    /// A count or length, which never exceeds the size of the stream.
    fn length(&mut self) -> Result<usize, AllocError> {
        let length = self.varint()?;
        usize::try_from(length)
            .ok()
            .filter(|length| *length <= self.data.len())
            .ok_or_else(|| self.malformed("length beyond the end"))
    }

    fn word(&mut self) -> Result<U256, AllocError> {
        let length = usize::from(self.byte()?);
        if length > 32 {
            return Err(self.malformed("number above 32 bytes"));
        }
        let bytes = self.take(length)?;
        if bytes.first() == Some(&0) {
            return Err(self.malformed("number with a leading zero"));
        }
        Ok(U256::from_be_slice(bytes))
    }

    fn account(&mut self) -> Result<GenesisAccount, AllocError> {
        let flags = self.byte()?;
        if flags & !(HAS_NONCE | HAS_CODE | HAS_STORAGE) != 0 {
            return Err(self.malformed("unknown account flag"));
        }
        let balance = self.word()?;
        let nonce = if flags & HAS_NONCE != 0 { Some(self.varint()?) } else { None };
        let code = if flags & HAS_CODE != 0 {
            let length = self.length()?;
            Some(Bytes::copy_from_slice(self.take(length)?))
        } else {
            None
        };
        let storage = if flags & HAS_STORAGE != 0 { Some(self.storage()?) } else { None };
        Ok(GenesisAccount { nonce, balance, code, storage, ..Default::default() })
    }

    fn storage(&mut self) -> Result<BTreeMap<B256, B256>, AllocError> {
        let mut storage = BTreeMap::new();
        let mut previous: Option<B256> = None;
        for _ in 0..self.length()? {
            let slot = B256::from(self.word()?);
            if previous.is_some_and(|previous| previous >= slot) {
                return Err(self.malformed("storage slot out of order"));
            }
            previous = Some(slot);
            storage.insert(slot, B256::from(self.word()?));
        }
        Ok(storage)
    }
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put_word(out: &mut Vec<u8>, value: U256) {
    let bytes = value.to_be_bytes_trimmed_vec();
    out.push(bytes.len() as u8);
    out.extend_from_slice(&bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> BTreeMap<Address, GenesisAccount> {
        BTreeMap::from([
            (Address::ZERO, GenesisAccount { balance: U256::ZERO, ..Default::default() }),
            (
                Address::repeat_byte(0xaa),
                GenesisAccount {
                    balance: U256::MAX,
                    nonce: Some(u64::MAX),
                    code: Some(Bytes::from(vec![0x60; 300])),
                    storage: Some(BTreeMap::from([
                        (B256::ZERO, B256::repeat_byte(1)),
                        (B256::repeat_byte(0xff), B256::with_last_byte(7)),
                    ])),
                    ..Default::default()
                },
            ),
        ])
    }

    #[test]
    fn packing_keeps_every_field() {
        let alloc = sample();
        assert_eq!(unpack_alloc(&pack_alloc(&alloc).unwrap()).unwrap(), alloc);
    }

    #[test]
    fn damaged_data_is_an_error_at_every_byte_and_never_a_panic() {
        let mut data = Vec::new();
        ZlibDecoder::new(&pack_alloc(&sample()).unwrap()[..]).read_to_end(&mut data).unwrap();
        let repack = |data: &[u8]| {
            let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(data).unwrap();
            encoder.finish().unwrap()
        };
        for length in 0..data.len() {
            assert!(unpack_alloc(&repack(&data[..length])).is_err(), "cut at {length}");
        }
        for at in 0..data.len() {
            let mut mutated = data.clone();
            mutated[at] ^= 0xff;
            // May decode to something else, but must not panic.
            let _ = unpack_alloc(&repack(&mutated));
        }
        // The number of accounts, 2, in two bytes instead of one.
        assert_eq!(data[5], 2);
        let wordy = [&data[..5], &[0x82, 0], &data[6..]].concat();
        assert!(matches!(unpack_alloc(&repack(&wordy)), Err(AllocError::Malformed { .. })));
        let mut longer = data.clone();
        longer.push(0);
        assert!(matches!(unpack_alloc(&repack(&longer)), Err(AllocError::Malformed { .. })));
        assert!(matches!(unpack_alloc(b"nonsense"), Err(AllocError::Zlib(_))));
    }
}
