//! The file of a witness, before it is known of which kind.

use crate::{SourceError, SourceErrorKind, SourceLocation, SourcePlace, input::SourceInput};
use serde::de::{DeserializeOwned, IgnoredAny};
use std::collections::BTreeMap;

/// Largest file accepted, in bytes of JSON (512 MiB; the worst block of 60 Mgas takes about 300).
const MAX_JSON_BYTES: u64 = 512 << 20;

/// The JSON in the file of a witness.
#[derive(Debug)]
pub struct WitnessJson {
    location: SourceLocation,
    bytes: Vec<u8>,
}

impl WitnessJson {
    /// Reads a file, plain or gzipped.
    ///
    /// # Errors
    /// If it cannot be read, or is larger than 512 MiB.
    pub fn load(source: impl Into<SourceLocation>) -> Result<Self, SourceError> {
        let location = source.into();
        let read = SourceInput::open(&location)
            .and_then(|input| input.read_whole(MAX_JSON_BYTES, "the witness"));
        match read {
            Ok(bytes) => Ok(Self { location, bytes }),
            Err(error) => Err(location.explain_error(error)),
        }
    }

    /// Whether it is an object with this member.
    ///
    /// # Errors
    /// If it is no JSON object.
    pub fn has(&self, member: &str) -> Result<bool, SourceError> {
        Ok(self.parse::<BTreeMap<String, IgnoredAny>>()?.contains_key(member))
    }

    /// The witness in it.
    ///
    /// # Errors
    /// If it is no JSON, or no `T`.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, SourceError> {
        serde_json::from_slice(&self.bytes).map_err(|error| {
            let kind = SourceErrorKind::Json(error);
            self.location.explain_error(SourceError::new(
                self.location.name(),
                SourcePlace::File,
                kind,
            ))
        })
    }
}
