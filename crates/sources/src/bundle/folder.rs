//! A folder that bundles are written to, on disk or in a store.

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
    objects::{Location, ObjectError},
};

/// Where bundles are written to, as `NUMBER.json.gz`.
///
/// In a store each is one object, which is there as a whole or not at all. Their checksums are added to
/// `SHA256SUMS` by [`finish`](Self::finish), so that nothing is lost if several machines write bundles into
/// one folder at the same time.
#[derive(Debug)]
pub struct BundleFolder {
    location: Location,
    /// Names of what was there, in a store.
    there: BTreeSet<String>,
    /// Checksums of what has been written, and of what was there without one.
    sums: BTreeMap<String, B256>,
}

impl BundleFolder {
    /// Makes the folder on disk, or looks at what is in the store's.
    ///
    /// # Errors
    /// If it cannot be made or listed, or is on a web server.
    pub fn open(location: Location) -> Result<Self, SourceError> {
        let mut there = BTreeSet::new();
        match &location {
            Location::Path(path) => std::fs::create_dir_all(path)
                .map_err(|error| SourceError::io(path, "create the folder", error))?,
            Location::Object(object) => {
                let fail = |error| object.error(error);
                if object.is_read_only() {
                    return Err(fail(ObjectError::ReadOnly));
                }
                let entries = object.as_folder().entries().map_err(fail)?.unwrap_or_default();
                there.extend(entries.iter().map(|entry| entry.file_name().to_owned()));
            }
        }
        Ok(Self { location, there, sums: BTreeMap::new() })
    }

    /// The bundle of a block, whether it is there or not.
    pub fn bundle(&self, number: u64) -> Location {
        let name = name_of(number);
        match &self.location {
            Location::Path(path) => Location::Path(path.join(name)),
            Location::Object(object) => Location::Object(object.child(&name)),
        }
    }

    /// Whether the bundle of a block was there.
    pub fn has(&self, number: u64) -> bool {
        match &self.location {
            Location::Path(path) => path.join(name_of(number)).exists(),
            Location::Object(_) => self.there.contains(&name_of(number)),
        }
    }

    /// Writes the bundle of a block, whose JSON this is.
    ///
    /// # Errors
    /// If it cannot be written; what was there before is there still.
    pub fn write(&mut self, number: u64, json: &[u8]) -> Result<(), SourceError> {
        let object = match self.bundle(number) {
            Location::Path(path) => return write_json_gz(path, json),
            Location::Object(object) => object,
        };
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        let packed = gzip.write_all(json).and_then(|()| gzip.finish());
        let packed = packed.map_err(|e| SourceError::io(object.name(), "compress it", e))?;
        let sum = B256::from_slice(&Sha256::digest(&packed));
        object.write(packed).map_err(|error| object.error(error))?;
        self.sums.insert(name_of(number), sum);
        Ok(())
    }

    /// Takes a bundle that was there and is sound into the list of checksums.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn keep(&mut self, number: u64) -> Result<(), SourceError> {
        let Location::Object(object) = self.bundle(number) else { return Ok(()) };
        let sum = object.sum_if_unlisted().map_err(|error| object.error(error))?;
        self.sums.extend(sum.map(|sum| (name_of(number), sum)));
        Ok(())
    }

    /// Writes the checksums. To be called however the run ended: what has been written counts.
    ///
    /// # Errors
    /// If they cannot be written. Bundles without a checksum are added by the next run.
    pub fn finish(self) -> Result<(), SourceError> {
        match &self.location {
            Location::Object(folder) if !self.sums.is_empty() => {
                folder.add_sums(&self.sums).map_err(|error| folder.error(error))
            }
            _ => Ok(()),
        }
    }
}

fn name_of(number: u64) -> String {
    format!("{number}.json.gz")
}
