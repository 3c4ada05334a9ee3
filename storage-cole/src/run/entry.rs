//! How a pair is written against the one before: `docs/formats/cole.md`, Values.

use retrie_state::wire::{WireReader, put_varint};

const DELETED: u8 = 0;
const FULL: u8 = 1;
const DIFFERENCE: u8 = 2;
const KIND: u8 = 3;
/// The key is the one before.
const SAME_KEY: u8 = 4;
/// The key is as long as the one before.
const SAME_LENGTH: u8 = 8;
/// From here on, a length follows as a number of its own.
const LONG: usize = 15;

/// A number, which mostly has one byte: merges read millions of them.
#[inline]
fn number(bytes: &mut WireReader<'_>) -> Option<u64> {
    match bytes.rest() {
        [byte @ 0..0x80, ..] => bytes.take(1).ok().map(|_| u64::from(*byte)),
        _ => bytes.varint().ok(),
    }
}

/// Differences of blocks of different keys have either sign.
const fn zigzag(difference: i64) -> u64 {
    (difference << 1 ^ difference >> 63) as u64
}

const fn unzigzag(n: u64) -> i64 {
    (n >> 1) as i64 ^ -((n & 1) as i64)
}

/// What a pair was, for the next to be written or read against it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Current {
    pub(crate) key: Vec<u8>,
    pub(crate) block: u64,
    /// Empty if the key was deleted.
    value: Vec<u8>,
    present: bool,
    spare: Vec<u8>,
}

impl Current {
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

    pub(super) fn apply(&mut self, entry: &Entry<'_>) -> Option<()> {
        if !entry.same_key {
            self.key.truncate(entry.shared);
            self.key.extend_from_slice(entry.suffix);
        }
        self.block = entry.block(self.block);
        match entry.value {
            Change::Deleted => self.present = false,
            Change::Full(value) => {
                self.value.clear();
                self.value.extend_from_slice(value);
                self.present = true;
            }
            Change::Difference { prefix, suffix, middle } => {
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
pub(super) struct Entry<'a> {
    pub(super) same_key: bool,
    pub(super) shared: usize,
    pub(super) suffix: &'a [u8],
    pub(super) key_len: usize,
    /// As encoded.
    block: u64,
    pub(super) value: Change<'a>,
    /// Where the next one starts.
    pub(super) end: usize,
}

pub(super) enum Change<'a> {
    Deleted,
    Full(&'a [u8]),
    Difference { prefix: usize, suffix: usize, middle: &'a [u8] },
}

impl<'a> Entry<'a> {
    /// Reads the pair at `at`, after one whose key has `key_len` bytes (0 at a restart).
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
            DELETED => Change::Deleted,
            FULL => Change::Full(rest.take(len).ok()?),
            DIFFERENCE => {
                let prefix = usize::try_from(number(&mut rest)?).ok()?;
                let suffix = usize::try_from(number(&mut rest)?).ok()?;
                Change::Difference { prefix, suffix, middle: rest.take(len).ok()? }
            }
            _ => return None,
        };
        let end = bytes.len() - rest.rest().len();
        Some(Self { same_key, shared, suffix, key_len: new_len, block, value, end })
    }

    /// The block, after a pair of block `before`.
    pub(super) const fn block(&self, before: u64) -> u64 {
        match self.same_key {
            true => before.wrapping_add(self.block),
            false => before.wrapping_add(unzigzag(self.block) as u64),
        }
    }

    /// Appends a pair that follows `before` (cleared: a restart).
    pub(super) fn write(
        out: &mut Vec<u8>,
        before: &Current,
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
                // Two lengths of a byte each, mostly.
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
        Entry::write(&mut bytes, &Current::default(), &[1, 2], 5, Some(&[9]));
        let read = |bytes: &[u8]| Entry::read(bytes, 0, 0).map(|entry| (entry.block(0), entry.end));
        assert_eq!(read(&bytes), Some((5, bytes.len())));
        // Head, shared, length of the rest, the rest; then the block, zigzag.
        assert_eq!(bytes[5], 10);
        assert_eq!(read(&[&bytes[..5], &[0x8a, 0x00], &bytes[6..]].concat()), None);
    }
}
