//! Prepared states on disk. Loading ten million keys takes minutes, copying them takes seconds. So
//! a loaded state is kept, and each command works on a copy of it.
//!
//! ```text
//!  <folder>/states/<name>/   state.json (written last), and the files it lists
//!  <folder>/runs/<random>/   copies in use, and states being built; `<random>.owner` is locked
//! ```
//!
//! A state is built in a separate folder and renamed when it is complete. Each copy is compared
//! with the checksums in `state.json`; a state that differs is deleted and built again. The next
//! command removes the folders of a command that was killed.

use crate::sparse::{self, FileDigest};
use retrie_backends::user_cache;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};
use tempfile::TempDir;

/// Version of `state.json` and of what its checksums mean.
const FORMAT: u32 = 1;
const STATE: &str = "state.json";
const OWNER: &str = "owner";
/// Lock files of databases. They have no meaning once the database is closed.
const LOCKS: [&str; 2] = ["lock", "mdbx.lck"];

/// A folder of prepared states. Without a folder every state is built again.
#[derive(Clone, Debug)]
pub struct StateCache {
    folder: Option<PathBuf>,
}

/// A file or folder of the cache could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{action} {} failed: {source}", path.display())]
pub struct CacheError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

pub(crate) fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CacheError {
    let path = path.to_owned();
    move |source| CacheError { action, path, source }
}

/// `state.json`.
#[derive(Debug, Serialize, Deserialize)]
struct StateManifest {
    format: u32,
    name: String,
    files: BTreeMap<PathBuf, FileEntry>,
}

#[derive(Debug, Serialize, Deserialize)]
struct FileEntry {
    bytes: u64,
    crc32: u32,
}

/// Why a kept state cannot be used.
enum CacheMiss {
    Absent,
    Damaged(String),
}

impl StateCache {
    /// The cache in `folder`, which is created if it is missing.
    pub const fn at(folder: PathBuf) -> Self {
        Self { folder: Some(folder) }
    }

    /// No states are kept; [`scratch`](Self::scratch) uses the system's temporary folder.
    pub const fn none() -> Self {
        Self { folder: None }
    }

    /// The cache in `$XDG_CACHE_HOME/retrie/bench` or `~/.cache/retrie/bench`; without a folder if
    /// there is no home.
    pub fn user_default() -> Self {
        Self { folder: user_cache().map(|folder| folder.join("bench")) }
    }

    /// Where the states are kept.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// An empty folder for temporary files, on the same disk as the states.
    ///
    /// # Errors
    /// [`CacheError`] if the folder cannot be created.
    pub fn scratch(&self) -> Result<ScratchFolder, CacheError> {
        match &self.folder {
            Some(folder) => ScratchFolder::new(&folder.join("runs")),
            None => ScratchFolder::in_system_temp(),
        }
    }

    /// A new folder with the state `name`: a copy of the kept one, or what `build` leaves in an
    /// empty folder. `name` must contain everything that the content depends on, in characters that
    /// are valid in a file name.
    ///
    /// # Errors
    /// Errors of `build`, and [`CacheError`].
    pub fn checkout<E: From<CacheError>>(
        &self,
        name: &str,
        build: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<ScratchFolder, E> {
        let Some(folder) = &self.folder else {
            let run = self.scratch()?;
            build(run.path())?;
            return Ok(run);
        };
        remove_abandoned(&folder.join("runs"))?;
        let cached = folder.join("states").join(name);
        let run = self.scratch()?;
        match copy_state(&cached, name, run.path())? {
            Ok(()) => return Ok(run),
            Err(CacheMiss::Absent) => {}
            Err(CacheMiss::Damaged(why)) => {
                tracing::warn!(
                    "the kept state {} is damaged ({why}); building it again",
                    cached.display()
                );
                fs::remove_dir_all(&cached).map_err(failed("removing", &cached))?;
            }
        }
        drop(run);
        let made = self.scratch()?;
        build(made.path())?;
        write_manifest(made.path(), name)?;
        keep(made, &cached)?;
        let run = self.scratch()?;
        match copy_state(&cached, name, run.path())? {
            Ok(()) => Ok(run),
            Err(_) => {
                let gone = io::Error::other("it was changed while it was copied");
                Err(failed("copying", &cached)(gone).into())
            }
        }
    }
}

/// A folder that is removed when it is dropped.
#[derive(Debug)]
pub struct ScratchFolder {
    folder: TempDir,
    /// Locked as long as this value lives.
    _owner: Option<File>,
}

impl ScratchFolder {
    fn in_system_temp() -> Result<Self, CacheError> {
        let temp = std::env::temp_dir();
        let folder = tempfile::Builder::new().prefix("retrie-bench-").tempdir_in(&temp);
        Ok(Self { folder: folder.map_err(failed("creating a folder in", &temp))?, _owner: None })
    }

    fn new(runs: &Path) -> Result<Self, CacheError> {
        fs::create_dir_all(runs).map_err(failed("creating", runs))?;
        let folder = tempfile::Builder::new().prefix("run-").tempdir_in(runs);
        let folder = folder.map_err(failed("creating a folder in", runs))?;
        let path = owner(folder.path());
        let owner = File::create_new(&path).map_err(failed("creating", &path))?;
        owner.try_lock().map_err(|e| failed("locking", &path)(e.into()))?;
        Ok(Self { folder, _owner: Some(owner) })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// The lock file. It lies beside the folder, so that the folder holds the state alone.
fn owner(folder: &Path) -> PathBuf {
    let mut name = folder.as_os_str().to_owned();
    name.push(".");
    name.push(OWNER);
    name.into()
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        // The next command removes what cannot be removed now.
        let _ = fs::remove_dir_all(self.folder.path());
        let _ = fs::remove_file(owner(self.folder.path()));
    }
}

/// Removes the folders whose lock no process holds any more.
fn remove_abandoned(runs: &Path) -> Result<(), CacheError> {
    let entries = match fs::read_dir(runs) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(failed("reading", runs)(e)),
    };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.extension().is_some_and(|extension| extension == OWNER)
            && File::open(&path).is_ok_and(|file| file.try_lock().is_ok())
        {
            let _ = fs::remove_dir_all(path.with_extension(""));
            let _ = fs::remove_file(&path);
        }
    }
    Ok(())
}

/// Moves a complete state to its final path, unless another process has been faster.
fn keep(made: ScratchFolder, cached: &Path) -> Result<(), CacheError> {
    if let Some(states) = cached.parent() {
        fs::create_dir_all(states).map_err(failed("creating", states))?;
    }
    match fs::rename(made.path(), cached) {
        Err(_) if cached.join(STATE).is_file() => Ok(()),
        moved => moved.map_err(failed("creating", cached)),
    }
}

fn write_manifest(folder: &Path, name: &str) -> Result<(), CacheError> {
    let mut files = BTreeMap::new();
    for file in files_of(folder)? {
        let path = folder.join(&file);
        let FileDigest { bytes, crc32 } =
            sparse::digest(&path).map_err(failed("reading", &path))?;
        files.insert(file, FileEntry { bytes, crc32 });
    }
    let manifest = StateManifest { format: FORMAT, name: name.into(), files };
    let path = folder.join(STATE);
    let write = || {
        let mut file = File::create_new(&path)?;
        file.write_all(&serde_json::to_vec_pretty(&manifest)?)?;
        file.sync_all()
    };
    write().map_err(failed("writing", &path))
}

/// Paths of all files below `folder`, relative to it.
fn files_of(folder: &Path) -> Result<Vec<PathBuf>, CacheError> {
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(below) = folders.pop() {
        let path = folder.join(&below);
        let entries = fs::read_dir(&path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        for entry in entries.map_err(failed("reading", &path))? {
            let name = below.join(entry.file_name());
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(name);
            } else if !LOCKS.iter().any(|lock| entry.file_name() == *lock) {
                files.push(name);
            }
        }
    }
    Ok(files)
}

/// Copies the state kept in `cached` if it is complete. After a [`CacheMiss`] the caller deletes
/// the copy.
fn copy_state(cached: &Path, name: &str, to: &Path) -> Result<Result<(), CacheMiss>, CacheError> {
    let damaged = |why: String| Ok(Err(CacheMiss::Damaged(why)));
    if !cached.exists() {
        return Ok(Err(CacheMiss::Absent));
    }
    let manifest = match fs::read(cached.join(STATE)) {
        Ok(manifest) => manifest,
        Err(e) => return damaged(format!("{STATE}: {e}")),
    };
    let manifest: StateManifest = match serde_json::from_slice(&manifest) {
        Ok(manifest) => manifest,
        Err(e) => return damaged(format!("{STATE}: {e}")),
    };
    if (manifest.format, &*manifest.name) != (FORMAT, name) {
        return damaged(format!("{STATE} describes another state"));
    }
    for (file, expected) in &manifest.files {
        let (from, to) = (cached.join(file), to.join(file));
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent).map_err(failed("creating", parent))?;
        }
        let found = match sparse::copy(&from, &to) {
            Ok(found) => found,
            Err(e) if !from.is_file() => return damaged(format!("{}: {e}", file.display())),
            Err(e) => return Err(failed("copying", &from)(e)),
        };
        if (found.bytes, found.crc32) != (expected.bytes, expected.crc32) {
            return damaged(format!("{} has changed", file.display()));
        }
    }
    Ok(Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks a state out, and returns whether it had to be built.
    fn checkout(cache: &StateCache, name: &str) -> (ScratchFolder, bool) {
        let mut built = false;
        let run = cache.checkout(name, |folder| {
            built = true;
            fs::create_dir(folder.join("db")).unwrap();
            fs::write(folder.join("db/data"), name.repeat(1000)).unwrap();
            fs::write(folder.join("db/mdbx.lck"), "lock").unwrap();
            fs::write(folder.join("lock"), "lock").unwrap();
            Ok::<_, CacheError>(())
        });
        let run = run.unwrap();
        assert_eq!(fs::read_to_string(run.path().join("db/data")).unwrap(), name.repeat(1000));
        (run, built)
    }

    #[test]
    fn state_is_built_once_and_never_written_through_a_copy() {
        let home = tempfile::tempdir().unwrap();
        let cache = StateCache::at(home.path().join("cache"));
        let (run, built) = checkout(&cache, "a");
        assert!(built && !run.path().join("db/mdbx.lck").exists());
        fs::write(run.path().join("db/data"), "changed by the run").unwrap();
        let (second, built) = checkout(&cache, "a");
        assert!(!built && run.path() != second.path() && run.path().exists());
        assert!(checkout(&cache, "b").1, "another state");
        let path = run.path().to_owned();
        drop((run, second));
        assert!(!path.exists());
        assert_eq!(fs::read_dir(home.path().join("cache/runs")).unwrap().count(), 0);
    }

    #[test]
    fn damaged_states_are_built_again() {
        let home = tempfile::tempdir().unwrap();
        let cache = StateCache::at(home.path().to_owned());
        checkout(&cache, "a");
        let state = home.path().join("states/a");
        let data = state.join("db/data");
        let damages: [&dyn Fn(); 6] = [
            &|| fs::write(&data, "a".repeat(999) + "b").unwrap(),
            &|| fs::write(&data, "a".repeat(999)).unwrap(),
            &|| fs::remove_file(&data).unwrap(),
            &|| fs::remove_file(state.join(STATE)).unwrap(),
            &|| fs::write(state.join(STATE), "{").unwrap(),
            &|| {
                let manifest = fs::read_to_string(state.join(STATE)).unwrap();
                fs::write(state.join(STATE), manifest.replace("\"a\"", "\"c\"")).unwrap();
            },
        ];
        for (n, damage) in damages.iter().enumerate() {
            damage();
            assert!(checkout(&cache, "a").1, "damage {n} was not noticed");
            assert!(!checkout(&cache, "a").1, "damage {n} was not repaired");
        }
    }

    #[test]
    fn failed_build_leaves_nothing() {
        let home = tempfile::tempdir().unwrap();
        let cache = StateCache::at(home.path().to_owned());
        let no = || failed("testing", home.path())(io::Error::other("no"));
        let failure = cache.checkout("a", |folder| {
            fs::write(folder.join("half"), "half").unwrap();
            Err::<(), _>(no())
        });
        assert!(failure.is_err());
        assert!(checkout(&cache, "a").1);
    }

    #[test]
    fn folders_of_killed_runs_are_removed() {
        let home = tempfile::tempdir().unwrap();
        let cache = StateCache::at(home.path().to_owned());
        let (alive, _) = checkout(&cache, "a");
        let killed = home.path().join("runs/run-killed");
        fs::create_dir(&killed).unwrap();
        fs::write(owner(&killed), "").unwrap();
        checkout(&cache, "a");
        assert!(!killed.exists() && !owner(&killed).exists() && alive.path().exists());
    }

    #[test]
    fn without_a_folder_nothing_is_kept() {
        assert!(checkout(&StateCache::none(), "a").1);
        assert!(checkout(&StateCache::none(), "a").1);
    }
}
