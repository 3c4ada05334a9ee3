//! An object as a stream that survives broken connections.

use std::{
    fmt,
    io::{self, Read, Seek, SeekFrom},
};

use alloy_primitives::B256;
use futures::{StreamExt, stream::BoxStream};
use hyper::body::{Buf, Bytes};
use object_store::{GetOptions, GetRange, ObjectMeta, UpdateVersion};
use sha2::{Digest, Sha256};

use super::{
    StoredObject,
    connector::block_on,
    error::{ObjectError, ObjectFault, classify},
};
use crate::http::HttpFault;

/// Reads an object from its first byte, or from another position.
///
/// After a broken connection the reader connects again and continues from the last byte, provided
/// (`If-Match`, and a comparison of tag and length) that the object is unchanged. Only tries
/// without any progress count. If the SHA-256 of the object is known from `SHA256SUMS` and the
/// object is read in order from the beginning, the sum is computed while reading, and compared when
/// the last byte is read.
pub(crate) struct ObjectReader {
    object: StoredObject,
    position: u64,
    /// Length and tags of the object in the first answer.
    version: Option<ObjectVersion>,
    body: Option<BoxStream<'static, object_store::Result<Bytes>>>,
    piece: Bytes,
    sum: Option<(B256, Sha256)>,
}

impl fmt::Debug for ObjectReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectReader")
            .field("object", &self.object)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ObjectVersion {
    size: u64,
    tag: Option<String>,
    /// GCS calls it generation.
    number: Option<String>,
}

impl ObjectReader {
    /// Reads from the first byte on. Only the list of checksums is requested here.
    pub(super) fn open(object: &StoredObject) -> Result<Self, ObjectError> {
        let sum = object.expected_checksum()?.map(|sum| (sum, Sha256::new()));
        Ok(Self { sum, ..Self::unchecked(object) })
    }

    /// The same without a check of the checksum.
    pub(super) fn unchecked(object: &StoredObject) -> Self {
        Self {
            object: object.clone(),
            position: 0,
            version: None,
            body: None,
            piece: Bytes::new(),
            sum: None,
        }
    }

    /// Begins at this byte. The checksum is then not compared.
    pub(crate) fn starting_at(mut self, position: u64) -> Self {
        self.go_to(position);
        self
    }

    /// Length of the object in bytes.
    pub(crate) fn size(&mut self) -> Result<u64, ObjectError> {
        if self.version.is_none() {
            self.fill()?;
        }
        Ok(self.version.as_ref().map_or(0, |version| version.size))
    }

    /// The version that it reads, known after the first read.
    pub(super) fn version(&self) -> UpdateVersion {
        let version = self.version.as_ref();
        UpdateVersion {
            e_tag: version.and_then(|version| version.tag.clone()),
            version: version.and_then(|version| version.number.clone()),
        }
    }

    /// Puts the next bytes into `piece`; none at the end.
    fn fill(&mut self) -> Result<(), ObjectError> {
        let store = self.object.store.clone();
        let mut backoff = store.http.backoff();
        while self.piece.is_empty() && !self.is_at_end() {
            let offset = self.position;
            match self.step() {
                // A connection that has failed is not used again.
                Err(ObjectFault::Exchange(fault)) => {
                    self.body = None;
                    let broken = |fault| ObjectError::Broken { offset, fault };
                    backoff.wait(fault).map_err(broken)?;
                }
                Err(ObjectFault::Truncated { expected, got }) => {
                    self.body = None;
                    let fault = HttpFault::Broken(String::new());
                    backoff.wait(fault).map_err(|fault| match fault {
                        HttpFault::Stopped => ObjectError::Broken { offset, fault },
                        _ => ObjectError::Truncated { expected, got },
                    })?;
                }
                Err(ObjectFault::Final(error)) => return Err(error),
                Ok(piece) => self.piece = piece,
            }
        }
        Ok(())
    }

    fn is_at_end(&self) -> bool {
        self.version.as_ref().is_some_and(|version| self.position >= version.size)
    }

    /// The next bytes of the connection. Connects if there is none.
    fn step(&mut self) -> Result<Bytes, ObjectFault> {
        if self.body.is_none() {
            self.connect()?;
        }
        let (Some(body), Some(ObjectVersion { size, .. })) = (&mut self.body, &self.version) else {
            return Ok(Bytes::new());
        };
        let left = size - self.position;
        match block_on(body.next())? {
            Some(Ok(mut piece)) => {
                piece.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                Ok(piece)
            }
            Some(Err(error)) => Err(classify(&error, self.position)),
            None if left == 0 => Ok(Bytes::new()),
            None => {
                let end = format!("it ended after {} of {size} bytes", self.position);
                Err(ObjectFault::Exchange(HttpFault::Broken(end)))
            }
        }
    }

    fn connect(&mut self) -> Result<(), ObjectFault> {
        let tag = self.version.as_ref().and_then(|version| version.tag.clone());
        let options = GetOptions {
            range: (self.position > 0).then_some(GetRange::Offset(self.position)),
            // Weak tags do not promise equal bytes, so they cannot be a condition (RFC 9110,
            // 13.1.1).
            if_match: tag.filter(|tag| !tag.starts_with("W/")),
            ..GetOptions::default()
        };
        let key = &self.object.key;
        let answer = self.object.store.request_once(|store| store.get_opts(key, options))?;
        let answer = answer.map_err(|error| classify(&error, self.position))?;
        let ObjectMeta { size, e_tag: tag, version: number, .. } = answer.meta.clone();
        if let Some(expected) = self.object.listed
            && expected != size
        {
            return Err(ObjectFault::Truncated { expected, got: size });
        }
        let version = ObjectVersion { size, tag, number };
        if self.version.get_or_insert_with(|| version.clone()) != &version {
            return Err(ObjectError::Replaced { offset: self.position }.into());
        }
        self.body = Some(answer.into_stream());
        Ok(())
    }

    fn go_to(&mut self, position: u64) {
        if position == self.position {
            return;
        }
        self.sum = None;
        match position.checked_sub(self.position).and_then(|ahead| usize::try_from(ahead).ok()) {
            Some(ahead) if ahead <= self.piece.len() => self.piece.advance(ahead),
            _ => {
                self.body = None;
                self.piece = Bytes::new();
            }
        }
        self.position = position;
    }

    fn compare_sum(&mut self) -> Result<(), ObjectError> {
        let Some((expected, hasher)) = self.sum.take() else { return Ok(()) };
        let got = B256::from_slice(&hasher.finalize());
        if got == expected { Ok(()) } else { Err(ObjectError::Checksum { expected, got }) }
    }
}

impl Read for ObjectReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        self.fill().map_err(ObjectError::into_io)?;
        let read = self.piece.len().min(out.len());
        out[..read].copy_from_slice(&self.piece[..read]);
        if let Some((_, hasher)) = &mut self.sum {
            hasher.update(&out[..read]);
        }
        self.piece.advance(read);
        self.position += read as u64;
        // Before the last byte is returned: a caller that has all bytes does not read again.
        if self.is_at_end() {
            self.compare_sum().map_err(ObjectError::into_io)?;
        }
        Ok(read)
    }
}

impl Seek for ObjectReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
            SeekFrom::End(by) => self.size().map_err(ObjectError::into_io)?.checked_add_signed(by),
        };
        let position = position.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        self.go_to(position);
        Ok(position)
    }
}
