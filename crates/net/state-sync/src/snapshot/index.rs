//! The index of a snapshot: where each answer lies.
//!
//! ```text
//!   index   = records, sorted by key, in objects of at most 262,144 records each
//!   record  = key (16), number of the object (4, big-endian), offset in it (4), length (4)
//! ```
//!
//! A reader trusts nothing of it. Records out of order are not found, and places that do not exist
//! have no answers: to the download, such a snapshot lacks what it should have.

use super::SnapshotError;
use crate::answer::AnswerKey;
use retrie_sources::ObjectFolder;
use retrie_state::BulkSorter;
use retrie_state_store::RecordSorter;
use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    path::Path,
    time::Instant,
};

/// Bytes of a record.
pub(super) const RECORD: usize = AnswerKey::LEN + PLACE;
const PLACE: usize = 12;
/// Records of an object.
const OBJECT_RECORDS: usize = 1 << 18;
/// Bytes of an object, at most.
const OBJECT_BYTES: u64 = (OBJECT_RECORDS * RECORD) as u64;
/// Records of a page: the first key of each page is in memory.
const PAGE_RECORDS: u64 = 128;

/// Where an answer lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct AnswerPlace {
    /// Number of the object.
    pub(super) object: u32,
    /// First byte in it.
    pub(super) offset: u32,
    /// Bytes.
    pub(super) len: u32,
}

impl AnswerPlace {
    fn encode(self) -> [u8; PLACE] {
        let mut bytes = [0; PLACE];
        bytes[..4].copy_from_slice(&self.object.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.offset.to_be_bytes());
        bytes[8..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }

    fn decode([a, b, c, d, e, f, g, h, i, j, k, l]: [u8; PLACE]) -> Self {
        Self {
            object: u32::from_be_bytes([a, b, c, d]),
            offset: u32::from_be_bytes([e, f, g, h]),
            len: u32::from_be_bytes([i, j, k, l]),
        }
    }

    /// The byte after its last one.
    pub(super) const fn end(self) -> u64 {
        self.offset as u64 + self.len as u64
    }
}

/// Name of an object of the index.
pub(super) fn index_object(number: u32) -> String {
    format!("index/{number:05}")
}

/// Collects records and writes the index.
pub(super) struct IndexWriter(RecordSorter);

impl IndexWriter {
    /// Sorts in temporary files of `scratch`.
    pub(super) fn new(scratch: &Path) -> Self {
        Self(RecordSorter::new(Some(scratch)))
    }

    pub(super) fn put(&mut self, key: AnswerKey, place: AnswerPlace) -> Result<(), SnapshotError> {
        Ok(self.0.put(&key.0, &place.encode())?)
    }

    /// Writes all objects of the index; returns their number.
    pub(super) fn write(mut self, folder: &ObjectFolder) -> Result<u32, SnapshotError> {
        let (mut number, mut object) = (0, Vec::new());
        for record in self.0.sorted()? {
            let (key, place) = record?;
            object.extend(key);
            object.extend(place);
            if object.len() as u64 >= OBJECT_BYTES {
                folder.write(&index_object(number), std::mem::take(&mut object))?;
                number += 1;
            }
        }
        if !object.is_empty() {
            folder.write(&index_object(number), object)?;
            number += 1;
        }
        Ok(number)
    }
}

/// The index of a snapshot, read into an unnamed file.
#[derive(Debug)]
pub(super) struct SnapshotIndex {
    file: File,
    records: u64,
    /// The first key of each page.
    pages: Vec<AnswerKey>,
    /// Number of the next object to read.
    next: u32,
    objects: u32,
    /// The objects that are not there.
    pub(super) missing: Vec<u32>,
}

impl SnapshotIndex {
    /// An index of this many objects, of which none is read yet, in a file in `scratch`.
    pub(super) fn new(objects: u32, scratch: &Path) -> io::Result<Self> {
        let file = tempfile::tempfile_in(scratch)?;
        Ok(Self { file, records: 0, pages: Vec::new(), next: 0, objects, missing: Vec::new() })
    }

    /// Objects that are read, and all.
    pub(super) const fn progress(&self) -> (u32, u32) {
        (self.next, self.objects)
    }

    /// Reads further objects until `deadline`. Returns whether all are read.
    pub(super) fn read_until(
        &mut self,
        folder: &ObjectFolder,
        deadline: Instant,
    ) -> Result<bool, SnapshotError> {
        while self.next < self.objects {
            if Instant::now() >= deadline {
                return Ok(false);
            }
            match folder.read(&index_object(self.next), OBJECT_BYTES)? {
                Some(content) => self.append(&content)?,
                None => self.missing.push(self.next),
            }
            self.next += 1;
        }
        Ok(true)
    }

    /// Adds the whole records of an object.
    fn append(&mut self, content: &[u8]) -> Result<(), SnapshotError> {
        let (records, _) = content.as_chunks::<RECORD>();
        for record in records {
            if self.records.is_multiple_of(PAGE_RECORDS) {
                self.pages.push(split(record).0);
            }
            self.records += 1;
        }
        let sought = self.file.seek(SeekFrom::End(0));
        let written = sought.and_then(|_| self.file.write_all(records.as_flattened()));
        written.map_err(SnapshotError::IndexFile)
    }

    /// Where the answer with this key lies.
    pub(super) fn find(&mut self, key: AnswerKey) -> Result<Option<AnswerPlace>, SnapshotError> {
        let Some(page) = self.pages.partition_point(|first| *first <= key).checked_sub(1) else {
            return Ok(None);
        };
        let first = page as u64 * PAGE_RECORDS;
        let count = PAGE_RECORDS.min(self.records - first) as usize;
        let mut content = vec![0; count * RECORD];
        let sought = self.file.seek(SeekFrom::Start(first * RECORD as u64));
        let read = sought.and_then(|_| self.file.read_exact(&mut content));
        read.map_err(SnapshotError::IndexFile)?;
        let mut records = content.as_chunks::<RECORD>().0.iter().map(split);
        Ok(records.find(|(of, _)| *of == key).map(|(_, place)| place))
    }
}

fn split(record: &[u8; RECORD]) -> (AnswerKey, AnswerPlace) {
    let (mut key, mut place) = ([0; AnswerKey::LEN], [0; PLACE]);
    key.copy_from_slice(&record[..AnswerKey::LEN]);
    place.copy_from_slice(&record[AnswerKey::LEN..]);
    (AnswerKey(key), AnswerPlace::decode(place))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::AnswerKind;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use std::time::Duration;

    fn key(n: u32) -> AnswerKey {
        AnswerKey::new(AnswerKind::Chunk, &n.to_be_bytes())
    }

    fn place(n: u32) -> AnswerPlace {
        AnswerPlace { object: n / 7, offset: n, len: n ^ 5 }
    }

    fn opened(folder: &ObjectFolder, objects: u32, scratch: &Path) -> SnapshotIndex {
        let mut index = SnapshotIndex::new(objects, scratch).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        assert!(index.read_until(folder, deadline).unwrap());
        index
    }

    #[test]
    fn every_answer_is_found_and_no_other_one() {
        let scratch = tempfile::tempdir().unwrap();
        for count in [0u32, 1, 127, 128, 129, 300_000] {
            let folder = ObjectFolder::new(scratch.path().join(count.to_string()).into());
            let mut writer = IndexWriter::new(scratch.path());
            (0..count).for_each(|n| writer.put(key(n), place(n)).unwrap());
            let objects = writer.write(&folder).unwrap();
            assert_eq!(objects, count.div_ceil(OBJECT_RECORDS as u32));
            let mut index = opened(&folder, objects, scratch.path());
            for n in (0..count).step_by(1 + count as usize / 2000) {
                assert_eq!(index.find(key(n)).unwrap(), Some(place(n)));
            }
            assert_eq!(index.find(key(count)).unwrap(), None);
            assert_eq!(index.find(AnswerKey([0; 16])).unwrap(), None);
            assert_eq!(index.find(AnswerKey([0xff; 16])).unwrap(), None);
        }
    }

    /// Bytes of anyone are an index, too: it only finds less.
    #[test]
    fn an_index_of_any_bytes_is_read_without_a_failure() {
        let scratch = tempfile::tempdir().unwrap();
        let mut random = StdRng::seed_from_u64(6);
        for round in 0..300u32 {
            let folder = ObjectFolder::new(scratch.path().join(round.to_string()).into());
            let count = random.random_range(0..700);
            let mut writer = IndexWriter::new(scratch.path());
            (0..count).for_each(|n| writer.put(key(n), place(n)).unwrap());
            let objects = writer.write(&folder).unwrap();
            let mut bytes = folder.read(&index_object(0), 1 << 20).unwrap().unwrap_or_default();
            match round % 4 {
                0 => bytes.truncate(random.random_range(0..=bytes.len())),
                1 => bytes = (0..random.random_range(0..9_000)).map(|_| random.random()).collect(),
                2 => {
                    let middle = random.random_range(0..=bytes.len());
                    bytes.rotate_left(middle);
                }
                _ => bytes.iter_mut().step_by(97).for_each(|byte| *byte ^= random.random::<u8>()),
            }
            let is_whole = bytes.len() == count as usize * RECORD;
            folder.write(&index_object(0), bytes).unwrap();
            // Its manifest may claim more.
            let mut index = opened(&folder, objects + random.random_range(0..3), scratch.path());
            let found = (0..count).filter(|n| index.find(key(*n)).unwrap().is_some()).count();
            assert!(found <= count as usize && (is_whole || found < count as usize || count == 0));
        }
    }
}
