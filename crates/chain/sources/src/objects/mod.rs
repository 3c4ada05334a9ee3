//! Files in object stores and on web servers: `s3://bucket/key`, `gs://bucket/key`,
//! `http(s)://...`.
//!
//! ```text
//!  URL --> StoreRegistry::locate --> SourceLocation::Object --> ObjectReader --> file readers
//!                                    |                         |  GET, Range, If-Match
//!                                    |                         '--> object_store --> connector
//!                                    '-- entries: ListObjectsV2, or SHA256SUMS of a web server
//! ```
//!
//! * **Folder**: a URL that ends in `/`, or a bucket without a key. It has the objects whose keys
//!   begin with this prefix, up to the next slash. A URL with the extension of a block file or
//!   bundle is an object. Any other URL is a folder if there is something in it, otherwise an
//!   object.
//! * **Streaming**: objects are read in pieces. A bundle is held in memory as a whole, as it is
//!   from disk. An era1 or ere file, which is read twice and from its end, is copied to an unnamed
//!   temporary file.
//! * **Retries**: as in [`HttpOptions`](crate::HttpOptions), from the last byte that was read.
//! * **Checks**: the length against the listing; the content against `SHA256SUMS` beside the
//!   object, if there is one. Blocks of RLP files are yielded before the sum of their file is
//!   complete, as with gzip's own checksum.
//! * **Credentials** come from the [`StoreEnvironment`]. If it has none, the credential service of
//!   the machine's cloud is asked, for a second or two.

mod address;
mod connector;
mod environment;
pub(crate) mod error;
mod folder;
mod location;
mod manifest;
mod reader;
mod store;

pub use environment::StoreEnvironment;
pub use error::ObjectError;
pub use folder::ObjectFolder;
pub(crate) use location::SeekableBytes;
pub use location::SourceLocation;
pub(crate) use manifest::MANIFEST;
pub(crate) use reader::ObjectReader;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{Read, Seek, SeekFrom, Write},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use alloy_primitives::B256;
use object_store::{ObjectMeta, PutMode, PutOptions, PutPayload, UpdateVersion, path::Path as Key};
use sha2::{Digest, Sha256};

use crate::{
    error::{SourceError, SourcePlace},
    http::BlockingClient,
    origin::has_known_extension,
};
use address::{ObjectUrl, StoreScheme};
use manifest::ChecksumManifest;
use store::RemoteStore;

/// How often the list of checksums is written again after a conflict with another writer.
const WRITE_TRIES: usize = 20;

/// Resolves paths and URLs to locations. Clones share connections, credentials and lists of
/// checksums.
#[derive(Clone, Debug)]
pub struct StoreRegistry {
    environment: StoreEnvironment,
    http: BlockingClient,
    open: Arc<Mutex<BTreeMap<String, Arc<RemoteStore>>>>,
}

impl StoreRegistry {
    /// A registry with these credentials and endpoints, over this client.
    pub fn new(environment: StoreEnvironment, http: BlockingClient) -> Self {
        Self { environment, http, open: Arc::default() }
    }

    /// The location of `path`: an object if it begins with `s3://`, `gs://`, `http://` or
    /// `https://`. Sends no request yet.
    ///
    /// # Errors
    /// If the URL is invalid, or the environment contradicts itself.
    pub fn locate(&self, path: impl AsRef<Path>) -> Result<SourceLocation, SourceError> {
        let path = path.as_ref();
        let Some(address) = path.to_str().and_then(ObjectUrl::parse) else {
            return Ok(SourceLocation::Path(path.to_owned()));
        };
        let fail = |error: ObjectError| SourceError::new(path, SourcePlace::File, error.into());
        let address = address.map_err(fail)?;
        let place = format!("{}{}", address.root, address.store);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let store = match open.get(&place) {
            Some(store) => store.clone(),
            None => {
                let made =
                    RemoteStore::open(&address, &self.environment, &self.http).map_err(fail)?;
                open.entry(place).or_insert_with(|| Arc::new(made)).clone()
            }
        };
        Ok(SourceLocation::Object(StoredObject::new(&store, address.key, address.is_folder, None)))
    }

    /// The locations of all `paths`.
    ///
    /// # Errors
    /// As [`locate`](Self::locate).
    pub fn locate_all<P: AsRef<Path>>(
        &self,
        paths: &[P],
    ) -> Result<Vec<SourceLocation>, SourceError> {
        paths.iter().map(|path| self.locate(path)).collect()
    }
}

/// An object of a store, or the common key prefix of a folder.
#[derive(Clone, Debug)]
pub struct StoredObject {
    store: Arc<RemoteStore>,
    key: Key,
    /// Whether the URL shows that it is a folder.
    is_folder: bool,
    /// Length in bytes, if a listing has given it.
    listed: Option<u64>,
    /// The URL without secrets.
    name: Arc<Path>,
}

impl StoredObject {
    fn new(store: &Arc<RemoteStore>, key: Key, is_folder: bool, listed: Option<u64>) -> Self {
        let slash = if is_folder && !key.as_ref().is_empty() { "/" } else { "" };
        let name = format!("{}{key}{slash}", store.root);
        let name = Arc::from(Path::new(&name));
        Self { store: store.clone(), key, is_folder, listed, name }
    }

    pub(crate) fn name(&self) -> &Path {
        &self.name
    }

    pub(crate) fn key(&self) -> &str {
        self.key.as_ref()
    }

    /// An error about this object.
    pub(crate) fn error(&self, error: ObjectError) -> SourceError {
        SourceError::new(&self.name, SourcePlace::File, error.into())
    }

    /// An object in this folder.
    pub(crate) fn child(&self, name: &str) -> Self {
        Self::new(&self.store, self.key.clone().join(name), false, None)
    }

    /// The folder that it is in.
    fn parent(&self) -> Self {
        let parent = self.key.as_ref().rsplit_once('/').map_or("", |(parent, _)| parent);
        Self::new(&self.store, Key::from(parent), true, None)
    }

    pub(crate) fn file_name(&self) -> &str {
        self.key.filename().unwrap_or_default()
    }

    /// The objects in this folder, in name order; `None` if it is not a folder.
    pub(crate) fn entries(&self) -> Result<Option<Vec<Self>>, ObjectError> {
        if !self.is_folder && has_known_extension(Path::new(self.key())) {
            return Ok(None);
        }
        let listed = match self.store.scheme {
            StoreScheme::Http => None,
            StoreScheme::S3 | StoreScheme::Gs => {
                let prefix = (!self.key().is_empty()).then_some(&self.key);
                let list = self
                    .store
                    .request("list the folder", |store| store.list_with_delimiter(prefix))?;
                Some(list.objects)
            }
        };
        if !self.is_folder && listed.as_ref().is_some_and(Vec::is_empty) {
            return Ok(None);
        }
        // If the listing has no list of checksums, no request for it is needed.
        let named = |meta: &ObjectMeta| meta.location.filename() == Some(MANIFEST);
        let has_manifest = listed.as_ref().is_none_or(|objects| objects.iter().any(named));
        let manifest = if has_manifest { self.manifest()? } else { self.no_manifest()? };
        let listed = match (listed, &manifest) {
            (Some(listed), _) => listed,
            (None, Some(_)) => Vec::new(),
            (None, None) if self.is_folder => return Err(ObjectError::NoList),
            (None, None) => return Ok(None),
        };
        let mut found = BTreeMap::new();
        for ObjectMeta { location, size, .. } in listed {
            found.insert(location.filename().unwrap_or_default().to_owned(), Some(size));
        }
        // An object that the list of checksums names must exist: reading it fails if it does not.
        let names: BTreeSet<_> = manifest.iter().flat_map(|list| list.names()).collect();
        for name in names.into_iter().filter(|name| has_known_extension(Path::new(name))) {
            found.entry(name.to_owned()).or_insert(None);
        }
        let visible = |(name, _): &(String, _)| !name.is_empty() && !name.starts_with('.');
        let child = |(name, listed): (String, _)| Self { listed, ..self.child(&name) };
        let entries = found.into_iter().filter(visible).map(child);
        Ok(Some(entries.filter(|entry| entry.file_name() != MANIFEST).collect()))
    }

    /// Its length in bytes.
    pub(crate) fn size(&self) -> Result<u64, ObjectError> {
        match self.listed {
            Some(size) => Ok(size),
            None => self.unchecked_reader().size(),
        }
    }

    /// Reads it from its first byte.
    pub(crate) fn reader(&self) -> Result<ObjectReader, ObjectError> {
        ObjectReader::open(self)
    }

    /// The same without a check of the checksum.
    pub(crate) fn unchecked_reader(&self) -> ObjectReader {
        ObjectReader::unchecked(self)
    }

    /// The content and version of a small object; `None` if it does not exist.
    pub(crate) fn read_small(
        &self,
        limit: u64,
    ) -> Result<Option<(Vec<u8>, UpdateVersion)>, ObjectError> {
        let mut reader = self.unchecked_reader();
        let mut content = Vec::new();
        let read = reader.by_ref().take(limit).read_to_end(&mut content);
        match read.map_err(ObjectError::of_io) {
            Ok(_) if reader.size()? > limit => {
                let size = reader.size()?;
                Err(ObjectError::Store(format!("it has {size} bytes, at most {limit} are read")))
            }
            Ok(_) => Ok(Some((content, reader.version()))),
            // Without the right to list, stores answer with "denied" for a missing object.
            Err(Ok(error)) if error.is_absence() => Ok(None),
            Err(Ok(error)) => Err(error),
            Err(Err(other)) => Err(ObjectError::Store(other.to_string())),
        }
    }

    /// The whole content in an unnamed file, positioned at its first byte.
    pub(crate) fn spool(&self) -> Result<File, SourceError> {
        let fail = |error| self.error(error);
        let mut file = tempfile::tempfile().map_err(ObjectError::Spool).map_err(fail)?;
        self.copy(&mut |piece| file.write_all(piece).map_err(ObjectError::Spool)).map_err(fail)?;
        file.seek(SeekFrom::Start(0)).map_err(ObjectError::Spool).map_err(fail)?;
        Ok(file)
    }

    /// Reads the whole object only to check its checksum.
    pub(crate) fn verify_checksum(&self) -> Result<(), ObjectError> {
        match self.expected_checksum()? {
            Some(_) => self.copy(&mut |_| Ok(())),
            None => Ok(()),
        }
    }

    /// Its computed checksum, if no list has it.
    pub(crate) fn unlisted_checksum(&self) -> Result<Option<B256>, ObjectError> {
        if self.expected_checksum()?.is_some() {
            return Ok(None);
        }
        let mut hasher = Sha256::new();
        self.copy(&mut |piece| {
            hasher.update(piece);
            Ok(())
        })?;
        Ok(Some(B256::from_slice(&hasher.finalize())))
    }

    fn copy(
        &self,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), ObjectError>,
    ) -> Result<(), ObjectError> {
        let mut reader = self.reader()?;
        let mut piece = vec![0; 64 << 10];
        loop {
            match reader.read(&mut piece) {
                Ok(0) => return Ok(()),
                Ok(read) => sink(&piece[..read])?,
                Err(error) => {
                    let other = |error: std::io::Error| ObjectError::Store(error.to_string());
                    return Err(ObjectError::of_io(error).unwrap_or_else(other));
                }
            }
        }
    }

    /// The checksum in `SHA256SUMS` beside it, if there is one.
    fn expected_checksum(&self) -> Result<Option<B256>, ObjectError> {
        if self.file_name() == MANIFEST {
            return Ok(None);
        }
        Ok(self.parent().manifest()?.and_then(|list| list.get(self.file_name())))
    }

    /// The list of checksums in this folder.
    fn manifest(&self) -> Result<Option<Arc<ChecksumManifest>>, ObjectError> {
        self.store.manifest(self.key(), || {
            let found = self.child(MANIFEST).read_small(manifest::MAX_BYTES)?;
            match found.map(|(content, _)| ChecksumManifest::parse(&content)).transpose() {
                // A web server may answer any request with a page.
                Err(ObjectError::NotAManifest { .. }) if self.store.scheme == StoreScheme::Http => {
                    Ok(None)
                }
                parsed => parsed,
            }
        })
    }

    /// The same for a folder whose listing has no list of checksums.
    fn no_manifest(&self) -> Result<Option<Arc<ChecksumManifest>>, ObjectError> {
        self.store.manifest(self.key(), || Ok(None))
    }

    /// Writes the whole object.
    pub(crate) fn write(&self, content: Vec<u8>) -> Result<(), ObjectError> {
        self.put(content, PutMode::Overwrite)
    }

    fn put(&self, content: Vec<u8>, mode: PutMode) -> Result<(), ObjectError> {
        if self.is_read_only() {
            return Err(ObjectError::ReadOnly);
        }
        let payload = PutPayload::from(content);
        let options = PutOptions { mode, ..PutOptions::default() };
        let put = self.store.request("write the object", |store| {
            store.put_opts(&self.key, payload.clone(), options.clone())
        });
        put.map(drop)
    }

    /// Whether it is on a web server.
    pub(crate) fn is_read_only(&self) -> bool {
        self.store.scheme == StoreScheme::Http
    }

    /// Fails if the user wants to stop. `offset` is how far the object was read.
    pub(crate) fn check_stop(&self, offset: u64) -> Result<(), ObjectError> {
        self.store.http.check_stop().map_err(|fault| ObjectError::Broken { offset, fault })
    }

    /// The same as a folder, whatever its URL shows.
    pub(crate) fn as_folder(&self) -> Self {
        Self { is_folder: true, ..self.clone() }
    }

    /// Adds checksums to the list in this folder. The write has the condition that the list is
    /// still the one that was read.
    pub(crate) fn add_checksums(&self, sums: &BTreeMap<String, B256>) -> Result<(), ObjectError> {
        let list = self.child(MANIFEST);
        self.store.forget_manifest(self.key());
        for _ in 0..WRITE_TRIES {
            let (mut manifest, mode) = match list.read_small(manifest::MAX_BYTES)? {
                Some((content, version)) => {
                    (ChecksumManifest::parse(&content)?, PutMode::Update(version))
                }
                None => (ChecksumManifest::default(), PutMode::Create),
            };
            if !manifest.extend(sums) {
                return Ok(());
            }
            match list.put(manifest.encode(), mode) {
                // A repeated write conflicts with its own first try, if only the answer of that was
                // lost.
                Err(ObjectError::Conflict | ObjectError::Replaced { .. }) => {}
                Err(ObjectError::NotImplemented) => return list.write(manifest.encode()),
                outcome => return outcome,
            }
        }
        Err(ObjectError::Conflict)
    }
}
