//! Reading the bytes of a proof, which others made: every length is checked, every number has one
//! form.

use super::wire::{Amt, Entry, Occupant, Place, Tuple};
use crate::amt::{SLOTS, VERSION_BITS};
use alloc::vec::Vec;
use alloy_primitives::B256;
use retrie_state::{ProofError, StateKey, Value};

/// The bytes of a proof that are still to be read.
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], ProofError> {
        let (head, rest) =
            self.0.split_at_checked(len).ok_or_else(|| malformed("it ends early"))?;
        self.0 = rest;
        Ok(head)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<&'a [u8; N], ProofError> {
        let (head, rest) = self.0.split_first_chunk().ok_or_else(|| malformed("it ends early"))?;
        self.0 = rest;
        Ok(head)
    }

    pub(super) fn byte(&mut self) -> Result<u8, ProofError> {
        Ok(self.array::<1>()?[0])
    }

    pub(super) fn varint(&mut self) -> Result<u64, ProofError> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            // Neither bits that do not fit nor a last byte without any.
            if bits << shift >> shift != bits || byte == 0 && shift > 0 {
                break;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(malformed("number"))
    }

    pub(super) fn is_hole(&mut self, whole: bool) -> Result<bool, ProofError> {
        match whole {
            true => Ok(false),
            false => match self.byte()? {
                flag @ 0..=1 => Ok(flag == 1),
                _ => Err(malformed("hole")),
            },
        }
    }

    pub(super) fn hashes(&mut self, count: usize) -> Result<Vec<B256>, ProofError> {
        let bytes = self.take(count.saturating_mul(32))?;
        Ok(bytes.as_chunks().0.iter().map(B256::from).collect())
    }

    fn version(&mut self) -> Result<u64, ProofError> {
        let version = self.varint()?;
        if version >> VERSION_BITS == 0 { Ok(version) } else { Err(malformed("version")) }
    }

    pub(super) fn entry(
        &mut self,
        height: u8,
        first: u64,
        blocks: u64,
        whole: bool,
    ) -> Result<Entry, ProofError> {
        let mut versions = [0; SLOTS];
        for version in &mut versions[1..] {
            *version = self.version()?;
            if *version == 0 {
                break;
            }
        }
        if versions[SLOTS - 1] > 0 {
            versions[0] = self.version()?;
        }
        let quotients = match self.is_hole(whole)? {
            true => None,
            false => Some(self.take(usize::from(height) * 32)?.as_chunks().0.to_vec()),
        };
        let mask = self.byte()?;
        if mask >> SLOTS != 0 {
            return Err(malformed("slots shown"));
        }
        let mut entry = Entry { versions, quotients, tuples: Default::default(), amt: None };
        for (slot, tuple) in (1..).zip(&mut entry.tuples) {
            if mask & 1 << slot != 0 {
                *tuple = Some(self.tuple(first, blocks)?);
            }
        }
        if mask & 1 != 0 {
            let commitment = *self.array()?;
            entry.amt = Some(Amt { commitment, place: self.place(first, blocks)? });
        }
        Ok(entry)
    }

    fn tuple(&mut self, first: u64, blocks: u64) -> Result<Tuple, ProofError> {
        let tag = self.varint()?;
        let occupant = match tag >> 1 {
            kind @ 0..=1 => {
                let rest = if kind == 0 { 20 } else { 52 };
                let mut key = Vec::with_capacity(1 + rest);
                key.push(kind as u8);
                key.extend_from_slice(self.take(rest)?);
                Occupant::Other(StateKey::decode(&key).ok_or_else(|| malformed("key"))?)
            }
            at => Occupant::Asked(u32::try_from(at - 2).map_err(|_| malformed("asked key"))?),
        };
        let value = match tag & 1 {
            0 => None,
            _ => {
                let len = usize::try_from(self.varint()?).map_err(|_| malformed("value"))?;
                Some(Value::copy_from_slice(self.take(len)?))
            }
        };
        Ok(Tuple { occupant, value, place: self.place(first, blocks)? })
    }

    fn place(&mut self, first: u64, blocks: u64) -> Result<Place, ProofError> {
        let block = self.varint()?;
        if block >= blocks {
            return Err(malformed("block of a tuple"));
        }
        let position =
            u32::try_from(self.varint()?).map_err(|_| malformed("position of a tuple"))?;
        Ok(Place { block: first + block, position })
    }
}

/// LEB128: seven bits a byte, the lowest first.
pub(super) fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

pub(super) const fn malformed(what: &'static str) -> ProofError {
    ProofError::Malformed { what }
}
