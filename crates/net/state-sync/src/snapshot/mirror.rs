//! [`SnapshotMirror`]: a snapshot in a folder, bucket or web server, as a peer of state sync.
//!
//! At the first request it copies the index into an unnamed file. A request becomes a few reads of
//! byte ranges: neighbouring answers are read at once.

use super::{
    HEADERS, MAX_ANSWER, SnapshotError, SnapshotManifest,
    index::{AnswerPlace, SnapshotIndex},
    pack::chunks_object,
};
use crate::{
    answer::{AnswerKey, AnswerKind},
    peer::{StatePeer, StatePeerError},
};
use alloy_primitives::{B256, Bytes};
use alloy_rlp::Header;
use parking_lot::Mutex;
use retrie_sources::{ObjectFolder, SourceError};
use retrie_state::ChunkId;
use std::{
    ops::Range,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Bytes of the answers to one request; the first answer may be longer.
const REQUEST_BYTES: u64 = 4 << 20;
/// Answers this close to each other are read at once, with what lies between them.
const GAP: u64 = 32 << 10;
/// Ranges that are read at the same time.
const READS_AT_ONCE: usize = 8;
/// How long one request may read the index.
const INDEX_TIME: Duration = Duration::from_secs(20);
/// How long one request begins further reads of answers.
const READ_TIME: Duration = Duration::from_secs(20);
/// Largest object with headers, in bytes.
const MAX_HEADERS: u64 = 1 << 20;

/// A snapshot that is read.
#[derive(Debug)]
pub struct SnapshotMirror {
    name: String,
    folder: ObjectFolder,
    manifest: SnapshotManifest,
    scratch: PathBuf,
    /// `None` until the first request.
    index: Mutex<Option<SnapshotIndex>>,
}

impl SnapshotMirror {
    /// The snapshot with this manifest in `folder`. The copy of its index goes into the folder
    /// `scratch`, which exists when the first request comes.
    pub fn new(folder: ObjectFolder, manifest: SnapshotManifest, scratch: &Path) -> Self {
        let name = folder.name().display().to_string();
        Self { name, folder, manifest, scratch: scratch.to_owned(), index: Mutex::new(None) }
    }

    /// Its manifest.
    pub const fn manifest(&self) -> &SnapshotManifest {
        &self.manifest
    }

    /// The place of its objects.
    pub(super) const fn folder(&self) -> &ObjectFolder {
        &self.folder
    }

    /// Where the answers to these ids lie, as far as they fit into one request.
    fn places(
        &self,
        kind: AnswerKind,
        ids: &[&[u8]],
    ) -> Result<Vec<Option<AnswerPlace>>, StatePeerError> {
        let mut slot = self.index.lock();
        let index = match &mut *slot {
            Some(index) => index,
            None => {
                let made = SnapshotIndex::new(self.manifest.index_objects, &self.scratch);
                slot.insert(made.map_err(SnapshotError::IndexFile)?)
            }
        };
        if !index.read_until(&self.folder, Instant::now() + INDEX_TIME)? {
            let (read, all) = index.progress();
            return Err(StatePeerError::busy(format!(
                "its index is read, {read} of {all} objects"
            )));
        }
        let (mut places, mut bytes) = (Vec::new(), 0);
        for id in ids {
            let place = index.find(AnswerKey::new(kind, id))?;
            let place = place.filter(|place| place.len <= MAX_ANSWER);
            bytes += place.map_or(0, |place| u64::from(place.len));
            if bytes > REQUEST_BYTES && !places.is_empty() {
                break;
            }
            places.push(place);
        }
        Ok(places)
    }

    fn answers(
        &self,
        kind: AnswerKind,
        ids: &[&[u8]],
    ) -> Result<Vec<Option<Bytes>>, StatePeerError> {
        let places = self.places(kind, ids)?;
        let ranges = ObjectRange::covering(places.iter().flatten().copied());
        let (mut read, begun) = (Vec::with_capacity(ranges.len()), Instant::now());
        for some in ranges.chunks(READS_AT_ONCE) {
            if begun.elapsed() > READ_TIME {
                break;
            }
            read.extend(self.read_all(some));
        }
        let mut answers = Vec::with_capacity(places.len());
        for place in places {
            answers.push(match place {
                None => None,
                Some(place) => match part(&ranges, &read, place) {
                    Ok(answer) => answer,
                    // The answers before the first failure count.
                    Err(_) if !answers.is_empty() => break,
                    Err(Some(error)) => return Err(StatePeerError::new(error.to_string())),
                    Err(None) => return Err(StatePeerError::new("it is too slow")),
                },
            });
        }
        Ok(answers)
    }

    fn read_all(&self, ranges: &[ObjectRange]) -> Vec<Result<Option<Bytes>, SourceError>> {
        let read = |range: &ObjectRange| {
            let read = self.folder.read_range(&chunks_object(range.object), range.bytes.clone());
            Ok(read?.map(Bytes::from))
        };
        if let [range] = ranges {
            return vec![read(range)];
        }
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                ranges.iter().map(|range| scope.spawn(move || read(range))).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| match thread.join() {
                Ok(read) => read,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            threads.into_iter().map(join).collect()
        })
    }
}

/// Bytes of an object with answers.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ObjectRange {
    object: u32,
    bytes: Range<u64>,
}

impl ObjectRange {
    /// Few ranges that cover these places, in order.
    fn covering(places: impl Iterator<Item = AnswerPlace>) -> Vec<Self> {
        let mut places: Vec<_> = places.filter(|place| place.len > 0).collect();
        places.sort_unstable();
        let mut ranges: Vec<Self> = Vec::new();
        for place in places {
            let (first, end) = (u64::from(place.offset), place.end());
            match ranges.last_mut() {
                Some(last)
                    if last.object == place.object
                        && first <= last.bytes.end + GAP
                        && end - last.bytes.start <= REQUEST_BYTES =>
                {
                    last.bytes.end = last.bytes.end.max(end);
                }
                _ => ranges.push(Self { object: place.object, bytes: first..end }),
            }
        }
        ranges
    }
}

/// The answer at a place; `None` if the object does not exist, or ends before. The error is that of
/// its range, `None` if the range was not read.
fn part<'a>(
    ranges: &[ObjectRange],
    read: &'a [Result<Option<Bytes>, SourceError>],
    place: AnswerPlace,
) -> Result<Option<Bytes>, Option<&'a SourceError>> {
    if place.len == 0 {
        return Ok(Some(Bytes::new()));
    }
    let first = u64::from(place.offset);
    let holds = |range: &ObjectRange| {
        range.object == place.object && range.bytes.start <= first && place.end() <= range.bytes.end
    };
    let at = ranges.iter().position(holds).ok_or(None)?;
    let content = read.get(at).ok_or(None)?.as_ref().map_err(Some)?;
    let start = (first - ranges[at].bytes.start) as usize;
    let end = start + place.len as usize;
    Ok(content.as_ref().filter(|bytes| end <= bytes.len()).map(|bytes| bytes.slice(start..end)))
}

impl StatePeer for SnapshotMirror {
    fn name(&self) -> &str {
        &self.name
    }

    fn find_root(&self, root: B256) -> Result<Option<B256>, StatePeerError> {
        Ok((self.manifest.root == root).then_some(self.manifest.block_hash))
    }

    fn headers(&self, block: B256, count: u64) -> Result<Vec<Bytes>, StatePeerError> {
        let SnapshotManifest { block_number: number, block_hash: hash, .. } = self.manifest;
        if hash != block {
            let what = format!("its snapshot is of block {number} ({hash})");
            return Err(StatePeerError::new(what));
        }
        let content = self.folder.read(HEADERS, MAX_HEADERS).map_err(SnapshotError::from)?;
        let content = content.ok_or_else(|| StatePeerError::new("it has no headers.rlp"))?;
        let headers = split_headers(&content.into());
        let headers = headers.ok_or_else(|| StatePeerError::new("its headers.rlp is no RLP"))?;
        let surplus = headers.len().saturating_sub(usize::try_from(count).unwrap_or(usize::MAX));
        Ok(headers[surplus..].to_vec())
    }

    fn codes(&self, hashes: &[B256]) -> Result<Vec<Option<Bytes>>, StatePeerError> {
        let ids: Vec<&[u8]> = hashes.iter().map(|hash| hash.as_slice()).collect();
        self.answers(AnswerKind::Code, &ids)
    }

    fn chunks(&self, _: B256, ids: &[ChunkId]) -> Result<Vec<Option<Bytes>>, StatePeerError> {
        let ids: Vec<&[u8]> = ids.iter().map(|id| &id.bytes()[..]).collect();
        self.answers(AnswerKind::Chunk, &ids)
    }

    fn place_of(&self, id: &[u8]) -> Option<String> {
        let mut slot = self.index.lock();
        let index = slot.as_mut()?;
        let mut find = |kind| index.find(AnswerKey::new(kind, id)).ok().flatten();
        Some(match find(AnswerKind::Chunk).or_else(|| find(AnswerKind::Code)) {
            Some(place) => {
                let object = self.folder.name_of(&chunks_object(place.object));
                format!("{} at bytes {} to {}", object.display(), place.offset, place.end())
            }
            None if index.missing.is_empty() => "its index does not have it".to_owned(),
            None => {
                let lost = index.missing.len();
                format!("its index does not have it, and {lost} objects of the index are missing")
            }
        })
    }
}

impl From<SnapshotError> for StatePeerError {
    fn from(error: SnapshotError) -> Self {
        Self::new(error.to_string())
    }
}

/// The RLP items of concatenated headers; `None` if they are none.
fn split_headers(content: &Bytes) -> Option<Vec<Bytes>> {
    let (mut headers, mut at) = (Vec::new(), 0);
    while at < content.len() {
        let mut rest = &content[at..];
        let header = Header::decode(&mut rest).ok().filter(|header| header.list)?;
        let end = content.len() - rest.len() + header.payload_length;
        if end > content.len() {
            return None;
        }
        headers.push(content.slice(at..end));
        at = end;
    }
    Some(headers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    #[test]
    fn neighbours_are_read_at_once_and_every_place_is_covered() {
        let place = |object, offset, len| AnswerPlace { object, offset, len };
        let far = 20 + GAP as u32 + 1;
        let places = [place(1, far, 5), place(0, 10, 10), place(0, 0, 10), place(1, 0, 20)];
        let ranges = ObjectRange::covering(places.into_iter());
        let at = |object, bytes| ObjectRange { object, bytes };
        let far = u64::from(far);
        assert_eq!(ranges, [at(0, 0..20), at(1, 0..20), at(1, far..far + 5)]);

        let mut random = StdRng::seed_from_u64(1);
        for _ in 0..200 {
            // Places of a hostile index overlap, and go on beyond any object.
            let places: Vec<_> = (0..random.random_range(0..50))
                .map(|_| {
                    let offset = if random.random_bool(0.9) {
                        random.random_range(0..1 << 20)
                    } else {
                        random.random()
                    };
                    place(random.random_range(0..3), offset, random.random_range(0..=MAX_ANSWER))
                })
                .collect();
            let ranges = ObjectRange::covering(places.iter().copied());
            for place in places.iter().filter(|place| place.len > 0) {
                let holds = |range: &ObjectRange| {
                    range.object == place.object
                        && range.bytes.start <= u64::from(place.offset)
                        && place.end() <= range.bytes.end
                };
                assert!(ranges.iter().any(holds));
            }
            let longest = ranges.iter().map(|range| range.bytes.end - range.bytes.start).max();
            assert!(longest.unwrap_or(0) <= u64::from(MAX_ANSWER).max(REQUEST_BYTES));
        }
    }

    #[test]
    fn headers_are_split_and_other_bytes_are_refused() {
        let content = Bytes::from_static(&[0xc1, 5, 0xc0, 0xc2, 6, 7]);
        let headers = split_headers(&content).unwrap();
        assert_eq!(headers, [content.slice(..2), content.slice(2..3), content.slice(3..)]);
        for bad in [&[0xc2, 5][..], &[0x81, 5], &[5], &[0xf8], &[0xff; 9]] {
            assert!(split_headers(&Bytes::copy_from_slice(bad)).is_none(), "{bad:?}");
        }
    }
}
