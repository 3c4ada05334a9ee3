//! Files of pages with checksums: written once as a stream, then mapped and read.
//!
//! A page has 4,096 bytes. The last four are a CRC-32 over the page's number (8 bytes) and all
//! other bytes of the page. So the first read detects a page that is damaged or at a wrong place.

use memmap2::Advice;
use retrie_state::{StateError, StoreError, open_with_retry};
use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

/// Bytes of a page on disk.
pub(crate) const PAGE: usize = 4096;
/// Bytes of a page without its checksum.
pub(crate) const PAYLOAD: usize = PAGE - 4;
/// Most pages of a file: a page number has five bytes in the formats.
pub(crate) const MAX_PAGES: u64 = 1 << 40;
/// Pages that a writer gathers before it writes them.
const GATHERED: usize = 64;
/// A file of this many bytes or more may not stay in memory. Unit tests have small files of both
/// kinds.
const LARGE: u64 = if cfg!(test) { 32 * PAGE as u64 } else { 1 << 30 };
/// Pages of a large file that a sequential reader prefetches at a time.
const PREFETCH_PAGES: usize = 64;

pub(super) fn io_error(doing: &str, path: &Path, source: io::Error) -> StateError {
    StoreError::new(format!("{doing} {}", path.display()), source).into()
}

fn checksum(number: u64, payload: &[u8]) -> [u8; 4] {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&number.to_be_bytes());
    hasher.update(payload);
    hasher.finalize().to_be_bytes()
}

/// Whether the checksum of page `number` is right.
pub(super) fn is_whole(number: u64, page: &[u8]) -> bool {
    page.len() == PAGE && checksum(number, &page[..PAYLOAD])[..] == page[PAYLOAD..]
}

/// Syncs `dir`, so that renamed files keep their names after a power failure.
pub(super) fn sync_dir(dir: &Path) -> Result<(), StateError> {
    let synced = open_with_retry(|| File::open(dir)).and_then(|dir| dir.sync_all());
    synced.map_err(|error| io_error("syncing the folder", dir, error))
}

/// Creates a file in `dir` under a temporary name that begins with `name`.
fn temporary_file(dir: &Path, name: &str) -> Result<(PathBuf, File), StateError> {
    // Only one process writes to the directory. Writers of the same file have different numbers.
    static WRITERS: AtomicU64 = AtomicU64::new(0);
    let n = WRITERS.fetch_add(1, Ordering::Relaxed);
    let path = dir.join(format!("{name}.{n}.tmp"));
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(true);
    let file = open_with_retry(|| options.open(&path));
    let file = file.map_err(|error| io_error("creating", &path, error))?;
    Ok((path, file))
}

/// Bytes that do not fit into memory, in a file of `dir` without a name: it ends with its owner,
/// whatever happens to the process.
#[derive(Debug)]
pub(super) struct ScratchFile {
    /// The name that it had, for errors.
    path: PathBuf,
    file: File,
    len: u64,
}

impl ScratchFile {
    /// An empty file.
    pub(super) fn new(dir: &Path, name: &str) -> Result<Self, StateError> {
        let (path, file) = temporary_file(dir, name)?;
        fs::remove_file(&path).map_err(|error| io_error("unlinking", &path, error))?;
        Ok(Self { path, file, len: 0 })
    }

    /// Appends `bytes` and returns where they begin.
    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<u64, StateError> {
        let at = self.len;
        let written = self.file.write_all_at(bytes, at);
        written.map_err(|error| io_error("writing", &self.path, error))?;
        self.len += bytes.len() as u64;
        Ok(at)
    }

    /// Fills `bytes` from those at `at` on.
    pub(super) fn read(&self, at: u64, bytes: &mut [u8]) -> Result<(), StateError> {
        let read = self.file.read_exact_at(bytes, at);
        read.map_err(|error| io_error("reading", &self.path, error))
    }
}

/// Writes a file page by page, under a temporary name until [`publish`](Self::publish). If it is
/// dropped before that, it removes the file.
#[derive(Debug)]
pub(crate) struct PageWriter {
    path: PathBuf,
    temporary: PathBuf,
    file: File,
    gathered: Vec<u8>,
    /// Pages that are already in the file.
    written: u64,
    published: bool,
}

impl PageWriter {
    /// Creates the file `name` in `dir`. Overwrites what an interrupted process left behind.
    pub(crate) fn new(dir: &Path, name: &str) -> Result<Self, StateError> {
        let (temporary, file) = temporary_file(dir, name)?;
        let (path, gathered) = (dir.join(name), Vec::with_capacity(GATHERED * PAGE));
        Ok(Self { path, temporary, file, gathered, written: 0, published: false })
    }

    /// The number of pages so far.
    pub(crate) fn pages(&self) -> u64 {
        self.written + (self.gathered.len() / PAGE) as u64
    }

    /// Adds a page. `payload` has at most [`PAYLOAD`] bytes; the rest is filled with zeros.
    pub(crate) fn append(&mut self, payload: &[u8]) -> Result<(), StateError> {
        if self.pages() >= MAX_PAGES {
            let full = io::Error::other("the file has as many pages as it can have");
            return Err(io_error("writing", &self.temporary, full));
        }
        let page = whole_page(self.pages(), payload);
        self.gathered.extend_from_slice(&page);
        if self.gathered.len() >= GATHERED * PAGE {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), StateError> {
        let written = self.file.write_all(&self.gathered);
        written.map_err(|error| io_error("writing", &self.temporary, error))?;
        self.written = self.pages();
        self.gathered.clear();
        Ok(())
    }

    /// Reads the payload of a page that was appended.
    pub(crate) fn read_back(&self, number: u64) -> Result<[u8; PAYLOAD], StateError> {
        let mut payload = [0; PAYLOAD];
        if let Some(at) = number.checked_sub(self.written) {
            let start = at as usize * PAGE;
            payload.copy_from_slice(&self.gathered[start..start + PAYLOAD]);
        } else {
            let read = self.file.read_exact_at(&mut payload, number * PAGE as u64);
            read.map_err(|error| io_error("reading", &self.temporary, error))?;
        }
        Ok(payload)
    }

    /// Overwrites a page.
    pub(crate) fn replace(&mut self, number: u64, payload: &[u8]) -> Result<(), StateError> {
        self.flush()?;
        let written = self.file.write_all_at(&whole_page(number, payload), number * PAGE as u64);
        written.map_err(|error| io_error("writing", &self.temporary, error))
    }

    /// Maps the pages so far, for reading before the file has its name.
    pub(crate) fn map(&mut self) -> Result<PagedFile, StateError> {
        self.flush()?;
        PagedFile::map(&self.temporary, self.written)
    }

    /// Writes everything to disk. [`publish`](Self::publish) is then quick.
    pub(crate) fn sync(&mut self) -> Result<(), StateError> {
        self.flush()?;
        self.file.sync_all().map_err(|error| io_error("syncing", &self.temporary, error))
    }

    /// Renames the synced file to its name. The caller syncs the directory.
    pub(crate) fn publish(mut self) -> Result<(), StateError> {
        let renamed = fs::rename(&self.temporary, &self.path);
        renamed.map_err(|error| io_error("naming", &self.path, error))?;
        self.published = true;
        Ok(())
    }
}

impl Drop for PageWriter {
    fn drop(&mut self) {
        if !self.published {
            // If this fails, the file is removed when the directory is opened.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

fn whole_page(number: u64, payload: &[u8]) -> [u8; PAGE] {
    let mut page = [0; PAGE];
    page[..payload.len()].copy_from_slice(payload);
    let sum = checksum(number, &page[..PAYLOAD]);
    page[PAYLOAD..].copy_from_slice(&sum);
    page
}

/// A finished file, mapped. The checksum of a page is verified at its first read.
#[derive(Debug)]
pub(crate) struct PagedFile {
    name: String,
    map: memmap2::Mmap,
    /// In a large file, a read fetches only its page. In a small file the system also reads the
    /// neighbourhood, and soon has the whole file in memory.
    is_large: bool,
    /// A bit for each page whose checksum was verified.
    checked: Vec<AtomicU64>,
}

impl PagedFile {
    /// Opens the file `name` in `dir`, which must have `pages` pages.
    pub(crate) fn open(dir: &Path, name: &str, pages: u64) -> Result<Self, StateError> {
        Self::map(&dir.join(name), pages)
    }

    fn map(path: &Path, pages: u64) -> Result<Self, StateError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => StateError::corrupt(
                &*name,
                format!("the file is not there: it was expected at {}", path.display()),
            ),
            _ => io_error("opening", path, error),
        };
        let file = open_with_retry(|| File::open(path)).map_err(failed)?;
        let have = file.metadata().map_err(|error| io_error("reading", path, error))?.len();
        let want = pages.saturating_mul(PAGE as u64);
        if have != want {
            let what = format!("the file has {have} bytes, it must have {want}");
            return Err(StateError::corrupt(name, what));
        }
        // SAFETY: a run's files are written once, under a temporary name. After the rename they are
        // never changed or cut; nor is a page of a file that `PageWriter::map` shows while that map
        // is in use. The state directory belongs to one process, which holds its lock.
        let map = unsafe { memmap2::Mmap::map(&file) };
        let map = map.map_err(|error| io_error("mapping", path, error))?;
        if (map.len() as u64) < want {
            return Err(StateError::corrupt(name, "the file was cut while it was opened"));
        }
        let is_large = want >= LARGE;
        if is_large {
            // Only advice: if it fails, reads take longer.
            let _ = map.advise(Advice::Random);
        }
        let checked = (0..pages.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Ok(Self { name, map, is_large, checked })
    }

    /// Prefetches the pages after `number` in a large file. A sequential reader calls it for each
    /// page.
    pub(crate) fn prefetch_after(&self, number: u64) {
        if self.is_large && number.is_multiple_of(PREFETCH_PAGES as u64) {
            let start = (number as usize + PREFETCH_PAGES).saturating_mul(PAGE);
            let bytes = self.map.len().saturating_sub(start).min(PREFETCH_PAGES * PAGE);
            if bytes > 0 {
                // Only advice, too.
                let _ = self.map.advise_range(Advice::WillNeed, start, bytes);
            }
        }
    }

    /// The name of the file.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The number of pages.
    pub(crate) fn pages(&self) -> u64 {
        (self.map.len() / PAGE) as u64
    }

    /// The payload of a page, after its checksum was verified.
    pub(crate) fn page(&self, number: u64) -> Result<&[u8; PAYLOAD], StateError> {
        let (page, bit) = (self.raw(number)?, 1 << (number % 64));
        let checked = &self.checked[(number / 64) as usize];
        // A reader that does not see the bit yet verifies the checksum once more.
        if checked.load(Ordering::Relaxed) & bit == 0 {
            self.check(number)?;
            checked.fetch_or(bit, Ordering::Relaxed);
        }
        page.first_chunk().ok_or_else(|| self.corrupt(number, "it is cut"))
    }

    fn raw(&self, number: u64) -> Result<&[u8], StateError> {
        let start = usize::try_from(number).ok().and_then(|number| number.checked_mul(PAGE));
        start
            .and_then(|start| self.map.get(start..start.checked_add(PAGE)?))
            .ok_or_else(|| self.corrupt(number, "the file ends before it"))
    }

    /// Verifies the checksum of a page, even if it was verified before.
    pub(crate) fn check(&self, number: u64) -> Result<(), StateError> {
        match is_whole(number, self.raw(number)?) {
            true => Ok(()),
            false => Err(self.corrupt(number, "its checksum is wrong")),
        }
    }

    /// The number of pages that were read since the last call, or else since the file was opened.
    /// The checksums of all pages will be verified again.
    pub(super) fn take_read(&mut self) -> u64 {
        let take = |word: &mut AtomicU64| u64::from(std::mem::take(word.get_mut()).count_ones());
        self.checked.iter_mut().map(take).sum()
    }

    /// The error of a damaged or malformed page.
    pub(crate) fn corrupt(&self, page: u64, what: impl std::fmt::Display) -> StateError {
        StateError::corrupt(&*self.name, format!("page {page}: {what}"))
    }

    /// The error of a malformed file.
    pub(crate) fn wrong(&self, what: impl Into<String>) -> StateError {
        StateError::corrupt(&*self.name, what)
    }
}
