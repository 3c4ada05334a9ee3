//! Opens a file that may be gzipped, with bounded reads and typed errors.

use std::{
    fmt,
    fs::File,
    io::{self, BufRead, BufReader, Cursor, Read},
    path::{Path, PathBuf},
};

use flate2::bufread::MultiGzDecoder;

use crate::{
    error::{SourceError, SourceErrorKind, SourcePlace},
    objects::{ObjectError, SourceLocation},
};

/// Largest block, header, body or receipt list accepted, in bytes after decompression (64 MiB).
///
/// Far above what any gas limit allows, far below what would hurt.
pub const MAX_ITEM_BYTES: u64 = 64 << 20;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const BUFFER: usize = 256 << 10;

/// A byte stream. It is decompressed if the file starts with the gzip magic (RFC 1952), whatever
/// its name. Multi-member gzip files are read as one stream; the checksum of a member is verified
/// when its last byte is read.
pub(crate) struct SourceInput {
    path: PathBuf,
    reader: Box<dyn BufRead + Send>,
    gzip: bool,
    /// Bytes read so far, counted in the decompressed stream.
    offset: u64,
}

impl fmt::Debug for SourceInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Input")
            .field("path", &self.path)
            .field("gzip", &self.gzip)
            .field("offset", &self.offset)
            .finish_non_exhaustive()
    }
}

impl SourceInput {
    pub(crate) fn open(location: &SourceLocation) -> Result<Self, SourceError> {
        let path = location.name();
        let mut file: Box<dyn Read + Send> = match location {
            SourceLocation::Path(path) => {
                let file =
                    File::open(path).map_err(|e| SourceError::io(path, "open the file", e))?;
                Box::new(file)
            }
            SourceLocation::Object(object) => {
                Box::new(object.reader().map_err(|error| object.error(error))?)
            }
        };
        let mut magic = Vec::with_capacity(2);
        file.by_ref()
            .take(2)
            .read_to_end(&mut magic)
            .map_err(|e| SourceError::io(path, "read the file", e))?;
        let gzip = magic == GZIP_MAGIC;
        let raw = BufReader::with_capacity(BUFFER, Cursor::new(magic).chain(file));
        let reader: Box<dyn BufRead + Send> = if gzip {
            Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(raw)))
        } else {
            Box::new(raw)
        };
        Ok(Self { path: path.to_owned(), reader, gzip, offset: 0 })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) const fn offset(&self) -> u64 {
        self.offset
    }

    /// The next byte, without reading it; `None` at the end of the stream.
    pub(crate) fn peek(&mut self, what: &'static str) -> Result<Option<u8>, SourceErrorKind> {
        loop {
            match self.reader.fill_buf() {
                Ok(buffer) => return Ok(buffer.first().copied()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(classify(e, self.gzip, what)),
            }
        }
    }

    /// Appends exactly `len` bytes to `out`. Memory grows with the bytes that are read, not with
    /// `len`.
    pub(crate) fn read_exactly(
        &mut self,
        len: u64,
        out: &mut Vec<u8>,
        what: &'static str,
    ) -> Result<(), SourceErrorKind> {
        let read = self.read_up_to(len, out, what)?;
        if read < len { Err(SourceErrorKind::Truncated { what }) } else { Ok(()) }
    }

    /// Appends up to `len` bytes to `out`, fewer only at the end of the stream.
    fn read_up_to(
        &mut self,
        len: u64,
        out: &mut Vec<u8>,
        what: &'static str,
    ) -> Result<u64, SourceErrorKind> {
        let read = self
            .reader
            .by_ref()
            .take(len)
            .read_to_end(out)
            .map_err(|e| classify(e, self.gzip, what))? as u64;
        self.offset += read;
        Ok(read)
    }

    /// Appends the next line to `out`, with its line feed; `false` at the end of the stream. A line
    /// of more than `limit` bytes is refused.
    pub(crate) fn read_line(
        &mut self,
        limit: u64,
        out: &mut Vec<u8>,
        what: &'static str,
    ) -> Result<bool, SourceErrorKind> {
        let line = self.reader.by_ref().take(limit + 1).read_until(b'\n', out);
        let read = line.map_err(|e| classify(e, self.gzip, what))? as u64;
        self.offset += read;
        if read > limit {
            return Err(SourceErrorKind::TooLarge { what, claimed: read, limit });
        }
        Ok(read > 0)
    }

    /// Reads the whole stream; an error if it is longer than `limit` bytes.
    pub(crate) fn read_whole(
        mut self,
        limit: u64,
        what: &'static str,
    ) -> Result<Vec<u8>, SourceError> {
        let mut out = Vec::new();
        let read = self
            .read_up_to(limit + 1, &mut out, what)
            .map_err(|kind| SourceError::new(&self.path, SourcePlace::File, kind))?;
        if read > limit {
            let kind = SourceErrorKind::TooLarge { what, claimed: read, limit };
            return Err(SourceError::new(&self.path, SourcePlace::File, kind));
        }
        Ok(out)
    }
}

/// Separates damage from I/O errors: the gzip decoder reports both as `io::Error`, but only the
/// operating system sets an error code.
fn classify(error: io::Error, gzip: bool, what: &'static str) -> SourceErrorKind {
    let error = match ObjectError::of_io(error) {
        Ok(error) => return SourceErrorKind::Object(error),
        Err(error) => error,
    };
    if error.raw_os_error().is_some() || !gzip {
        SourceErrorKind::Io { action: "read the file", error }
    } else if error.kind() == io::ErrorKind::UnexpectedEof {
        SourceErrorKind::Truncated { what }
    } else {
        SourceErrorKind::Gzip(error)
    }
}
