//! Reads the bytes of untrusted proofs: checks every length, and accepts one encoding of every
//! number.

use super::wire::{EntryProof, ProvenAmt, ProvenPosition, ProvenTuple, SlotOccupant};
use crate::amt::{SLOTS, VERSION_BITS};
use alloc::vec::Vec;
use alloy_primitives::B256;
use retrie_state::{
    BackendKey, KeyForm, ProofError, StateValue,
    wire::{WireError, WireReader},
};

/// The bytes of a proof that have not been read yet.
pub(super) struct ProofReader<'a>(WireReader<'a>);

impl<'a> ProofReader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self(WireReader::new(bytes))
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<&'a [u8; N], ProofError> {
        Ok(self.0.array()?)
    }

    pub(super) fn byte(&mut self) -> Result<u8, ProofError> {
        Ok(self.0.u8()?)
    }

    pub(super) fn varint(&mut self) -> Result<u64, ProofError> {
        Ok(self.0.varint()?)
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
        let bytes = self.0.take(count.saturating_mul(32))?;
        Ok(bytes.as_chunks().0.iter().map(B256::from).collect())
    }

    fn version(&mut self) -> Result<u64, ProofError> {
        let version = self.varint()?;
        if version >> VERSION_BITS == 0 { Ok(version) } else { Err(malformed("version")) }
    }

    pub(super) fn entry(
        &mut self,
        form: KeyForm,
        height: u8,
        [first, blocks]: [u64; 2],
        whole: bool,
    ) -> Result<EntryProof, ProofError> {
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
            false => Some(self.0.take(usize::from(height) * 32)?.as_chunks().0.to_vec()),
        };
        let mask = self.byte()?;
        if mask >> SLOTS != 0 {
            return Err(malformed("slots shown"));
        }
        let mut entry = EntryProof { versions, quotients, tuples: Default::default(), amt: None };
        for (slot, tuple) in (1..).zip(&mut entry.tuples) {
            if mask & 1 << slot != 0 {
                *tuple = Some(self.tuple(form, first, blocks)?);
            }
        }
        if mask & 1 != 0 {
            let commitment = *self.array()?;
            entry.amt = Some(ProvenAmt { commitment, place: self.place(first, blocks)? });
        }
        Ok(entry)
    }

    fn tuple(&mut self, form: KeyForm, first: u64, blocks: u64) -> Result<ProvenTuple, ProofError> {
        let tag = self.varint()?;
        let occupant = match tag >> 1 {
            kind @ 0..=1 => {
                let key = BackendKey::read_untagged(&mut self.0, form, kind == 1);
                SlotOccupant::Other(key.ok_or(WireError::UnexpectedEnd)?)
            }
            at => SlotOccupant::Asked(u32::try_from(at - 2).map_err(|_| malformed("asked key"))?),
        };
        let value = match tag & 1 {
            0 => None,
            _ => {
                let len = usize::try_from(self.varint()?).map_err(|_| malformed("value"))?;
                Some(StateValue::copy_from_slice(self.0.take(len)?))
            }
        };
        Ok(ProvenTuple { occupant, value, place: self.place(first, blocks)? })
    }

    fn place(&mut self, first: u64, blocks: u64) -> Result<ProvenPosition, ProofError> {
        let block = self.varint()?;
        if block >= blocks {
            return Err(malformed("block of a tuple"));
        }
        let position =
            u32::try_from(self.varint()?).map_err(|_| malformed("position of a tuple"))?;
        Ok(ProvenPosition { block: first + block, position })
    }
}

pub(super) const fn malformed(what: &'static str) -> ProofError {
    ProofError::Malformed { what }
}
