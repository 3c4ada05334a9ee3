//! Trees as rows of MDBX: a row for each slot, record, block or trie node, counted and timed.
//!
//! This is how the paper's section 5 stores its trees, in LevelDB. An access is a list of rows to
//! read, one `get` for each run of adjacent rows that it takes alone and one range read for each
//! longer run, and of rows to write. The list is made before the clock starts. Values have the
//! right lengths and arbitrary bytes: hashes are not calculated, as their number does not depend on
//! the layout. A batch of reads shares a snapshot; a batch of writes is one durable commit
//! (section 5.1.2). The page cache is not controlled.

mod dense;

pub(crate) use dense::DenseRows;

use super::{
    LocalityError,
    error::goes_on,
    scratch::{RowErrorExt, ScratchDatabase, TABLE},
    timing::{AccessPhase, BatchTiming, TimingConfig},
};
use crate::random::SplitMix64;
use retrie_state::{KeyRange, ScanDirection};
use retrie_state_store::{KvRead, KvTxn};
use serde::Serialize;
use std::{
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

/// Bytes of keys and values per commit while a tree is loaded.
const LOAD_BYTES: usize = 128 << 20;

/// Takes key and length of the value of a row.
pub(crate) type RowVisitor<'a> = dyn FnMut(&[u8], usize) -> Result<(), LocalityError> + 'a;

/// A tree whose nodes are rows.
pub(crate) trait RowTree {
    /// Its name, for messages.
    fn describe(&self) -> String;

    /// The longest value that it ever has, in bytes.
    fn longest_value(&self) -> usize;

    /// Calls `each` with key and length of the value of every row, in the order of keys.
    ///
    /// # Errors
    /// The first error of `each`.
    fn rows(&self, each: &mut RowVisitor<'_>) -> Result<(), LocalityError>;

    /// Adds the rows of a random read to `work`.
    fn read(&self, random: &mut SplitMix64, work: &mut RowWork);

    /// Makes `accesses` random changes in one commit, and adds their rows to `work`.
    fn change(&mut self, accesses: u64, random: &mut SplitMix64, work: &mut RowWork);

    /// What [`change`](Self::change) does.
    fn change_phase(&self) -> AccessPhase;

    /// Largest number of accesses of a batch, whose rows are in memory.
    fn most_at_once(&self, phase: AccessPhase) -> u64;
}

/// The rows that a batch of accesses reads and writes.
#[derive(Debug, Default)]
pub(crate) struct RowWork {
    /// All keys, one after the other.
    keys: Vec<u8>,
    reads: Vec<RowSpan>,
    writes: Vec<RowSpan>,
    accesses: u64,
    regions: Option<u64>,
}

/// A key in [`RowWork::keys`], and what is read or written from there on.
#[derive(Clone, Copy, Debug)]
struct RowSpan {
    key: (usize, usize),
    /// Number of adjacent rows.
    rows: u64,
    /// Bytes of their values.
    bytes: u64,
}

/// The counts of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RowTally {
    pub(crate) accesses: u64,
    pub(crate) rows_read: u64,
    /// Bytes of values read.
    pub(crate) read_bytes: u64,
    pub(crate) rows_written: u64,
    /// Bytes of keys and values written.
    pub(crate) write_bytes: u64,
    /// Runs of rows that are adjacent in the order of keys, if they are known.
    pub(crate) regions: Option<u64>,
}

impl RowWork {
    /// Notes that another access begins.
    pub(crate) const fn begin_access(&mut self) {
        self.accesses += 1;
    }

    /// Adds a read of `rows` adjacent rows from `key` on, with values of `bytes` together.
    pub(crate) fn read(&mut self, key: &[u8], rows: u64, bytes: u64) {
        let key = self.key(key);
        self.reads.push(RowSpan { key, rows, bytes });
    }

    /// Adds a write of one row.
    pub(crate) fn write(&mut self, key: &[u8], bytes: u64) {
        let key = self.key(key);
        self.writes.push(RowSpan { key, rows: 1, bytes });
    }

    /// Adds to the number of regions.
    pub(crate) fn add_regions(&mut self, regions: u64) {
        *self.regions.get_or_insert_default() += regions;
    }

    fn key(&mut self, key: &[u8]) -> (usize, usize) {
        let start = self.keys.len();
        self.keys.extend_from_slice(key);
        (start, self.keys.len())
    }

    fn key_of(&self, run: &RowSpan) -> &[u8] {
        &self.keys[run.key.0..run.key.1]
    }

    /// The counts.
    pub(crate) fn tally(&self) -> RowTally {
        let sum = |runs: &[RowSpan], of: fn(&RowSpan) -> u64| runs.iter().map(of).sum::<u64>();
        let keys = sum(&self.writes, |run| (run.key.1 - run.key.0) as u64);
        RowTally {
            accesses: self.accesses,
            rows_read: sum(&self.reads, |run| run.rows),
            read_bytes: sum(&self.reads, |run| run.bytes),
            rows_written: sum(&self.writes, |run| run.rows),
            write_bytes: keys + sum(&self.writes, |run| run.bytes),
            regions: self.regions,
        }
    }
}

impl RowTally {
    pub(crate) fn join(self, other: Self) -> Self {
        let regions = match (self.regions, other.regions) {
            (None, None) => None,
            (a, b) => Some(a.unwrap_or(0) + b.unwrap_or(0)),
        };
        Self {
            accesses: self.accesses + other.accesses,
            rows_read: self.rows_read + other.rows_read,
            read_bytes: self.read_bytes + other.read_bytes,
            rows_written: self.rows_written + other.rows_written,
            write_bytes: self.write_bytes + other.write_bytes,
            regions,
        }
    }

    /// The means per access.
    pub(crate) fn means(&self) -> RowMeans {
        let mean = |total: u64| total as f64 / self.accesses.max(1) as f64;
        RowMeans {
            accesses: self.accesses,
            rows_read: mean(self.rows_read),
            read_bytes: mean(self.read_bytes),
            rows_written: mean(self.rows_written),
            write_bytes: mean(self.write_bytes),
            regions: self.regions.map(mean),
        }
    }
}

/// Means of rows and bytes per access.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RowMeans {
    /// Number of counted accesses.
    pub accesses: u64,
    /// Rows read.
    pub rows_read: f64,
    /// Bytes of values read.
    pub read_bytes: f64,
    /// Rows written.
    pub rows_written: f64,
    /// Bytes of keys and values written.
    pub write_bytes: f64,
    /// Runs of adjacent rows read, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regions: Option<f64>,
}

/// The counts of one phase, and its times if there is a database.
#[derive(Clone, Debug)]
pub(crate) struct RowPhase {
    pub(crate) phase: AccessPhase,
    pub(crate) tally: RowTally,
    pub(crate) timing: Option<BatchTiming>,
}

/// Counts reads and changes of `tree`. If it is `stored`, it is written to a temporary database, on
/// which all accesses run and are timed.
///
/// # Errors
/// If the database fails or returns other rows; [`LocalityError::Stopped`].
pub(crate) fn measure(
    tree: &mut dyn RowTree,
    timed: &TimingConfig,
    stored: bool,
    stop: &AtomicBool,
) -> Result<[RowPhase; 2], LocalityError> {
    let scratch = stored.then(|| load(tree, timed, stop)).transpose()?;
    let filler = vec![0xa5; tree.longest_value()];
    let mut random = SplitMix64::new(timed.seed);
    let mut run = |phase: AccessPhase, tree: &mut dyn RowTree| {
        let batch = timed.batch(phase).clamp(1, tree.most_at_once(phase).max(1));
        let (mut tally, mut times) = (RowTally::default(), Vec::new());
        for _ in 0..phase.batches() {
            goes_on(stop)?;
            let mut work = RowWork::default();
            match phase {
                AccessPhase::Read => (0..batch).for_each(|_| tree.read(&mut random, &mut work)),
                _ => tree.change(batch, &mut random, &mut work),
            }
            tally = tally.join(work.tally());
            if let Some(scratch) = &scratch {
                let done = execute(&work, scratch, &filler, stop);
                times.push(done.map_err(|error| named(error, tree))?);
            }
        }
        let timing = BatchTiming { phase, pages: None, batch, batches: times };
        Ok::<_, LocalityError>(RowPhase { phase, tally, timing: stored.then_some(timing) })
    };
    let read = run(AccessPhase::Read, tree)?;
    let change = run(tree.change_phase(), tree)?;
    Ok([read, change])
}

/// Names the tree in errors about its rows.
fn named(error: LocalityError, tree: &dyn RowTree) -> LocalityError {
    match error {
        LocalityError::WrongRows { what, .. } => {
            LocalityError::WrongRows { tree: tree.describe(), what }
        }
        error => error,
    }
}

/// Writes all rows of `tree` to a new database.
fn load(
    tree: &dyn RowTree,
    timed: &TimingConfig,
    stop: &AtomicBool,
) -> Result<ScratchDatabase, LocalityError> {
    let scratch = ScratchDatabase::create(&timed.folder)?;
    let filler = vec![0x5a; tree.longest_value()];
    let mut open: Option<Box<dyn KvTxn + '_>> = None;
    let mut bytes = 0;
    tree.rows(&mut |key, len| {
        let txn = match &mut open {
            Some(txn) => txn,
            none => none.insert(begin(&scratch)?),
        };
        txn.append(TABLE, key, &filler[..len]).context("writing a row")?;
        bytes += key.len() + len;
        if bytes >= LOAD_BYTES {
            goes_on(stop)?;
            bytes = 0;
            open.take().map_or(Ok(()), |txn| txn.commit().context("committing"))?;
        }
        Ok(())
    })?;
    open.map_or(Ok(()), |txn| txn.commit().context("committing"))?;
    Ok(scratch)
}

fn begin(scratch: &ScratchDatabase) -> Result<Box<dyn KvTxn + '_>, LocalityError> {
    scratch.store.begin_write().context("opening a write transaction")
}

/// Runs all accesses of a batch, and returns their time: in a snapshot, or in one durable commit if
/// there are writes.
fn execute(
    work: &RowWork,
    scratch: &ScratchDatabase,
    filler: &[u8],
    stop: &AtomicBool,
) -> Result<Duration, LocalityError> {
    let start = Instant::now();
    if work.writes.is_empty() {
        let snapshot = scratch.store.snapshot().context("opening a snapshot")?;
        read(work, &*snapshot, stop)?;
    } else {
        let mut txn = begin(scratch)?;
        read(work, &*txn, stop)?;
        for run in &work.writes {
            let value = &filler[..run.bytes as usize];
            txn.put(TABLE, work.key_of(run), value).context("writing a row")?;
        }
        txn.commit().context("committing")?;
    }
    Ok(start.elapsed())
}

/// Reads the rows of a batch, and checks their number and lengths.
fn read(work: &RowWork, from: &dyn KvRead, stop: &AtomicBool) -> Result<(), LocalityError> {
    for run in &work.reads {
        goes_on(stop)?;
        let key = work.key_of(run);
        let (rows, bytes) = match run.rows {
            1 => {
                let value = from.get(TABLE, key).context("reading a row")?;
                (value.is_some().into(), value.map_or(0, |value| value.len()))
            }
            rows => {
                let (range, limit) = (KeyRange::from(key), rows as usize);
                let found = from.scan(TABLE, range, ScanDirection::Forward, limit);
                let found = found.context("reading a range")?;
                (found.len() as u64, found.iter().map(|(_, value)| value.len()).sum())
            }
        };
        if (rows, bytes as u64) != (run.rows, run.bytes) {
            let what = format!(
                "{rows} rows of {bytes} bytes instead of {} of {} at key {}",
                run.rows,
                run.bytes,
                alloy_primitives::hex::encode(key)
            );
            return Err(LocalityError::WrongRows { tree: String::new(), what });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::locality::{DenseTree, TreeLayout};

    fn config() -> TimingConfig {
        TimingConfig { samples: 40, cold: false, folder: std::env::temp_dir(), seed: 3 }
    }

    #[test]
    fn rows_of_all_layouts_are_read_and_written_as_they_were_counted() {
        let stop = AtomicBool::new(false);
        for layout in TreeLayout::ALL {
            let tree = DenseTree::new(layout, 7).unwrap().with_subtrees("8".parse().unwrap());
            let [read, write] = measure(&mut DenseRows::new(tree), &config(), true, &stop).unwrap();
            let timing = read.timing.unwrap();
            assert_eq!((timing.batches.len(), timing.ops()), (10, 40), "{layout}");
            let (read, write) = (read.tally.means(), write.tally.means());
            let units = match layout {
                TreeLayout::DupTreePlusPlus | TreeLayout::Blocked => 3.0,
                _ => 8.0,
            };
            assert_eq!((read.rows_read, read.rows_written), (units, 0.0), "{layout}");
            assert!(write.rows_written >= units && write.rows_read == 0.0, "{layout}");
        }
    }

    #[test]
    fn other_rows_are_found_out() {
        let stop = AtomicBool::new(false);
        let tree = DenseRows::new(DenseTree::new(TreeLayout::Third, 4).unwrap());
        let scratch = load(&tree, &config(), &stop).unwrap();
        let reads = |key: u64, rows, bytes| {
            let mut work = RowWork::default();
            work.read(&key.to_be_bytes(), rows, bytes);
            execute(&work, &scratch, &[], &stop)
        };
        assert!(reads(3, 1, 32).is_ok() && reads(3, 4, 128).is_ok());
        for (key, rows, bytes) in [(99, 1, 32), (3, 1, 31), (29, 4, 128)] {
            let error = reads(key, rows, bytes).map_err(|error| named(error, &tree)).unwrap_err();
            assert!(error.to_string().contains("third of height 4"), "{error}");
        }
    }
}
