//! Value pages: pairs in order, compressed against their neighbours.
//!
//! Layout and encoding: `docs/formats/cole.md`, Values. Every [`RESTART`] pairs one pair is written
//! in full; a search bisects these pairs and walks on from the last one that is not too high.

use super::{
    file::PAYLOAD,
    pair::{CurrentPair, EncodedPair, ValueChange, common, patch},
};
use alloy_primitives::Bytes;
use std::{
    borrow::Cow,
    cmp::Ordering::{Equal, Greater, Less},
    ops::Range,
};

/// The number of pairs from one that is written in full to the next.
const RESTART: usize = 24;
/// Length of the header: position of the first pair, number of pairs, number of restarts.
const HEADER: usize = 12;
/// Length of the header of a large pair's page: the same, and the number of pages that follow, or
/// the number of pages since the first one.
const LARGE_HEADER: usize = 16;

/// Fills a page.
#[derive(Debug)]
pub(crate) struct PageBuilder {
    /// Header and pairs.
    bytes: Vec<u8>,
    restarts: Vec<u16>,
    last: CurrentPair,
    pairs: usize,
    entry: Vec<u8>,
}

impl PageBuilder {
    /// An empty page.
    pub(crate) fn new() -> Self {
        let (bytes, restarts) = (Vec::with_capacity(PAYLOAD), Vec::new());
        Self { bytes, restarts, last: CurrentPair::default(), pairs: 0, entry: Vec::new() }
    }

    /// Number of pairs so far.
    pub(crate) const fn pairs(&self) -> usize {
        self.pairs
    }

    /// Adds the next pair. Returns `false` if the page has no room for it.
    pub(crate) fn push(&mut self, key: &[u8], block: u64, value: Option<&[u8]>) -> bool {
        let restart = self.pairs.is_multiple_of(RESTART);
        if restart {
            self.last.clear();
        }
        self.entry.clear();
        EncodedPair::write(&mut self.entry, &self.last, key, block, value);
        let start = self.bytes.len().max(HEADER);
        let restarts = self.restarts.len() + usize::from(restart);
        if start + self.entry.len() + 2 * restarts > PAYLOAD {
            return false;
        }
        if restart {
            self.restarts.push(start as u16);
        }
        self.bytes.resize(start, 0);
        self.bytes.extend_from_slice(&self.entry);
        self.last.set(key, block, value);
        self.pairs += 1;
        true
    }

    /// Writes the payload of the page, whose first pair is at `position`, and empties the builder.
    pub(crate) fn finish(&mut self, position: u64, page: &mut Vec<u8>) {
        page.clear();
        page.append(&mut self.bytes);
        page.resize(PAYLOAD, 0);
        page[..8].copy_from_slice(&position.to_be_bytes());
        page[8..10].copy_from_slice(&(self.pairs as u16).to_be_bytes());
        page[10..HEADER].copy_from_slice(&(self.restarts.len() as u16).to_be_bytes());
        for (offset, out) in self.restarts.iter().zip(page.rchunks_exact_mut(2)) {
            out.copy_from_slice(&offset.to_be_bytes());
        }
        self.restarts.clear();
        self.pairs = 0;
    }

    /// The payloads of the pages of a pair that does not fit into an empty page.
    pub(crate) fn large(
        position: u64,
        key: &[u8],
        block: u64,
        value: Option<&[u8]>,
    ) -> impl Iterator<Item = Vec<u8>> {
        let mut entry = Vec::new();
        EncodedPair::write(&mut entry, &CurrentPair::default(), key, block, value);
        let room = PAYLOAD - LARGE_HEADER;
        let follow = entry.len().div_ceil(room) - 1;
        (0..=follow).map(move |n| {
            let mut page = Vec::with_capacity(PAYLOAD);
            page.extend_from_slice(&position.to_be_bytes());
            page.extend_from_slice(&u16::from(n == 0).to_be_bytes());
            page.extend_from_slice(&0u16.to_be_bytes());
            page.extend_from_slice(&(if n == 0 { follow } else { n } as u32).to_be_bytes());
            page.extend_from_slice(&entry[n * room..entry.len().min((n + 1) * room)]);
            page
        })
    }
}

/// The header of a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageHeader {
    /// Position of the first pair.
    pub(crate) position: u64,
    pub(crate) pairs: usize,
    pub(crate) kind: PageKind,
}

/// The kind of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageKind {
    /// It has complete pairs.
    Pairs,
    /// It starts a pair that continues in this number of pages.
    Large(u64),
    /// It continues a pair that starts this number of pages before.
    Continued(u64),
}

impl PageHeader {
    /// Reads the header of a page; `None` if it is malformed.
    pub(crate) fn read(page: &[u8; PAYLOAD]) -> Option<Self> {
        let position = u64::from_be_bytes(*page.first_chunk()?);
        let [.., a, b, c, d] = *page.first_chunk::<HEADER>()?;
        let (pairs, restarts) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        let pages = u32::from_be_bytes(page[HEADER..LARGE_HEADER].try_into().ok()?).into();
        let kind = match (pairs, restarts) {
            (0, 0) if pages > 0 => PageKind::Continued(pages),
            (1, 0) if pages > 0 => PageKind::Large(pages),
            (0, _) | (_, 0) => return None,
            _ => PageKind::Pairs,
        };
        Some(Self { position, pairs: pairs.into(), kind })
    }
}

/// The part of a large pair in one of its pages, without the header.
pub(crate) fn large_part(page: &[u8; PAYLOAD]) -> &[u8] {
    &page[LARGE_HEADER..]
}

/// A page, or the pages of one large pair.
#[derive(Debug)]
pub(crate) struct ValuePage<'a> {
    /// The number of the (first) page.
    pub(crate) number: u64,
    /// The number of pages, 1 unless the pair is large.
    pub(crate) span: u64,
    /// Position of the first pair.
    pub(crate) position: u64,
    /// Number of pairs.
    pub(crate) pairs: usize,
    bytes: Cow<'a, [u8]>,
    /// The range of the encoded pairs.
    body: Range<usize>,
    restarts: usize,
}

/// The last pair of a page at or below the search key.
#[derive(Debug)]
pub(crate) struct LocatedPair {
    /// The index of the pair in the page.
    pub(crate) index: usize,
    /// Whether it has the state key of the search. Otherwise block and value have no meaning.
    pub(crate) same_key: bool,
    pub(crate) block: u64,
    value: FoundValue,
}

#[derive(Debug)]
enum FoundValue {
    Deleted,
    /// In the page's bytes.
    At(Range<usize>),
    Made(Vec<u8>),
}

/// The progress of a walk over a page.
#[derive(Clone, Debug, Default)]
pub(crate) struct PageWalk {
    /// The number of pairs read.
    pub(crate) next: usize,
    at: usize,
    /// The last pair read.
    pub(crate) current: CurrentPair,
}

impl PageWalk {
    /// Starts over at the first pair of a page, and reuses the memory.
    pub(crate) const fn rewind(&mut self) {
        self.next = 0;
    }
}

impl<'a> ValuePage<'a> {
    /// Page `number` with complete pairs; `None` if it is malformed.
    pub(crate) fn new(number: u64, header: PageHeader, page: &'a [u8; PAYLOAD]) -> Option<Self> {
        let PageHeader { position, pairs, .. } = header;
        let restarts = pairs.div_ceil(RESTART);
        let end = PAYLOAD.checked_sub(2 * restarts)?;
        if page[10..HEADER] != (restarts as u16).to_be_bytes() {
            return None;
        }
        let (bytes, body) = (Cow::Borrowed(&page[..]), HEADER..end);
        Some(Self { number, span: 1, position, pairs, bytes, body, restarts })
    }

    /// The pages from `number` on with one large pair, whose bytes have been concatenated.
    pub(crate) const fn large(number: u64, span: u64, position: u64, bytes: Vec<u8>) -> Self {
        let body = 0..bytes.len();
        let bytes = Cow::Owned(bytes);
        Self { number, span, position, pairs: 1, bytes, body, restarts: 1 }
    }

    fn restart(&self, n: usize) -> Option<usize> {
        if self.span > 1 {
            return Some(0);
        }
        let at = PAYLOAD - 2 * (n + 1);
        let offset = u16::from_be_bytes(self.bytes.get(at..at + 2)?.try_into().ok()?).into();
        self.body.contains(&offset).then_some(offset)
    }

    fn entry(&self, at: usize, key_len: usize) -> Option<EncodedPair<'_>> {
        EncodedPair::read(&self.bytes[..self.body.end], at, key_len)
    }

    /// Reads the next pair; `None` if it is malformed. The page must have a next pair.
    pub(crate) fn step(&self, walk: &mut PageWalk) -> Option<()> {
        if walk.next.is_multiple_of(RESTART) {
            walk.at = self.restart(walk.next / RESTART)?;
            walk.current.clear();
        }
        let entry = self.entry(walk.at, walk.current.key.len())?;
        walk.at = entry.end;
        walk.next += 1;
        walk.current.apply(&entry)
    }

    /// Walks up to pair `index`, and reads that pair, too.
    pub(crate) fn walk_to(&self, index: usize) -> Option<PageWalk> {
        let mut walk = PageWalk { next: index / RESTART * RESTART, ..PageWalk::default() };
        while walk.next <= index {
            self.step(&mut walk)?;
        }
        Some(walk)
    }

    /// The last pair at or below (`key`, `block`). The inner `None` means that all pairs are above,
    /// the outer `None` that the page is malformed.
    pub(crate) fn locate(&self, key: &[u8], block: u64) -> Option<Option<LocatedPair>> {
        // Bisect the restarts that are not above.
        let (mut low, mut high) = (0, self.restarts);
        while low < high {
            let middle = (low + high) / 2;
            let entry = self.entry(self.restart(middle)?, 0)?;
            match (entry.suffix, entry.block(0)) <= (key, block) {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        let Some(start) = low.checked_sub(1) else { return Some(None) };
        let first = start * RESTART;
        let mut at = self.restart(start)?;
        let (mut key_len, mut now) = (0, 0);
        // The order of the last key read compared with `key`, and the number of bytes that they
        // share.
        let (mut order, mut matched) = (Less, 0);
        let mut located =
            LocatedPair { index: first, same_key: false, block: 0, value: FoundValue::Deleted };
        for index in first..self.pairs.min(first + RESTART) {
            let entry = self.entry(at, key_len)?;
            now = entry.block(now);
            // Keys ascend. A key that shares less with the previous key than the previous key
            // shares with `key` is above `key`. A key that shares more compares as the previous key
            // did.
            if !entry.same_key && entry.shared <= matched {
                if entry.shared < matched {
                    break;
                }
                matched += common(entry.suffix.iter(), key[matched..].iter());
                order = match (entry.suffix.get(matched - entry.shared), key.get(matched)) {
                    (None, None) => Equal,
                    (None, Some(_)) => Less,
                    (Some(_), None) => Greater,
                    (Some(a), Some(b)) => a.cmp(b),
                };
            }
            if order == Greater || order == Equal && now > block {
                break;
            }
            if order == Equal {
                self.keep(&mut located.value, &entry)?;
            }
            (located.index, located.same_key, located.block) = (index, order == Equal, now);
            (at, key_len) = (entry.end, entry.key_len);
        }
        Some(Some(located))
    }

    fn keep(&self, value: &mut FoundValue, entry: &EncodedPair<'_>) -> Option<()> {
        let new = match entry.value {
            ValueChange::Deleted => FoundValue::Deleted,
            ValueChange::Full(bytes) => FoundValue::At(entry.end - bytes.len()..entry.end),
            ValueChange::Difference { prefix, suffix, middle } => {
                let old = self.found(value)?;
                let mut new = Vec::with_capacity(old.len() + middle.len());
                patch(old, prefix, suffix, middle, &mut new)?;
                FoundValue::Made(new)
            }
        };
        *value = new;
        Some(())
    }

    fn found<'b>(&'b self, value: &'b FoundValue) -> Option<&'b [u8]> {
        match value {
            FoundValue::Deleted => None,
            FoundValue::At(range) => self.bytes.get(range.clone()),
            FoundValue::Made(bytes) => Some(bytes),
        }
    }

    /// The value of the located pair. Its state key must be the one of the search.
    pub(crate) fn value(&self, located: LocatedPair) -> Option<Bytes> {
        match located.value {
            FoundValue::Made(bytes) => Some(bytes.into()),
            other => self.found(&other).map(Bytes::copy_from_slice),
        }
    }

    /// The key and the block of the first pair.
    pub(crate) fn first(&self) -> Option<(&[u8], u64)> {
        let entry = self.entry(self.restart(0)?, 0)?;
        Some((entry.suffix, entry.block(0)))
    }
}
