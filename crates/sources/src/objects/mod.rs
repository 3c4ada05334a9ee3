//! Files in object stores, and on web servers: `s3://bucket/key`, `gs://bucket/key`, `http(s)://...`.
//!
//! ```text
//!  URL --> Stores::locate --> Location::Object --> ObjectReader: Read + Seek --> the readers of files
//!                                  |                    |  GET, Range, If-Match
//!                                  |                    '--> object_store --> connector --> ureq
//!                                  '-- entries: ListObjectsV2, or SHA256SUMS of a web server
//! ```
//!
//! * A URL that ends in `/`, and a bucket alone, is a **folder**: the objects whose keys begin so, up to
//!   the next slash. A URL with an extension that block files or bundles have is an object. Any other is
//!   a folder if there is something in it, else an object.
//! * **Streaming**: what is read goes by in pieces; a bundle is held as a whole as it is from disk. An
//!   era1 file, which is read twice and from its end, goes through an unnamed temporary file.
//! * **Retried**: as [`HttpOptions`](crate::HttpOptions) say, from the byte that was reached.
//! * **Checked**: length against listing; against `SHA256SUMS` beside the object, where that is. Blocks of
//!   RLP files have been handed out by the time their file's sum is known, as with gzip's own.
//! * **Credentials** come from the [`Environment`]. Without any, this machine's own service of its cloud
//!   is asked, for a second or two.

mod address;
mod connector;
mod environment;
pub(crate) mod error;
mod location;
mod manifest;
mod reader;
mod store;

pub use environment::Environment;
pub use error::ObjectError;
pub use location::Location;
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
    error::{Place, SourceError},
    http::Http,
    origin::has_known_extension,
};
use address::{Address, Scheme};
use manifest::Manifest;
use store::Store;

/// How often the list of checksums is made anew because others wrote it meanwhile.
const WRITE_TRIES: usize = 20;

/// Finds what paths and URLs name. Clones share connections, credentials and lists of checksums.
#[derive(Clone, Debug)]
pub struct Stores {
    environment: Environment,
    http: Http,
    open: Arc<Mutex<BTreeMap<String, Arc<Store>>>>,
}

impl Stores {
    /// With these credentials and endpoints, over this client.
    pub fn new(environment: Environment, http: Http) -> Self {
        Self { environment, http, open: Arc::default() }
    }

    /// What `path` names: an object if it begins with `s3://`, `gs://`, `http://` or `https://`. Nothing
    /// is asked of a store yet.
    ///
    /// # Errors
    /// If it cannot be a URL, or the environment contradicts itself.
    pub fn locate(&self, path: impl AsRef<Path>) -> Result<Location, SourceError> {
        let path = path.as_ref();
        let Some(address) = path.to_str().and_then(Address::parse) else {
            return Ok(Location::Path(path.to_owned()));
        };
        let fail = |error: ObjectError| SourceError::new(path, Place::File, error.into());
        let address = address.map_err(fail)?;
        let place = format!("{}{}", address.root, address.store);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let store = match open.get(&place) {
            Some(store) => store.clone(),
            None => {
                let made = Store::open(&address, &self.environment, &self.http).map_err(fail)?;
                open.entry(place).or_insert_with(|| Arc::new(made)).clone()
            }
        };
        Ok(Location::Object(Object::new(&store, address.key, address.is_folder, None)))
    }

    /// What each of these names.
    ///
    /// # Errors
    /// As [`locate`](Self::locate).
    pub fn locate_all<P: AsRef<Path>>(&self, paths: &[P]) -> Result<Vec<Location>, SourceError> {
        paths.iter().map(|path| self.locate(path)).collect()
    }
}

/// An object of a store, or what the keys of a folder begin with.
#[derive(Clone, Debug)]
pub struct Object {
    store: Arc<Store>,
    key: Key,
    /// Whether its URL says that it is a folder.
    is_folder: bool,
    /// Length that a listing gave, in bytes.
    listed: Option<u64>,
    /// The URL, without what may be secret in it.
    name: Arc<Path>,
}

impl Object {
    fn new(store: &Arc<Store>, key: Key, is_folder: bool, listed: Option<u64>) -> Self {
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

    /// An error about it.
    pub(crate) fn error(&self, error: ObjectError) -> SourceError {
        SourceError::new(&self.name, Place::File, error.into())
    }

    /// One below it, which is a folder.
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

    /// What is in it, in the order of names; `None` if it is no folder.
    pub(crate) fn entries(&self) -> Result<Option<Vec<Self>>, ObjectError> {
        if !self.is_folder && has_known_extension(Path::new(self.key())) {
            return Ok(None);
        }
        let listed = match self.store.scheme {
            Scheme::Http => None,
            Scheme::S3 | Scheme::Gs => {
                let prefix = (!self.key().is_empty()).then_some(&self.key);
                let list =
                    self.store.ask("list the folder", |store| store.list_with_delimiter(prefix))?;
                Some(list.objects)
            }
        };
        if !self.is_folder && listed.as_ref().is_some_and(Vec::is_empty) {
            return Ok(None);
        }
        // Without a list of checksums in the listing, its absence needs no request.
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
        // What the list of checksums names is to be there: reading it says so if it is not.
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

    /// The same, whatever its checksum.
    pub(crate) fn unchecked_reader(&self) -> ObjectReader {
        ObjectReader::unchecked(self)
    }

    /// All of a small object, and which version of it; `None` if there is none.
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
            // Stores hide what is not there from those who may not list.
            Err(Ok(error)) if error.is_absence() => Ok(None),
            Err(Ok(error)) => Err(error),
            Err(Err(other)) => Err(ObjectError::Store(other.to_string())),
        }
    }

    /// All of it in an unnamed file, at its first byte.
    pub(crate) fn spool(&self) -> Result<File, SourceError> {
        let fail = |error| self.error(error);
        let mut file = tempfile::tempfile().map_err(ObjectError::Spool).map_err(fail)?;
        self.copy(&mut |piece| file.write_all(piece).map_err(ObjectError::Spool)).map_err(fail)?;
        file.seek(SeekFrom::Start(0)).map_err(ObjectError::Spool).map_err(fail)?;
        Ok(file)
    }

    /// Reads it to its end for nothing but its checksum.
    pub(crate) fn check_sum(&self) -> Result<(), ObjectError> {
        match self.expected_sum()? {
            Some(_) => self.copy(&mut |_| Ok(())),
            None => Ok(()),
        }
    }

    /// Its checksum, if no list names it.
    pub(crate) fn sum_if_unlisted(&self) -> Result<Option<B256>, ObjectError> {
        if self.expected_sum()?.is_some() {
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

    /// What `SHA256SUMS` beside it says, where there is one that names it.
    fn expected_sum(&self) -> Result<Option<B256>, ObjectError> {
        if self.file_name() == MANIFEST {
            return Ok(None);
        }
        Ok(self.parent().manifest()?.and_then(|list| list.get(self.file_name())))
    }

    /// The list of checksums in this folder.
    fn manifest(&self) -> Result<Option<Arc<Manifest>>, ObjectError> {
        self.store.manifest(self.key(), || {
            let found = self.child(MANIFEST).read_small(manifest::MAX_BYTES)?;
            match found.map(|(content, _)| Manifest::parse(&content)).transpose() {
                // A web server may answer anything with a page.
                Err(ObjectError::NotAManifest { .. }) if self.store.scheme == Scheme::Http => {
                    Ok(None)
                }
                parsed => parsed,
            }
        })
    }

    /// The same, of a folder in which none was listed.
    fn no_manifest(&self) -> Result<Option<Arc<Manifest>>, ObjectError> {
        self.store.manifest(self.key(), || Ok(None))
    }

    /// Writes all of it.
    pub(crate) fn write(&self, content: Vec<u8>) -> Result<(), ObjectError> {
        self.put(content, PutMode::Overwrite)
    }

    fn put(&self, content: Vec<u8>, mode: PutMode) -> Result<(), ObjectError> {
        if self.is_read_only() {
            return Err(ObjectError::ReadOnly);
        }
        let payload = PutPayload::from(content);
        let options = PutOptions { mode, ..PutOptions::default() };
        let put = self.store.ask("write the object", |store| {
            store.put_opts(&self.key, payload.clone(), options.clone())
        });
        put.map(drop)
    }

    /// Whether it is on a web server.
    pub(crate) fn is_read_only(&self) -> bool {
        self.store.scheme == Scheme::Http
    }

    /// Fails once the user wants to stop, who has read it as far as `offset`.
    pub(crate) fn go_on(&self, offset: u64) -> Result<(), ObjectError> {
        self.store.http.go_on().map_err(|fault| ObjectError::Broken { offset, fault })
    }

    /// It as a folder, whatever its URL says.
    pub(crate) fn as_folder(&self) -> Self {
        Self { is_folder: true, ..self.clone() }
    }

    /// Adds checksums to the list in this folder, on the condition that nobody else has written it since
    /// it was read.
    pub(crate) fn add_sums(&self, sums: &BTreeMap<String, B256>) -> Result<(), ObjectError> {
        let list = self.child(MANIFEST);
        self.store.forget_manifest(self.key());
        for _ in 0..WRITE_TRIES {
            let (mut manifest, mode) = match list.read_small(manifest::MAX_BYTES)? {
                Some((content, version)) => (Manifest::parse(&content)?, PutMode::Update(version)),
                None => (Manifest::default(), PutMode::Create),
            };
            if !manifest.extend(sums) {
                return Ok(());
            }
            match list.put(manifest.encode(), mode) {
                // A put that was repeated finds its own list, if the first answer was lost.
                Err(ObjectError::Conflict | ObjectError::Replaced { .. }) => {}
                Err(ObjectError::NotImplemented) => return list.write(manifest.encode()),
                outcome => return outcome,
            }
        }
        Err(ObjectError::Conflict)
    }
}
