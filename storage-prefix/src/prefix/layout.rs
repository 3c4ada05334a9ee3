//! The layout of rows: the order of their keys, and the paper's padding. Roots, values and proofs
//! do not depend on it.
//!
//! In the default layout a block's rows are neighbours on disk, in the order of paths. The other layouts are for
//! experiments: `hash` stores rows of the same length in an order that does not depend on paths,
//! and `pad=64` makes each prefix as long as a hash (section 5.2 of the paper).

use alloy_primitives::Bytes;
use std::{borrow::Cow, str::FromStr};

/// The order of keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RowOrder {
    /// By version, then by path.
    #[default]
    Path,
    /// As if keys were hashed.
    Hash,
}

impl FromStr for RowOrder {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "path" => Ok(Self::Path),
            "hash" => Ok(Self::Hash),
            _ => Err("it is `path` or `hash`".into()),
        }
    }
}

/// Nibbles that prefixes are padded to, as in the paper.
const PADDED: usize = 64;
/// Bytes that stand for a padded prefix.
const PADDED_LEN: usize = PADDED / 2;

/// The layout of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixLayout {
    /// The order of keys.
    pub order: RowOrder,
    /// Whether prefixes are padded to 64 nibbles.
    pub padded: bool,
}

impl PrefixLayout {
    /// All layouts with their names, which are stamped into datadirs. The number of `rows` is that
    /// of the format of packs; the format without it is refused.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self { order: RowOrder::Path, padded: false }, "path,rows=2"),
        (Self { order: RowOrder::Hash, padded: false }, "hash,rows=2"),
        (Self { order: RowOrder::Path, padded: true }, "path,pad=64,rows=2"),
        (Self { order: RowOrder::Hash, padded: true }, "hash,pad=64,rows=2"),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(layout, _)| *layout == self).map_or("", |(_, name)| name)
    }

    /// The layout of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(layout, _)| *layout)
    }

    /// Whether keys and rows are stored unchanged.
    pub(super) fn is_plain(self) -> bool {
        self == Self::default()
    }

    /// The stored key of the row with `key`.
    pub(super) fn key(self, key: &[u8]) -> Cow<'_, [u8]> {
        if self.is_plain() {
            return Cow::Borrowed(key);
        }
        let mut stored = key.to_vec();
        if self.padded {
            let version = 1 + key.first().map_or(0, |len| usize::from(*len));
            let missing = (version + PADDED_LEN).saturating_sub(key.len());
            stored.resize(key.len() + missing, 0);
            stored.push(missing as u8);
        }
        if self.order == RowOrder::Hash {
            shuffle(&mut stored);
        }
        Cow::Owned(stored)
    }

    /// The stored bytes of `row`, which links to `links` other rows.
    pub(super) fn row(self, row: Bytes, links: usize) -> Bytes {
        if !self.padded {
            return row;
        }
        let padding = links * PADDED_LEN;
        let mut stored = Vec::with_capacity(row.len() + padding + 2);
        stored.extend_from_slice(&row);
        stored.resize(row.len() + padding, 0);
        // 16 links at most.
        stored.extend_from_slice(&(padding as u16).to_be_bytes());
        stored.into()
    }

    /// The stored bytes of `row`, which is left of the row with these stored bytes.
    pub(super) fn row_left(self, row: Bytes, stored: &Bytes) -> Option<Bytes> {
        if !self.padded {
            return Some(row);
        }
        let padding = u16::from_be_bytes(*stored.last_chunk()?);
        Some(self.row(row, usize::from(padding) / PADDED_LEN))
    }

    /// Removes the padding of [`row`](Self::row); `None` if it is malformed.
    pub(super) fn unpadded(self, stored: Bytes) -> Option<Bytes> {
        if !self.padded {
            return Some(stored);
        }
        let (rest, padding) = stored.split_last_chunk::<2>()?;
        let len = rest.len().checked_sub(u16::from_be_bytes(*padding).into())?;
        let is_padding = rest[len..].iter().all(|byte| *byte == 0);
        is_padding.then(|| stored.slice(..len))
    }
}

/// Permutes the keys of each length, cheaply, so that the new order does not resemble the old one.
/// A Feistel network of four rounds.
fn shuffle(key: &mut [u8]) {
    let (left, right) = key.split_at_mut(key.len() / 2);
    for round in 0..2 {
        mix(left, right, 2 * round);
        mix(right, left, 2 * round + 1);
    }
}

fn mix(to: &mut [u8], from: &[u8], round: u64) {
    let mut state = (round + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for chunk in from.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        state = (state ^ u64::from_le_bytes(word)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        state ^= state >> 32;
    }
    for chunk in to.chunks_mut(8) {
        state = (state ^ state >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state ^= state >> 32;
        chunk.iter_mut().zip(state.to_le_bytes()).for_each(|(byte, by)| *byte ^= by);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_and_layouts_belong_together() {
        for (layout, name) in PrefixLayout::ALL {
            assert_eq!((layout.name(), PrefixLayout::named(name)), (name, Some(layout)));
        }
        assert_eq!(PrefixLayout::named(""), None);
        assert!(PrefixLayout::default().is_plain());
    }

    #[test]
    fn keys_keep_their_length_and_lose_their_order() {
        let layout = PrefixLayout { order: RowOrder::Hash, padded: false };
        let mut neighbours = 0;
        let mut seen = BTreeSet::new();
        let stored: Vec<_> = (0..2_000u64)
            .map(|n| {
                let key = [&[1, 2, 3][..], &n.to_be_bytes()].concat();
                let stored = layout.key(&key).into_owned();
                assert_eq!(stored.len(), key.len());
                assert!(seen.insert(stored.clone()), "{n} is stored where another is");
                stored
            })
            .collect();
        for pair in stored.windows(2) {
            neighbours += usize::from(seen.range(pair[0].clone()..).nth(1) == Some(&pair[1]));
        }
        assert!(neighbours < 10, "{neighbours} of 2,000 keys stand beside the one before");
    }

    #[test]
    fn padding_comes_off_again_and_nothing_else_does() {
        let layout = PrefixLayout { order: RowOrder::Path, padded: true };
        let row = Bytes::from_static(b"a row");
        for links in [0, 1, 16] {
            let stored = layout.row(row.clone(), links);
            assert_eq!(stored.len(), row.len() + 32 * links + 2);
            assert_eq!(layout.unpadded(stored), Some(row.clone()));
        }
        assert_eq!(layout.unpadded(Bytes::from_static(&[7])), None);
        assert_eq!(layout.unpadded(Bytes::from_static(&[7, 0, 2])), None);
        assert_eq!(layout.unpadded(Bytes::from_static(&[7, 7, 0, 1])), None);
        // The version has two bytes.
        let keys = [[1; 9].to_vec(), [1; 30].to_vec(), [1; 60].to_vec()];
        let lens: Vec<_> = keys.iter().map(|key| layout.key(key).len()).collect();
        assert_eq!(lens, [35, 35, 61]);
    }
}
