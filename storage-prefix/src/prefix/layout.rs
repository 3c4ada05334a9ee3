//! How rows are laid out: the order of keys, and the paper's padding. No root, value or proof depends
//! on it.
//!
//! The default writes rows as they are, so that the nodes of a way are neighbours on disk. The others
//! are for experiments: `hash` puts the same rows, byte for byte as long, in an order that has nothing
//! to do with paths, and `pad=64` makes each prefix as long as a hash (section 5.2 of the paper).

use alloy_primitives::Bytes;
use retrie_state::{Direction, KeyRange, NodeRead, Rows, StateError, Table};
use std::{borrow::Cow, fmt, str::FromStr, sync::Arc};

/// The order of keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// By path, then by version.
    #[default]
    Path,
    /// As if keys were hashed.
    Hash,
}

impl FromStr for Order {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "path" => Ok(Self::Path),
            "hash" => Ok(Self::Hash),
            _ => Err("it is `path` or `hash`".into()),
        }
    }
}

/// Nibbles that prefixes are padded to: the paper's.
const PADDED: usize = 64;
/// Bytes that stand for a padded prefix.
const PADDED_LEN: usize = PADDED / 2;

/// How rows are laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The order of keys.
    pub order: Order,
    /// Whether prefixes are padded to 64 nibbles.
    pub padded: bool,
}

impl Layout {
    /// All there are, with the names that datadirs bear.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self { order: Order::Path, padded: false }, "path"),
        (Self { order: Order::Hash, padded: false }, "hash"),
        (Self { order: Order::Path, padded: true }, "path,pad=64"),
        (Self { order: Order::Hash, padded: true }, "hash,pad=64"),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(layout, _)| *layout == self).map_or("", |(_, name)| name)
    }

    /// The layout of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(layout, _)| *layout)
    }

    /// Whether rows are stored as they are.
    pub(super) fn is_plain(self) -> bool {
        self == Self::default()
    }

    /// The key that the row with `key` is stored under.
    pub(super) fn key(self, key: &[u8]) -> Cow<'_, [u8]> {
        if self.is_plain() {
            return Cow::Borrowed(key);
        }
        let mut stored = key.to_vec();
        if self.padded {
            // Before the version, in which keys of one path differ.
            let at = stored.len().saturating_sub(size_of::<u64>());
            let missing = PADDED_LEN.saturating_sub(at);
            stored.splice(at..at, std::iter::repeat_n(0xff, missing));
        }
        if self.order == Order::Hash {
            shuffle(&mut stored);
        }
        Cow::Owned(stored)
    }

    /// The row that is stored for `row`, which leads to `links` other rows.
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

    /// The row that [`row`](Self::row) stored; `None` if it is no such row.
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

/// Puts the bytes of a key into another order of keys: one to one among the keys of each length, cheap,
/// and without any likeness to the order before. A Feistel network of four rounds.
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

/// A view whose rows of tries are found where the layout has put them.
#[derive(Clone)]
pub(super) struct LaidOut<'a> {
    view: &'a dyn NodeRead,
    layout: Layout,
}

impl fmt::Debug for LaidOut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaidOut").field("layout", &self.layout).finish_non_exhaustive()
    }
}

impl<'a> LaidOut<'a> {
    pub(super) const fn new(view: &'a dyn NodeRead, layout: Layout) -> Self {
        Self { view, layout }
    }
}

impl NodeRead for LaidOut<'_> {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        let Some(row) = self.view.get(table, &self.layout.key(key))? else { return Ok(None) };
        let row = self.layout.unpadded(row);
        row.map(Some).ok_or_else(|| StateError::corrupt(table.name, "a row is not padded"))
    }

    /// Rows of tries are found by their keys alone.
    fn scan<'b>(
        &'b self,
        table: Table,
        range: KeyRange<'_>,
        direction: Direction,
    ) -> Result<Rows<'b>, StateError> {
        self.view.scan(table, range, direction)
    }

    fn detach(&self) -> Option<Arc<dyn NodeRead>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_and_layouts_belong_together() {
        for (layout, name) in Layout::ALL {
            assert_eq!((layout.name(), Layout::named(name)), (name, Some(layout)));
        }
        assert_eq!(Layout::named(""), None);
        assert!(Layout::default().is_plain());
    }

    #[test]
    fn keys_keep_their_length_and_lose_their_order() {
        let layout = Layout { order: Order::Hash, padded: false };
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
        let layout = Layout { order: Order::Path, padded: true };
        let row = Bytes::from_static(b"a row");
        for links in [0, 1, 16] {
            let stored = layout.row(row.clone(), links);
            assert_eq!(stored.len(), row.len() + 32 * links + 2);
            assert_eq!(layout.unpadded(stored), Some(row.clone()));
        }
        assert_eq!(layout.unpadded(Bytes::from_static(&[7])), None);
        assert_eq!(layout.unpadded(Bytes::from_static(&[7, 0, 2])), None);
        assert_eq!(layout.unpadded(Bytes::from_static(&[7, 7, 0, 1])), None);
        let keys = [[1; 9].to_vec(), [1; 30].to_vec(), [1; 60].to_vec()];
        let lens: Vec<_> = keys.iter().map(|key| layout.key(key).len()).collect();
        assert_eq!(lens, [40, 40, 60]);
    }
}
