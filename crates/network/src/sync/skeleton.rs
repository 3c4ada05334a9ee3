//! The skeleton below a head: headers, each of which names the one below it.

use alloy_primitives::{B256, map::HashMap};
use retrie_chainspec::primitives::Header;
use std::{collections::BTreeMap, sync::Arc};

/// Segments of headers in memory; what is beyond is fetched again when it is needed.
const SEGMENTS_KEPT: usize = 32;
/// Headers of a segment, at most.
pub(super) const SEGMENT: usize = 1024;
/// Headers kept below those that were asked for last.
const KEPT_BELOW: u64 = 256;

/// A header and its hash.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NamedHeader {
    pub(super) hash: B256,
    pub(super) header: Header,
}

/// Headers from a block downwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeaderSpan {
    /// Number of the uppermost block, if it is known.
    pub(super) top: Option<u64>,
    /// Its hash.
    pub(super) hash: B256,
    /// How many there are.
    pub(super) count: u64,
}

/// What came is not a piece of the chain that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnlinkedHeaders;

/// Names headers that came for a request downwards from `top`, if each is the parent of the one before.
pub(super) fn linked(
    top: B256,
    headers: Vec<Header>,
) -> Result<Vec<Arc<NamedHeader>>, UnlinkedHeaders> {
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
        named.push(Arc::new(NamedHeader { hash, header }));
    }
    Ok(named)
}

/// Headers from a head downwards. All segments are remembered by the hash of their uppermost block,
/// 40 bytes each, and some of them are here whole: the uppermost, and those that were fetched last,
/// which are the first that are needed.
#[derive(Debug)]
pub(super) struct HeaderSkeleton {
    head: (u64, B256),
    /// Where each segment begins and what its uppermost block is called, by that one's number.
    segments: BTreeMap<u64, SkeletonSegment>,
    /// Numbers of the headers that are here.
    numbers: HashMap<B256, u64>,
    /// The lowest block, and the hash of the one below it.
    lowest: (u64, B256),
}

#[derive(Debug)]
struct SkeletonSegment {
    top: B256,
    /// Number of its lowest block.
    bottom: u64,
    /// Its headers, the lowest first; none if they are to be fetched again.
    headers: Vec<Arc<NamedHeader>>,
}

impl HeaderSkeleton {
    /// From headers that are [`linked`], the head first. `None` if there are none.
    pub(super) fn new(headers: Vec<Arc<NamedHeader>>) -> Option<Self> {
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
    pub(super) const fn head(&self) -> (u64, B256) {
        self.head
    }

    /// Number of the lowest block, and the hash of the one below it.
    pub(super) const fn lowest(&self) -> (u64, B256) {
        self.lowest
    }

    /// Goes on downwards with headers that are [`linked`] and follow the lowest one.
    pub(super) fn extend(&mut self, headers: Vec<Arc<NamedHeader>>) {
        let (Some(first), Some(last)) = (headers.first(), headers.last()) else { return };
        let (number, top) = (first.header.number, first.hash);
        self.lowest = (last.header.number, last.header.parent_hash);
        self.keep(number, top, headers);
    }

    /// Takes over what another skeleton knows, if its head is the block below the lowest one here.
    pub(super) fn join(&mut self, other: Self) {
        if self.lowest.1 == other.head.1 {
            self.lowest = other.lowest;
            self.segments.extend(other.segments);
            self.numbers.extend(other.numbers);
            self.make_room(0);
        }
    }

    /// The segment that is to be fetched again to get at block `number`.
    pub(super) fn gap_at(&self, number: u64) -> Option<HeaderSpan> {
        let (top, segment) = self.segments.range(number..).next()?;
        let is_gap = segment.headers.is_empty() && segment.bottom <= number;
        is_gap.then(|| HeaderSpan {
            top: Some(*top),
            hash: segment.top,
            count: top - segment.bottom + 1,
        })
    }

    /// Puts back a segment that was fetched again, or its upper part.
    pub(super) fn fill(&mut self, headers: Vec<Arc<NamedHeader>>) {
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

    fn keep(&mut self, number: u64, top: B256, mut headers: Vec<Arc<NamedHeader>>) {
        headers.reverse();
        let Some(bottom) = headers.first().map(|lowest| lowest.header.number) else { return };
        self.numbers.extend(headers.iter().map(|named| (named.hash, named.header.number)));
        self.segments.insert(number, SkeletonSegment { top, bottom, headers });
        self.make_room(number);
    }

    /// Lets segments go, but the uppermost and the one at `but`: first those below that, which were
    /// needed before, then the highest.
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

    /// Forgets what is far below `number`: nobody comes back to it.
    pub(super) fn forget_below(&mut self, number: u64) {
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

    /// The header of this number, if it is here.
    pub(super) fn by_number(&self, number: u64) -> Option<&Arc<NamedHeader>> {
        let (_, segment) = self.segments.range(number..).next()?;
        let index = usize::try_from(number.checked_sub(segment.bottom)?).ok()?;
        segment.headers.get(index)
    }

    /// The header of this hash, if it is here.
    pub(super) fn by_hash(&self, hash: &B256) -> Option<&Arc<NamedHeader>> {
        self.by_number(*self.numbers.get(hash)?)
    }

    /// Headers from `number` upwards, as many as are here without a gap, `most` of them at most.
    pub(super) fn from(&self, number: u64, most: usize) -> impl Iterator<Item = &Arc<NamedHeader>> {
        (number..=self.head.0).map_while(|number| self.by_number(number)).take(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Headers of blocks `from` to `to`, the highest first.
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

    fn named(headers: &[Header]) -> Vec<Arc<NamedHeader>> {
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
        // Linked by hash, but numbered as no chain is.
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
