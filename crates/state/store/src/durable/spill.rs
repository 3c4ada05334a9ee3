//! External sort of rows and entries: sorted in pieces, spilled to temporary files, and merged.

use crate::KvWrite;
use alloy_primitives::hex;
use retrie_state::{
    BackendKey, BulkSorter, RowTable, SortedRecords, StateError, StateValue, StoreError,
    open_with_retry,
};
use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    fs::File,
    io::{BufReader, BufWriter, Read, Seek, Write},
    path::{Path, PathBuf},
};

/// Memory limit of a piece, in bytes.
const PIECE: usize = 256 << 20;

/// Sorts the entries of a state for [`StateStore::bulk_load`]. At most 256 MiB of them are in
/// memory, the rest in unnamed temporary files, which end with the process.
///
/// [`StateStore::bulk_load`]: crate::StateStore::bulk_load
#[derive(Debug)]
pub struct EntrySorter(ExternalSorter);

impl EntrySorter {
    /// A sorter with temporary files in the directory `dir`.
    pub fn new(dir: &Path) -> Self {
        Self(ExternalSorter::new(Some(dir)))
    }

    /// As [`new`](Self::new); without a directory in that of the system for temporary files.
    pub(crate) fn in_dir(dir: Option<&Path>) -> Self {
        Self(ExternalSorter::new(dir))
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// If no file can be written into the directory.
    pub fn put(&mut self, key: &BackendKey, value: &[u8]) -> Result<(), StateError> {
        self.0.put(0, &key.encode(), value)
    }

    /// All entries in order; an entry that came twice is returned once. It may be called again.
    ///
    /// # Errors
    /// If a file cannot be read, or a key came with two values. The iterator may fail for the same
    /// reasons.
    pub fn entries(
        &mut self,
    ) -> Result<impl Iterator<Item = Result<(BackendKey, StateValue), StateError>>, StateError>
    {
        let mut rows = self.0.merged()?;
        Ok(std::iter::from_fn(move || {
            let row = match rows.next() {
                Ok(row) => row?,
                Err(error) => return Some(Err(error)),
            };
            let (_, key, value) = parts(row);
            let what = "a row that was sorted is not an entry";
            let key = BackendKey::decode(key).ok_or_else(|| StoreError::new(SORTING, what).into());
            Some(key.map(|key| (key, StateValue::copy_from_slice(value))))
        }))
    }
}

/// Sorts records, such as those of a bulk load. At most 256 MiB of them are in memory, the rest in
/// unnamed temporary files, which end with the process.
#[derive(Debug)]
pub struct RecordSorter(ExternalSorter);

impl RecordSorter {
    /// A sorter with temporary files in `dir`, or in the system's directory for temporary files.
    pub fn new(dir: Option<&Path>) -> Self {
        Self(ExternalSorter::new(dir))
    }
}

impl BulkSorter for RecordSorter {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), StateError> {
        self.0.put(0, key, value)
    }

    fn sorted(&mut self) -> Result<SortedRecords<'_>, StateError> {
        let mut rows = self.0.merged()?;
        Ok(Box::new(std::iter::from_fn(move || {
            let row = rows.next().transpose()?;
            Some(row.map(|row| {
                let (_, key, value) = parts(row);
                (key.to_vec(), value.to_vec())
            }))
        })))
    }
}

const SORTING: &str = "loading rows in bulk";

/// Sorts rows of any tables, with at most one piece in memory.
#[derive(Debug)]
pub(crate) struct RowSorter {
    sorter: ExternalSorter,
    tables: Vec<RowTable>,
}

impl RowSorter {
    /// A sorter with temporary files in `dir`, or in the system's directory for temporary files.
    pub(crate) fn new(dir: Option<&Path>) -> Self {
        Self { sorter: ExternalSorter::new(dir), tables: Vec::new() }
    }

    /// Adds a row, whose key has been [checked](crate::durable::overlay::check_key).
    pub(crate) fn put(
        &mut self,
        table: RowTable,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), StateError> {
        if !self.tables.contains(&table) {
            self.tables.push(table);
        }
        self.sorter.put(table.id, key, value)
    }

    /// Appends all rows to their tables, in order; a row that came twice is appended once.
    pub(crate) fn append_to(mut self, txn: &mut dyn KvWrite) -> Result<(), StateError> {
        let mut rows = self.sorter.merged()?;
        while let Some(row) = rows.next()? {
            let (id, key, value) = parts(row);
            if let Some(table) = self.tables.iter().find(|table| table.id == id) {
                txn.append(*table, key, value)?;
            }
        }
        Ok(())
    }
}

/// Sorts rows by tag and key.
///
/// A piece is a sequence of rows, each `tag || key length (2, LE) || value length (4, LE) || key ||
/// value`. The files have no names and end with the process.
#[derive(Debug)]
struct ExternalSorter {
    dir: Option<PathBuf>,
    limit: usize,
    rows: Vec<u8>,
    /// Where each row of `rows` starts.
    starts: Vec<usize>,
    runs: Vec<File>,
}

const HEAD: usize = 1 + 2 + 4;

impl ExternalSorter {
    fn new(dir: Option<&Path>) -> Self {
        let dir = dir.map(Path::to_owned);
        Self { dir, limit: PIECE, rows: Vec::new(), starts: Vec::new(), runs: Vec::new() }
    }

    fn put(&mut self, tag: u8, key: &[u8], value: &[u8]) -> Result<(), StateError> {
        let (Ok(key_len), Ok(value_len)) = (u16::try_from(key.len()), u32::try_from(value.len()))
        else {
            let what = format!("the row {} is too large", hex::encode_prefixed(key));
            return Err(StoreError::new(SORTING, what).into());
        };
        let size = HEAD + key.len() + value.len();
        if !self.starts.is_empty() && self.bytes() + size + size_of::<usize>() > self.limit {
            self.spill()?;
        }
        self.starts.push(self.rows.len());
        self.rows.push(tag);
        self.rows.extend_from_slice(&key_len.to_le_bytes());
        self.rows.extend_from_slice(&value_len.to_le_bytes());
        self.rows.extend_from_slice(key);
        self.rows.extend_from_slice(value);
        Ok(())
    }

    const fn bytes(&self) -> usize {
        self.rows.len() + self.starts.len() * size_of::<usize>()
    }

    /// Sorts the rows in memory.
    fn sort(&mut self) {
        let rows = &self.rows;
        self.starts.sort_unstable_by(|a, b| order(&rows[*a..]).cmp(&order(&rows[*b..])));
    }

    fn spill(&mut self) -> Result<(), StateError> {
        self.sort();
        let write = || {
            let file = open_with_retry(|| match &self.dir {
                Some(dir) => tempfile::tempfile_in(dir),
                None => tempfile::tempfile(),
            })?;
            let mut out = BufWriter::with_capacity(1 << 20, file);
            for start in &self.starts {
                out.write_all(first_row(&self.rows[*start..]))?;
            }
            out.into_inner().map_err(|error| error.into_error())
        };
        self.runs.push(write().map_err(|error| self.failed(error))?);
        self.rows.clear();
        self.starts.clear();
        Ok(())
    }

    fn failed(&self, error: std::io::Error) -> StateError {
        let dir = self.dir.clone().unwrap_or_else(std::env::temp_dir);
        let action = format!("sorting the rows of a bulk load in {}", dir.display());
        StoreError::new(action, error).into()
    }

    /// All rows in order.
    fn merged(&mut self) -> Result<MergedRows<'_>, StateError> {
        if !self.runs.is_empty() && !self.starts.is_empty() {
            self.spill()?;
        }
        self.sort();
        let sorter = &*self;
        let mut runs = Vec::with_capacity(sorter.runs.len());
        let mut heads = BinaryHeap::new();
        for (n, mut file) in sorter.runs.iter().enumerate() {
            file.rewind().map_err(|error| sorter.failed(error))?;
            let mut run = SpillFile(BufReader::with_capacity(1 << 20, file));
            if let Some(row) = run.next().map_err(|error| sorter.failed(error))? {
                heads.push(Reverse((SortedRow(row), n)));
            }
            runs.push(run);
        }
        Ok(MergedRows { sorter, memory: sorter.starts.iter(), runs, heads, last: Vec::new() })
    }
}

/// The first row in `rows`.
fn first_row(rows: &[u8]) -> &[u8] {
    let (key, value) = lengths(rows);
    &rows[..HEAD + key + value]
}

/// Lengths of the key and the value of the first row in `row`.
fn lengths(row: &[u8]) -> (usize, usize) {
    let key = u16::from_le_bytes([row[1], row[2]]);
    let value = u32::from_le_bytes([row[3], row[4], row[5], row[6]]);
    (usize::from(key), value as usize)
}

/// Tag, key and value of a row.
fn parts(row: &[u8]) -> (u8, &[u8], &[u8]) {
    let (key, value) = row[HEAD..].split_at(lengths(row).0);
    (row[0], key, value)
}

/// The sort key of the first row in `row`: tag and key.
fn order(row: &[u8]) -> (u8, &[u8]) {
    (row[0], &row[HEAD..HEAD + lengths(row).0])
}

/// A row, ordered by tag and key.
#[derive(PartialEq, Eq)]
struct SortedRow(Vec<u8>);

impl Ord for SortedRow {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        order(&self.0).cmp(&order(&other.0))
    }
}

impl PartialOrd for SortedRow {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Reads the rows of one spilled file.
struct SpillFile<R>(R);

impl<R: Read> SpillFile<R> {
    fn next(&mut self) -> std::io::Result<Option<Vec<u8>>> {
        let mut head = [0; HEAD];
        if self.0.read(&mut head[..1])? == 0 {
            return Ok(None);
        }
        self.0.read_exact(&mut head[1..])?;
        let (key, value) = lengths(&head);
        let mut row = vec![0; HEAD + key + value];
        row[..HEAD].copy_from_slice(&head);
        self.0.read_exact(&mut row[HEAD..])?;
        Ok(Some(row))
    }
}

/// All rows of a sorter in order; they are either all in memory or all in files.
struct MergedRows<'a> {
    sorter: &'a ExternalSorter,
    memory: std::slice::Iter<'a, usize>,
    runs: Vec<SpillFile<BufReader<&'a File>>>,
    heads: BinaryHeap<Reverse<(SortedRow, usize)>>,
    /// The row returned last.
    last: Vec<u8>,
}

impl MergedRows<'_> {
    fn next(&mut self) -> Result<Option<&[u8]>, StateError> {
        loop {
            if let Some(start) = self.memory.next() {
                let row = first_row(&self.sorter.rows[*start..]);
                if self.is_new(row)? {
                    self.last.clear();
                    self.last.extend_from_slice(row);
                    return Ok(Some(&self.last));
                }
            } else if let Some(Reverse((SortedRow(row), n))) = self.heads.pop() {
                let next = self.runs[n].next().map_err(|error| self.sorter.failed(error))?;
                if let Some(next) = next {
                    self.heads.push(Reverse((SortedRow(next), n)));
                }
                if self.is_new(&row)? {
                    self.last = row;
                    return Ok(Some(&self.last));
                }
            } else {
                return Ok(None);
            }
        }
    }

    /// Whether `row` differs from the last row.
    fn is_new(&self, row: &[u8]) -> Result<bool, StateError> {
        if self.last.is_empty() || order(&self.last) != order(row) {
            return Ok(true);
        }
        if self.last == row {
            return Ok(false);
        }
        let key = hex::encode_prefixed(order(row).1);
        let what = format!("two rows have the same key and other values: {key}");
        Err(StoreError::new(SORTING, what).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KvStore, MemoryStore};
    use alloy_primitives::Address;
    use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};
    use retrie_state::{KeyRange, ScanDirection};
    use std::collections::BTreeMap;

    const TABLES: [RowTable; 2] = [RowTable::new(3, "A"), RowTable::new(1, "B")];

    fn with_limit(dir: Option<&Path>, limit: usize) -> RowSorter {
        let mut spill = RowSorter::new(dir);
        spill.sorter.limit = limit;
        spill
    }

    fn random_rows(random: &mut StdRng) -> BTreeMap<(RowTable, Vec<u8>), Vec<u8>> {
        let row = |_| {
            let mut bytes = |max: usize| {
                let len = random.random_range(0..max);
                (0..len).map(|_| random.random()).collect::<Vec<u8>>()
            };
            let (key, value) = (bytes(40), bytes(300));
            ((TABLES[usize::from(value.len() % 3 == 0)], key), value)
        };
        (0..3000).map(row).collect()
    }

    #[test]
    fn rows_in_any_order_end_sorted_however_many_pieces_they_make() {
        let mut random = StdRng::seed_from_u64(1);
        let rows = random_rows(&mut random);
        let dir = tempfile::tempdir().unwrap();
        for limit in [1, 500, 40_000, PIECE] {
            let mut spill = with_limit(Some(dir.path()), limit);
            let mut shuffled: Vec<_> = rows.iter().collect();
            // Some come twice.
            shuffled.extend(rows.iter().take(200));
            shuffled.shuffle(&mut random);
            if limit == 1 {
                // Each row is one piece, and so one open file.
                shuffled.truncate(100);
            }
            for ((table, key), value) in &shuffled {
                spill.put(*table, key, value).unwrap();
                assert!(spill.sorter.starts.len() == 1 || spill.sorter.bytes() <= limit);
            }
            assert_eq!(spill.sorter.runs.is_empty(), limit == PIECE);
            let store = MemoryStore::new();
            let mut txn = store.begin_write().unwrap();
            spill.append_to(&mut *txn).unwrap();
            let expected: BTreeMap<_, _> = shuffled.into_iter().collect();
            for table in TABLES {
                let got =
                    txn.scan(table, KeyRange::ALL, ScanDirection::Forward, usize::MAX).unwrap();
                let expected = expected.iter().filter(|((of, _), _)| *of == table);
                let got = got.iter().map(|(key, value)| (&key[..], &value[..]));
                assert!(got.eq(expected.map(|((_, key), value)| (&key[..], &value[..]))));
            }
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "files are left");
    }

    #[test]
    fn a_key_with_two_values_is_refused_within_a_piece_and_across() {
        for limit in [1, PIECE] {
            let mut spill = with_limit(None, limit);
            spill.put(TABLES[0], b"k", b"1").unwrap();
            spill.put(TABLES[1], b"k", b"2").unwrap();
            spill.put(TABLES[0], b"k", b"3").unwrap();
            let store = MemoryStore::new();
            let error = spill.append_to(&mut *store.begin_write().unwrap()).unwrap_err();
            assert!(error.to_string().contains("same key and other values"), "{error}");
        }
    }

    #[test]
    fn a_folder_that_takes_no_files_is_named() {
        let mut spill = with_limit(Some(Path::new("/nowhere/at/all")), 1);
        spill.put(TABLES[0], b"k", b"1").unwrap();
        let error = spill.put(TABLES[0], b"l", b"1").unwrap_err();
        assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
    }

    #[test]
    fn entries_come_sorted_as_often_as_they_are_asked_for() {
        let mut random = StdRng::seed_from_u64(2);
        let mut key = || {
            let address = Address::from(random.random::<[u8; 20]>()).into();
            match random.random::<bool>() {
                true => BackendKey::Account(address),
                false => BackendKey::Slot(address, random.random::<[u8; 32]>().into()),
            }
        };
        let entries: BTreeMap<_, _> =
            (0..500_u32).map(|n| (key(), StateValue::copy_from_slice(&n.to_be_bytes()))).collect();
        let dir = tempfile::tempdir().unwrap();
        for limit in [2_000, PIECE] {
            let mut sorter = EntrySorter::new(dir.path());
            sorter.0.limit = limit;
            let mut shuffled: Vec<_> = entries.iter().chain(entries.iter().take(9)).collect();
            shuffled.shuffle(&mut random_of(limit));
            for (key, value) in shuffled {
                sorter.put(key, value).unwrap();
            }
            assert_eq!(sorter.0.runs.is_empty(), limit == PIECE);
            for _ in 0..2 {
                let sorted: Vec<_> = sorter.entries().unwrap().map(Result::unwrap).collect();
                assert!(sorted.iter().map(|(k, v)| (k, v)).eq(&entries), "limit {limit}");
            }
        }
    }

    fn random_of(seed: usize) -> StdRng {
        StdRng::seed_from_u64(seed as u64)
    }
}
