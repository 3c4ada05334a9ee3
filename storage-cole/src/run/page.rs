//! Value pages: pairs in order, compressed against their neighbours.
//!
//! Layout and encoding: `docs/formats/cole.md`, Values. Every [`RESTART`] pairs one is written
//! whole; a search bisects these and walks from the last that is not too high.

use super::{
    entry::{Change, Current, Entry, common, patch},
    file::PAYLOAD,
};
use alloy_primitives::Bytes;
use std::{
    borrow::Cow,
    cmp::Ordering::{Equal, Greater, Less},
    ops::Range,
};

/// Pairs from one that is written whole to the next.
const RESTART: usize = 24;
/// Position of the first pair, number of pairs, number of restarts.
const HEADER: usize = 12;
/// The same, and the number of pages that follow, or that lie between this and the first.
const LARGE_HEADER: usize = 16;

/// Fills a page.
#[derive(Debug)]
pub(crate) struct PageBuilder {
    /// Header and pairs.
    bytes: Vec<u8>,
    restarts: Vec<u16>,
    last: Current,
    pairs: usize,
    entry: Vec<u8>,
}

impl PageBuilder {
    /// An empty page.
    pub(crate) fn new() -> Self {
        let (bytes, restarts) = (Vec::with_capacity(PAYLOAD), Vec::new());
        Self { bytes, restarts, last: Current::default(), pairs: 0, entry: Vec::new() }
    }

    /// Number of pairs so far.
    pub(crate) const fn pairs(&self) -> usize {
        self.pairs
    }

    /// Adds the next pair; `false` if it finds no room.
    pub(crate) fn push(&mut self, key: &[u8], block: u64, value: Option<&[u8]>) -> bool {
        let restart = self.pairs.is_multiple_of(RESTART);
        if restart {
            self.last.clear();
        }
        self.entry.clear();
        Entry::write(&mut self.entry, &self.last, key, block, value);
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

    /// The payload of the page, whose first pair is at `position`; empty again afterwards.
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

    /// The payloads for a pair that has no room in an empty page: it fills several alone.
    pub(crate) fn large(
        position: u64,
        key: &[u8],
        block: u64,
        value: Option<&[u8]>,
    ) -> impl Iterator<Item = Vec<u8>> {
        let mut entry = Vec::new();
        Entry::write(&mut entry, &Current::default(), key, block, value);
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

/// What the header of a page says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    /// Position of the first pair.
    pub(crate) position: u64,
    pub(crate) pairs: usize,
    pub(crate) kind: Kind,
}

/// What a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It has whole pairs.
    Pairs,
    /// It starts a pair that goes on in so many pages.
    Large(u64),
    /// It goes on with a pair that starts so many pages before.
    Continued(u64),
}

impl Header {
    /// Reads the header of a page; `None` if there is no such.
    pub(crate) fn read(page: &[u8; PAYLOAD]) -> Option<Self> {
        let position = u64::from_be_bytes(*page.first_chunk()?);
        let [.., a, b, c, d] = *page.first_chunk::<HEADER>()?;
        let (pairs, restarts) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        let pages = u32::from_be_bytes(page[HEADER..LARGE_HEADER].try_into().ok()?).into();
        let kind = match (pairs, restarts) {
            (0, 0) if pages > 0 => Kind::Continued(pages),
            (1, 0) if pages > 0 => Kind::Large(pages),
            (0, _) | (_, 0) => return None,
            _ => Kind::Pairs,
        };
        Some(Self { position, pairs: pairs.into(), kind })
    }
}

/// The bytes of a pair that a page of several has, without its header.
pub(crate) fn large_part(page: &[u8; PAYLOAD]) -> &[u8] {
    &page[LARGE_HEADER..]
}

/// A page, or several with one large pair.
#[derive(Debug)]
pub(crate) struct Page<'a> {
    /// Number of the (first) page.
    pub(crate) number: u64,
    /// Number of pages, 1 unless the pair is large.
    pub(crate) span: u64,
    /// Position of the first pair.
    pub(crate) position: u64,
    /// Number of pairs.
    pub(crate) pairs: usize,
    bytes: Cow<'a, [u8]>,
    /// Where the pairs start, and end.
    body: Range<usize>,
    restarts: usize,
}

/// The last pair of a page at or below what was looked for.
#[derive(Debug)]
pub(crate) struct Located {
    /// Which one of the page's pairs.
    pub(crate) index: usize,
    /// Has it the key that was looked for? Only then block and value count.
    pub(crate) same_key: bool,
    pub(crate) block: u64,
    value: Found,
}

#[derive(Debug)]
enum Found {
    Deleted,
    /// In the page's bytes.
    At(Range<usize>),
    Made(Vec<u8>),
}

/// Where a walk over a page is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Walk {
    /// Number of pairs read.
    pub(crate) next: usize,
    at: usize,
    /// The last pair read.
    pub(crate) current: Current,
}

impl Walk {
    /// Starts over at the first pair of a page, in memory that is there already.
    pub(crate) const fn rewind(&mut self) {
        self.next = 0;
    }
}

impl<'a> Page<'a> {
    /// Page `number` with whole pairs; `None` if it cannot be read.
    pub(crate) fn new(number: u64, header: Header, page: &'a [u8; PAYLOAD]) -> Option<Self> {
        let Header { position, pairs, .. } = header;
        let restarts = pairs.div_ceil(RESTART);
        let end = PAYLOAD.checked_sub(2 * restarts)?;
        if page[10..HEADER] != (restarts as u16).to_be_bytes() {
            return None;
        }
        let (bytes, body) = (Cow::Borrowed(&page[..]), HEADER..end);
        Some(Self { number, span: 1, position, pairs, bytes, body, restarts })
    }

    /// Pages from `number` on with one pair, whose bytes were put together.
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

    fn entry(&self, at: usize, key_len: usize) -> Option<Entry<'_>> {
        Entry::read(&self.bytes[..self.body.end], at, key_len)
    }

    /// Reads the next pair; `None` if it cannot be read. There must be one.
    pub(crate) fn step(&self, walk: &mut Walk) -> Option<()> {
        if walk.next.is_multiple_of(RESTART) {
            walk.at = self.restart(walk.next / RESTART)?;
            walk.current.clear();
        }
        let entry = self.entry(walk.at, walk.current.key.len())?;
        walk.at = entry.end;
        walk.next += 1;
        walk.current.apply(&entry)
    }

    /// Walks up to pair `index`, which is read too.
    pub(crate) fn walk_to(&self, index: usize) -> Option<Walk> {
        let mut walk = Walk { next: index / RESTART * RESTART, ..Walk::default() };
        while walk.next <= index {
            self.step(&mut walk)?;
        }
        Some(walk)
    }

    /// The last pair at or below (`key`, `block`): `None` inside if all are above, outside if the
    /// page cannot be read.
    pub(crate) fn locate(&self, key: &[u8], block: u64) -> Option<Option<Located>> {
        // The restarts that are not above, by bisection.
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
        // How the key of the pair read last compares with `key`, and how many bytes they share.
        let (mut order, mut matched) = (Less, 0);
        let mut located =
            Located { index: first, same_key: false, block: 0, value: Found::Deleted };
        for index in first..self.pairs.min(first + RESTART) {
            let entry = self.entry(at, key_len)?;
            now = entry.block(now);
            // Keys ascend: one that shares less with the key before it than that one with `key`
            // is above `key`, one that shares more compares as that one did.
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

    fn keep(&self, value: &mut Found, entry: &Entry<'_>) -> Option<()> {
        let new = match entry.value {
            Change::Deleted => Found::Deleted,
            Change::Full(bytes) => Found::At(entry.end - bytes.len()..entry.end),
            Change::Difference { prefix, suffix, middle } => {
                let old = self.found(value)?;
                let mut new = Vec::with_capacity(old.len() + middle.len());
                patch(old, prefix, suffix, middle, &mut new)?;
                Found::Made(new)
            }
        };
        *value = new;
        Some(())
    }

    fn found<'b>(&'b self, value: &'b Found) -> Option<&'b [u8]> {
        match value {
            Found::Deleted => None,
            Found::At(range) => self.bytes.get(range.clone()),
            Found::Made(bytes) => Some(bytes),
        }
    }

    /// The value of a pair of this page that has the key that was looked for.
    pub(crate) fn value(&self, located: Located) -> Option<Bytes> {
        match located.value {
            Found::Made(bytes) => Some(bytes.into()),
            other => self.found(&other).map(Bytes::copy_from_slice),
        }
    }

    /// The key and the block of the first pair.
    pub(crate) fn first(&self) -> Option<(&[u8], u64)> {
        let entry = self.entry(self.restart(0)?, 0)?;
        Some((entry.suffix, entry.block(0)))
    }
}
