//! Rows of MDBX in order and at random: the measurement that the paper's Table 1 has for LevelDB.
//!
//! Keys have 16 bytes and values 100, as in LevelDB's own benchmark. Rows are written into an empty
//! table, 10,000 per commit, and each commit is durable; then the rows written in order are read.
//! The page cache is not controlled: it holds all rows if there is enough memory.

use super::{
    LocalityError,
    error::goes_on,
    scratch::{RowErrorExt, ScratchDatabase, TABLE},
};
use crate::random::SplitMix64;
use alloy_primitives::Bytes;
use retrie_state::{KeyRange, ScanDirection};
use retrie_state_store::KvRead;
use serde::Serialize;
use std::{
    path::Path,
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

/// Rows per commit.
const PER_COMMIT: usize = 10_000;
/// Rows per range read.
const PER_SCAN: usize = 1000;
/// Bytes of a value.
const VALUE: usize = 100;

/// A kind of access to rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RowAccess {
    /// Reads of single rows in random order.
    RandomRead,
    /// Range reads in key order.
    SequentialRead,
    /// Writes in random order.
    RandomWrite,
    /// Writes in key order.
    SequentialWrite,
}

/// The time of one kind of access to rows.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RowTimes {
    /// The kind of access.
    pub access: RowAccess,
    /// Number of rows.
    pub rows: u64,
    /// Time for all.
    pub seconds: f64,
    /// Mean microseconds per row, commits included.
    pub mean_us: f64,
    /// The paper's value for LevelDB, on another machine.
    pub leveldb_us: f64,
}

impl RowTimes {
    fn new(access: RowAccess, rows: u64, time: Duration) -> Self {
        let seconds = time.as_secs_f64();
        Self {
            access,
            rows,
            seconds,
            mean_us: seconds * 1e6 / rows.max(1) as f64,
            leveldb_us: access.leveldb(),
        }
    }
}

impl RowAccess {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RandomRead => "random read",
            Self::SequentialRead => "sequential read",
            Self::RandomWrite => "random write",
            Self::SequentialWrite => "sequential write",
        }
    }

    /// Table 1 of the paper, in microseconds.
    const fn leveldb(self) -> f64 {
        match self {
            Self::RandomRead => 16.677,
            Self::SequentialRead => 0.476,
            Self::RandomWrite => 2.460,
            Self::SequentialWrite => 1.765,
        }
    }
}

/// Writes and reads `count` rows, in temporary databases below `folder`.
///
/// # Errors
/// If the database fails, or returns wrong rows; [`LocalityError::Stopped`].
pub fn rows(
    folder: &Path,
    count: u32,
    seed: u64,
    stop: &AtomicBool,
) -> Result<Vec<RowTimes>, LocalityError> {
    let in_order: Vec<u32> = (0..count).collect();
    let mut shuffled = in_order.clone();
    let mut random = SplitMix64::new(seed);
    // Fisher-Yates shuffle.
    for end in (1..shuffled.len()).rev() {
        shuffled.swap(end, random.below(end as u64 + 1) as usize);
    }
    let (ordered, sequential_write) = write(folder, &in_order, stop)?;
    let (_, random_write) = write(folder, &shuffled, stop)?;
    let snapshot = ordered.store.snapshot().context("opening a snapshot")?;
    let random_read = read(&*snapshot, &shuffled, stop)?;
    let sequential_read = scan(&*snapshot, count, stop)?;
    let of = |access, time| RowTimes::new(access, count.into(), time);
    Ok(vec![
        of(RowAccess::RandomRead, random_read),
        of(RowAccess::SequentialRead, sequential_read),
        of(RowAccess::RandomWrite, random_write),
        of(RowAccess::SequentialWrite, sequential_write),
    ])
}

fn write(
    folder: &Path,
    rows: &[u32],
    stop: &AtomicBool,
) -> Result<(ScratchDatabase, Duration), LocalityError> {
    let scratch = ScratchDatabase::create(folder)?;
    let start = Instant::now();
    for chunk in rows.chunks(PER_COMMIT) {
        goes_on(stop)?;
        let mut txn = scratch.store.begin_write().context("opening a write transaction")?;
        for row in chunk {
            txn.put(TABLE, &key(*row), &value(*row)).context("writing a row")?;
        }
        txn.commit().context("committing")?;
    }
    let elapsed = start.elapsed();
    Ok((scratch, elapsed))
}

fn read(from: &dyn KvRead, rows: &[u32], stop: &AtomicBool) -> Result<Duration, LocalityError> {
    let start = Instant::now();
    for chunk in rows.chunks(PER_SCAN) {
        goes_on(stop)?;
        for row in chunk {
            let found = from.get(TABLE, &key(*row)).context("reading a row")?;
            check(*row, found.as_ref())?;
        }
    }
    Ok(start.elapsed())
}

fn scan(from: &dyn KvRead, count: u32, stop: &AtomicBool) -> Result<Duration, LocalityError> {
    let start = Instant::now();
    for first in (0..count).step_by(PER_SCAN) {
        goes_on(stop)?;
        let end = first.saturating_add(PER_SCAN as u32).min(count);
        let keys = (key(first), key(end));
        let range = KeyRange { start: &keys.0, end: Some(&keys.1) };
        let found =
            from.scan(TABLE, range, ScanDirection::Forward, PER_SCAN).context("reading a range")?;
        for (at, row) in (first..end).enumerate() {
            let found = found.get(at).filter(|found| found.0[..] == key(row));
            check(row, found.map(|found| &found.1))?;
        }
    }
    Ok(start.elapsed())
}

/// Checks the length of the value and the row number in it. That takes much less time than reading.
fn check(row: u32, found: Option<&Bytes>) -> Result<(), LocalityError> {
    let is_right = found.is_some_and(|v| v.len() == VALUE && v.starts_with(&row.to_be_bytes()));
    if is_right { Ok(()) } else { Err(LocalityError::WrongRow { row: row.into() }) }
}

fn key(row: u32) -> [u8; 16] {
    u128::from(row).to_be_bytes()
}

fn value(row: u32) -> [u8; VALUE] {
    let mut value = [row as u8 | 1; VALUE];
    value[..4].copy_from_slice(&row.to_be_bytes());
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_as_written_whatever_their_number() {
        let folder = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        for count in [1, 1000, 1001] {
            let times = rows(folder.path(), count, 1, &stop).unwrap();
            assert_eq!(times.len(), 4);
            assert!(
                times.iter().all(|t| t.mean_us > 0.0 && t.rows == u64::from(count)),
                "{times:?}"
            );
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "databases were left");
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(matches!(rows(folder.path(), 9, 1, &stop), Err(LocalityError::Stopped)));
    }

    #[test]
    fn other_rows_are_found_out() {
        let folder = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        let (scratch, _) = write(folder.path(), &[0, 1, 3], &stop).unwrap();
        let snapshot = scratch.store.snapshot().unwrap();
        assert!(read(&*snapshot, &[3, 0], &stop).is_ok() && scan(&*snapshot, 2, &stop).is_ok());
        let read = read(&*snapshot, &[2], &stop);
        assert!(matches!(read, Err(LocalityError::WrongRow { row: 2 })));
        let scanned = scan(&*snapshot, 4, &stop);
        assert!(matches!(scanned, Err(LocalityError::WrongRow { row: 2 })));
        assert!(check(7, Some(&Bytes::from_static(&[0, 0, 0, 7]))).is_err(), "a short value");
    }
}
