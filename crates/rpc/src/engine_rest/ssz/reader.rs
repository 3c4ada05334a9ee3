//! Reads containers and lists.

use super::{OFFSET, SszError};
use alloy_primitives::{B256, Bytes, U256};

type SszResult<T> = Result<T, SszError>;

/// Reads a container: first its fields of fixed size and the offsets of the others, in order; then
/// those others, in order.
#[derive(Debug)]
pub(crate) struct ContainerReader {
    what: &'static str,
    bytes: Bytes,
    at: usize,
    offsets: Vec<usize>,
}

impl ContainerReader {
    pub(crate) const fn new(what: &'static str, bytes: Bytes) -> Self {
        Self { what, bytes, at: 0, offsets: Vec::new() }
    }

    /// The next field, of `N` bytes.
    pub(crate) fn array<const N: usize>(&mut self) -> SszResult<[u8; N]> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some(field) = rest.first_chunk::<N>() else {
            return Err(SszError::Short { what: self.what, len: self.bytes.len() });
        };
        self.at += N;
        Ok(*field)
    }

    /// The next field, a hash or a root.
    pub(crate) fn hash(&mut self) -> SszResult<B256> {
        self.array().map(B256::new)
    }

    /// The next field, a `uint64`.
    pub(crate) fn u64(&mut self) -> SszResult<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// The next field, a `uint256`.
    pub(crate) fn u256(&mut self) -> SszResult<U256> {
        self.array().map(U256::from_le_bytes::<32>)
    }

    /// The next field, of variable size: its default, until [`into_tails`](Self::into_tails) gives
    /// its bytes.
    pub(crate) fn offset<T: Default>(&mut self) -> SszResult<T> {
        let offset = u32::from_le_bytes(self.array()?);
        self.offsets.push(offset as usize);
        Ok(T::default())
    }

    /// The fields of variable size, in the order of their offsets.
    pub(crate) fn into_tails(self) -> SszResult<ContainerTails> {
        let Self { what, bytes, at: expected, offsets } = self;
        match offsets.first() {
            None if bytes.len() > expected => {
                return Err(SszError::Trailing { what, extra: bytes.len() - expected });
            }
            Some(&offset) if offset != expected => {
                return Err(SszError::FirstOffset { what, offset, expected });
            }
            _ => {}
        }
        let parts = split(what, &bytes, offsets.iter().copied())?;
        Ok(ContainerTails { what, parts: parts.into_iter() })
    }
}

/// The fields of variable size of a container.
#[derive(Debug)]
pub(crate) struct ContainerTails {
    what: &'static str,
    parts: std::vec::IntoIter<Bytes>,
}

impl ContainerTails {
    /// The bytes of the next field.
    pub(crate) fn next(&mut self) -> SszResult<Bytes> {
        self.parts.next().ok_or(SszError::Short { what: self.what, len: 0 })
    }
}

/// A list of at most `max` byte lists, which share the memory of `bytes`.
pub(crate) fn byte_lists(what: &'static str, bytes: &Bytes, max: usize) -> SszResult<Vec<Bytes>> {
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    let Some(first) = bytes.first_chunk::<OFFSET>() else {
        return Err(SszError::Short { what, len: bytes.len() });
    };
    let first = u32::from_le_bytes(*first) as usize;
    let count = first / OFFSET;
    let wrong = SszError::FirstOffset { what, offset: first, expected: count.max(1) * OFFSET };
    if count == 0 || !first.is_multiple_of(OFFSET) {
        return Err(wrong);
    }
    if count > max {
        return Err(SszError::TooMany { what, count, max });
    }
    let (offsets, _) = bytes.get(..first).ok_or(wrong)?.as_chunks::<OFFSET>();
    split(what, bytes, offsets.iter().map(|offset| u32::from_le_bytes(*offset) as usize))
}

/// A list of at most `max` items of `N` bytes each.
pub(crate) fn fixed_list<T, const N: usize>(
    what: &'static str,
    bytes: &[u8],
    max: usize,
    item: impl Fn(&[u8; N]) -> T,
) -> SszResult<Vec<T>> {
    let (items, rest) = bytes.as_chunks::<N>();
    if !rest.is_empty() {
        return Err(SszError::Uneven { what, len: bytes.len(), item: N });
    }
    if items.len() > max {
        return Err(SszError::TooMany { what, count: items.len(), max });
    }
    Ok(items.iter().map(item).collect())
}

/// A list of at most `max` bytes. It has its own memory, so that it does not keep the whole request.
pub(crate) fn byte_list(what: &'static str, bytes: &Bytes, max: usize) -> SszResult<Bytes> {
    match bytes.len() {
        count if count > max => Err(SszError::TooMany { what, count, max }),
        _ => Ok(Bytes::copy_from_slice(bytes)),
    }
}

/// An optional of `N` bytes: a list of at most one item.
pub(crate) fn optional_fixed<const N: usize>(
    what: &'static str,
    bytes: &[u8],
) -> SszResult<Option<[u8; N]>> {
    fixed_list(what, bytes, 1, |item: &[u8; N]| *item).map(|mut items| items.pop())
}

/// An optional of variable size: a list of at most one item.
pub(crate) fn optional_bytes(what: &'static str, bytes: &Bytes) -> SszResult<Option<Bytes>> {
    byte_lists(what, bytes, 1).map(|mut items| items.pop())
}

/// The parts of `bytes` that begin at these offsets, each up to the next one.
fn split(
    what: &'static str,
    bytes: &Bytes,
    offsets: impl Iterator<Item = usize> + Clone,
) -> SszResult<Vec<Bytes>> {
    let len = bytes.len();
    let ends = offsets.clone().skip(1).chain([len]);
    let part = |(start, end): (usize, usize)| match start <= end && end <= len {
        true => Ok(bytes.slice(start..end)),
        false => Err(SszError::Offset { what, start, end, len }),
    };
    offsets.zip(ends).map(part).collect()
}
