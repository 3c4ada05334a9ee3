//! Sorts keys by their hashes, in bounded memory, and keeps them on disk.

use crate::TrieHash;
use alloy_primitives::B256;
use alloy_trie::Nibbles;
use retrie_state::{StateError, StoreError, open_with_retry};
use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
    fs::File,
    io,
    ops::Range,
    os::unix::fs::FileExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// Records between two fences. A search reads one such block.
const BLOCK_RECORDS: u64 = if cfg!(test) { 16 } else { 512 };
/// Records of a piece: this many are sorted in memory at once.
const PIECE_RECORDS: usize = 1 << 19;
/// Bytes that are read or written at once.
const BUFFER: usize = 64 << 10;
/// Bytes of the key's hash at the head of a record.
const HEAD: usize = 8;

/// A nameless file to which sorted keys are appended. The system deletes it when the last
/// [`KeyOrder`] in it is dropped, or when the process ends.
#[derive(Debug)]
pub(super) struct ScratchFile {
    file: File,
    end: AtomicU64,
}

impl ScratchFile {
    /// Makes a file in the folder `dir`, or in the system's folder for temporary files.
    ///
    /// # Errors
    /// If the folder takes no files.
    pub(super) fn new(dir: Option<&Path>) -> Result<Self, StateError> {
        let made = open_with_retry(|| match dir {
            Some(dir) => tempfile::tempfile_in(dir),
            None => tempfile::tempfile(),
        });
        let file = made.map_err(|error| {
            let folder = dir.map_or_else(std::env::temp_dir, Path::to_owned);
            StoreError::new(format!("making a file to sort keys in {}", folder.display()), error)
        })?;
        Ok(Self { file, end: AtomicU64::new(0) })
    }

    /// Number of bytes in use.
    pub(super) fn len(&self) -> u64 {
        self.end.load(Relaxed)
    }
}

fn failed(error: io::Error) -> StateError {
    StoreError::new("sorting keys on disk", error).into()
}

/// A key with the first bytes of its hash.
#[derive(Clone, Copy, Debug)]
struct KeyRecord<const N: usize> {
    head: u64,
    key: [u8; N],
}

impl<const N: usize> KeyRecord<N> {
    const LEN: usize = HEAD + N;

    fn new(with: TrieHash, key: [u8; N]) -> Self {
        Self { head: head(&with.hash(key)), key }
    }

    /// Compares the hashes. The whole hash is computed only if the first bytes are equal.
    fn order(&self, other: &Self, with: TrieHash) -> Ordering {
        let heads = self.head.cmp(&other.head);
        heads.then_with(|| with.hash(self.key).cmp(&with.hash(other.key)))
    }

    /// Whether its hash is below `bound`.
    fn is_below(&self, bound: &B256, with: TrieHash) -> bool {
        match self.head.cmp(&head(bound)) {
            Ordering::Less => true,
            Ordering::Equal => with.hash(self.key) < *bound,
            Ordering::Greater => false,
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.head.to_be_bytes());
        out.extend_from_slice(&self.key);
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let (head, key) = bytes.split_first_chunk::<HEAD>()?;
        Some(Self { head: u64::from_be_bytes(*head), key: key.try_into().ok()? })
    }
}

fn head(hash: &B256) -> u64 {
    hash.first_chunk().copied().map_or(0, u64::from_be_bytes)
}

/// Sorts keys that come in any order. At most [`PIECE_RECORDS`] of them are in memory.
pub(super) struct KeySorter<const N: usize> {
    with: TrieHash,
    piece: Vec<KeyRecord<N>>,
    most: usize,
    /// Sorted pieces, one after the other.
    spilled: Option<ScratchFile>,
    /// Number of records of each sorted piece.
    lens: Vec<u64>,
}

impl<const N: usize> KeySorter<N> {
    pub(super) const fn new(with: TrieHash) -> Self {
        Self::with_pieces_of(with, PIECE_RECORDS)
    }

    const fn with_pieces_of(with: TrieHash, most: usize) -> Self {
        Self { with, piece: Vec::new(), most, spilled: None, lens: Vec::new() }
    }

    /// Adds a key. Pieces that do not fit into memory go to a file in `dir`.
    pub(super) fn put(&mut self, key: [u8; N], dir: Option<&Path>) -> Result<(), StateError> {
        if self.piece.len() >= self.most {
            self.spill(dir)?;
        }
        self.piece.push(KeyRecord::new(self.with, key));
        Ok(())
    }

    fn sort(&mut self) {
        let with = self.with;
        self.piece.sort_unstable_by(|a, b| a.order(b, with));
    }

    fn spill(&mut self, dir: Option<&Path>) -> Result<(), StateError> {
        self.sort();
        let runs = match &mut self.spilled {
            Some(runs) => runs,
            none => none.insert(ScratchFile::new(dir)?),
        };
        let mut out = RecordWriter::new(runs, self.piece.len() as u64 * KeyRecord::<N>::LEN as u64);
        for record in &self.piece {
            out.put(record)?;
        }
        out.flush()?;
        self.lens.push(self.piece.len() as u64);
        self.piece.clear();
        Ok(())
    }

    /// Appends all keys in order to `scratch`. Calls `go_on` regularly; its error ends the sort.
    ///
    /// # Errors
    /// If files cannot be written, and errors of `go_on`.
    pub(super) fn finish(
        mut self,
        scratch: Arc<ScratchFile>,
        dir: Option<&Path>,
        go_on: &dyn Fn() -> Result<(), StateError>,
    ) -> Result<KeyOrder<N>, StateError> {
        let with = self.with;
        if self.spilled.is_some() && !self.piece.is_empty() {
            self.spill(dir)?;
        }
        self.sort();
        let len = self.lens.iter().sum::<u64>() + self.piece.len() as u64;
        let mut out = RecordWriter::new(&scratch, len * KeyRecord::<N>::LEN as u64);
        let (start, mut fences) = (out.at, Vec::with_capacity((len / BLOCK_RECORDS) as usize + 1));
        let mut put = |at: u64, record: &KeyRecord<N>| {
            if at.is_multiple_of(BLOCK_RECORDS) {
                fences.push(record.head);
                go_on()?;
            }
            out.put(record)
        };
        match &self.spilled {
            None => {
                for (at, record) in (0..).zip(&self.piece) {
                    put(at, record)?;
                }
            }
            Some(runs) => {
                let mut merge = PieceMerge::new(with, runs, &self.lens)?;
                let mut at = 0;
                while let Some(record) = merge.next()? {
                    put(at, &record)?;
                    at += 1;
                }
            }
        }
        out.flush()?;
        Ok(KeyOrder { with, scratch, start, len, fences })
    }
}

/// Writes records into a reserved part of a file.
struct RecordWriter<'a> {
    scratch: &'a ScratchFile,
    at: u64,
    buffer: Vec<u8>,
}

impl<'a> RecordWriter<'a> {
    fn new(scratch: &'a ScratchFile, bytes: u64) -> Self {
        let at = scratch.end.fetch_add(bytes, Relaxed);
        Self { scratch, at, buffer: Vec::with_capacity(BUFFER) }
    }

    fn put<const N: usize>(&mut self, record: &KeyRecord<N>) -> Result<(), StateError> {
        record.put(&mut self.buffer);
        if self.buffer.len() + KeyRecord::<N>::LEN > BUFFER { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), StateError> {
        self.scratch.file.write_all_at(&self.buffer, self.at).map_err(failed)?;
        self.at += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

/// Reads one sorted piece from its front.
struct SortedPiece<const N: usize> {
    /// The part of the file that is not read yet.
    rest: Range<u64>,
    buffer: Vec<u8>,
    /// Number of bytes of `buffer` that were taken.
    taken: usize,
}

impl<const N: usize> SortedPiece<N> {
    fn next(&mut self, file: &File) -> io::Result<Option<KeyRecord<N>>> {
        let len = KeyRecord::<N>::LEN;
        if self.taken == self.buffer.len() {
            let most = (BUFFER / len * len) as u64;
            let bytes = (self.rest.end - self.rest.start).min(most);
            self.buffer.resize(bytes as usize, 0);
            file.read_exact_at(&mut self.buffer, self.rest.start)?;
            self.rest.start += bytes;
            self.taken = 0;
        }
        let record = self.buffer.get(self.taken..self.taken + len).and_then(KeyRecord::read);
        self.taken = (self.taken + len).min(self.buffer.len());
        Ok(record)
    }
}

/// Merges all sorted pieces.
struct PieceMerge<'a, const N: usize> {
    with: TrieHash,
    file: &'a File,
    pieces: Vec<SortedPiece<N>>,
    heads: BinaryHeap<Reverse<PieceFront<N>>>,
}

/// The next record of a piece.
struct PieceFront<const N: usize> {
    with: TrieHash,
    record: KeyRecord<N>,
    piece: usize,
}

impl<const N: usize> Ord for PieceFront<N> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.record.order(&other.record, self.with)
    }
}

impl<const N: usize> PartialOrd for PieceFront<N> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<const N: usize> PartialEq for PieceFront<N> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<const N: usize> Eq for PieceFront<N> {}

impl<'a, const N: usize> PieceMerge<'a, N> {
    fn new(with: TrieHash, scratch: &'a ScratchFile, lens: &[u64]) -> Result<Self, StateError> {
        let mut merge =
            Self { with, file: &scratch.file, pieces: Vec::new(), heads: BinaryHeap::new() };
        let mut start = 0;
        for len in lens {
            let end = start + len * KeyRecord::<N>::LEN as u64;
            merge.pieces.push(SortedPiece { rest: start..end, buffer: Vec::new(), taken: 0 });
            merge.advance(merge.pieces.len() - 1)?;
            start = end;
        }
        Ok(merge)
    }

    fn advance(&mut self, run: usize) -> Result<(), StateError> {
        if let Some(record) = self.pieces[run].next(self.file).map_err(failed)? {
            self.heads.push(Reverse(PieceFront { with: self.with, record, piece: run }));
        }
        Ok(())
    }

    fn next(&mut self) -> Result<Option<KeyRecord<N>>, StateError> {
        let Some(Reverse(PieceFront { record, piece: run, .. })) = self.heads.pop() else {
            return Ok(None);
        };
        self.advance(run)?;
        Ok(Some(record))
    }
}

/// Keys sorted by their hashes, in a file. Memory holds 8 bytes for each block of [`BLOCK_RECORDS`]
/// keys.
#[derive(Debug)]
pub(super) struct KeyOrder<const N: usize> {
    with: TrieHash,
    scratch: Arc<ScratchFile>,
    /// Its first byte there.
    start: u64,
    len: u64,
    /// The first bytes of the hash of each block's first record.
    fences: Vec<u64>,
}

impl<const N: usize> KeyOrder<N> {
    /// The keys below a slot.
    pub(super) fn below(&self, slot: &Nibbles) -> Result<Vec<[u8; N]>, StateError> {
        let range = self.range(slot)?;
        let mut keys = Vec::with_capacity((range.end - range.start) as usize);
        self.read(range, |_, record| {
            keys.push(record.key);
            true
        })?;
        Ok(keys)
    }

    /// Whether more than `than` keys are below a slot.
    pub(super) fn has_more(&self, slot: &Nibbles, than: u64) -> Result<bool, StateError> {
        let [first, last] = bounds(slot).map(|bound| self.around(&bound));
        // For most slots the fences alone decide.
        if last.start.saturating_sub(first.end) > than {
            return Ok(true);
        }
        if last.end.saturating_sub(first.start) <= than {
            return Ok(false);
        }
        let range = self.range(slot)?;
        Ok(range.end - range.start > than)
    }

    fn range(&self, slot: &Nibbles) -> Result<Range<u64>, StateError> {
        let [first, last] = bounds(slot);
        let start = self.position(&first, |record| record.is_below(&first, self.with))?;
        let end = self.position(&last, |record| {
            record.is_below(&last, self.with) || self.with.hash(record.key) == last
        })?;
        Ok(start..end.max(start))
    }

    /// The range of records in which `bound` lies, by the fences.
    fn around(&self, bound: &B256) -> Range<u64> {
        let head = head(bound);
        let before = self.fences.partition_point(|fence| *fence < head) as u64;
        let behind = self.fences.partition_point(|fence| *fence <= head) as u64;
        (before.saturating_sub(1) * BLOCK_RECORDS).min(self.len)
            ..(behind * BLOCK_RECORDS).min(self.len)
    }

    /// Number of records at the front for which `before` is true.
    fn position(
        &self,
        bound: &B256,
        before: impl Fn(&KeyRecord<N>) -> bool,
    ) -> Result<u64, StateError> {
        let around = self.around(bound);
        let mut position = around.end;
        self.read(around, |at, record| {
            let is_before = before(record);
            if !is_before {
                position = at;
            }
            is_before
        })?;
        Ok(position)
    }

    /// Calls `take` with each record and its number, until it returns false.
    fn read(
        &self,
        range: Range<u64>,
        mut take: impl FnMut(u64, &KeyRecord<N>) -> bool,
    ) -> Result<(), StateError> {
        let len = KeyRecord::<N>::LEN;
        let mut buffer = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let count = (range.end - at).min(BLOCK_RECORDS);
            buffer.resize(count as usize * len, 0);
            let from = self.start + at * len as u64;
            self.scratch.file.read_exact_at(&mut buffer, from).map_err(failed)?;
            for record in buffer.chunks_exact(len).filter_map(KeyRecord::read) {
                if !take(at, &record) {
                    return Ok(());
                }
                at += 1;
            }
        }
        Ok(())
    }
}

/// The least and the greatest hash below a slot.
pub(super) fn bounds(slot: &Nibbles) -> [B256; 2] {
    let mut first = B256::ZERO;
    let mut last = B256::repeat_byte(0xff);
    for (at, nibble) in slot.to_vec().into_iter().enumerate() {
        let shift = if at.is_multiple_of(2) { 4 } else { 0 };
        first[at / 2] |= nibble << shift;
        last[at / 2] &= nibble << shift | (0x0f << (4 - shift));
    }
    [first, last]
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::Address;

    /// All accounts were once sorted in memory, 61 bytes each. Now at most one piece is in memory.
    #[test]
    fn keys_sorted_in_pieces_on_disk_are_found_below_every_slot() {
        for with in [TrieHash::Keccak256, TrieHash::Blake2b256] {
            let addresses: Vec<_> = (0..3000u32)
                .map(|n| Address::left_padding_from(&n.wrapping_mul(0x9e37_79b9).to_be_bytes()))
                .collect();
            let mut sorted: Vec<_> =
                addresses.iter().map(|address| (with.hash(address), address.0.0)).collect();
            sorted.sort_unstable();
            for most in [1, 100, 2999, PIECE_RECORDS] {
                let mut sorter = KeySorter::with_pieces_of(with, most);
                for address in &addresses {
                    sorter.put(address.0.0, None).unwrap();
                    assert!(sorter.piece.len() <= most);
                }
                assert_eq!(sorter.spilled.is_some(), most != PIECE_RECORDS);
                let scratch = Arc::new(ScratchFile::new(None).unwrap());
                // Another key order lies before it in the same file.
                let mut other = KeySorter::with_pieces_of(with, 2);
                other.put([7; 32], None).unwrap();
                let other = other.finish(scratch.clone(), None, &|| Ok(())).unwrap();
                let order = sorter.finish(scratch, None, &|| Ok(())).unwrap();
                assert_eq!(order.len, 3000);
                assert_eq!(other.below(&Nibbles::new()).unwrap(), [[7; 32]]);
                for len in [0, 1, 2, 3, 15, 16, 17, 40, 64] {
                    for (hash, _) in sorted.iter().step_by(if len == 0 { 3000 } else { 101 }) {
                        let slot = Nibbles::unpack_array(&hash.0).slice(..len);
                        let expected: Vec<_> = sorted
                            .iter()
                            .filter(|(hash, _)| Nibbles::unpack_array(&hash.0).starts_with(&slot))
                            .map(|(_, key)| *key)
                            .collect();
                        assert_eq!(order.below(&slot).unwrap(), expected, "{slot:?}");
                        let count = expected.len() as u64;
                        assert!(!order.has_more(&slot, count).unwrap());
                        assert!(order.has_more(&slot, count - 1).unwrap());
                    }
                }
                let nowhere = Nibbles::from_nibbles([3; 40]);
                assert!(order.below(&nowhere).unwrap().is_empty());
                assert!(!order.has_more(&nowhere, 0).unwrap());
            }
        }
    }

    #[test]
    fn a_cancelled_sort_ends_and_an_empty_one_has_no_keys() {
        let scratch = Arc::new(ScratchFile::new(None).unwrap());
        let mut sorter = KeySorter::<20>::with_pieces_of(TrieHash::Keccak256, 10);
        (0..99u8).for_each(|n| sorter.put([n; 20], None).unwrap());
        let cancelled = || Err(StateError::Job { job: "sort".into(), reason: "cancelled".into() });
        let ended = sorter.finish(scratch.clone(), None, &cancelled);
        assert!(matches!(ended, Err(StateError::Job { .. })), "{ended:?}");
        let empty = KeySorter::<20>::new(TrieHash::Keccak256);
        let empty = empty.finish(scratch, None, &|| Ok(())).unwrap();
        assert!(empty.below(&Nibbles::new()).unwrap().is_empty());
    }

    #[test]
    fn a_folder_that_takes_no_files_is_named() {
        let error = ScratchFile::new(Some(Path::new("/nowhere/at/all"))).unwrap_err();
        assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
    }
}
