//! [`ObjectFolder`]: objects that are read and written by name, below one path or URL.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom, Write},
    ops::Range,
    path::{Path, PathBuf},
};

use futures::{FutureExt, StreamExt};
use object_store::{GetOptions, GetRange, ObjectStoreExt};

use super::{ObjectError, SourceLocation, StoredObject};
use crate::error::{SourceError, SourceErrorKind, SourcePlace};

/// Objects below one path or URL: files of a folder, or objects whose keys begin with a prefix. On a
/// web server they can only be read.
///
/// Names may have slashes. They are the caller's: they are not checked.
#[derive(Clone, Debug)]
pub struct ObjectFolder {
    location: SourceLocation,
}

impl ObjectFolder {
    /// The folder at this location, which may not exist. Sends no request.
    pub fn new(location: SourceLocation) -> Self {
        let location = match location {
            SourceLocation::Path(path) => SourceLocation::Path(path),
            SourceLocation::Object(object) => SourceLocation::Object(object.as_folder()),
        };
        Self { location }
    }

    /// Its path, or its URL without secrets.
    pub fn name(&self) -> &Path {
        self.location.name()
    }

    /// The path or URL of one of its objects, for messages.
    pub fn name_of(&self, name: &str) -> PathBuf {
        match self.at(name) {
            SourceLocation::Path(path) => path,
            SourceLocation::Object(object) => object.name().to_owned(),
        }
    }

    fn at(&self, name: &str) -> SourceLocation {
        match &self.location {
            SourceLocation::Path(path) => SourceLocation::Path(path.join(name)),
            SourceLocation::Object(object) => {
                let part = |folder: StoredObject, part| folder.child(part);
                SourceLocation::Object(name.split('/').fold(object.clone(), part))
            }
        }
    }

    /// The content of an object of at most `limit` bytes; `None` if there is no such object.
    ///
    /// # Errors
    /// If it cannot be read, or is longer.
    pub fn read(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>, SourceError> {
        match self.at(name) {
            SourceLocation::Path(path) => {
                let Some(file) = open(&path)? else { return Ok(None) };
                let mut content = Vec::new();
                let read = file.take(limit.saturating_add(1)).read_to_end(&mut content);
                read.map_err(|error| SourceError::io(&path, "read the file", error))?;
                if content.len() as u64 > limit {
                    let claimed = content.len() as u64;
                    let kind = SourceErrorKind::TooLarge { what: "the file", claimed, limit };
                    return Err(SourceError::new(&path, SourcePlace::File, kind));
                }
                Ok(Some(content))
            }
            SourceLocation::Object(object) => {
                let read = object.read_small(limit).map_err(|error| object.error(error))?;
                Ok(read.map(|(content, _)| content))
            }
        }
    }

    /// These bytes of an object, fewer if it ends before; `None` if there is no such object.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn read_range(
        &self,
        name: &str,
        range: Range<u64>,
    ) -> Result<Option<Vec<u8>>, SourceError> {
        match self.at(name) {
            SourceLocation::Path(path) => {
                let Some(mut file) = open(&path)? else { return Ok(None) };
                let mut content = Vec::new();
                let read = file.seek(SeekFrom::Start(range.start)).and_then(|_| {
                    file.take(range.end.saturating_sub(range.start)).read_to_end(&mut content)
                });
                read.map_err(|error| SourceError::io(&path, "read the file", error))?;
                Ok(Some(content))
            }
            SourceLocation::Object(object) => match object.read_range(range) {
                Ok(content) => Ok(Some(content)),
                Err(error) if error.is_absence() => Ok(None),
                Err(error) => Err(object.error(error)),
            },
        }
    }

    /// Checks that objects can be written here at all.
    ///
    /// # Errors
    /// If it is on a web server.
    pub fn check_writable(&self) -> Result<(), SourceError> {
        match &self.location {
            SourceLocation::Object(object) if object.is_read_only() => {
                Err(object.error(ObjectError::ReadOnly))
            }
            _ => Ok(()),
        }
    }

    /// Writes an object, which appears as a whole or not at all.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, name: &str, content: Vec<u8>) -> Result<(), SourceError> {
        match self.at(name) {
            SourceLocation::Path(path) => {
                let fail = |error| SourceError::io(&path, "write the file", error);
                write_file(&path, &content).map_err(fail)
            }
            SourceLocation::Object(object) => {
                object.write(content).map_err(|error| object.error(error))
            }
        }
    }

    /// Removes an object, if there is one.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn remove(&self, name: &str) -> Result<(), SourceError> {
        match self.at(name) {
            SourceLocation::Path(path) => match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(SourceError::io(&path, "remove the file", error))
                }
                _ => Ok(()),
            },
            SourceLocation::Object(object) => match object.remove() {
                Err(ObjectError::NotFound) | Ok(()) => Ok(()),
                Err(error) => Err(object.error(error)),
            },
        }
    }
}

fn open(path: &Path) -> Result<Option<File>, SourceError> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(SourceError::io(path, "open the file", error)),
    }
}

fn write_file(path: &Path, content: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut partial = path.as_os_str().to_owned();
    partial.push(".part");
    let partial = PathBuf::from(partial);
    let written = File::create(&partial).and_then(|mut file| {
        file.write_all(content)?;
        file.sync_all()
    });
    let done = written.and_then(|()| fs::rename(&partial, path));
    if done.is_err() {
        // The first error is what counts.
        drop(fs::remove_file(&partial));
    }
    done
}

impl StoredObject {
    /// These bytes, fewer if the object ends before.
    fn read_range(&self, range: Range<u64>) -> Result<Vec<u8>, ObjectError> {
        let len = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX);
        if len == 0 {
            return Ok(Vec::new());
        }
        let key = &self.key;
        let read = self.store.request("read a part of the object", |store| {
            let range = Some(GetRange::Bounded(range.clone()));
            let options = GetOptions { range, ..GetOptions::default() };
            async move {
                let mut pieces = store.get_opts(key, options).await?.into_stream();
                let mut content = Vec::new();
                // A server may send more than it was asked for.
                while content.len() < len
                    && let Some(piece) = pieces.next().await.transpose()?
                {
                    content.extend_from_slice(&piece[..piece.len().min(len - content.len())]);
                }
                Ok(content)
            }
            .boxed()
        });
        match read {
            // The range begins beyond the end (416).
            Err(ObjectError::Replaced { .. }) => Ok(Vec::new()),
            read => read,
        }
    }

    fn remove(&self) -> Result<(), ObjectError> {
        if self.is_read_only() {
            return Err(ObjectError::ReadOnly);
        }
        self.store.request("remove the object", |store| store.delete(&self.key).boxed())
    }
}
