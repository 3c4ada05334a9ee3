//! The file of the version trees of a run: of each key with several versions how many pairs it has in
//! the value file, and its tree. It also takes positions of pairs to numbers of keys, and back: the
//! keys between two records have one pair each.

use super::{
    description::VersionExtent,
    file::{PAYLOAD, PageWriter, PagedFile},
};
use retrie_state::{
    StateError,
    wire::{WireReader, put_varint},
};

/// Header of a page: number of the key of the first record that begins in it, position of that key's
/// first pair, where the record begins in the page; or of the record that continues, and zero.
const HEADER: usize = 18;
/// Bytes of records in a page.
const ROOM: usize = PAYLOAD - HEADER;

/// The number of pages for `bytes` bytes of records.
pub(super) const fn pages(bytes: u64) -> u64 {
    match bytes.div_ceil(ROOM as u64) {
        0 => 1,
        pages => pages,
    }
}

/// Writes the file.
#[derive(Debug)]
pub(super) struct VersionWriter {
    out: PageWriter,
    /// The records of the page so far, and the header.
    page: Vec<u8>,
    head: Option<(u64, u64, u16)>,
    /// The last record.
    last: Option<(u64, u64)>,
    trees: u64,
    bytes: u64,
    record: Vec<u8>,
}

impl VersionWriter {
    /// An empty file.
    pub(super) const fn new(out: PageWriter) -> Self {
        let page = Vec::new();
        Self { out, page, head: None, last: None, trees: 0, bytes: 0, record: Vec::new() }
    }

    /// Adds the tree of key number `key`, with `pairs` pairs from position `position` on.
    pub(super) fn push(
        &mut self,
        key: u64,
        position: u64,
        pairs: u64,
        tree: &[u8],
    ) -> Result<(), StateError> {
        let mut record = std::mem::take(&mut self.record);
        record.clear();
        put_varint(&mut record, key - self.last.map_or(0, |(last, _)| last + 1));
        put_varint(&mut record, pairs);
        put_varint(&mut record, tree.len() as u64);
        record.extend_from_slice(tree);
        let start = (HEADER + self.page.len()) as u16;
        self.head = self.head.or(Some((key, position, start)));
        self.last = Some((key, position));
        (self.trees, self.bytes) = (self.trees + 1, self.bytes + record.len() as u64);
        let mut rest = &record[..];
        while !rest.is_empty() {
            let (part, behind) = rest.split_at(rest.len().min(ROOM - self.page.len()));
            self.page.extend_from_slice(part);
            rest = behind;
            if self.page.len() == ROOM {
                self.end_page()?;
            }
        }
        self.record = record;
        Ok(())
    }

    fn end_page(&mut self) -> Result<(), StateError> {
        let (last, position) = self.last.unwrap_or_default();
        let (key, position, start) = self.head.take().unwrap_or((last, position, 0));
        let mut payload = Vec::with_capacity(PAYLOAD);
        payload.extend_from_slice(&key.to_be_bytes());
        payload.extend_from_slice(&position.to_be_bytes());
        payload.extend_from_slice(&start.to_be_bytes());
        payload.append(&mut self.page);
        self.out.append(&payload)
    }

    /// Writes the rest. Returns the file and its extent; `pairs` is the number of stored pairs.
    pub(super) fn finish(mut self, pairs: u64) -> Result<(PageWriter, VersionExtent), StateError> {
        if !self.page.is_empty() || self.out.pages() == 0 {
            self.end_page()?;
        }
        let extent = VersionExtent { pairs, trees: self.trees, bytes: self.bytes };
        Ok((self.out, extent))
    }
}

/// Reads the file.
#[derive(Debug)]
pub(super) struct VersionFile {
    pub(super) file: PagedFile,
    bytes: u64,
}

/// A key of a run.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct KeyEntry {
    /// The number of keys before it.
    pub(super) number: u64,
    /// The position of its first pair.
    pub(super) position: u64,
    /// The number of its pairs.
    pub(super) pairs: u64,
    /// Its version tree, if it has several versions.
    pub(super) tree: Option<Vec<u8>>,
}

/// A record, without its tree.
#[derive(Clone, Copy, Debug)]
struct RecordHead {
    key: u64,
    position: u64,
    pairs: u64,
    /// Where its tree begins among the bytes of all records.
    tree: u64,
    len: u64,
}

impl VersionFile {
    /// Reads `file`, which has `bytes` bytes of records.
    pub(super) const fn new(file: PagedFile, bytes: u64) -> Self {
        Self { file, bytes }
    }

    /// All keys from number `key` on, without end. Those behind the last one of the run are of no
    /// meaning.
    pub(super) fn entries(&self, key: u64) -> Result<EntryWalk<'_>, StateError> {
        let mut walk = EntryWalk { file: self, number: key, position: key, next: None, at: 0 };
        match self.last_record(|of, _| of > key)? {
            Some(head) if head.key == key => {
                (walk.position, walk.next) = (head.position, Some(head))
            }
            Some(head) => {
                let between = key - head.key - 1;
                walk.position = head.position.saturating_add(head.pairs).saturating_add(between);
                walk.next = self.record_behind(&head)?;
            }
            None => walk.next = self.first_record()?,
        }
        Ok(walk)
    }

    /// The number of the key of the pair at `position`.
    pub(super) fn key_at(&self, position: u64) -> Result<u64, StateError> {
        Ok(match self.last_record(|_, first| first > position)? {
            Some(head) if position - head.position < head.pairs => head.key,
            Some(head) => {
                let behind = position - head.position - head.pairs;
                head.key.saturating_add(1).saturating_add(behind)
            }
            None => position,
        })
    }

    /// The last record that `is_after` (of its key's number and its position) does not hold of.
    fn last_record(
        &self,
        is_after: impl Fn(u64, u64) -> bool,
    ) -> Result<Option<RecordHead>, StateError> {
        let (mut low, mut high) = (0, if self.bytes == 0 { 0 } else { self.file.pages() });
        while low < high {
            let middle = low + (high - low) / 2;
            let (key, position, _) = self.header(middle)?;
            match is_after(key, position) {
                true => high = middle,
                false => low = middle + 1,
            }
        }
        let Some(mut page) = low.checked_sub(1) else { return Ok(None) };
        let (key, position, start) = loop {
            match (self.header(page)?, page.checked_sub(1)) {
                ((.., 0), Some(before)) => page = before,
                ((.., 0), None) => return Err(self.malformed(page)),
                (header, _) => break header,
            }
        };
        let start = usize::from(start).checked_sub(HEADER).ok_or_else(|| self.malformed(page))?;
        let at = page * ROOM as u64 + start as u64;
        // The record says how far its key is from the one before; the header says which key it is.
        let mut found = self.record(at, 0, 0)?.ok_or_else(|| self.malformed(page))?;
        (found.key, found.position) = (key, position);
        while let Some(next) = self.record_behind(&found)? {
            if is_after(next.key, next.position) {
                break;
            }
            found = next;
        }
        Ok(Some(found))
    }

    /// Fails if the header of a page is not the one that the records give.
    pub(super) fn check_headers(&self) -> Result<(), StateError> {
        // The next page, where the next record begins, and the last record before it.
        let (mut page, mut at, mut last) = (0, 0, None);
        let expect = |page: u64, header: (u64, u64, u16)| match self.header(page)? == header {
            true => Ok(()),
            false => Err(self.file.corrupt(page, "its header does not fit its records")),
        };
        let place = |last: Option<RecordHead>| last.map_or((0, 0), |of| (of.key, of.position));
        loop {
            let next = match &last {
                None => self.first_record()?,
                Some(last) => self.record_behind(last)?,
            };
            let end = if next.is_some() { at / ROOM as u64 } else { self.file.pages() };
            while page < end {
                let (key, position) = place(last);
                expect(page, (key, position, 0))?;
                page += 1;
            }
            let Some(head) = next else { return Ok(()) };
            if page == end {
                let start = HEADER as u16 + (at % ROOM as u64) as u16;
                expect(page, (head.key, head.position, start))?;
                page += 1;
            }
            (at, last) = (head.tree + head.len, Some(head));
        }
    }

    fn first_record(&self) -> Result<Option<RecordHead>, StateError> {
        self.record(0, 0, 0)
    }

    fn record_behind(&self, head: &RecordHead) -> Result<Option<RecordHead>, StateError> {
        let (key, position) = (head.key.checked_add(1), head.position.checked_add(head.pairs));
        let (Some(key), Some(position)) = (key, position) else {
            return Err(self.malformed(head.tree / ROOM as u64));
        };
        self.record(head.tree + head.len, key, position)
    }

    /// The record at `at`, behind which `key` is the next key and `position` its position. `None` at
    /// the end.
    fn record(&self, at: u64, key: u64, position: u64) -> Result<Option<RecordHead>, StateError> {
        if at >= self.bytes {
            return Ok(None);
        }
        // Three numbers.
        let mut bytes = [0; 30];
        let bytes = &mut bytes[..(self.bytes - at).min(30) as usize];
        self.read(at, bytes)?;
        let mut reader = WireReader::new(bytes);
        let mut number = || reader.varint().ok();
        let numbers = number().zip(number()).zip(number());
        let head = numbers.and_then(|((gap, pairs), len)| {
            let tree = at + (bytes.len() - reader.rest().len()) as u64;
            let is_sound = pairs > 0 && len <= self.bytes.checked_sub(tree)?;
            let (key, position) = (key.checked_add(gap)?, position.checked_add(gap)?);
            is_sound.then_some(RecordHead { key, position, pairs, tree, len })
        });
        head.map(Some).ok_or_else(|| self.malformed(at / ROOM as u64))
    }

    fn tree(&self, head: &RecordHead) -> Result<Vec<u8>, StateError> {
        let mut tree = vec![0; head.len as usize];
        self.read(head.tree, &mut tree)?;
        Ok(tree)
    }

    /// Fills `bytes` with bytes of records from `at` on.
    fn read(&self, at: u64, mut bytes: &mut [u8]) -> Result<(), StateError> {
        let (mut page, mut start) = (at / ROOM as u64, (at % ROOM as u64) as usize);
        while !bytes.is_empty() {
            let (part, rest) = bytes.split_at_mut(bytes.len().min(ROOM - start));
            part.copy_from_slice(&self.file.page(page)?[HEADER + start..][..part.len()]);
            (bytes, page, start) = (rest, page + 1, 0);
        }
        Ok(())
    }

    fn header(&self, page: u64) -> Result<(u64, u64, u16), StateError> {
        let mut reader = WireReader::new(self.file.page(page)?);
        match (reader.u64(), reader.u64(), reader.u16()) {
            (Ok(key), Ok(position), Ok(start)) => Ok((key, position, start)),
            _ => Err(self.malformed(page)),
        }
    }

    fn malformed(&self, page: u64) -> StateError {
        self.file.corrupt(page, "its records are malformed")
    }

    /// The error of a tree that cannot be read, or does not fit.
    pub(super) fn wrong_tree(&self, key: u64) -> StateError {
        self.file.wrong(format!("the version tree of key {key} is malformed"))
    }
}

/// A walk over the keys of a run.
#[derive(Debug)]
pub(super) struct EntryWalk<'a> {
    file: &'a VersionFile,
    number: u64,
    position: u64,
    /// The next record.
    next: Option<RecordHead>,
    /// The number of records passed.
    at: u64,
}

impl EntryWalk<'_> {
    /// The next key.
    pub(super) fn next(&mut self) -> Result<KeyEntry, StateError> {
        let (number, position) = (self.number, self.position);
        let mut entry = KeyEntry { number, position, pairs: 1, tree: None };
        if let Some(head) = self.next.take_if(|head| head.key == number) {
            if head.position != position {
                return Err(self.file.wrong_tree(number));
            }
            (entry.pairs, entry.tree) = (head.pairs, Some(self.file.tree(&head)?));
            self.next = self.file.record_behind(&head)?;
            self.at += 1;
        }
        let behind = position.checked_add(entry.pairs).ok_or_else(|| self.file.wrong_tree(number));
        (self.number, self.position) = (number + 1, behind?);
        Ok(entry)
    }

    /// The number of records that it has passed, and whether there is another one.
    pub(super) const fn records(&self) -> (u64, bool) {
        (self.at, self.next.is_some())
    }
}
