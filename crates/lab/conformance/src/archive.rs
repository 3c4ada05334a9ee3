//! Reads the files of a suite from its archive or its unpacked folder.

use crate::pack;
use sha2::{Digest, Sha256};
use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
};

/// Name of the checksum file.
const SUMS: &str = "SHA256SUMS";
/// Suffix of an archive's name.
const SUFFIX: &str = ".tar.zst";

/// One file of a suite.
#[derive(Clone, Debug)]
pub struct TestFile {
    /// Path within the suite, with `/`.
    pub path: String,
    /// Content.
    pub content: Vec<u8>,
}

/// Why the files of a suite could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// There is neither an archive nor a folder.
    #[error("{}: there is neither {name}.tar.zst nor a folder {name}", dir.display())]
    Missing {
        /// The searched folder.
        dir: PathBuf,
        /// The suite.
        name: String,
    },
    /// A file or folder cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// An archive does not have its listed checksum.
    #[error("{}: its SHA-256 is {got}, but {SUMS} says {expected}; copy it again", path.display())]
    Checksum {
        /// The archive.
        path: PathBuf,
        /// The file's digest in hex.
        got: String,
        /// The digest in the list.
        expected: String,
    },
    /// The list of checksums has no line for an archive.
    #[error("{}: {SUMS} has no line for it", path.display())]
    NoChecksum {
        /// The archive.
        path: PathBuf,
    },
    /// An archive cannot be unpacked.
    #[error("{}: damaged archive: {source}", path.display())]
    Damaged {
        /// The archive.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
}

/// Names of all suites in `dir`: archives, files and folders of the pack of EIP-8297, and other folders
/// that are not hidden; sorted, each once.
pub fn names(dir: &Path) -> Result<Vec<String>, ArchiveError> {
    let mut names = Vec::new();
    for path in entries(dir)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if let Some(name) = name.strip_suffix(SUFFIX) {
            names.push(name.to_owned());
        } else if let Some(suite) = pack::suite_of(&name) {
            names.push(suite.to_owned());
        } else if path.is_dir() && !name.starts_with('.') {
            names.push(name);
        }
    }
    names.extend(listed(dir)?);
    names.sort();
    names.dedup();
    Ok(names)
}

/// All files of the suite `name`, sorted by path. An archive has precedence over a folder with the
/// same name.
pub fn read(dir: &Path, name: &str) -> Result<Vec<TestFile>, ArchiveError> {
    if let Some(suite) = pack::find(name) {
        return pack::read(dir, suite);
    }
    let archive = dir.join(format!("{name}{SUFFIX}"));
    let folder = dir.join(name);
    let mut files = Vec::new();
    if archive.exists() {
        unpack(dir, name, &archive, &mut files)?;
    } else if folder.is_dir() {
        walk(&folder, "", &mut files)?;
    } else {
        return Err(ArchiveError::Missing { dir: dir.to_owned(), name: name.to_owned() });
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

fn unpack(
    dir: &Path,
    name: &str,
    archive: &Path,
    files: &mut Vec<TestFile>,
) -> Result<(), ArchiveError> {
    let packed = read_checked(dir, &format!("{name}{SUFFIX}"))?;
    let damaged = |source| ArchiveError::Damaged { path: archive.to_owned(), source };
    let mut plain = Vec::new();
    zstd::stream::copy_decode(packed.as_slice(), &mut plain).map_err(damaged)?;
    let mut tar = tar::Archive::new(plain.as_slice());
    for entry in tar.entries().map_err(damaged)? {
        let mut entry = entry.map_err(damaged)?;
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let path = entry.path().map_err(damaged)?.to_string_lossy().into_owned();
        let path = path.trim_start_matches("./");
        let path = path.strip_prefix(name).and_then(|rest| rest.strip_prefix('/')).unwrap_or(path);
        let mut content = Vec::new();
        entry.read_to_end(&mut content).map_err(damaged)?;
        files.push(TestFile { path: path.to_owned(), content });
    }
    Ok(())
}

/// The file `name` of `dir`, checked against the list of checksums, if the folder has one.
pub(crate) fn read_checked(dir: &Path, name: &str) -> Result<Vec<u8>, ArchiveError> {
    let path = dir.join(name);
    let content = read_file(&path)?;
    let Some(sums) = read_checksums(dir)? else { return Ok(content) };
    let Some((expected, _)) = sums.into_iter().find(|(_, file)| file == name) else {
        return Err(ArchiveError::NoChecksum { path });
    };
    let got = alloy_primitives::hex::encode(Sha256::digest(&content));
    if !got.eq_ignore_ascii_case(&expected) {
        return Err(ArchiveError::Checksum { path, got, expected });
    }
    Ok(content)
}

/// Suites in the list of checksums: a missing one must be reported.
fn listed(dir: &Path) -> Result<Vec<String>, ArchiveError> {
    let lines = read_checksums(dir)?.unwrap_or_default();
    let suite =
        |file: &str| file.strip_suffix(SUFFIX).or_else(|| pack::suite_of(file)).map(str::to_owned);
    Ok(lines.iter().filter_map(|(_, file)| suite(file)).collect())
}

/// Lines of `SHA256SUMS`: digest in hex, file name. `None` if there is no such file.
fn read_checksums(dir: &Path) -> Result<Option<Vec<(String, String)>>, ArchiveError> {
    let path = dir.join(SUMS);
    if !path.exists() {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&read_file(&path)?).into_owned();
    let line = |line: &str| {
        let (sum, file) = line.split_once(char::is_whitespace)?;
        let file = file.trim().trim_start_matches('*').trim_start_matches("./");
        Some((sum.to_owned(), file.to_owned()))
    };
    Ok(Some(text.lines().filter_map(line).collect()))
}

fn walk(folder: &Path, prefix: &str, files: &mut Vec<TestFile>) -> Result<(), ArchiveError> {
    for path in entries(folder)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let inner = format!("{prefix}{name}");
        if path.is_dir() {
            walk(&path, &format!("{inner}/"), files)?;
        } else {
            files.push(TestFile { path: inner, content: read_file(&path)? });
        }
    }
    Ok(())
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, ArchiveError> {
    let io = |source| ArchiveError::Io { path: folder.to_owned(), source };
    fs::read_dir(folder).map_err(io)?.map(|entry| Ok(entry.map_err(io)?.path())).collect()
}

fn read_file(path: &Path) -> Result<Vec<u8>, ArchiveError> {
    fs::read(path).map_err(|source| ArchiveError::Io { path: path.to_owned(), source })
}
