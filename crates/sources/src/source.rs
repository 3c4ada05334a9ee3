//! One iterator over blocks, whatever they are stored in, and the recognition of what a path holds.

use std::{
    collections::VecDeque,
    fs::{self, File},
    io::Read,
    iter::FusedIterator,
    path::{Path, PathBuf},
};

use crate::{
    bundle::{is_bundle_name, number_in_name},
    era1::{Era1Reader, verify_era1},
    error::{Place, SourceError, SourceErrorKind},
    input::Input,
    origin::{SourceBlock, file_name, folder_entries},
    rlp::RlpReader,
};

/// What a path holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceKind {
    /// Concatenated block RLP, plain or gzipped.
    Rlp,
    /// An era1 archive.
    Era1,
    /// A folder of the two above.
    BlockFolder,
    /// A bundle, plain or gzipped JSON.
    Bundle,
    /// A folder of bundles.
    BundleFolder,
}

impl SourceKind {
    /// Whether [`open`] reads it; otherwise [`list_bundles`](crate::list_bundles) does.
    pub const fn has_blocks(self) -> bool {
        matches!(self, Self::Rlp | Self::Era1 | Self::BlockFolder)
    }

    const fn describe(self) -> &'static str {
        match self {
            Self::Rlp => "block RLP",
            Self::Era1 => "an era1 archive",
            Self::BlockFolder => "a folder of block files",
            Self::Bundle => "a bundle",
            Self::BundleFolder => "a folder of bundles",
        }
    }
}

/// Finds out what a path holds.
///
/// A file is known by its extension (`.rlp`, `.rlp.gz`, `.era1`, `.json`, `.json.gz`); any other
/// name is decided by the first bytes, behind gzip if need be. Compression is always decided by
/// the first bytes. A folder is a block folder when it holds at least one `.rlp`, `.rlp.gz` or
/// `.era1` file (JSON beside them, such as a genesis, is passed over, but files named like bundles
/// are refused as ambiguous), else a bundle folder when it holds `.json` or `.json.gz` files.
///
/// # Errors
///
/// When the path cannot be read, nothing in it is known, or it is ambiguous.
pub fn detect(path: impl AsRef<Path>) -> Result<SourceKind, SourceError> {
    let path = path.as_ref();
    let meta = fs::metadata(path).map_err(|e| SourceError::io(path, "read the path", e))?;
    if meta.is_dir() {
        let entries = folder_entries(path)?;
        let blocks = entries.iter().any(|e| BlockFileKind::of_name(e).is_some());
        let bundles = |e: &PathBuf| is_bundle_name(e) && (!blocks || number_in_name(e).is_some());
        let bundles = entries.iter().any(bundles);
        let kind = match (blocks, bundles) {
            (true, false) => return Ok(SourceKind::BlockFolder),
            (false, true) => return Ok(SourceKind::BundleFolder),
            (true, true) => SourceErrorKind::MixedFolder,
            (false, false) => SourceErrorKind::NoBlocks,
        };
        return Err(SourceError::new(path, Place::File, kind));
    }
    match BlockFileKind::of_name(path) {
        Some(BlockFileKind::Rlp) => return Ok(SourceKind::Rlp),
        Some(BlockFileKind::Era1) => return Ok(SourceKind::Era1),
        None if is_bundle_name(path) => return Ok(SourceKind::Bundle),
        None => {}
    }
    detect_content(path)
}

fn detect_content(path: &Path) -> Result<SourceKind, SourceError> {
    /// The version entry every era1 file starts with.
    const ERA1_MAGIC: [u8; 8] = [0x65, 0x32, 0, 0, 0, 0, 0, 0];

    let mut magic = Vec::new();
    File::open(path)
        .and_then(|file| file.take(8).read_to_end(&mut magic))
        .map_err(|e| SourceError::io(path, "read the file", e))?;
    if magic == ERA1_MAGIC {
        return Ok(SourceKind::Era1);
    }
    let fail = |kind| SourceError::new(path, Place::File, kind);
    match Input::open(path)?.peek("the file").map_err(fail)? {
        Some(alloy_rlp::EMPTY_LIST_CODE..) => Ok(SourceKind::Rlp),
        Some(b'{') => Ok(SourceKind::Bundle),
        Some(_) => Err(fail(SourceErrorKind::UnknownKind)),
        None => Err(fail(SourceErrorKind::NoBlocks)),
    }
}

/// Opens a block file or a folder of block files; same as [`BlockSource::open`].
///
/// # Errors
///
/// See [`BlockSource::open`].
pub fn open(path: impl AsRef<Path>) -> Result<BlockSource, SourceError> {
    BlockSource::open(path)
}

/// The format of a block file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockFileKind {
    /// Concatenated block RLP, plain or gzipped.
    Rlp,
    /// An era1 archive.
    Era1,
}

impl BlockFileKind {
    fn of_name(path: &Path) -> Option<Self> {
        let name = file_name(path);
        if name.ends_with(".rlp") || name.ends_with(".rlp.gz") {
            Some(Self::Rlp)
        } else if name.ends_with(".era1") {
            Some(Self::Era1)
        } else {
            None
        }
    }
}

/// A block file and what was learned about it on opening.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockFile {
    /// The file.
    pub path: PathBuf,
    /// Its format.
    pub kind: BlockFileKind,
    /// Number of its first block.
    pub first_block: u64,
    /// Number of its blocks where the format tells without reading them all (era1).
    pub block_count: Option<u64>,
    /// Its size on disk in bytes.
    pub bytes: u64,
}

impl BlockFile {
    fn probe(path: &Path, kind: BlockFileKind) -> Result<Self, SourceError> {
        let (first_block, block_count) = match kind {
            BlockFileKind::Era1 => {
                let reader = Era1Reader::open(path)?;
                (reader.first_block(), Some(reader.block_count()))
            }
            BlockFileKind::Rlp => match RlpReader::open(path)?.next().transpose()? {
                Some(first) => (first.block.header.number, None),
                None => {
                    return Err(SourceError::new(path, Place::File, SourceErrorKind::NoBlocks));
                }
            },
        };
        let bytes =
            fs::metadata(path).map_err(|e| SourceError::io(path, "read the file's size", e))?.len();
        Ok(Self { path: path.to_owned(), kind, first_block, block_count, bytes })
    }
}

/// Streams the blocks of one or more files in order, one block in memory at a time.
///
/// It is `Send`: run it on a thread of its own to read ahead. An era1 file is verified as a whole
/// (see [`verify_era1`]) before its first block is yielded, unless switched off. After an error it
/// yields nothing more. Gaps and overlaps between files are not its business: the blocks come as
/// they are, and the importer checks that they link.
#[derive(Debug)]
pub struct BlockSource {
    files: Vec<BlockFile>,
    waiting: VecDeque<usize>,
    current: Option<Reader>,
    verify_era1: bool,
}

#[derive(Debug)]
enum Reader {
    Rlp(Box<RlpReader>),
    Era1(Box<Era1Reader>),
}

impl BlockSource {
    /// Opens a block file, or all block files of a folder ordered by their first block. The first
    /// block of every file is looked at.
    ///
    /// # Errors
    ///
    /// When the path cannot be read, holds no blocks (bundles have their own reader), or the
    /// beginning of a file is damaged.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, SourceError> {
        let path = path.as_ref();
        let mut files = match detect(path)? {
            SourceKind::Rlp => vec![BlockFile::probe(path, BlockFileKind::Rlp)?],
            SourceKind::Era1 => vec![BlockFile::probe(path, BlockFileKind::Era1)?],
            SourceKind::BlockFolder => folder_entries(path)?
                .iter()
                .filter_map(|path| Some((path, BlockFileKind::of_name(path)?)))
                .map(|(path, kind)| BlockFile::probe(path, kind))
                .collect::<Result<Vec<_>, _>>()?,
            kind @ (SourceKind::Bundle | SourceKind::BundleFolder) => {
                let kind = SourceErrorKind::WrongKind {
                    expected: "a file or folder of blocks",
                    got: kind.describe(),
                };
                return Err(SourceError::new(path, Place::File, kind));
            }
        };
        files.sort_by(|a, b| (a.first_block, &a.path).cmp(&(b.first_block, &b.path)));
        let waiting = (0..files.len()).collect();
        Ok(Self { files, waiting, current: None, verify_era1: true })
    }

    /// Streams era1 files without verifying them first, saving one pass; faults are then reported
    /// where they stand, a wrong accumulator only after the last block of the file.
    #[must_use]
    pub const fn without_era1_verification(mut self) -> Self {
        self.verify_era1 = false;
        self
    }

    /// The files, in the order in which they are read.
    pub fn files(&self) -> &[BlockFile] {
        &self.files
    }

    fn open_file(&self, index: usize) -> Result<Reader, SourceError> {
        let BlockFile { path, kind, .. } = &self.files[index];
        match kind {
            BlockFileKind::Rlp => RlpReader::open(path).map(|r| Reader::Rlp(Box::new(r))),
            BlockFileKind::Era1 => {
                if self.verify_era1 {
                    verify_era1(path)?;
                }
                let reader = Era1Reader::open(path)?.without_receipts();
                Ok(Reader::Era1(Box::new(reader)))
            }
        }
    }
}

impl Iterator for BlockSource {
    type Item = Result<SourceBlock, SourceError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let item = match &mut self.current {
                Some(Reader::Rlp(reader)) => reader.next(),
                Some(Reader::Era1(reader)) => reader.next().map(|block| block.map(Into::into)),
                None => None,
            };
            let item = item.or_else(|| {
                let next = self.waiting.pop_front();
                self.current = None;
                match self.open_file(next?) {
                    Ok(reader) => {
                        self.current = Some(reader);
                        None
                    }
                    Err(error) => Some(Err(error)),
                }
            });
            if let Some(Err(_)) = item {
                self.current = None;
                self.waiting.clear();
            }
            if item.is_some() || self.current.is_none() {
                return item;
            }
        }
    }
}

impl FusedIterator for BlockSource {}
