//! Rows of a bulk load in any order: sorted in pieces, spilled to temporary files, merged at last.

use crate::{KvWrite, StateError, StoreError, Table};
use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    fs::File,
    io::{BufReader, BufWriter, Read, Seek, Write},
    path::{Path, PathBuf},
};

/// Memory of a piece, in bytes.
const PIECE: usize = 256 << 20;

/// Rows of any tables in any order, of which at most one piece is in memory.
///
/// A piece is a run of rows, each `table id || key length (2, LE) || value length (4, LE) || key ||
/// value`. The files have no names and go with the process.
#[derive(Debug)]
pub(crate) struct Spill {
    dir: Option<PathBuf>,
    limit: usize,
    tables: Vec<Table>,
    rows: Vec<u8>,
    /// Where each row of `rows` starts.
    starts: Vec<usize>,
    runs: Vec<File>,
}

const HEAD: usize = 1 + 2 + 4;

impl Spill {
    /// Spills into files of `dir`, or of the system's folder for temporary files.
    pub(crate) fn new(dir: Option<&Path>) -> Self {
        Self {
            dir: dir.map(Path::to_owned),
            limit: PIECE,
            tables: Vec::new(),
            rows: Vec::new(),
            starts: Vec::new(),
            runs: Vec::new(),
        }
    }

    /// Adds a row, whose key has been [checked](crate::overlay::check_key).
    pub(crate) fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), StateError> {
        let len = |len: usize| u32::try_from(len).ok().map(u32::to_le_bytes);
        let (Some(key_len), Some(value_len)) = (len(key.len()), len(value.len())) else {
            let what = format!("a row of table {} is too large", table.name);
            return Err(StoreError::new("loading rows in bulk", what).into());
        };
        let size = HEAD + key.len() + value.len();
        if !self.starts.is_empty() && self.bytes() + size + size_of::<usize>() > self.limit {
            self.spill()?;
        }
        if !self.tables.contains(&table) {
            self.tables.push(table);
        }
        self.starts.push(self.rows.len());
        self.rows.push(table.id);
        self.rows.extend_from_slice(&key_len[..2]);
        self.rows.extend_from_slice(&value_len);
        self.rows.extend_from_slice(key);
        self.rows.extend_from_slice(value);
        Ok(())
    }

    const fn bytes(&self) -> usize {
        self.rows.len() + self.starts.len() * size_of::<usize>()
    }

    /// The rows in memory, sorted by table and key.
    fn sort(&mut self) {
        let rows = &self.rows;
        self.starts.sort_unstable_by(|a, b| order(&rows[*a..]).cmp(&order(&rows[*b..])));
    }

    fn spill(&mut self) -> Result<(), StateError> {
        self.sort();
        let write = || {
            let file = match &self.dir {
                Some(dir) => tempfile::tempfile_in(dir),
                None => tempfile::tempfile(),
            }?;
            let mut out = BufWriter::with_capacity(1 << 20, file);
            for start in &self.starts {
                let row = &self.rows[*start..];
                out.write_all(&row[..HEAD + lengths(row).0 + lengths(row).1])?;
            }
            let mut file = out.into_inner().map_err(|error| error.into_error())?;
            file.rewind()?;
            Ok(file)
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

    /// Appends all rows to their tables, in order; of rows that came twice, one.
    pub(crate) fn append_to(mut self, txn: &mut dyn KvWrite) -> Result<(), StateError> {
        if !self.runs.is_empty() && !self.starts.is_empty() {
            self.spill()?;
        }
        self.sort();
        let mut appender = Appender { txn, tables: &self.tables, last: Vec::new() };
        for start in &self.starts {
            appender.append(&self.rows[*start..])?;
        }
        let mut runs: Vec<_> = self
            .runs
            .iter()
            .map(|file| Run::new(BufReader::with_capacity(1 << 20, file)))
            .collect();
        let mut heads = BinaryHeap::new();
        for (n, run) in runs.iter_mut().enumerate() {
            if let Some(row) = run.next().map_err(|error| self.failed(error))? {
                heads.push(Reverse((Sorted(row), n)));
            }
        }
        while let Some(Reverse((Sorted(row), n))) = heads.pop() {
            appender.append(&row)?;
            if let Some(row) = runs[n].next().map_err(|error| self.failed(error))? {
                heads.push(Reverse((Sorted(row), n)));
            }
        }
        Ok(())
    }
}

/// Lengths of the key and the value of the row at the head of `row`.
fn lengths(row: &[u8]) -> (usize, usize) {
    let key = u16::from_le_bytes([row[1], row[2]]);
    let value = u32::from_le_bytes([row[3], row[4], row[5], row[6]]);
    (usize::from(key), value as usize)
}

/// What the row at the head of `row` is sorted by.
fn order(row: &[u8]) -> (u8, &[u8]) {
    (row[0], &row[HEAD..HEAD + lengths(row).0])
}

/// A row in the order of tables and keys.
#[derive(PartialEq, Eq)]
struct Sorted(Vec<u8>);

impl Ord for Sorted {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        order(&self.0).cmp(&order(&other.0))
    }
}

impl PartialOrd for Sorted {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

struct Run<R>(R);

impl<R: Read> Run<R> {
    const fn new(reader: R) -> Self {
        Self(reader)
    }

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

struct Appender<'a> {
    txn: &'a mut dyn KvWrite,
    tables: &'a [Table],
    /// The last row, as it is sorted.
    last: Vec<u8>,
}

impl Appender<'_> {
    fn append(&mut self, row: &[u8]) -> Result<(), StateError> {
        let (key, value) = lengths(row);
        let row = &row[..HEAD + key + value];
        if !self.last.is_empty() && order(&self.last) == order(row) {
            if self.last == row {
                return Ok(());
            }
            let what = "two rows have the same key and other values";
            return Err(StoreError::new("loading rows in bulk", what).into());
        }
        self.last.clear();
        self.last.extend_from_slice(row);
        if let Some(table) = self.tables.iter().find(|table| table.id == row[0]) {
            self.txn.append(*table, &row[HEAD..HEAD + key], &row[HEAD + key..])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Direction, KeyRange, KvStore, MemoryStore};
    use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};
    use std::collections::BTreeMap;

    const TABLES: [Table; 2] = [Table::new(3, "A"), Table::new(1, "B")];

    fn random_rows(random: &mut StdRng) -> BTreeMap<(Table, Vec<u8>), Vec<u8>> {
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
            let mut spill = Spill { limit, ..Spill::new(Some(dir.path())) };
            let mut shuffled: Vec<_> = rows.iter().collect();
            // Some come twice.
            shuffled.extend(rows.iter().take(200));
            shuffled.shuffle(&mut random);
            if limit == 1 {
                // Each row is a piece of its own, and an open file.
                shuffled.truncate(100);
            }
            for ((table, key), value) in &shuffled {
                spill.put(*table, key, value).unwrap();
                assert!(spill.starts.len() == 1 || spill.bytes() <= limit);
            }
            assert_eq!(spill.runs.is_empty(), limit == PIECE);
            let store = MemoryStore::new();
            let mut txn = store.begin_write().unwrap();
            spill.append_to(&mut *txn).unwrap();
            let expected: BTreeMap<_, _> = shuffled.into_iter().collect();
            for table in TABLES {
                let got = txn.scan(table, KeyRange::ALL, Direction::Forward, usize::MAX).unwrap();
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
            let mut spill = Spill { limit, ..Spill::new(None) };
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
        let mut spill = Spill { limit: 1, ..Spill::new(Some(Path::new("/nowhere/at/all"))) };
        spill.put(TABLES[0], b"k", b"1").unwrap();
        let error = spill.put(TABLES[0], b"l", b"1").unwrap_err();
        assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
    }
}
