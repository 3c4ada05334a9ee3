//! Writes blocks: concatenated RLP that `geth import`, `reth import` and [`crate::rlp`] read.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use alloy_primitives::B256;
use alloy_rlp::Encodable;
use flate2::{Compression, write::GzEncoder};
use retrie_chainspec::primitives::Block;
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

use crate::error::SourceError;

/// Writes blocks to a file that appears under its name only when it is complete.
///
/// Blocks go to a temporary file beside the target. [`finish`](Self::finish) makes it durable and
/// renames it to the target (an existing file is replaced). A writer that is dropped before leaves
/// the target unchanged. A name ending in `.gz` selects gzip, one member, no time stamp: equal
/// blocks give equal bytes.
#[derive(Debug)]
pub struct BlockWriter {
    target: PathBuf,
    sink: FileSink,
    item: Vec<u8>,
    summary: ExportSummary,
}

/// The number and size of the blocks that a [`BlockWriter`] has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportSummary {
    /// Number of blocks.
    pub blocks: u64,
    /// Bytes of RLP, before compression.
    pub rlp_bytes: u64,
}

/// Whether a file of this name is gzipped.
pub(crate) fn is_gzip_name(path: &Path) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gz"))
}

/// An [`AtomicFile`], gzipped if its name ends in `.gz`.
#[derive(Debug)]
pub(crate) enum FileSink {
    Plain(AtomicFile),
    Gzip(GzEncoder<AtomicFile>),
}

impl FileSink {
    pub(crate) fn create(target: &Path) -> Result<Self, SourceError> {
        let file = AtomicFile::create(target)?;
        Ok(match is_gzip_name(target) {
            true => Self::Gzip(GzEncoder::new(file, Compression::default())),
            false => Self::Plain(file),
        })
    }

    pub(crate) fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(file) => file.write_all(bytes),
            Self::Gzip(file) => file.write_all(bytes),
        }
    }

    pub(crate) fn finish(self, target: &Path) -> Result<(), SourceError> {
        let file = match self {
            Self::Plain(file) => Ok(file),
            Self::Gzip(file) => file.finish(),
        };
        file.map_err(|e| SourceError::io(target, "write the file", e))?.finish(target)
    }
}

impl BlockWriter {
    /// Starts a file. Its folder must exist.
    ///
    /// # Errors
    ///
    /// If no file can be created in the folder.
    pub fn create(target: impl AsRef<Path>) -> Result<Self, SourceError> {
        let target = target.as_ref().to_owned();
        let sink = FileSink::create(&target)?;
        Ok(Self { target, sink, item: Vec::new(), summary: ExportSummary::default() })
    }

    /// Appends a block.
    ///
    /// # Errors
    ///
    /// If the file cannot be written. The writer cannot be used any more.
    pub fn write(&mut self, block: &Block) -> Result<(), SourceError> {
        self.item.clear();
        block.encode(&mut self.item);
        self.sink
            .write_all(&self.item)
            .map_err(|e| SourceError::io(&self.target, "write the file", e))?;
        self.summary.blocks += 1;
        self.summary.rlp_bytes += self.item.len() as u64;
        Ok(())
    }

    /// Makes the file durable and gives it its name.
    ///
    /// # Errors
    ///
    /// If writing, syncing or renaming fails. The target is then unchanged.
    pub fn finish(self) -> Result<ExportSummary, SourceError> {
        let Self { target, sink, summary, .. } = self;
        sink.finish(&target)?;
        Ok(summary)
    }
}

/// A file that appears under its name only when it is complete and on disk. Until then it has a
/// temporary name in the same folder, and is deleted when dropped.
#[derive(Debug)]
pub struct AtomicFile(BufWriter<NamedTempFile>);

impl AtomicFile {
    /// Starts a file that will have the name `target`.
    ///
    /// # Errors
    /// If no file can be created in its folder.
    pub fn create(target: &Path) -> Result<Self, SourceError> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(".retrie-export-");
        // Temporary files are private by default; an export is an ordinary file with the umask.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let file = builder
            .tempfile_in(folder_of(target))
            .map_err(|e| SourceError::io(target, "create a temporary file beside it", e))?;
        Ok(Self(BufWriter::with_capacity(1 << 20, file)))
    }

    /// Makes it durable, and gives it its name, that of [`create`](Self::create).
    ///
    /// # Errors
    /// If writing, syncing or renaming fails. The target is then unchanged.
    pub fn finish(self, target: &Path) -> Result<(), SourceError> {
        let file = self.0.into_inner().map_err(io::IntoInnerError::into_error);
        let file = file.map_err(|e| SourceError::io(target, "write the file", e))?;
        file.as_file()
            .sync_all()
            .map_err(|e| SourceError::io(target, "sync the file to disk", e))?;
        file.persist(target)
            .map_err(|e| SourceError::io(target, "rename the finished file into place", e.error))?;
        sync_folder(folder_of(target))
            .map_err(|e| SourceError::io(target, "sync its folder to disk", e))
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

fn folder_of(target: &Path) -> &Path {
    match target.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// A rename is durable only after the folder was synced.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

/// SHA-256 of a file.
pub(crate) fn sha256_of(path: &Path) -> io::Result<B256> {
    let mut hasher = Sha256::new();
    let mut file = File::open(path)?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        match io::Read::read(&mut file, &mut buffer)? {
            0 => return Ok(B256::from_slice(&hasher.finalize())),
            read => hasher.update(&buffer[..read]),
        }
    }
}
