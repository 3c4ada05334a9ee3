//! `limit.json`: the limits of machines, kept beside the cache of prepared states.

use super::{LimitError, MachineLimits};
use crate::cache::StateCache;
use retrie_pipeline::report::machine;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

/// Version of `limit.json`, and of what the probes measure.
const FORMAT: u32 = 1;
const FILE: &str = "limit.json";

/// The content of `limit.json`.
#[derive(Debug, Serialize, Deserialize)]
struct LimitFile {
    format: u32,
    /// By machine: processor and number of cores. Machines may share a home.
    machines: BTreeMap<String, MachineLimits>,
}

impl MachineLimits {
    /// The limits of this machine that the folder of `cache` has; `None` if they were not measured.
    ///
    /// # Errors
    /// [`LimitError::Damaged`] or [`LimitError::Io`] if the file cannot be read.
    pub fn load(cache: &StateCache) -> Result<Option<Self>, LimitError> {
        let Some(folder) = cache.folder() else { return Ok(None) };
        let found = read(&folder.join(FILE))?;
        Ok(found.and_then(|mut file| file.machines.remove(&this_machine())))
    }

    /// Keeps the limits as those of this machine, and returns the file; `None` if `cache` has no
    /// folder. A damaged file is replaced.
    ///
    /// # Errors
    /// [`LimitError::Io`] if the file cannot be written.
    pub fn keep(&self, cache: &StateCache) -> Result<Option<PathBuf>, LimitError> {
        let Some(folder) = cache.folder() else { return Ok(None) };
        let path = folder.join(FILE);
        let mut machines = match read(&path) {
            Ok(Some(file)) => file.machines,
            Ok(None) | Err(LimitError::Damaged { .. }) => BTreeMap::new(),
            Err(error) => return Err(error),
        };
        machines.insert(this_machine(), self.clone());
        let written = write(folder, &path, &LimitFile { format: FORMAT, machines });
        written.map_err(|source| LimitError::Io {
            action: "writing",
            path: path.clone(),
            source,
        })?;
        Ok(Some(path))
    }
}

/// Processor and number of cores of this machine.
fn this_machine() -> String {
    let machine = machine();
    // Memory and operating system follow.
    let mut parts = machine.rsplitn(3, ", ").skip(2);
    parts.next().unwrap_or(&machine).to_owned()
}

/// The file; `None` if there is none, or if it is of another version.
fn read(path: &Path) -> Result<Option<LimitFile>, LimitError> {
    let damaged = |why: serde_json::Error| LimitError::Damaged {
        path: path.to_owned(),
        why: why.to_string(),
    };
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => {
            return Err(LimitError::Io { action: "reading", path: path.to_owned(), source });
        }
    };
    let version: FileVersion = serde_json::from_slice(&text).map_err(damaged)?;
    match version.format {
        FORMAT => serde_json::from_slice(&text).map(Some).map_err(damaged),
        _ => Ok(None),
    }
}

/// The part of the file that all versions have.
#[derive(Debug, Deserialize)]
struct FileVersion {
    format: u32,
}

/// Replaces the file at once, so that no reader sees half of it.
fn write(folder: &Path, path: &Path, file: &LimitFile) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut beside = tempfile::NamedTempFile::new_in(folder)?;
    beside.write_all(&serde_json::to_vec_pretty(file)?)?;
    beside.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{super::machine::tests::limits, *};

    #[test]
    fn limits_are_read_as_they_were_kept() {
        let home = tempfile::tempdir().unwrap();
        let cache = StateCache::at(home.path().join("cache"));
        assert_eq!(MachineLimits::load(&cache).unwrap(), None);
        let path = limits().keep(&cache).unwrap().unwrap();
        assert_eq!(MachineLimits::load(&cache).unwrap(), Some(limits()));
        // Those of another machine stay.
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace(&this_machine(), "another machine, 64 cores")).unwrap();
        assert_eq!(MachineLimits::load(&cache).unwrap(), None);
        limits().keep(&cache).unwrap();
        let both = fs::read_to_string(&path).unwrap();
        assert!(both.contains("another machine") && both.contains(&this_machine()));
        assert_eq!(MachineLimits::load(&StateCache::none()).unwrap(), None);
        assert_eq!(limits().keep(&StateCache::none()).unwrap(), None);
    }

    #[test]
    fn damaged_file_is_named_and_replaced() {
        let home = tempfile::tempdir().unwrap();
        let cache = StateCache::at(home.path().to_owned());
        let path = home.path().join(FILE);
        for damage in ["", "{", "[]", "{\"format\": 1}", "{\"format\": 1, \"machines\": 7}"] {
            fs::write(&path, damage).unwrap();
            let error = MachineLimits::load(&cache).unwrap_err();
            assert!(matches!(error, LimitError::Damaged { .. }), "{damage}: {error}");
            assert!(error.to_string().contains("limit.json is damaged"), "{error}");
        }
        limits().keep(&cache).unwrap();
        assert_eq!(MachineLimits::load(&cache).unwrap(), Some(limits()));
        // A later version is not ours to judge.
        fs::write(&path, "{\"format\": 2}").unwrap();
        assert_eq!(MachineLimits::load(&cache).unwrap(), None);
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(matches!(MachineLimits::load(&cache), Err(LimitError::Io { .. })));
    }

    #[test]
    fn machine_is_its_processor_and_its_cores() {
        let name = this_machine();
        assert!(name.ends_with(" cores") && !name.contains("GiB"), "{name}");
    }
}
