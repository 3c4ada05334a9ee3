//! The skeleton: the linked headers below a head.

use alloy_primitives::{B256, map::HashMap};
use retrie_chainspec::primitives::Header;
use std::{collections::BTreeMap, sync::Arc};

/// Number of segments whose headers are in memory. Others are fetched again when needed.
const SEGMENTS_KEPT: usize = 32;
/// Maximum number of headers in a segment.
pub(crate) const SEGMENT: usize = 1024;
/// Number of blocks below the needed one whose headers are kept.
const KEPT_BELOW: u64 = 256;

/// A header with its hash.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SealedHeader {
    pub(crate) hash: B256,
    pub(crate) header: Header,
}

/// A range of headers, from a block downwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeaderSpan {
    /// Number of the highest block, if known.
    pub(crate) top: Option<u64>,
    /// Hash of the highest block.
    pub(crate) hash: B256,
    /// The number of headers.
    pub(crate) count: u64,
}

/// The headers are not linked, or are not the ones that were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnlinkedHeaders;

/// Seals the headers of an answer downwards from `top`, if each is the parent of the one before.
pub(crate) fn linked(
    top: B256,
    headers: Vec<Header>,
) -> Result<Vec<Arc<SealedHeader>>, UnlinkedHeaders> {
    let mut expected = (top, None);
    let mut named = Vec::with_capacity(headers.len());
    for header in headers {
        let hash = header.hash_slow();
        let is_numbered =
            expected.1.is_none_or(|child: u64| header.number.checked_add(1) == Some(child));
        if hash != expected.0 || !is_numbered {
            return Err(UnlinkedHeaders);
        }
        expected = (header.parent_hash, Some(header.number));
        named.push(Arc::new(SealedHeader { hash, header }));
    }
    Ok(named)
}

/// The headers below a head. For each segment the hash of its highest block is kept (40 bytes). The
/// headers themselves are in memory only for some segments: the highest one, and those that were
/// fetched last, which are needed first.
#[derive(Debug)]
pub(crate) struct HeaderSkeleton {
    head: (u64, B256),
    /// The segments, by the number of their highest block.
    segments: BTreeMap<u64, SkeletonSegment>,
    /// The numbers of the headers in memory.
    numbers: HashMap<B256, u64>,
    /// Number of the lowest block, and its parent hash.
    lowest: (u64, B256),
}

#[derive(Debug)]
struct SkeletonSegment {
    top: B256,
    /// Number of its lowest block.
    bottom: u64,
    /// Its headers, in ascending order; empty if they must be fetched again.
    headers: Vec<Arc<SealedHeader>>,
}

impl HeaderSkeleton {
    /// Makes a skeleton of [`linked`] headers, the head first. `None` if there are none.
    pub(crate) fn new(headers: Vec<Arc<SealedHeader>>) -> Option<Self> {
        let first = headers.first()?;
        let head = (first.header.number, first.hash);
        let mut skeleton = Self {
            head,
            segments: BTreeMap::new(),
            numbers: HashMap::default(),
            lowest: (head.0, B256::ZERO),
        };
        skeleton.extend(headers);
        Some(skeleton)
    }

    /// Number and hash of the head.
    pub(crate) const fn head(&self) -> (u64, B256) {
        self.head
    }

    /// Number of the lowest block, and its parent hash.
    pub(crate) const fn lowest(&self) -> (u64, B256) {
        self.lowest
    }

    /// Extends the skeleton downwards by [`linked`] headers that follow its lowest one.
    pub(crate) fn extend(&mut self, headers: Vec<Arc<SealedHeader>>) {
        let (Some(first), Some(last)) = (headers.first(), headers.last()) else { return };
        let (number, top) = (first.header.number, first.hash);
        self.lowest = (last.header.number, last.header.parent_hash);
        self.keep(number, top, headers);
    }

    /// Appends another skeleton, if its head is the parent of the lowest block here.
    pub(crate) fn join(&mut self, other: Self) {
        if self.lowest.1 == other.head.1 {
            self.lowest = other.lowest;
            self.segments.extend(other.segments);
            self.numbers.extend(other.numbers);
            self.make_room(0);
        }
    }

    /// The span to fetch again for the header of block `number`, if its segment is not in memory.
    pub(crate) fn gap_at(&self, number: u64) -> Option<HeaderSpan> {
        let (top, segment) = self.segments.range(number..).next()?;
        let is_gap = segment.headers.is_empty() && segment.bottom <= number;
        is_gap.then(|| HeaderSpan {
            top: Some(*top),
            hash: segment.top,
            count: top - segment.bottom + 1,
        })
    }

    /// Stores the headers of a segment that was fetched again, or its upper part.
    pub(crate) fn fill(&mut self, headers: Vec<Arc<SealedHeader>>) {
        let (Some(first), Some(last)) = (headers.first(), headers.last()) else { return };
        let (top, bottom) = (first.header.number, last.header.number);
        let Some(old) = self.segments.get(&top) else { return };
        if old.bottom < bottom {
            let rest = SkeletonSegment {
                top: last.header.parent_hash,
                bottom: old.bottom,
                headers: Vec::new(),
            };
            self.segments.insert(bottom - 1, rest);
        }
        let hash = first.hash;
        self.keep(top, hash, headers);
    }

    fn keep(&mut self, number: u64, top: B256, mut headers: Vec<Arc<SealedHeader>>) {
        headers.reverse();
        let Some(bottom) = headers.first().map(|lowest| lowest.header.number) else { return };
        self.numbers.extend(headers.iter().map(|named| (named.hash, named.header.number)));
        self.segments.insert(number, SkeletonSegment { top, bottom, headers });
        self.make_room(number);
    }

    /// Drops the headers of excess segments, but not of the highest one and the one at `but`: first
    /// segments below `but`, which were used already, then the highest ones.
    fn make_room(&mut self, but: u64) {
        let is_whole = |segment: &SkeletonSegment| !segment.headers.is_empty();
        let whole = self.segments.values().filter(|segment| is_whole(segment)).count();
        let excess = whole.saturating_sub(SEGMENTS_KEPT);
        if excess == 0 {
            return;
        }
        let below = self.segments.range(..but).map(|(top, _)| *top);
        let above = self.segments.range(but..).rev().map(|(top, _)| *top);
        let order: Vec<u64> = below.chain(above).collect();
        let mut left = excess;
        for top in order.into_iter().filter(|top| *top != but && *top != self.head.0) {
            if left == 0 {
                return;
            }
            let Some(segment) = self.segments.get_mut(&top).filter(|segment| is_whole(segment))
            else {
                continue;
            };
            for named in segment.headers.drain(..) {
                self.numbers.remove(&named.hash);
            }
            left -= 1;
        }
    }

    /// Forgets segments far below `number`: they are not needed again.
    pub(crate) fn forget_below(&mut self, number: u64) {
        while let Some(entry) = self.segments.first_entry() {
            if self.head.0 == *entry.key() || entry.key().saturating_add(KEPT_BELOW) >= number {
                return;
            }
            let segment = entry.remove();
            for named in &segment.headers {
                self.numbers.remove(&named.hash);
            }
            if let Some((_, next)) = self.segments.first_key_value() {
                self.lowest = (next.bottom, segment.top);
            }
        }
    }

    /// The header with this number, if it is in memory.
    pub(crate) fn by_number(&self, number: u64) -> Option<&Arc<SealedHeader>> {
        let (_, segment) = self.segments.range(number..).next()?;
        let index = usize::try_from(number.checked_sub(segment.bottom)?).ok()?;
        segment.headers.get(index)
    }

    /// The header with this hash, if it is in memory.
    pub(crate) fn by_hash(&self, hash: &B256) -> Option<&Arc<SealedHeader>> {
        self.by_number(*self.numbers.get(hash)?)
    }

    /// The headers from `number` upwards that are in memory without a gap, at most `most`.
    pub(crate) fn from(
        &self,
        number: u64,
        most: usize,
    ) -> impl Iterator<Item = &Arc<SealedHeader>> {
        (number..=self.head.0).map_while(|number| self.by_number(number)).take(most)
    }
}

/// The skeleton of the current head, and that of the head before.
#[derive(Debug, Default)]
pub(crate) struct SkeletonPair {
    pub(crate) current: Option<HeaderSkeleton>,
    /// The previous skeleton, until the current one reaches it.
    older: Option<HeaderSkeleton>,
}

impl SkeletonPair {
    /// Begins a new skeleton. It takes over the headers of the previous one where it reaches it.
    pub(crate) fn begin(&mut self, headers: Vec<Arc<SealedHeader>>) {
        let older = self.current.take().or_else(|| self.older.take());
        self.older = older;
        let headers = self.until_older(headers);
        self.current = HeaderSkeleton::new(headers);
        self.meet();
    }

    /// Adds headers below those of the current skeleton.
    pub(crate) fn extend(&mut self, headers: Vec<Arc<SealedHeader>>) {
        let headers = self.until_older(headers);
        if let Some(skeleton) = &mut self.current {
            skeleton.extend(headers);
        }
        self.meet();
    }

    /// Number of the head of the older skeleton.
    pub(crate) fn older_head(&self) -> Option<u64> {
        self.older.as_ref().map(|older| older.head().0)
    }

    /// Keeps the headers above the head of the older skeleton.
    fn until_older(&self, mut headers: Vec<Arc<SealedHeader>>) -> Vec<Arc<SealedHeader>> {
        if let Some(older) = &self.older {
            let head = older.head().1;
            if let Some(at) = headers.iter().position(|named| named.hash == head)
                && at > 0
            {
                headers.truncate(at);
            }
        }
        headers
    }

    /// Joins the skeletons where the current one reaches the older one.
    fn meet(&mut self) {
        let (Some(skeleton), Some(older)) = (&mut self.current, &self.older) else { return };
        let (number, below) = skeleton.lowest();
        if below == older.head().1 {
            if let Some(older) = self.older.take() {
                skeleton.join(older);
            }
        } else if number <= older.head().0.saturating_add(1) {
            // It has passed the older head on another branch.
            self.older = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Headers of blocks up to `to`, in descending order.
    fn chain(to: u64) -> Vec<Header> {
        let mut parent_hash = B256::ZERO;
        let mut headers = Vec::new();
        for number in 0..=to {
            let header = Header { number, parent_hash, ..Header::default() };
            parent_hash = header.hash_slow();
            headers.push(header);
        }
        headers.reverse();
        headers
    }

    fn named(headers: &[Header]) -> Vec<Arc<SealedHeader>> {
        linked(headers[0].hash_slow(), headers.to_vec()).unwrap()
    }

    #[test]
    fn headers_that_do_not_link_are_refused() {
        let headers = chain(9);
        let top = headers[0].hash_slow();
        assert!(linked(top, headers.clone()).is_ok());
        assert_eq!(linked(B256::ZERO, headers.clone()), Err(UnlinkedHeaders));
        let mut missing = headers.clone();
        missing.remove(4);
        assert_eq!(linked(top, missing), Err(UnlinkedHeaders));
        // Linked by hash, but with an impossible number.
        let child = Header { number: 7, parent_hash: top, ..Header::default() };
        let numbered = vec![child.clone(), headers[0].clone()];
        assert_eq!(linked(child.hash_slow(), numbered), Err(UnlinkedHeaders));
        assert_eq!(linked(top, Vec::new()), Ok(Vec::new()));
    }

    #[test]
    fn what_is_let_go_is_found_again_by_its_uppermost_block() {
        let size = 10;
        let count = 100 * size;
        let headers = chain(count as u64 - 1);
        let mut pieces = headers.chunks(size);
        let mut skeleton = HeaderSkeleton::new(named(pieces.next().unwrap())).unwrap();
        pieces.for_each(|piece| skeleton.extend(named(piece)));
        assert_eq!(skeleton.lowest(), (0, B256::ZERO));
        let here = (0..count as u64).filter(|number| skeleton.by_number(*number).is_some()).count();
        assert_eq!(here, SEGMENTS_KEPT * size);
        assert_eq!(skeleton.numbers.len(), here);
        // Upwards again.
        for number in 0..count as u64 {
            let index = count - 1 - number as usize;
            if let Some(HeaderSpan { top, hash, count }) = skeleton.gap_at(number) {
                assert_eq!((hash, count), (headers[index + 1 - size].hash_slow(), size as u64));
                assert_eq!(top, Some(number + size as u64 - 1));
                // The upper part alone comes first.
                let upper = index + 1 - size;
                skeleton.fill(named(&headers[upper..upper + 4]));
                let HeaderSpan { hash, count, .. } = skeleton.gap_at(number).unwrap();
                assert_eq!((hash, count), (headers[upper + 4].hash_slow(), size as u64 - 4));
                skeleton.fill(named(&headers[upper + 4..index + 1]));
            }
            assert_eq!(skeleton.by_number(number).unwrap().header, headers[index]);
            assert!(skeleton.by_hash(&headers[index].hash_slow()).is_some());
            skeleton.forget_below(number);
            assert!(skeleton.numbers.len() <= (SEGMENTS_KEPT + 1) * size);
        }
        assert_eq!(skeleton.by_number(count as u64), None);
        assert_eq!(skeleton.gap_at(count as u64), None);
    }

    #[test]
    fn a_skeleton_that_meets_an_older_one_goes_on_with_it() {
        let headers = chain(29);
        let old = HeaderSkeleton::new(named(&headers[5..20])).unwrap();
        let mut skeleton = HeaderSkeleton::new(named(&headers[..3])).unwrap();
        skeleton.join(old);
        assert_eq!(skeleton.lowest().0, 27, "there is a gap between them");
        let old = HeaderSkeleton::new(named(&headers[5..20])).unwrap();
        skeleton.extend(named(&headers[3..5]));
        skeleton.join(old);
        assert_eq!(skeleton.lowest(), (10, headers[20].hash_slow()));
        assert_eq!(skeleton.from(10, 100).count(), 20);
        assert_eq!(skeleton.from(12, 3).count(), 3);
        assert_eq!(skeleton.by_number(9), None);
    }
}
