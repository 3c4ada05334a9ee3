//! Durable writes, and pages from the disk.

use super::{
    super::{DiskCosts, DurableCost, LimitError, UnitCost, error::ProbeErrorExt},
    rounds::RoundPlan,
};
use crate::{
    cache::StateCache,
    memory::drop_cached_pages,
    random::{SplitMix64, scatter},
};
use retrie_db::{DatabaseEnv, OpenOptions};
use retrie_state::RowTable;
use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

/// Bytes of a page.
const PAGE: usize = 4096;
/// Threads that read pages at once.
const READERS: usize = 16;
/// Bytes of a small commit, and of a large one.
const COMMITS: [usize; 2] = [4 << 10, 1 << 20];
/// Bytes of the file that commits write, again and again.
const LOG: u64 = 16 << 20;
/// Bytes of a row in the database.
const ROW: usize = 1_000;
const TABLE: RowTable = RowTable::new(1, "Rows");
/// Least size of the file whose pages are read.
pub(super) const LEAST_FILE_BYTES: u64 = 1 << 20;

/// Measures the disk of the cache, in a temporary folder.
pub(super) fn disk_costs(
    rounds: &RoundPlan<'_>,
    cache: &StateCache,
    file_bytes: u64,
) -> Result<DiskCosts, LimitError> {
    let scratch = cache.scratch()?;
    let folder = |name| -> Result<PathBuf, LimitError> {
        let path = scratch.path().join(name);
        let made = fs::create_dir(&path);
        made.map_err(|source| LimitError::Io { action: "creating", path: path.clone(), source })?;
        Ok(path)
    };
    let (file, files) = file_costs(rounds, &folder("log")?)?;
    let database = database_cost(rounds, &folder("database")?)?;
    let page = page_cost(rounds, &folder("pages")?, file_bytes)?;
    Ok(DiskCosts { file, files, database, page })
}

/// The costs of a line through the two sizes of a commit, if each takes these seconds.
fn through([small, large]: [f64; 2]) -> DurableCost {
    let [few, many] = COMMITS.map(|bytes| bytes as f64);
    DurableCost::through((few, small), (many, large))
}

/// A file of the final size; commits overwrite it from the start on.
struct LogFile {
    file: File,
    next: AtomicU64,
}

impl LogFile {
    fn create(path: &Path) -> io::Result<Self> {
        let mut file = File::create_new(path)?;
        for _ in 0..LOG >> 20 {
            file.write_all(&vec![1; 1 << 20])?;
        }
        file.sync_all()?;
        Ok(Self { file, next: AtomicU64::new(0) })
    }

    fn commit(&self, bytes: &[u8]) -> io::Result<()> {
        let at = self.next.fetch_add(bytes.len() as u64, Ordering::Relaxed) % LOG;
        self.file.write_all_at(bytes, at)?;
        self.file.sync_data()
    }
}

/// Durable writes to a file: by one writer, and by one on each core.
fn file_costs(
    rounds: &RoundPlan<'_>,
    folder: &Path,
) -> Result<(DurableCost, DurableCost), LimitError> {
    let failed = |source| LimitError::Io { action: "writing to", path: folder.to_owned(), source };
    let log = |number: usize| LogFile::create(&folder.join(number.to_string()));
    let logs = (0..rounds.cores).map(log).collect::<io::Result<Vec<_>>>().map_err(failed)?;
    let (mut alone, mut together) = ([0.0; 2], [0.0; 2]);
    for (at, bytes) in COMMITS.into_iter().enumerate() {
        let content = vec![2; bytes];
        let cost = rounds.unit_cost(&|thread| {
            logs[thread].commit(&content).map_err(failed)?;
            Ok(1)
        })?;
        (alone[at], together[at]) = (cost.alone, cost.together);
    }
    Ok((through(alone), through(together)))
}

/// Commits of our database, which has one writer at a time.
fn database_cost(rounds: &RoundPlan<'_>, folder: &Path) -> Result<DurableCost, LimitError> {
    let options = OpenOptions { state_tables: vec![TABLE], ..OpenOptions::default() };
    let db = DatabaseEnv::create(folder, &options).of_probe("making a database")?;
    let store = db.state_store();
    let next = AtomicU64::new(0);
    let mut seconds = [0.0; 2];
    for (bytes, seconds) in COMMITS.into_iter().zip(&mut seconds) {
        let content = vec![2; bytes];
        let commit = |_| {
            let mut txn = store.begin_write().of_probe("opening a write transaction")?;
            for row in content.chunks(ROW) {
                let key = next.fetch_add(1, Ordering::Relaxed).to_be_bytes();
                txn.append(TABLE, &key, row).of_probe("appending a row")?;
            }
            txn.commit().of_probe("committing")?;
            Ok(1)
        };
        *seconds = rounds.cost_on([1, 1], &mut || Ok(()), &commit)?.alone;
    }
    Ok(through(seconds))
}

/// Random pages of a file that the page cache does not hold, each read once a round.
fn page_cost(rounds: &RoundPlan<'_>, folder: &Path, bytes: u64) -> Result<UnitCost, LimitError> {
    let path = folder.join("pages");
    let io = |action| {
        let path = path.clone();
        move |source| LimitError::Io { action, path, source }
    };
    write_random(&path, bytes).map_err(io("writing"))?;
    let file = File::open(&path).map_err(io("opening"))?;
    #[cfg(target_os = "linux")]
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random)
        .map_err(|error| io("advising on")(error.into()))?;
    let (pages, next) = (bytes / PAGE as u64, AtomicU64::new(0));
    let mut evict = || {
        next.store(0, Ordering::Relaxed);
        drop_cached_pages(folder).map_err(io("dropping the cached pages of"))
    };
    rounds.cost_on([1, READERS], &mut evict, &|_| {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= pages {
            return Ok(0);
        }
        let mut page = [0; PAGE];
        let at = scatter(number, pages) * PAGE as u64;
        file.read_exact_at(&mut page, at).map_err(io("reading"))?;
        std::hint::black_box(page);
        Ok(1)
    })
}

/// Writes a file that no file system can compress.
fn write_random(path: &Path, bytes: u64) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    let mut random = SplitMix64::new(1);
    let mut chunk = vec![0; 1 << 20];
    for _ in 0..bytes >> 20 {
        for word in chunk.chunks_exact_mut(8) {
            word.copy_from_slice(&random.next().to_le_bytes());
        }
        file.write_all(&chunk)?;
    }
    file.set_len(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::atomic::AtomicBool, time::Duration};

    #[test]
    fn disk_is_measured_and_nothing_is_left() {
        let home = tempfile::tempdir().unwrap();
        let cache = StateCache::at(home.path().to_owned());
        let stop = AtomicBool::new(false);
        let rounds = RoundPlan::new(1, Duration::from_millis(2), &stop);
        let DiskCosts { file, files, database, page } =
            disk_costs(&rounds, &cache, LEAST_FILE_BYTES).unwrap();
        for cost in [file, files, database] {
            assert!(cost.commit + cost.byte > 0.0, "{cost:?}");
        }
        assert!(page.alone > 0.0 && page.together > 0.0, "{page:?}");
        assert_eq!(fs::read_dir(home.path().join("runs")).unwrap().count(), 0);
    }

    #[test]
    fn every_page_is_read_once() {
        for pages in [256, 1000, 65_536] {
            let all: std::collections::BTreeSet<_> =
                (0..pages).map(|number| scatter(number, pages)).collect();
            assert_eq!(all.len() as u64, pages);
        }
    }
}
