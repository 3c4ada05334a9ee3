//! Where a file or folder is: on disk, or in an object store.

use std::{
    cmp::Ordering,
    path::{self, Path, PathBuf},
};

use super::{Object, ObjectError};
use crate::{
    error::{Place, SourceError, SourceErrorKind},
    origin::folder_entries,
};

/// A path, or an object or prefix of objects of a store.
///
/// Everything that is a path is one by `into`; what may be a URL goes through
/// [`Stores::locate`](super::Stores::locate), which knows credentials and endpoints.
#[derive(Clone, Debug)]
pub enum Location {
    /// A file or folder.
    Path(PathBuf),
    /// An object, or what all objects of a folder begin with.
    Object(Object),
}

impl<P: AsRef<Path>> From<P> for Location {
    fn from(path: P) -> Self {
        Self::Path(path.as_ref().to_owned())
    }
}

impl From<&Self> for Location {
    fn from(location: &Self) -> Self {
        location.clone()
    }
}

impl Location {
    /// What it is called in messages: the path, or the URL without what may be secret in it.
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

    /// A path whose last component is that of the file, for its extension.
    pub(crate) fn key(&self) -> &Path {
        match self {
            Self::Path(path) => path,
            Self::Object(object) => Path::new(object.key()),
        }
    }

    /// The visible files of a folder in name order; `None` if it is none. Subfolders are left out,
    /// links are followed.
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

    /// Whether it gives its bytes once, and cannot be opened again: a pipe, a terminal, a socket.
    pub fn is_stream(&self) -> bool {
        let Self::Path(path) = self else { return false };
        // What cannot be looked at cannot be opened either: that says why.
        path.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir())
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

    /// The cause of a failure: that an object is not the one of its checksum explains any other.
    pub(crate) fn blame(&self, error: SourceError) -> SourceError {
        match (self, &*error.kind) {
            (_, SourceErrorKind::Object(_)) | (Self::Path(_), _) => error,
            (Self::Object(object), _) => match object.check_sum() {
                Err(sum @ ObjectError::Checksum { .. }) => {
                    SourceError::new(object.name(), Place::File, sum.into())
                }
                _ => error,
            },
        }
    }
}

impl PartialEq for Location {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Location {}

impl PartialOrd for Location {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Location {
    fn cmp(&self, other: &Self) -> Ordering {
        self.name().cmp(other.name())
    }
}
