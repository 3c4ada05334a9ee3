//! The hash tree of a chunk, in the shape of RFC 6962, 2.1, over its entries in key order.
//!
//! A new entry shifts the positions of all entries behind it by one, so it changes all nodes to its
//! right, not only those above it. But a node over few entries is known again when as many entries
//! have come before it: a pair that was split by one shift is joined by the next. So the hashes of
//! all *windows* of 2, 4 and 8 successive entries that were nodes once are kept, wherever the
//! windows begin, and an insertion forgets only those in which the new entry lies.
//!
//! In chunks of at most 256 entries (207 on average, inserted in random order), an insertion with a
//! root after it computes 27 hashes of pairs on average, splits of chunks included: 8 above the
//! entry, and the others behind it. Without kept windows there are 108. Wider windows do not live
//! long enough to be met again.

use alloy_primitives::B256;
use std::ops::Range;

/// Number of kept widths: 1, 2, 4 and 8 entries.
const WIDTHS: usize = 4;
/// Number of entries in the widest window.
const WIDEST: usize = 1 << (WIDTHS - 1);

/// The hashes of the windows that begin with one entry, by width.
type WindowHashes = [B256; WIDTHS];

/// Where the hashes of an entry's windows are, and which of them are known, bit by bit.
#[derive(Clone, Copy, Debug)]
struct WindowSlot {
    /// Index in `windows`. It stays when positions shift. Chunks have at most 4,096 entries.
    index: u16,
    known: u8,
}

/// The hash tree. A node of level `l` is over 2^l entries, or fewer at the end.
#[derive(Debug, Default)]
pub(super) struct ChunkHashes {
    /// In key order.
    slots: Vec<WindowSlot>,
    /// In the order of insertion.
    windows: Vec<WindowHashes>,
    /// The last node of a level, if it is narrower than a window.
    last: WindowHashes,
    /// The levels above windows.
    upper: Vec<Vec<B256>>,
    /// Range of positions with changed hashes.
    stale: Range<usize>,
}

impl ChunkHashes {
    /// The tree over `len` entries, of which no hash is known.
    pub(super) fn new(len: usize) -> Self {
        let slot = |index| WindowSlot { index: index as u16, known: 0 };
        Self {
            slots: (0..len).map(slot).collect(),
            windows: vec![WindowHashes::default(); len],
            stale: 0..len,
            ..Self::default()
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.slots.len()
    }

    /// Notes that an entry was inserted or replaced at this position.
    pub(super) fn insert(&mut self, at: usize, is_new: bool) {
        if is_new {
            self.slots.insert(at, WindowSlot { index: self.windows.len() as u16, known: 0 });
            self.windows.push(WindowHashes::default());
        }
        let begin = at.saturating_sub(WIDEST - 1);
        for (from, slot) in (begin..).zip(&mut self.slots[begin..=at]) {
            // Windows that end before the entry.
            let kept = usize::BITS - (at - from).leading_zeros();
            slot.known &= (1 << kept) - 1;
        }
        // Entries after a new entry have shifted.
        let end = if is_new { self.len() } else { at + 1 };
        self.stale = match self.stale.is_empty() {
            true => at..end,
            false => self.stale.start.min(at)..self.stale.end.max(end),
        };
    }

    /// Cuts the entries of consecutive trees into trees of these lengths, with room for `most`
    /// entries each. Windows that were not cut stay known.
    pub(super) fn cut(all: &[&Self], lengths: &[usize], most: usize) -> Vec<Self> {
        let mut entries = all.iter().flat_map(|one| one.slots.iter().map(move |slot| (*one, slot)));
        let new = |length: &usize| {
            let mut new = Self { stale: 0..*length, ..Self::default() };
            new.slots.reserve(most + 1);
            new.windows.reserve(most + 1);
            for (at, (old, slot)) in entries.by_ref().take(*length).enumerate() {
                // Windows that end within the new chunk.
                let kept = (length - at).ilog2() + 1;
                let known = slot.known & ((1_u32 << kept) - 1).min(u8::MAX.into()) as u8;
                new.slots.push(WindowSlot { index: at as u16, known });
                new.windows.push(old.windows[slot.index as usize]);
            }
            new
        };
        lengths.iter().map(new).collect()
    }

    /// Number of levels above the entries.
    pub(super) const fn height(&self) -> usize {
        match self.len().checked_sub(1) {
            Some(last) => (usize::BITS - last.leading_zeros()) as usize,
            None => 0,
        }
    }

    /// Number of nodes of a level.
    const fn level_len(&self, level: usize) -> usize {
        self.len().div_ceil(1 << level)
    }

    /// The position at which a node begins, if the node is a window.
    const fn window(&self, level: usize, index: usize) -> Option<usize> {
        let is_window = level < WIDTHS && (index + 1) << level <= self.len();
        if is_window { Some(index << level) } else { None }
    }

    /// The hash of a node; `None` behind the end of the level. It must have been computed.
    fn node(&self, level: usize, index: usize) -> Option<&B256> {
        if let Some(above) = level.checked_sub(WIDTHS) {
            return self.upper.get(above)?.get(index);
        }
        match self.window(level, index) {
            Some(at) => Some(&self.windows[self.slots[at].index as usize][level]),
            None if index < self.level_len(level) => Some(&self.last[level]),
            None => None,
        }
    }

    /// Stores the hash of a node.
    pub(super) fn set(&mut self, level: usize, index: usize, hash: B256) {
        if let Some(above) = level.checked_sub(WIDTHS) {
            self.upper[above][index] = hash;
        } else if let Some(at) = self.window(level, index) {
            let slot = &mut self.slots[at];
            slot.known |= 1 << level;
            self.windows[slot.index as usize][level] = hash;
        } else {
            self.last[level] = hash;
        }
    }

    /// Whether the node is a window whose hash is known.
    fn is_known(&self, level: usize, index: usize) -> bool {
        self.window(level, index).is_some_and(|at| self.slots[at].known >> level & 1 == 1)
    }

    /// Calls `found` with level and index of each node whose hash is not known, below before above,
    /// and makes room for these hashes.
    pub(super) fn for_each_unknown(&mut self, found: &mut impl FnMut(usize, usize)) {
        let Some(end) = self.stale.end.checked_sub(1) else { return };
        let (start, height) = (self.stale.start, self.height());
        for first in (start / WIDEST * WIDEST..=end).step_by(WIDEST) {
            // A window is known only if all windows in it are.
            if self.is_known(WIDTHS - 1, first / WIDEST) {
                continue;
            }
            let behind = (first + WIDEST).min(self.len());
            for level in 0..WIDTHS.min(height + 1) {
                (first >> level..behind.div_ceil(1 << level))
                    .filter(|index| !self.is_known(level, *index))
                    .for_each(|index| found(level, index));
            }
        }
        for level in WIDTHS..=height {
            (start >> level..=end >> level).for_each(|index| found(level, index));
        }
        self.upper.resize_with((height + 1).saturating_sub(WIDTHS), Vec::new);
        for level in WIDTHS..=height {
            let len = self.level_len(level);
            self.upper[level - WIDTHS].resize(len, B256::ZERO);
        }
    }

    /// The children of a node above the entries: left and right.
    pub(super) fn children(&self, level: usize, index: usize) -> (&B256, Option<&B256>) {
        let child = |side| self.node(level - 1, 2 * index + side);
        (child(0).unwrap_or(&B256::ZERO), child(1))
    }

    /// The hash of the top node, when no hash is unknown any more.
    pub(super) fn finish(&mut self) -> B256 {
        self.stale = 0..0;
        self.node(self.height(), 0).copied().unwrap_or_default()
    }

    /// The siblings on the path of an entry, and whether they are on its left.
    pub(super) fn siblings(&self, position: usize) -> impl Iterator<Item = (bool, B256)> {
        (0..self.height()).filter_map(move |level| {
            let at = position >> level;
            self.node(level, at ^ 1).map(|sibling| (at % 2 == 1, *sibling))
        })
    }

    /// The number of siblings on the path of each entry: the number of levels, without those where
    /// its node is the last one and has no sibling.
    pub(super) fn path_lengths(&self) -> impl Iterator<Item = usize> {
        (0..self.len()).map(|position| {
            let levels = 0..self.height();
            levels.filter(|level| (position >> level) ^ 1 < self.level_len(*level)).count()
        })
    }
}
