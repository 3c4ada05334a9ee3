//! A leaf, and its one encoding: what is hashed, and what proofs show.

#[cfg(feature = "std")]
use alloc::vec::Vec;
use core::cmp::Ordering;
#[cfg(feature = "std")]
use retrie_state::wire::put_varint;
use retrie_state::{ProofError, StateKey, Value, wire::WireReader};

/// Stands for a key at either end: first byte of no encoded state key.
const END: u8 = 2;

/// A key with its value and the next key in key order: it speaks for the keys from its own up to
/// the next one, of which none but its own may have a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leaf {
    /// `None`: the sentinel's, before all keys.
    pub(crate) key: Option<StateKey>,
    /// `None`: deleted; also the sentinel's.
    pub(crate) value: Option<Value>,
    /// `None`: after all keys.
    pub(crate) next: Option<StateKey>,
}

impl Leaf {
    /// The sentinel of the empty state.
    #[cfg(feature = "std")]
    pub(crate) const SENTINEL: Self = Self { key: None, value: None, next: None };

    /// Appends the bytes: key, value, next key. A key is its encoding, whose first byte tells the
    /// length (`00`: 21, `01`: 53 bytes), or `02` for an end; a value its length + 1 (LEB128) and
    /// itself, or `00` for none.
    #[cfg(feature = "std")]
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
    /// [`ProofError::Malformed`] for others; also for a sentinel with a value, and for a next key
    /// that does not come after the own one.
    pub(crate) fn read(reader: &mut WireReader<'_>) -> Result<Self, ProofError> {
        let key = read_key(reader)?;
        let value = match reader.varint()? {
            0 => None,
            len => {
                let len = usize::try_from(len - 1).map_err(|_| malformed("length of a value"))?;
                Some(Value::copy_from_slice(reader.take(len)?))
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

    /// Where `key`, which is not before this leaf's, lies: at its own, in the gap, or beyond.
    pub(crate) fn place(&self, key: &StateKey) -> Place {
        match self.key.as_ref().cmp(&Some(key)) {
            Ordering::Equal => Place::Own,
            Ordering::Less if self.next.is_none_or(|next| *key < next) => Place::Gap,
            _ => Place::Elsewhere,
        }
    }
}

/// Where a key lies, seen from a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// It is the leaf's own.
    Own,
    /// It is strictly between the leaf's own and the next one.
    Gap,
    /// The leaf says nothing of it.
    Elsewhere,
}

#[cfg(feature = "std")]
fn put_key(out: &mut Vec<u8>, key: Option<&StateKey>) {
    match key {
        Some(key) => out.extend_from_slice(&key.encode()),
        None => out.push(END),
    }
}

fn read_key(reader: &mut WireReader<'_>) -> Result<Option<StateKey>, ProofError> {
    let mut ahead = reader.clone();
    let len = match ahead.u8()? {
        0 => 21,
        1 => 53,
        END => {
            *reader = ahead;
            return Ok(None);
        }
        _ => return Err(malformed("tag of a key")),
    };
    let key = StateKey::decode(reader.take(len)?).ok_or_else(|| malformed("key"))?;
    Ok(Some(key))
}

pub(crate) const fn malformed(what: &'static str) -> ProofError {
    ProofError::Malformed { what }
}
