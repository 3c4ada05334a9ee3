//! Patches: one value of a row as its difference from another value of the same row.
//!
//! A store rewrites a row of half a kilobyte when a child or two change. So records hold such a row
//! as a patch of the value that their reader has already: the journal of the value before, undo of
//! the value after.
//!
//! ```text
//! patch   CRC-32 (IEEE) of the value (4, LE); length of the base (varint); edits
//! edit    bytes of the base that are kept (varint);
//!         twice the number of bytes put here, plus 1 if they replace more or fewer bytes of the
//!         base than they are (varint), then followed by that number (varint);
//!         the bytes
//! ```
//!
//! The value ends with the rest of the base.

use alloy_primitives::Bytes;
use retrie_state::wire::{WireError, WireReader, put_varint};

/// Shorter values are never patched: the head of a patch takes five bytes, an edit two.
const LEAST_VALUE: usize = 48;
/// A difference ends where this many bytes are equal, as an edit of its own takes two bytes.
const LEAST_GAP: usize = 4;

/// Appends the patch that makes `value` of `base`, if it has at most half of the bytes of `value`;
/// returns whether it did.
pub(crate) fn put(out: &mut Vec<u8>, base: &[u8], value: &[u8]) -> bool {
    if value.len() < LEAST_VALUE {
        return false;
    }
    let (start, limit) = (out.len(), out.len() + value.len() / 2);
    out.extend_from_slice(&crc32fast::hash(value).to_le_bytes());
    put_varint(out, base.len() as u64);
    // What both end with is kept. Before it, bytes at the same place are compared, and the last
    // edit makes up for a difference in length.
    let kept_end = if base.len() == value.len() { 0 } else { common_suffix(base, value) };
    let (base, value) = (&base[..base.len() - kept_end], &value[..value.len() - kept_end]);
    let shared = base.len().min(value.len());
    let (mut done, mut next) = (0, next_difference(base, value, 0));
    while let Some((from, to)) = next.filter(|_| out.len() <= limit) {
        put_edit(out, from - done, to - from, &value[from..to]);
        done = to;
        next = next_difference(base, value, to);
    }
    if base.len() != value.len() {
        put_edit(out, shared - done, base.len() - shared, &value[shared..]);
    }
    if out.len() > limit {
        out.truncate(start);
        return false;
    }
    true
}

fn put_edit(out: &mut Vec<u8>, kept: usize, replaced: usize, bytes: &[u8]) {
    let is_resize = replaced != bytes.len();
    put_varint(out, kept as u64);
    put_varint(out, 2 * bytes.len() as u64 + u64::from(is_resize));
    if is_resize {
        put_varint(out, replaced as u64);
    }
    out.extend_from_slice(bytes);
}

/// Number of bytes that both end with.
fn common_suffix(a: &[u8], b: &[u8]) -> usize {
    a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count()
}

/// The next range of places from `at` on where `a` and `b` differ, up to the end of the shorter.
fn next_difference(a: &[u8], b: &[u8], at: usize) -> Option<(usize, usize)> {
    let shared = a.len().min(b.len());
    let from = at + equal_bytes(&a[at..shared], &b[at..shared]);
    if from == shared {
        return None;
    }
    let mut to = from;
    loop {
        while to < shared && a[to] != b[to] {
            to += 1;
        }
        let gap = equal_bytes(&a[to..shared], &b[to..shared]);
        if gap >= LEAST_GAP || to + gap == shared {
            return Some((from, to));
        }
        to += gap;
    }
}

/// Number of equal bytes at the start of two slices of one length.
fn equal_bytes(a: &[u8], b: &[u8]) -> usize {
    let (a_words, b_words) = (a.as_chunks::<8>().0, b.as_chunks::<8>().0);
    let words = a_words.iter().zip(b_words).take_while(|(a, b)| a == b).count();
    let rest = a[8 * words..].iter().zip(&b[8 * words..]);
    8 * words + rest.take_while(|(a, b)| a == b).count()
}

/// The value that `patch` makes of `base`; `None` if the patch is damaged, or of another base.
pub(crate) fn apply(base: &[u8], patch: &[u8]) -> Option<Bytes> {
    let mut edits = WireReader::new(patch);
    let crc = u32::from_le_bytes(*edits.array().ok()?);
    if edits.varint().ok()? != base.len() as u64 {
        return None;
    }
    let value = edited(base, edits).ok()?;
    (crc32fast::hash(&value) == crc).then(|| value.into())
}

fn edited(base: &[u8], mut edits: WireReader<'_>) -> Result<Vec<u8>, WireError> {
    let number = |edits: &mut WireReader<'_>| {
        usize::try_from(edits.varint()?).map_err(|_| WireError::UnexpectedEnd)
    };
    let mut base = WireReader::new(base);
    let mut value = Vec::with_capacity(base.rest().len() + edits.rest().len());
    while !edits.is_empty() {
        let kept = number(&mut edits)?;
        value.extend_from_slice(base.take(kept)?);
        let len = number(&mut edits)?;
        let replaced = if len % 2 == 1 { number(&mut edits)? } else { len / 2 };
        base.take(replaced)?;
        value.extend_from_slice(edits.take(len / 2)?);
    }
    value.extend_from_slice(base.rest());
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A value, and edits of it: place, bytes removed, bytes put there.
    fn values() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
        let edit = (any::<prop::sample::Index>(), 0usize..40, prop::collection::vec(0u8..4, 0..40));
        let base = prop::collection::vec(0u8..4, 0..700);
        (base, prop::collection::vec(edit, 0..4)).prop_map(|(base, edits)| {
            let mut value = base.clone();
            for (at, removed, bytes) in edits {
                let at = at.index(value.len() + 1);
                let end = (at + removed).min(value.len());
                value.splice(at..end, bytes);
            }
            (base, value)
        })
    }

    proptest! {
        #[test]
        fn a_patch_makes_the_value_of_its_base_and_of_no_other((base, value) in values()) {
            let mut out = vec![9];
            if put(&mut out, &base, &value) {
                let patch = &out[1..];
                prop_assert!(patch.len() <= value.len() / 2);
                prop_assert_eq!(apply(&base, patch), Some(Bytes::from(value)));
                let longer = [&base[..], &[0]].concat();
                prop_assert_eq!(apply(&longer, patch), None);
                for cut in 0..patch.len() {
                    let _ = apply(&base, &patch[..cut]);
                }
            } else {
                prop_assert_eq!(out, [9]);
            }
        }

        #[test]
        fn any_bytes_are_refused_or_applied(
            base in prop::collection::vec(any::<u8>(), 0..80),
            patch in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            let _ = apply(&base, &patch);
            let framed = [&[0, 0, 0, 0, base.len() as u8], &patch[..]].concat();
            let _ = apply(&base, &framed);
        }
    }

    /// A row of a branch whose reference and one child change takes 64 bytes and eleven more.
    #[test]
    fn a_changed_child_takes_its_own_bytes() {
        let base: Vec<u8> = (0..532).map(|n| (n % 251) as u8).collect();
        let mut value = base.clone();
        for at in (1..33).chain(200..232) {
            value[at] ^= 0xff;
        }
        let mut out = Vec::new();
        assert!(put(&mut out, &base, &value));
        assert_eq!(out.len(), 64 + 11);
        // A new leaf moves what follows.
        value.splice(300..300, [7; 40]);
        out.clear();
        assert!(put(&mut out, &base, &value));
        assert_eq!(out.len(), 104 + 14);
        assert_eq!(apply(&base, &out), Some(value.into()));
        assert!(!put(&mut out, &base, &base.iter().map(|byte| !byte).collect::<Vec<_>>()));
    }
}
