//! The encoding of a pair against the pair before it: `docs/formats/cole.md`, Values.

use retrie_state::wire::{WireReader, put_varint};

const DELETED: u8 = 0;
const FULL: u8 = 1;
const DIFFERENCE: u8 = 2;
const KIND: u8 = 3;
/// The key equals the key before it.
const SAME_KEY: u8 = 4;
/// The key is as long as the key before it.
const SAME_LENGTH: u8 = 8;
/// A length from here on follows as a separate number.
const LONG: usize = 15;

/// Reads a number. Most numbers have one byte, and merges read millions of them.
#[inline]
fn number(bytes: &mut WireReader<'_>) -> Option<u64> {
    match bytes.rest() {
        [byte @ 0..0x80, ..] => bytes.take(1).ok().map(|_| u64::from(*byte)),
        _ => bytes.varint().ok(),
    }
}

/// The difference between the blocks of different keys may be negative.
const fn zigzag(difference: i64) -> u64 {
    (difference << 1 ^ difference >> 63) as u64
}

const fn unzigzag(n: u64) -> i64 {
    (n >> 1) as i64 ^ -((n & 1) as i64)
}

/// The previous pair, against which the next pair is encoded or decoded.
#[derive(Clone, Debug, Default)]
pub(crate) struct CurrentPair {
    pub(crate) key: Vec<u8>,
    pub(crate) block: u64,
    /// Empty if the key was deleted.
    value: Vec<u8>,
    present: bool,
    spare: Vec<u8>,
}

impl CurrentPair {
    /// The value; `None`: deleted.
    pub(crate) fn value(&self) -> Option<&[u8]> {
        self.present.then_some(&self.value)
    }

    pub(super) fn clear(&mut self) {
        self.key.clear();
        self.block = 0;
        self.present = false;
    }

    pub(super) fn set(&mut self, key: &[u8], block: u64, value: Option<&[u8]>) {
        self.key.clear();
        self.key.extend_from_slice(key);
        self.block = block;
        self.value.clear();
        self.value.extend_from_slice(value.unwrap_or_default());
        self.present = value.is_some();
    }

    pub(super) fn apply(&mut self, entry: &EncodedPair<'_>) -> Option<()> {
        if !entry.same_key {
            self.key.truncate(entry.shared);
            self.key.extend_from_slice(entry.suffix);
        }
        self.block = entry.block(self.block);
        match entry.value {
            ValueChange::Deleted => self.present = false,
            ValueChange::Full(value) => {
                self.value.clear();
                self.value.extend_from_slice(value);
                self.present = true;
            }
            ValueChange::Difference { prefix, suffix, middle } => {
                if !self.present {
                    return None;
                }
                self.spare.clear();
                patch(&self.value, prefix, suffix, middle, &mut self.spare)?;
                std::mem::swap(&mut self.value, &mut self.spare);
            }
        }
        Some(())
    }
}

pub(super) fn patch(
    old: &[u8],
    prefix: usize,
    suffix: usize,
    middle: &[u8],
    new: &mut Vec<u8>,
) -> Option<()> {
    let tail = old.len().checked_sub(suffix).filter(|tail| *tail >= prefix)?;
    new.extend_from_slice(&old[..prefix]);
    new.extend_from_slice(middle);
    new.extend_from_slice(&old[tail..]);
    Some(())
}

/// An encoded pair.
pub(super) struct EncodedPair<'a> {
    pub(super) same_key: bool,
    pub(super) shared: usize,
    pub(super) suffix: &'a [u8],
    pub(super) key_len: usize,
    /// The block as encoded.
    block: u64,
    pub(super) value: ValueChange<'a>,
    /// Where the next pair starts.
    pub(super) end: usize,
}

pub(super) enum ValueChange<'a> {
    Deleted,
    Full(&'a [u8]),
    Difference { prefix: usize, suffix: usize, middle: &'a [u8] },
}

impl<'a> EncodedPair<'a> {
    /// Decodes the pair at `at`. The key before it has `key_len` bytes (0 at a restart).
    #[inline]
    pub(super) fn read(bytes: &'a [u8], at: usize, key_len: usize) -> Option<Self> {
        let mut rest = WireReader::new(bytes.get(at..)?);
        let head = rest.u8().ok()?;
        let mut len = usize::from(head >> 4);
        if len == LONG {
            len = LONG.checked_add(usize::try_from(number(&mut rest)?).ok()?)?;
        }
        let same_key = head & SAME_KEY != 0;
        let (mut shared, mut suffix, mut new_len) = (key_len, &bytes[..0], key_len);
        if !same_key {
            shared = rest.u8().ok()?.into();
            let new = match head & SAME_LENGTH {
                0 => rest.u8().ok()?.into(),
                _ => key_len.checked_sub(shared)?,
            };
            if shared > key_len {
                return None;
            }
            suffix = rest.take(new).ok()?;
            new_len = shared + new;
        }
        let block = number(&mut rest)?;
        let value = match head & KIND {
            DELETED => ValueChange::Deleted,
            FULL => ValueChange::Full(rest.take(len).ok()?),
            DIFFERENCE => {
                let prefix = usize::try_from(number(&mut rest)?).ok()?;
                let suffix = usize::try_from(number(&mut rest)?).ok()?;
                ValueChange::Difference { prefix, suffix, middle: rest.take(len).ok()? }
            }
            _ => return None,
        };
        let end = bytes.len() - rest.rest().len();
        Some(Self { same_key, shared, suffix, key_len: new_len, block, value, end })
    }

    /// The block, if the pair before has block `before`.
    pub(super) const fn block(&self, before: u64) -> u64 {
        match self.same_key {
            true => before.wrapping_add(self.block),
            false => before.wrapping_add(unzigzag(self.block) as u64),
        }
    }

    /// Appends a pair that follows `before`, which is cleared at a restart.
    pub(super) fn write(
        out: &mut Vec<u8>,
        before: &CurrentPair,
        key: &[u8],
        block: u64,
        value: Option<&[u8]>,
    ) {
        let same_key = before.key == key;
        let mut head = if same_key { SAME_KEY } else { 0 };
        let mut ends = None;
        let mut bytes = value.unwrap_or_default();
        head |= match (value, before.value()) {
            (None, _) => DELETED,
            (Some(value), Some(old)) if same_key => {
                let prefix = common(old.iter(), value.iter());
                let suffix = common(old[prefix..].iter().rev(), value[prefix..].iter().rev());
                // A difference has two lengths, mostly of one byte each.
                if prefix + suffix > 2 {
                    ends = Some((prefix, suffix));
                    bytes = &value[prefix..value.len() - suffix];
                    DIFFERENCE
                } else {
                    FULL
                }
            }
            _ => FULL,
        };
        if !same_key && !before.key.is_empty() && before.key.len() == key.len() {
            head |= SAME_LENGTH;
        }
        out.push(head | (bytes.len().min(LONG) as u8) << 4);
        if bytes.len() >= LONG {
            put_varint(out, (bytes.len() - LONG) as u64);
        }
        if same_key {
            put_varint(out, block.wrapping_sub(before.block));
        } else {
            let shared = common(before.key.iter(), key.iter());
            out.push(shared as u8);
            if head & SAME_LENGTH == 0 {
                out.push((key.len() - shared) as u8);
            }
            out.extend_from_slice(&key[shared..]);
            put_varint(out, zigzag(block.wrapping_sub(before.block) as i64));
        }
        if let Some((prefix, suffix)) = ends {
            put_varint(out, prefix as u64);
            put_varint(out, suffix as u64);
        }
        out.extend_from_slice(bytes);
    }
}

pub(super) fn common<'a>(
    a: impl Iterator<Item = &'a u8>,
    b: impl Iterator<Item = &'a u8>,
) -> usize {
    a.zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_in_a_longer_form_than_need_be_is_refused() {
        let mut bytes = Vec::new();
        EncodedPair::write(&mut bytes, &CurrentPair::default(), &[1, 2], 5, Some(&[9]));
        let read =
            |bytes: &[u8]| EncodedPair::read(bytes, 0, 0).map(|entry| (entry.block(0), entry.end));
        assert_eq!(read(&bytes), Some((5, bytes.len())));
        // Head, shared length, length of the rest, the rest; then the block, zigzag.
        assert_eq!(bytes[5], 10);
        assert_eq!(read(&[&bytes[..5], &[0x8a, 0x00], &bytes[6..]].concat()), None);
    }
}
