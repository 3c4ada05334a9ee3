//! The spool of state sync: checked answers on disk, so that neither a restart nor a later state asks
//! for them again.
//!
//! ```text
//!   file    = "RTSYNC02", records
//!   record  = id length (4, big-endian), answer length (4), kind (1), id, answer, checksum (8)
//! ```
//!
//! | kind | id, answer |
//! |---|---|
//! | 0, 1, 2 | of a chunk: a split; entries that name further chunks; entries that name none |
//! | 3 | the hash of a code, the code |
//! | 4 | the short name (16) of a chunk, nothing: all that is below the chunk is in the file |
//! | 5 | of a chunk: offset (8) and length (4) of an answer with leaves, then an answer with the leaves that differ below the chunk's slot, those that are gone without a value |
//! | 6 | the hash of a block whose state is wanted from here on, its number (8) |
//!
//! The checksum is the first 8 bytes of the keccak-256 of everything before it in the record. The
//! first record that is cut or has a wrong checksum ends the file. The reader checks each answer
//! again: the spool is trusted no more than a peer. Ids have hashes, so answers stay useful for later
//! states.

use crate::{
    answer::{AnswerKey, AnswerKind},
    format::StateFormat,
};
use alloy_primitives::{B256, Bytes, Keccak256, keccak256};
use retrie_state::{ChunkId, ChunkPlace, StateTrie, TrieLeaf, open_with_retry};
use std::{
    collections::HashMap,
    fs::{File, OpenOptions},
    io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

const MAGIC: &[u8; 8] = b"RTSYNC02";
/// Bytes of the lengths and the kind.
const HEAD: usize = 9;
const CHECKSUM: usize = 8;
/// Maximum bytes of an answer that is read back.
const MAX_ANSWER: u32 = 64 << 20;
const MAX_ID: u32 = 1 << 10;
/// Bytes that are buffered before they are written.
const BUFFER: usize = 1 << 20;

/// What a record has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum RecordKind {
    /// A chunk: a node that names chunks.
    Split = 0,
    /// A chunk: entries, which name further chunks.
    Entries = 1,
    /// A chunk: entries, which name no chunks.
    LastEntries = 2,
    /// A code.
    Code = 3,
    /// That everything below a chunk is in the file.
    Whole = 4,
    /// A chunk as the difference to an older answer.
    Difference = 5,
    /// The block whose state is wanted.
    State = 6,
}

impl RecordKind {
    const fn of(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Split,
            1 => Self::Entries,
            2 => Self::LastEntries,
            3 => Self::Code,
            4 => Self::Whole,
            5 => Self::Difference,
            6 => Self::State,
            _ => return None,
        })
    }
}

/// The spool file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{action} {} failed: {source}", path.display())]
pub struct SpoolError {
    /// What was attempted.
    pub action: &'static str,
    /// The file.
    pub path: PathBuf,
    /// The cause.
    pub source: io::Error,
}

/// Position of an answer in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SpoolPlace {
    pub(super) offset: u64,
    len: u32,
}

/// An answer of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SpoolEntry {
    place: SpoolPlace,
    is_difference: bool,
    /// Whether everything below is in the file too.
    pub(super) is_whole: bool,
}

/// The last answers for a slot of a trie, whatever the hash of what is below it.
#[derive(Clone, Copy, Debug, Default)]
struct SlotAnswers {
    leaves: Option<SpoolPlace>,
    /// Whether the last one was a node.
    is_node: bool,
}

/// What the file has for a slot of a trie from earlier states.
#[derive(Clone, Copy, Debug)]
pub(super) struct OlderAnswer {
    /// An answer with leaves, of the slot or of one above it.
    pub(super) leaves: Option<SpoolPlace>,
    /// Whether `leaves` is of this very slot.
    pub(super) is_own: bool,
    /// Whether the last answer for this very slot was a node.
    pub(super) is_node: bool,
}

/// The spool file. One process uses it at a time.
#[derive(Debug)]
pub(super) struct AnswerSpool {
    path: PathBuf,
    format: StateFormat,
    writer: BufWriter<File>,
    reader: File,
    end: u64,
    index: SpoolIndex,
}

#[derive(Debug, Default)]
struct SpoolIndex {
    /// Chunks and codes.
    answers: HashMap<AnswerKey, SpoolEntry>,
    /// By slots, if the format has them.
    slots: HashMap<AnswerKey, SlotAnswers>,
    /// The block whose state was wanted first.
    first_state: Option<(u64, B256)>,
    last_state: Option<B256>,
}

/// The short name of a slot.
fn slot_key(trie: StateTrie, path: &[u8]) -> AnswerKey {
    let slot = match trie {
        StateTrie::Accounts => path.to_vec(),
        StateTrie::Storage(account) => [account.as_slice(), path].concat(),
    };
    AnswerKey::new(AnswerKind::Chunk, &slot)
}

impl SpoolIndex {
    /// Adds a record; false if it cannot be one.
    fn add(
        &mut self,
        format: &StateFormat,
        kind: RecordKind,
        id: &[u8],
        place: SpoolPlace,
        answer: &[u8],
    ) -> bool {
        let mut entry = SpoolEntry { place, is_difference: false, is_whole: false };
        let key = match kind {
            RecordKind::Code => {
                let Ok(hash) = B256::try_from(id) else { return false };
                entry.is_whole = true;
                AnswerKey::new(AnswerKind::Code, hash.as_slice())
            }
            RecordKind::Whole => {
                let Ok(key) = <[u8; AnswerKey::LEN]>::try_from(id).map(AnswerKey) else {
                    return false;
                };
                if let Some(entry) = self.answers.get_mut(&key) {
                    entry.is_whole = true;
                }
                return true;
            }
            RecordKind::State => {
                let (Ok(hash), Ok(number)) = (B256::try_from(id), answer.try_into()) else {
                    return false;
                };
                self.first_state.get_or_insert_with(|| (u64::from_be_bytes(number), hash));
                self.last_state = Some(hash);
                return true;
            }
            RecordKind::Split
            | RecordKind::Entries
            | RecordKind::LastEntries
            | RecordKind::Difference => {
                let Some(id) = ChunkId::new(id.to_vec()) else { return false };
                entry.is_whole = kind == RecordKind::LastEntries;
                entry.is_difference = kind == RecordKind::Difference;
                if !entry.is_difference
                    && let Some(ChunkPlace { trie, path, .. }) = format.place(&id)
                {
                    let of_slot = self.slots.entry(slot_key(trie, &path)).or_default();
                    of_slot.is_node = kind == RecordKind::Split;
                    if !of_slot.is_node {
                        of_slot.leaves = Some(place);
                    }
                }
                AnswerKey::of_chunk(&id)
            }
        };
        self.answers.insert(key, entry);
        true
    }
}

impl AnswerSpool {
    /// Opens or creates the file at `path`, and cuts off damaged records. Its chunks are of `format`.
    pub(super) fn open(path: &Path, format: StateFormat) -> Result<Self, SpoolError> {
        let failed = |action| {
            let path = path.to_owned();
            move |source| SpoolError { action, path, source }
        };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = open_with_retry(|| options.open(path)).map_err(failed("opening"))?;
        file.try_lock().map_err(|error| failed("locking")(error.into()))?;
        let mut index = SpoolIndex::default();
        let end = scan(&file, &format, &mut index).map_err(failed("reading"))?;
        file.set_len(end).map_err(failed("cutting"))?;
        file.seek(SeekFrom::Start(end)).map_err(failed("reading"))?;
        let reader = open_with_retry(|| File::open(path)).map_err(failed("opening"))?;
        let mut spool = Self {
            path: path.to_owned(),
            format,
            writer: BufWriter::with_capacity(BUFFER, file),
            reader,
            end,
            index,
        };
        if end == 0 {
            spool.writer.write_all(MAGIC).map_err(failed("writing"))?;
            spool.end = MAGIC.len() as u64;
        }
        Ok(spool)
    }

    /// The path of the file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Number of answers in the file.
    pub(super) fn len(&self) -> usize {
        self.index.answers.len()
    }

    /// The block whose state was wanted first, and its number.
    pub(super) const fn first_state(&self) -> Option<(u64, B256)> {
        self.index.first_state
    }

    /// Records that the state of this block is wanted from now on.
    pub(super) fn begin_state(&mut self, number: u64, block: B256) -> Result<(), SpoolError> {
        if self.index.last_state == Some(block) {
            return Ok(());
        }
        self.put(RecordKind::State, block.as_slice(), &[&number.to_be_bytes()])
    }

    /// The answer for a chunk.
    pub(super) fn chunk(&self, id: &ChunkId) -> Option<SpoolEntry> {
        self.index.answers.get(&AnswerKey::of_chunk(id)).copied()
    }

    /// Whether a code is in the file.
    pub(super) fn has_code(&self, hash: &B256) -> bool {
        self.index.answers.contains_key(&AnswerKey::new(AnswerKind::Code, hash.as_slice()))
    }

    /// Bytes of a code; 0 if it is not in the file.
    pub(super) fn code_bytes(&self, hash: &B256) -> u64 {
        let entry = self.index.answers.get(&AnswerKey::new(AnswerKind::Code, hash.as_slice()));
        entry.map_or(0, |entry| u64::from(entry.place.len))
    }

    /// What earlier states had at a slot.
    pub(super) fn older(&self, place: &ChunkPlace) -> OlderAnswer {
        let at = |len: usize| self.index.slots.get(&slot_key(place.trie, &place.path[..len]));
        let own = at(place.path.len()).copied().unwrap_or_default();
        let above = || (0..place.path.len()).rev().find_map(|len| at(len)?.leaves);
        OlderAnswer {
            leaves: own.leaves.or_else(above),
            is_own: own.leaves.is_some(),
            is_node: own.is_node,
        }
    }

    /// Adds a checked answer for a chunk.
    pub(super) fn put_chunk(
        &mut self,
        kind: RecordKind,
        id: &ChunkId,
        answer: &[u8],
    ) -> Result<(), SpoolError> {
        self.put(kind, id.bytes(), &[answer])
    }

    /// Adds a code.
    pub(super) fn put_code(&mut self, hash: &B256, code: &[u8]) -> Result<(), SpoolError> {
        self.put(RecordKind::Code, hash.as_slice(), &[code])
    }

    /// Adds a chunk as what differs from an older answer below its slot.
    pub(super) fn put_difference(
        &mut self,
        id: &ChunkId,
        base: SpoolPlace,
        changed: &[u8],
    ) -> Result<(), SpoolError> {
        let (offset, len) = (base.offset.to_be_bytes(), base.len.to_be_bytes());
        self.put(RecordKind::Difference, id.bytes(), &[&offset, &len, changed])
    }

    /// Records that everything below a chunk is in the file.
    pub(super) fn put_whole(&mut self, chunk: AnswerKey) -> Result<(), SpoolError> {
        match self.index.answers.get(&chunk) {
            Some(entry) if !entry.is_whole => self.put(RecordKind::Whole, &chunk.0, &[]),
            _ => Ok(()),
        }
    }

    fn put(&mut self, kind: RecordKind, id: &[u8], answer: &[&[u8]]) -> Result<(), SpoolError> {
        let len: usize = answer.iter().map(|part| part.len()).sum();
        let mut head = [0; HEAD];
        head[..4].copy_from_slice(&(id.len() as u32).to_be_bytes());
        head[4..8].copy_from_slice(&(len as u32).to_be_bytes());
        head[8] = kind as u8;
        let mut parts = vec![&head[..], id];
        parts.extend(answer);
        let sum = checksum(&parts);
        parts.push(&sum);
        for part in parts {
            self.writer.write_all(part).map_err(|source| self.failed("writing", source))?;
        }
        let place = SpoolPlace { offset: self.end + (HEAD + id.len()) as u64, len: len as u32 };
        self.end = place.offset + (len + CHECKSUM) as u64;
        let Self { index, format, .. } = self;
        // Only records that are read by their kind need their answers here.
        index.add(format, kind, id, place, answer.first().copied().unwrap_or_default());
        Ok(())
    }

    /// Removes an invalid answer from the index. What was above it is not whole.
    pub(super) fn forget(&mut self, id: &ChunkId) {
        self.index.answers.remove(&AnswerKey::of_chunk(id));
        self.index.answers.values_mut().for_each(|entry| entry.is_whole = false);
    }

    /// Writes the buffered bytes to the file.
    pub(super) fn flush(&mut self) -> Result<(), SpoolError> {
        self.writer.flush().map_err(|source| self.failed("writing", source))
    }

    /// Reads an answer for a chunk.
    pub(super) fn answer(&mut self, id: &ChunkId, entry: SpoolEntry) -> Result<Bytes, SpoolError> {
        let answer = self.read(entry.place)?;
        if !entry.is_difference {
            return Ok(answer);
        }
        // What cannot be put together is empty, which is no answer to any id.
        let Some((base, changed)) = split_difference(&answer) else { return Ok(Bytes::new()) };
        let base = self.leaves(base)?;
        let (Some(base), Some(place)) = (base, self.format.place(id)) else {
            return Ok(Bytes::new());
        };
        let changed = self.format.unpack_leaves(changed).unwrap_or_default();
        Ok(self.format.pack_leaves(&merged(below(&base, &place), &changed)))
    }

    /// The leaves of an answer; `None` if it has none.
    pub(super) fn leaves(&mut self, at: SpoolPlace) -> Result<Option<Vec<TrieLeaf>>, SpoolError> {
        if at.offset + u64::from(at.len) > self.end {
            return Ok(None);
        }
        let answer = self.read(at)?;
        Ok(self.format.unpack_leaves(&answer))
    }

    fn read(&mut self, place: SpoolPlace) -> Result<Bytes, SpoolError> {
        self.flush()?;
        let mut answer = vec![0; place.len as usize];
        let sought = self.reader.seek(SeekFrom::Start(place.offset));
        sought
            .and_then(|_| self.reader.read_exact(&mut answer))
            .map_err(|source| self.failed("reading", source))?;
        Ok(answer.into())
    }

    /// The code with this hash, if it is in the file and undamaged.
    pub(super) fn code(&mut self, hash: &B256) -> Result<Option<Bytes>, SpoolError> {
        let Some(entry) =
            self.index.answers.get(&AnswerKey::new(AnswerKind::Code, hash.as_slice())).copied()
        else {
            return Ok(None);
        };
        Ok(Some(self.read(entry.place)?).filter(|code| keccak256(code) == *hash))
    }

    fn failed(&self, action: &'static str, source: io::Error) -> SpoolError {
        SpoolError { action, path: self.path.clone(), source }
    }
}

/// The leaves at a place, of leaves in order.
pub(super) fn below<'a>(leaves: &'a [TrieLeaf], place: &ChunkPlace) -> &'a [TrieLeaf] {
    let start = leaves.partition_point(|leaf| leaf.key < *place.keys.start());
    let end = leaves.partition_point(|leaf| leaf.key <= *place.keys.end());
    leaves.get(start..end).unwrap_or_default()
}

/// What differs between leaves in order: the leaves of `new` that `old` does not have, and the leaves
/// that are gone, with an empty value.
pub(super) fn difference(old: &[TrieLeaf], new: &[TrieLeaf]) -> Vec<TrieLeaf> {
    let mut changed = Vec::new();
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    loop {
        match (old.peek(), new.peek()) {
            (None, None) => return changed,
            (Some(left), Some(right)) if left.key == right.key => {
                if left.value != right.value {
                    changed.push((*right).clone());
                }
                old.next();
                new.next();
            }
            (Some(left), right) if right.is_none_or(|right| left.key < right.key) => {
                changed.push(TrieLeaf { key: left.key, value: Bytes::new() });
                old.next();
            }
            (_, Some(right)) => {
                changed.push((*right).clone());
                new.next();
            }
            (Some(_), None) => return changed,
        }
    }
}

/// Leaves after a [`difference`].
fn merged(old: &[TrieLeaf], changed: &[TrieLeaf]) -> Vec<TrieLeaf> {
    let mut all = Vec::with_capacity(old.len() + changed.len());
    let mut rest = old;
    for leaf in changed {
        let before = rest.partition_point(|old| old.key < leaf.key);
        all.extend_from_slice(&rest[..before]);
        rest = &rest[before..];
        if rest.first().is_some_and(|old| old.key == leaf.key) {
            rest = &rest[1..];
        }
        if !leaf.value.is_empty() {
            all.push(leaf.clone());
        }
    }
    all.extend_from_slice(rest);
    all
}

fn split_difference(answer: &[u8]) -> Option<(SpoolPlace, &[u8])> {
    let (offset, rest) = answer.split_first_chunk::<8>()?;
    let (len, changed) = rest.split_first_chunk::<4>()?;
    let (offset, len) = (u64::from_be_bytes(*offset), u32::from_be_bytes(*len));
    (len <= MAX_ANSWER).then_some((SpoolPlace { offset, len }, changed))
}

fn checksum(parts: &[&[u8]]) -> [u8; CHECKSUM] {
    let mut hasher = Keccak256::new();
    parts.iter().for_each(|part| hasher.update(part));
    let mut sum = [0; CHECKSUM];
    sum.copy_from_slice(&hasher.finalize()[..CHECKSUM]);
    sum
}

/// Fills the index. Returns the end of the last whole record.
fn scan(file: &File, format: &StateFormat, index: &mut SpoolIndex) -> io::Result<u64> {
    let len = file.metadata()?.len();
    let mut reader = BufReader::with_capacity(BUFFER, file);
    let mut magic = [0; MAGIC.len()];
    if len < MAGIC.len() as u64 {
        return Ok(0);
    }
    reader.read_exact(&mut magic)?;
    if magic != *MAGIC {
        return Ok(0);
    }
    let mut end = MAGIC.len() as u64;
    let mut rest = Vec::new();
    loop {
        let mut head = [0; HEAD];
        if len - end < (HEAD + CHECKSUM) as u64 {
            return Ok(end);
        }
        reader.read_exact(&mut head)?;
        let [a, b, c, d, e, f, g, h, kind] = head;
        let (id, answer) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
        let body = u64::from(id) + u64::from(answer);
        let is_cut = len - end < body + (HEAD + CHECKSUM) as u64;
        let Some(kind) = RecordKind::of(kind) else { return Ok(end) };
        if id > MAX_ID || answer > MAX_ANSWER || is_cut {
            return Ok(end);
        }
        rest.resize(body as usize + CHECKSUM, 0);
        reader.read_exact(&mut rest)?;
        let (body, sum) = rest.split_at(body as usize);
        let place = SpoolPlace { offset: end + HEAD as u64 + u64::from(id), len: answer };
        let (id, answer) = body.split_at(id as usize);
        if sum != checksum(&[&head, body]) || !index.add(format, kind, id, place, answer) {
            return Ok(end);
        }
        end = place.offset + u64::from(place.len) + CHECKSUM as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use retrie_state::AnyBackend;
    use retrie_storage_mpt::Mpt;
    use std::sync::Arc;

    fn format() -> StateFormat {
        StateFormat::Chunks(Arc::new(Mpt::new()) as Arc<dyn AnyBackend>)
    }

    fn id(byte: u8) -> ChunkId {
        ChunkId::new(vec![byte; 40]).unwrap()
    }

    #[test]
    fn a_spool_that_is_cut_or_damaged_keeps_what_is_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("answers");
        let mut spool = AnswerSpool::open(&path, format()).unwrap();
        for n in 0..10u8 {
            let answer = vec![n; 1000 + usize::from(n)];
            spool.put_chunk(RecordKind::Entries, &id(n), &answer).unwrap();
        }
        spool.put_code(&B256::repeat_byte(3), b"code").unwrap();
        assert!(AnswerSpool::open(&path, format()).is_err(), "one process at a time");
        drop(spool);
        let whole = std::fs::read(&path).unwrap();
        for (cut, left) in [(whole.len(), 11), (whole.len() - 1, 10), (1500, 1), (5, 0), (0, 0)] {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let mut spool = AnswerSpool::open(&path, format()).unwrap();
            assert_eq!(spool.len(), left, "cut at {cut}");
            if let Some(entry) = spool.chunk(&id(0)) {
                assert_eq!(spool.answer(&id(0), entry).unwrap(), vec![0; 1000]);
            }
            assert_eq!(spool.chunk(&id(77)), None);
            spool.put_chunk(RecordKind::Split, &id(99), b"more").unwrap();
            drop(spool);
            let mut spool = AnswerSpool::open(&path, format()).unwrap();
            let entry = spool.chunk(&id(99)).unwrap();
            assert_eq!(spool.answer(&id(99), entry).unwrap()[..], b"more"[..]);
        }
        let mut damaged = whole;
        damaged[2500] ^= 1;
        std::fs::write(&path, &damaged).unwrap();
        assert_eq!(AnswerSpool::open(&path, format()).unwrap().len(), 2);
        std::fs::write(&path, b"something else").unwrap();
        assert_eq!(AnswerSpool::open(&path, format()).unwrap().len(), 0);
    }

    #[test]
    fn a_spool_remembers_what_is_whole_and_which_state_came_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("answers");
        let mut spool = AnswerSpool::open(&path, format()).unwrap();
        let block = B256::repeat_byte;
        for (number, hash) in [(7, block(7)), (7, block(7)), (9, block(9))] {
            spool.begin_state(number, hash).unwrap();
        }
        spool.put_chunk(RecordKind::Split, &id(1), b"node").unwrap();
        spool.put_chunk(RecordKind::LastEntries, &id(2), b"leaves").unwrap();
        let is_whole = |spool: &AnswerSpool, byte| spool.chunk(&id(byte)).unwrap().is_whole;
        assert!(!is_whole(&spool, 1) && is_whole(&spool, 2));
        spool.put_whole(AnswerKey::of_chunk(&id(1))).unwrap();
        spool.put_whole(AnswerKey::of_chunk(&id(3))).unwrap();
        drop(spool);
        let mut spool = AnswerSpool::open(&path, format()).unwrap();
        assert_eq!(spool.first_state(), Some((7, block(7))));
        assert!(is_whole(&spool, 1) && is_whole(&spool, 2));
        spool.forget(&id(2));
        assert!(!is_whole(&spool, 1));
        assert_eq!(spool.chunk(&id(2)), None);
    }

    #[test]
    fn a_difference_gives_the_new_leaves() {
        let leaf = |byte: u8, value: u8| TrieLeaf {
            key: B256::repeat_byte(byte),
            value: Bytes::from(vec![value]),
        };
        let old = [leaf(1, 1), leaf(2, 2), leaf(4, 4), leaf(6, 6)];
        let new = [leaf(0, 9), leaf(2, 2), leaf(4, 5), leaf(5, 5), leaf(7, 7)];
        for (old, new) in [(&old[..], &new[..]), (&[], &new), (&old, &[]), (&old, &old)] {
            let changed = difference(old, new);
            assert_eq!(merged(old, &changed), new);
        }
        assert!(difference(&old, &old).is_empty());
        assert_eq!(difference(&old, &new).len(), 6);
    }
}
