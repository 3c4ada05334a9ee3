//! A leaf and its canonical encoding, which is hashed and is part of proofs.

use alloc::vec::Vec;
use core::cmp::Ordering;
use retrie_state::{
    BackendKey, ProofError, StateValue,
    wire::{WireReader, put_varint},
};

/// Stands for a missing key at either end; no encoded state key starts with this byte.
const END: u8 = 2;

/// A key with its value and the next key in key order. It covers the keys from its own up to the
/// next one; of these only its own may have a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IndexedLeaf {
    /// `None` for the sentinel, which is before all keys.
    pub(crate) key: Option<BackendKey>,
    /// `None` if the key is deleted, and for the sentinel.
    pub(crate) value: Option<StateValue>,
    /// `None` if there is no greater key.
    pub(crate) next: Option<BackendKey>,
}

impl IndexedLeaf {
    /// The sentinel of the empty state.
    #[cfg(feature = "std")]
    pub(crate) const SENTINEL: Self = Self { key: None, value: None, next: None };

    /// Appends the bytes: key, value, next key. A key is its encoding, whose first byte determines
    /// the length, or `02` for an end. A value is its length + 1
    /// (LEB128) and its bytes, or `00` for none.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_key(out, self.key.as_ref());
        match &self.value {
            None => out.push(0),
            Some(value) => {
                put_varint(out, value.len() as u64 + 1);
                out.extend_from_slice(value);
            }
        }
        put_key(out, self.next.as_ref());
    }

    /// Reads the bytes of [`encode`](Self::encode).
    ///
    /// # Errors
    /// [`ProofError::Malformed`] for other bytes, for a sentinel with a value, and for a next key
    /// that is not greater than the key.
    pub(crate) fn read(reader: &mut WireReader<'_>) -> Result<Self, ProofError> {
        let key = read_key(reader)?;
        let value = match reader.varint()? {
            0 => None,
            len => {
                let len = usize::try_from(len - 1).map_err(|_| malformed("length of a value"))?;
                Some(StateValue::copy_from_slice(reader.take(len)?))
            }
        };
        let next = read_key(reader)?;
        if key.is_none() && value.is_some() {
            return Err(malformed("the first leaf has a value"));
        }
        if next.is_some() && key >= next {
            return Err(malformed("a leaf's next key does not come after its own"));
        }
        Ok(Self { key, value, next })
    }

    /// The position of `key` relative to this leaf, whose own key is not greater.
    pub(crate) fn place(&self, key: &BackendKey) -> KeyPosition {
        match self.key.as_ref().cmp(&Some(key)) {
            Ordering::Equal => KeyPosition::Own,
            Ordering::Less if self.next.is_none_or(|next| *key < next) => KeyPosition::Gap,
            _ => KeyPosition::Elsewhere,
        }
    }
}

/// The position of a key relative to a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyPosition {
    /// It is the leaf's own key.
    Own,
    /// It is strictly between the leaf's key and the next key.
    Gap,
    /// The leaf does not cover it.
    Elsewhere,
}

fn put_key(out: &mut Vec<u8>, key: Option<&BackendKey>) {
    match key {
        Some(key) => out.extend_from_slice(&key.encode()),
        None => out.push(END),
    }
}

fn read_key(reader: &mut WireReader<'_>) -> Result<Option<BackendKey>, ProofError> {
    if reader.rest().first() == Some(&END) {
        reader.u8()?;
        return Ok(None);
    }
    BackendKey::read(reader).map(Some).ok_or_else(|| malformed("key"))
}

pub(crate) const fn malformed(what: &'static str) -> ProofError {
    ProofError::Malformed { what }
}
