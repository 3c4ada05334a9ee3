//! Files of checked pages: written once as a stream, then mapped and read.
//!
//! A page has 4,096 bytes, the last four of them a CRC-32 over the page's number (8 bytes) and all
//! bytes before: a page that was damaged, or is at another place than it was written to, is noticed
//! at its first read.

use memmap2::Advice;
use retrie_state::{StateError, StoreError, open_patiently};
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
/// More pages no file has: what a layout reserves for a page's number are five bytes.
pub(crate) const MAX_PAGES: u64 = 1 << 40;
/// Pages that a writer gathers before it writes them.
const GATHERED: usize = 64;
/// A file of so many bytes is not trusted to be in memory. Unit tests have small files of both kinds.
const LARGE: u64 = if cfg!(test) { 32 * PAGE as u64 } else { 1 << 30 };
/// Pages that who walks through a large file has fetched at a time.
const AHEAD: usize = 64;

pub(super) fn io_error(doing: &str, path: &Path, source: io::Error) -> StateError {
    StoreError::new(format!("{doing} {}", path.display()), source).into()
}

fn checksum(number: u64, payload: &[u8]) -> [u8; 4] {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&number.to_be_bytes());
    hasher.update(payload);
    hasher.finalize().to_be_bytes()
}

/// Is this page `number` as it was written?
pub(super) fn is_whole(number: u64, page: &[u8]) -> bool {
    page.len() == PAGE && checksum(number, &page[..PAYLOAD])[..] == page[PAYLOAD..]
}

/// Makes sure that files renamed in `dir` keep their names after a power failure.
pub(super) fn sync_dir(dir: &Path) -> Result<(), StateError> {
    let synced = open_patiently(|| File::open(dir)).and_then(|dir| dir.sync_all());
    synced.map_err(|error| io_error("syncing the folder", dir, error))
}

/// Writes a file page by page, under a temporary name until [`publish`](Self::publish). Dropped
/// before that, it takes its file with it.
#[derive(Debug)]
pub(crate) struct PageWriter {
    path: PathBuf,
    temporary: PathBuf,
    file: File,
    gathered: Vec<u8>,
    /// Pages in the file already.
    written: u64,
    published: bool,
}

impl PageWriter {
    /// Starts the file `name` in `dir`, over anything that an interrupted process left behind.
    pub(crate) fn new(dir: &Path, name: &str) -> Result<Self, StateError> {
        let path = dir.join(name);
        // One process writes to the folder; another writer of the same file has another number.
        static WRITERS: AtomicU64 = AtomicU64::new(0);
        let n = WRITERS.fetch_add(1, Ordering::Relaxed);
        let temporary = dir.join(format!("{name}.{n}.tmp"));
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true);
        let file = open_patiently(|| options.open(&temporary));
        let file = file.map_err(|error| io_error("creating", &temporary, error))?;
        let gathered = Vec::with_capacity(GATHERED * PAGE);
        Ok(Self { path, temporary, file, gathered, written: 0, published: false })
    }

    /// Number of pages so far.
    pub(crate) fn pages(&self) -> u64 {
        self.written + (self.gathered.len() / PAGE) as u64
    }

    /// Adds a page; `payload` has at most [`PAYLOAD`] bytes, what is missing is zero.
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

    /// Payload of a page that was appended.
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

    /// Writes a page again.
    pub(crate) fn replace(&mut self, number: u64, payload: &[u8]) -> Result<(), StateError> {
        self.flush()?;
        let written = self.file.write_all_at(&whole_page(number, payload), number * PAGE as u64);
        written.map_err(|error| io_error("writing", &self.temporary, error))
    }

    /// The pages so far, for reading before the file has its name.
    pub(crate) fn map(&mut self) -> Result<PagedFile, StateError> {
        self.flush()?;
        PagedFile::map(&self.temporary, self.written)
    }

    /// Brings everything to disk; [`publish`](Self::publish) is then quick.
    pub(crate) fn sync(&mut self) -> Result<(), StateError> {
        self.flush()?;
        self.file.sync_all().map_err(|error| io_error("syncing", &self.temporary, error))
    }

    /// Gives the synced file its name. The folder is for the caller to sync.
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
            // What stays is removed when the folder is opened.
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

/// A finished file, mapped. Pages are checked at their first read.
#[derive(Debug)]
pub(crate) struct PagedFile {
    name: String,
    map: memmap2::Mmap,
    /// Of a large file a read fetches a page. Of another one the system fetches what lies around it, too,
    /// and soon has all of it in memory.
    is_large: bool,
    /// A bit for each page: its checksum was right.
    checked: Vec<AtomicU64>,
}

impl PagedFile {
    /// Opens the file `name` in `dir`, which has `pages` pages.
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
        let file = open_patiently(|| File::open(path)).map_err(failed)?;
        let have = file.metadata().map_err(|error| io_error("reading", path, error))?.len();
        let want = pages.saturating_mul(PAGE as u64);
        if have != want {
            let what = format!("the file has {have} bytes, it must have {want}");
            return Err(StateError::corrupt(name, what));
        }
        // SAFETY: a run's files are written once, under a temporary name, and never changed or cut
        // after they have their own (nor is a page of a file that `PageWriter::map` shows while
        // that map is in use); the state folder belongs to one process, which holds its lock.
        let map = unsafe { memmap2::Mmap::map(&file) };
        let map = map.map_err(|error| io_error("mapping", path, error))?;
        if (map.len() as u64) < want {
            return Err(StateError::corrupt(name, "the file was cut while it was opened"));
        }
        let is_large = want >= LARGE;
        if is_large {
            // Advice: without it reads take longer.
            let _ = map.advise(Advice::Random);
        }
        let checked = (0..pages.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Ok(Self { name, map, is_large, checked })
    }

    /// Told by who reads page after page that it has come to `number`: the next ones are fetched.
    pub(crate) fn walks_to(&self, number: u64) {
        if self.is_large && number.is_multiple_of(AHEAD as u64) {
            let start = (number as usize + AHEAD).saturating_mul(PAGE);
            let bytes = self.map.len().saturating_sub(start).min(AHEAD * PAGE);
            if bytes > 0 {
                // Advice, too.
                let _ = self.map.advise_range(Advice::WillNeed, start, bytes);
            }
        }
    }

    /// The file's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Number of pages.
    pub(crate) fn pages(&self) -> u64 {
        (self.map.len() / PAGE) as u64
    }

    /// The payload of a page.
    pub(crate) fn page(&self, number: u64) -> Result<&[u8; PAYLOAD], StateError> {
        let (page, bit) = (self.raw(number)?, 1 << (number % 64));
        let checked = &self.checked[(number / 64) as usize];
        // Nothing else hangs on the bit: who does not see it yet checks once more.
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

    /// Checks a page, whether it was read before or not.
    pub(crate) fn check(&self, number: u64) -> Result<(), StateError> {
        match is_whole(number, self.raw(number)?) {
            true => Ok(()),
            false => Err(self.corrupt(number, "its checksum is wrong")),
        }
    }

    /// What is wrong with a page, or with what it says.
    pub(crate) fn corrupt(&self, page: u64, what: impl std::fmt::Display) -> StateError {
        StateError::corrupt(&*self.name, format!("page {page}: {what}"))
    }

    /// What is wrong with the file.
    pub(crate) fn wrong(&self, what: impl Into<String>) -> StateError {
        StateError::corrupt(&*self.name, what)
    }
}
