//! [`CursorFile`]: the durable position of a stream, beside its records.
//!
//! JSON: `version` (1), `genesis` (hash of the chain's first block), `from` (number of the first block
//! to come, before the first record), `length` (bytes of the file of records at this checkpoint; 0 for
//! other sinks), and after the first record `last`, a [`ResumeRequest`]. A new file is written beside
//! the old one and renamed over it.

use crate::{CursorFileError, ResumeRequest, StreamPosition};
use alloy_primitives::B256;
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

const VERSION: u32 = 1;

/// The cursor file of one stream.
#[derive(Clone, Debug)]
pub(crate) struct CursorFile {
    path: PathBuf,
    genesis: B256,
}

/// What is durable of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StreamCheckpoint {
    pub(crate) position: StreamPosition,
    /// Bytes of the file of records.
    pub(crate) length: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CursorFileFields {
    version: u32,
    genesis: B256,
    from: u64,
    length: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last: Option<ResumeRequest>,
}

impl CursorFile {
    /// The file at `path` of a stream of the chain that begins with block `genesis`.
    pub(crate) const fn new(path: PathBuf, genesis: B256) -> Self {
        Self { path, genesis }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The last checkpoint; `None` if there is no file.
    ///
    /// # Errors
    /// [`CursorFileError`] if it cannot be read, is damaged, or belongs to another chain.
    pub(crate) fn load(&self) -> Result<Option<StreamCheckpoint>, CursorFileError> {
        let text = match fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.io("reading", error)),
        };
        let malformed = |reason: String| {
            let path = self.path.clone();
            CursorFileError::Malformed { path, reason }
        };
        let fields: CursorFileFields =
            serde_json::from_str(&text).map_err(|error| malformed(error.to_string()))?;
        let CursorFileFields { version, genesis, from, length, last } = fields;
        if version != VERSION {
            return Err(malformed(format!("it has version {version}, not {VERSION}")));
        }
        if genesis != self.genesis {
            return Err(CursorFileError::OtherChain {
                path: self.path.clone(),
                found: genesis.to_string(),
                expected: self.genesis.to_string(),
            });
        }
        let position = match last {
            Some(last) => {
                StreamPosition::resume(&last).map_err(|error| malformed(error.to_string()))?
            }
            None => StreamPosition::start(from),
        };
        Ok(Some(StreamCheckpoint { position, length }))
    }

    /// Replaces the file.
    ///
    /// # Errors
    /// [`CursorFileError::Io`]; the file is then the old one.
    pub(crate) fn save(&self, checkpoint: &StreamCheckpoint) -> Result<(), CursorFileError> {
        let StreamCheckpoint { position, length } = checkpoint;
        let fields = CursorFileFields {
            version: VERSION,
            genesis: self.genesis,
            from: position.first(),
            length: *length,
            last: position.to_request(),
        };
        let text = serde_json::to_string(&fields)
            .map_err(|error| self.io("writing", io::Error::other(error)))?;
        self.replace(text.as_bytes()).map_err(|error| self.io("writing", error))
    }

    fn replace(&self, bytes: &[u8]) -> io::Result<()> {
        let new = self.path.with_added_extension("new");
        let mut file = File::create(&new)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&new, &self.path)
    }

    fn io(&self, action: &'static str, source: io::Error) -> CursorFileError {
        CursorFileError::Io { action, path: self.path.clone(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RecordKind, StreamCursor};
    use retrie_state::BlockRef;

    #[test]
    fn a_checkpoint_is_read_back_and_what_was_made_up_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = CursorFile::new(dir.path().join("a.cursor"), B256::repeat_byte(1));
        assert_eq!(file.load().unwrap(), None);
        let mut position = StreamPosition::start(4);
        for length in [0, 700] {
            let checkpoint = StreamCheckpoint { position: position.clone(), length };
            file.save(&checkpoint).unwrap();
            assert_eq!(file.load().unwrap(), Some(checkpoint));
            let block = BlockRef::new(4, B256::repeat_byte(9));
            position.advance(StreamCursor { sequence: 1, block, kind: RecordKind::Block });
        }
        let other = CursorFile::new(file.path.clone(), B256::repeat_byte(2));
        assert!(matches!(other.load(), Err(CursorFileError::OtherChain { .. })));
        let whole = fs::read_to_string(&file.path).unwrap();
        for wrong in [
            String::new(),
            whole[..whole.len() / 2].into(),
            whole.replace("\"version\":1", "\"version\":2"),
            whole.replace("-block", "-blocks"),
            whole.replace("\"length\"", "\"size\""),
        ] {
            fs::write(&file.path, &wrong).unwrap();
            assert!(matches!(file.load(), Err(CursorFileError::Malformed { .. })), "{wrong}");
        }
    }
}
