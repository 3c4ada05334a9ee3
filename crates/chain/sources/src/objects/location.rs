//! The location of a file or folder: on disk, or in an object store.

use std::{
    cmp::Ordering,
    fs::File,
    io::{Read, Seek},
    path::{self, Path, PathBuf},
};

use super::{ObjectError, StoredObject};
use crate::{
    error::{SourceError, SourceErrorKind, SourcePlace},
    origin::folder_entries,
};

/// Bytes that can be read at any place.
pub(crate) trait SeekableBytes: Read + Seek + Send {}

impl<T: Read + Seek + Send> SeekableBytes for T {}

/// A path, or an object or folder of a store.
///
/// `into` makes a location of any path. A text that may be a URL goes through
/// [`StoreRegistry::locate`](super::StoreRegistry::locate), which has credentials and endpoints.
#[derive(Clone, Debug)]
pub enum SourceLocation {
    /// A file or folder.
    Path(PathBuf),
    /// An object, or the common prefix of the objects of a folder.
    Object(StoredObject),
}

impl<P: AsRef<Path>> From<P> for SourceLocation {
    fn from(path: P) -> Self {
        Self::Path(path.as_ref().to_owned())
    }
}

impl From<&Self> for SourceLocation {
    fn from(location: &Self) -> Self {
        location.clone()
    }
}

impl SourceLocation {
    /// Its name in messages: the path, or the URL without secrets.
    pub fn name(&self) -> &Path {
        match self {
            Self::Path(path) => path,
            Self::Object(object) => object.name(),
        }
    }

    /// [`name`](Self::name), to print.
    pub fn display(&self) -> path::Display<'_> {
        self.name().display()
    }

    /// A path with the same last component, for its extension.
    pub(crate) fn key(&self) -> &Path {
        match self {
            Self::Path(path) => path,
            Self::Object(object) => Path::new(object.key()),
        }
    }

    /// The visible files of a folder in name order; `None` if it is not a folder. Subfolders are
    /// left out, links are followed.
    pub(crate) fn entries(&self) -> Result<Option<Vec<Self>>, SourceError> {
        match self {
            Self::Path(path) => {
                let fail = |e| SourceError::io(path, "read the path", e);
                if !path.metadata().map_err(fail)?.is_dir() {
                    return Ok(None);
                }
                Ok(Some(folder_entries(path)?.into_iter().map(Self::Path).collect()))
            }
            Self::Object(object) => {
                let listed = object.entries().map_err(|error| object.error(error))?;
                Ok(listed.map(|objects| objects.into_iter().map(Self::Object).collect()))
            }
        }
    }

    /// Whether it can be read only once: a pipe, a terminal, a socket.
    pub fn is_stream(&self) -> bool {
        let Self::Path(path) = self else { return false };
        // A path without metadata cannot be opened either; opening it returns the error.
        path.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir())
    }

    /// Opens it as a file. An object is copied to an unnamed temporary file.
    pub(crate) fn file(&self) -> Result<File, SourceError> {
        match self {
            Self::Path(path) => {
                File::open(path).map_err(|e| SourceError::io(path, "open the file", e))
            }
            Self::Object(object) => object.spool(),
        }
    }

    /// Opens it to read a few parts of it. No other parts of an object are fetched.
    pub(crate) fn parts(&self) -> Result<Box<dyn SeekableBytes>, SourceError> {
        Ok(match self {
            Self::Path(_) => Box::new(self.file()?),
            Self::Object(object) => Box::new(object.reader().map_err(|error| object.error(error))?),
        })
    }

    /// Its size in bytes, as it is stored.
    pub(crate) fn bytes(&self) -> Result<u64, SourceError> {
        match self {
            Self::Path(path) => {
                let fail = |e| SourceError::io(path, "read the file's size", e);
                Ok(path.metadata().map_err(fail)?.len())
            }
            Self::Object(object) => object.size().map_err(|error| object.error(error)),
        }
    }

    /// Returns a checksum error of the object instead of `error`, if the object has one: it
    /// explains any other failure.
    pub(crate) fn explain_error(&self, error: SourceError) -> SourceError {
        match (self, &*error.kind) {
            (_, SourceErrorKind::Object(_)) | (Self::Path(_), _) => error,
            (Self::Object(object), _) => match object.verify_checksum() {
                Err(sum @ ObjectError::Checksum { .. }) => {
                    SourceError::new(object.name(), SourcePlace::File, sum.into())
                }
                _ => error,
            },
        }
    }
}

impl PartialEq for SourceLocation {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for SourceLocation {}

impl PartialOrd for SourceLocation {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for SourceLocation {
    fn cmp(&self, other: &Self) -> Ordering {
        self.name().cmp(other.name())
    }
}
