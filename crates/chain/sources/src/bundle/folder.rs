//! A folder for writing bundles, on disk or in a store.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write,
};

use alloy_primitives::B256;
use flate2::{Compression, write::GzEncoder};
use sha2::{Digest, Sha256};

use super::store::write_json_gz;
use crate::{
    error::SourceError,
    objects::{ObjectError, SourceLocation},
};

/// The folder that bundles are written to, as `NUMBER.json.gz`.
///
/// In a store each bundle is one object, which is written as a whole or not at all.
/// [`finish`](Self::finish) adds the checksums to `SHA256SUMS`, in a way that several machines may
/// write to one folder at the same time.
#[derive(Debug)]
pub struct BundleFolder {
    location: SourceLocation,
    /// Names of the objects that existed before, in a store.
    existing: BTreeSet<String>,
    /// Checksums of the bundles written here, and of existing bundles that had none.
    sums: BTreeMap<String, B256>,
}

impl BundleFolder {
    /// Creates the folder on disk, or lists the folder of the store.
    ///
    /// # Errors
    /// If it cannot be created or listed, or is on a web server.
    pub fn open(location: SourceLocation) -> Result<Self, SourceError> {
        let mut there = BTreeSet::new();
        match &location {
            SourceLocation::Path(path) => std::fs::create_dir_all(path)
                .map_err(|error| SourceError::io(path, "create the folder", error))?,
            SourceLocation::Object(object) => {
                let fail = |error| object.error(error);
                if object.is_read_only() {
                    return Err(fail(ObjectError::ReadOnly));
                }
                let entries = object.as_folder().entries().map_err(fail)?.unwrap_or_default();
                there.extend(entries.iter().map(|entry| entry.file_name().to_owned()));
            }
        }
        Ok(Self { location, existing: there, sums: BTreeMap::new() })
    }

    /// The location of a block's bundle, which may not exist.
    pub fn bundle(&self, number: u64) -> SourceLocation {
        let name = name_of(number);
        match &self.location {
            SourceLocation::Path(path) => SourceLocation::Path(path.join(name)),
            SourceLocation::Object(object) => SourceLocation::Object(object.child(&name)),
        }
    }

    /// Whether the bundle of a block existed before.
    pub fn has(&self, number: u64) -> bool {
        match &self.location {
            SourceLocation::Path(path) => path.join(name_of(number)).exists(),
            SourceLocation::Object(_) => self.existing.contains(&name_of(number)),
        }
    }

    /// Writes the bundle of a block from its JSON.
    ///
    /// # Errors
    /// If it cannot be written. What existed before is unchanged.
    pub fn write(&mut self, number: u64, json: &[u8]) -> Result<(), SourceError> {
        let object = match self.bundle(number) {
            SourceLocation::Path(path) => return write_json_gz(path, json),
            SourceLocation::Object(object) => object,
        };
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        let packed = gzip.write_all(json).and_then(|()| gzip.finish());
        let packed = packed.map_err(|e| SourceError::io(object.name(), "compress it", e))?;
        let sum = B256::from_slice(&Sha256::digest(&packed));
        object.write(packed).map_err(|error| object.error(error))?;
        self.sums.insert(name_of(number), sum);
        Ok(())
    }

    /// Adds an existing, intact bundle to the list of checksums.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn add_existing(&mut self, number: u64) -> Result<(), SourceError> {
        let SourceLocation::Object(object) = self.bundle(number) else { return Ok(()) };
        let sum = object.unlisted_checksum().map_err(|error| object.error(error))?;
        self.sums.extend(sum.map(|sum| (name_of(number), sum)));
        Ok(())
    }

    /// Writes the checksums. Call it also after an error, for the bundles that were written.
    ///
    /// # Errors
    /// If they cannot be written. The next run adds the missing checksums.
    pub fn finish(self) -> Result<(), SourceError> {
        match &self.location {
            SourceLocation::Object(folder) if !self.sums.is_empty() => {
                folder.add_checksums(&self.sums).map_err(|error| folder.error(error))
            }
            _ => Ok(()),
        }
    }
}

fn name_of(number: u64) -> String {
    format!("{number}.json.gz")
}
