//! One iterator over the blocks of any source, and detection of what a path holds.

use std::{collections::VecDeque, fs::File, io::Read, iter::FusedIterator, path::Path};

use crate::{
    bundle::{is_bundle_name, number_in_name},
    era1::Era1Reader,
    ere::EreReader,
    error::{SourceError, SourceErrorKind, SourcePlace},
    input::SourceInput,
    objects::SourceLocation,
    origin::{SourceBlock, file_name},
    rlp::RlpReader,
};

/// The content of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceKind {
    /// Concatenated block RLP, plain or gzipped.
    Rlp,
    /// An era1 archive.
    Era1,
    /// An ere archive.
    Ere,
    /// A folder of those above.
    BlockFolder,
    /// A bundle, plain or gzipped JSON.
    Bundle,
    /// A folder of bundles.
    BundleFolder,
}

impl SourceKind {
    /// Whether [`open`] reads it; otherwise [`list_bundles`](crate::list_bundles) does.
    pub const fn has_blocks(self) -> bool {
        matches!(self, Self::Rlp | Self::Era1 | Self::Ere | Self::BlockFolder)
    }

    const fn describe(self) -> &'static str {
        match self {
            Self::Rlp => "block RLP",
            Self::Era1 => "an era1 archive",
            Self::Ere => "an ere archive",
            Self::BlockFolder => "a folder of block files",
            Self::Bundle => "a bundle",
            Self::BundleFolder => "a folder of bundles",
        }
    }
}

/// Detects what a path holds.
///
/// A file is known by its extension (`.rlp`, `.rlp.gz`, `.era1`, `.ere`, `.json`, `.json.gz`). For any
/// other name the first bytes decide, after decompression. The first bytes always decide whether a
/// file is compressed. A folder is a block folder if it holds at least one `.rlp`, `.rlp.gz`, `.era1`
/// or `.ere` file (other JSON, such as a genesis, is skipped, but files named like bundles make it
/// ambiguous), otherwise a bundle folder if it holds `.json` or `.json.gz` files. A pipe is not
/// read: it is assumed to hold block RLP.
///
/// # Errors
///
/// If the path cannot be read, holds nothing known, or is ambiguous.
pub fn detect(source: impl Into<SourceLocation>) -> Result<SourceKind, SourceError> {
    let location = source.into();
    if location.is_stream() {
        // Bytes read here would be lost.
        return Ok(SourceKind::Rlp);
    }
    if let Some(entries) = location.entries()? {
        let keys = || entries.iter().map(SourceLocation::key);
        let blocks = keys().any(|key| BlockFileKind::of_name(key).is_some());
        let bundles = |key| is_bundle_name(key) && (!blocks || number_in_name(key).is_some());
        let bundles = keys().any(bundles);
        let kind = match (blocks, bundles) {
            (true, false) => return Ok(SourceKind::BlockFolder),
            (false, true) => return Ok(SourceKind::BundleFolder),
            (true, true) => SourceErrorKind::MixedFolder,
            (false, false) => SourceErrorKind::NoBlocks,
        };
        return Err(SourceError::new(location.name(), SourcePlace::File, kind));
    }
    match BlockFileKind::of_name(location.key()) {
        Some(BlockFileKind::Rlp) => return Ok(SourceKind::Rlp),
        Some(BlockFileKind::Era1) => return Ok(SourceKind::Era1),
        Some(BlockFileKind::Ere) => return Ok(SourceKind::Ere),
        None if is_bundle_name(location.key()) => return Ok(SourceKind::Bundle),
        None => {}
    }
    detect_content(&location)
}

fn detect_content(location: &SourceLocation) -> Result<SourceKind, SourceError> {
    /// The version entry at the start of every era1 and ere file.
    const ERA_MAGIC: [u8; 8] = [0x65, 0x32, 0, 0, 0, 0, 0, 0];

    let path = location.name();
    let mut magic = Vec::new();
    let read = match location {
        SourceLocation::Path(path) => {
            File::open(path).and_then(|file| file.take(8).read_to_end(&mut magic))
        }
        SourceLocation::Object(object) => {
            let reader = object.reader().map_err(|error| object.error(error))?;
            reader.take(8).read_to_end(&mut magic)
        }
    };
    read.map_err(|e| SourceError::io(path, "read the file", e))?;
    if magic == ERA_MAGIC {
        // They differ in their indices.
        let is_ere = EreReader::open_index(location).is_ok();
        return Ok(if is_ere { SourceKind::Ere } else { SourceKind::Era1 });
    }
    let fail = |kind| SourceError::new(path, SourcePlace::File, kind);
    match SourceInput::open(location)?.peek("the file").map_err(fail)? {
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
/// As [`BlockSource::open`].
pub fn open(source: impl Into<SourceLocation>) -> Result<BlockSource, SourceError> {
    BlockSource::open(source)
}

/// The format of a block file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockFileKind {
    /// Concatenated block RLP, plain or gzipped.
    Rlp,
    /// An era1 archive.
    Era1,
    /// An ere archive.
    Ere,
}

impl BlockFileKind {
    fn of_name(path: &Path) -> Option<Self> {
        let name = file_name(path);
        if name.ends_with(".rlp") || name.ends_with(".rlp.gz") {
            Some(Self::Rlp)
        } else if name.ends_with(".era1") {
            Some(Self::Era1)
        } else if name.ends_with(".ere") {
            Some(Self::Ere)
        } else {
            None
        }
    }
}

/// A block file, and what was found when it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockFile {
    /// Its location.
    pub path: SourceLocation,
    /// Its format.
    pub kind: BlockFileKind,
    /// Number of its first block.
    pub first_block: u64,
    /// Number of its blocks, if the format tells it without reading them all (era1, ere).
    pub block_count: Option<u64>,
    /// Its size in bytes, as it is stored.
    pub bytes: u64,
}

impl BlockFile {
    fn probe(path: &SourceLocation, kind: BlockFileKind) -> Result<Self, SourceError> {
        let (first_block, block_count) = match kind {
            BlockFileKind::Era1 => {
                let reader = Era1Reader::open_index(path)?;
                (reader.first_block(), Some(reader.block_count()))
            }
            BlockFileKind::Ere => {
                let reader = EreReader::open_index(path)?;
                (reader.first_block(), Some(reader.block_count()))
            }
            BlockFileKind::Rlp => match RlpReader::open(path)?.next().transpose()? {
                Some(first) => (first.block.header.number, None),
                None => {
                    let kind = SourceErrorKind::NoBlocks;
                    return Err(SourceError::new(path.name(), SourcePlace::File, kind));
                }
            },
        };
        Ok(Self { path: path.clone(), kind, first_block, block_count, bytes: path.bytes()? })
    }
}

/// Streams the blocks of one or more files in order, with one block in memory.
///
/// It is `Send`: run it on its own thread to read ahead. An era1 or ere file is verified as a whole
/// (see [`verify_era1`](crate::verify_era1), [`verify_ere`](crate::ere::verify_ere)) before its first
/// block is yielded, unless this is switched off. After an error it yields nothing more. Gaps and
/// overlaps between files are not checked here: the importer checks that the blocks link.
#[derive(Debug)]
pub struct BlockSource {
    files: Vec<BlockFile>,
    waiting: VecDeque<usize>,
    /// Index of the file of [`current`](Self::current).
    index: usize,
    current: Option<BlockReader>,
    /// The first block, if [`current`](Self::current) has already yielded it.
    ahead: Option<Box<SourceBlock>>,
    verify_archives: bool,
}

#[derive(Debug)]
enum BlockReader {
    Rlp(Box<RlpReader>),
    Era1(Box<Era1Reader>),
    Ere(Box<EreReader>),
}

impl BlockSource {
    /// Opens a block file, or all block files of a folder ordered by their first block, or a pipe
    /// of block RLP. Reads the first block of every file.
    ///
    /// # Errors
    ///
    /// If the path cannot be read, holds no blocks (bundles have their own reader), or the
    /// beginning of a file is damaged.
    pub fn open(source: impl Into<SourceLocation>) -> Result<Self, SourceError> {
        let location = source.into();
        if location.is_stream() {
            return Self::from_stream(location);
        }
        let probe = |path: &SourceLocation, kind| {
            BlockFile::probe(path, kind).map_err(|error| path.explain_error(error))
        };
        let mut files = match detect(&location)? {
            SourceKind::Rlp => vec![probe(&location, BlockFileKind::Rlp)?],
            SourceKind::Era1 => vec![probe(&location, BlockFileKind::Era1)?],
            SourceKind::Ere => vec![probe(&location, BlockFileKind::Ere)?],
            SourceKind::BlockFolder => location
                .entries()?
                .iter()
                .flatten()
                .filter_map(|path| Some((path, BlockFileKind::of_name(path.key())?)))
                .map(|(path, kind)| probe(path, kind))
                .collect::<Result<Vec<_>, _>>()?,
            kind @ (SourceKind::Bundle | SourceKind::BundleFolder) => {
                let kind = SourceErrorKind::WrongKind {
                    expected: "a file or folder of blocks",
                    got: kind.describe(),
                };
                return Err(SourceError::new(location.name(), SourcePlace::File, kind));
            }
        };
        files.sort_by(|a, b| (a.first_block, &a.path).cmp(&(b.first_block, &b.path)));
        let waiting = (0..files.len()).collect();
        Ok(Self { files, waiting, index: 0, current: None, ahead: None, verify_archives: true })
    }

    /// The blocks of a pipe. It is opened once: a second reader would continue in the middle, or
    /// wait for a writer for ever.
    fn from_stream(path: SourceLocation) -> Result<Self, SourceError> {
        let mut reader = RlpReader::open(&path)?;
        let first = match reader.next().transpose() {
            Ok(first) => first,
            Err(error) if matches!(*error.kind, SourceErrorKind::NotABlock { .. }) => {
                let kind = SourceErrorKind::NotFromPipe;
                return Err(SourceError::new(path.name(), SourcePlace::File, kind));
            }
            Err(error) => return Err(error),
        };
        let first_block = first.as_ref().map_or(0, |first| first.block.header.number);
        let kind = BlockFileKind::Rlp;
        Ok(Self {
            files: vec![BlockFile { path, kind, first_block, block_count: None, bytes: 0 }],
            waiting: VecDeque::new(),
            index: 0,
            current: Some(BlockReader::Rlp(Box::new(reader))),
            ahead: first.map(Box::new),
            verify_archives: true,
        })
    }

    /// Streams era1 and ere files without verifying them first, which saves one pass. Faults are then
    /// reported when the stream reaches them; a wrong accumulator only after the last block of the
    /// file.
    #[must_use]
    pub const fn without_archive_verification(mut self) -> Self {
        self.verify_archives = false;
        self
    }

    /// The files, in reading order.
    pub fn files(&self) -> &[BlockFile] {
        &self.files
    }

    fn open_file(&self, index: usize) -> Result<BlockReader, SourceError> {
        let BlockFile { path, kind, .. } = &self.files[index];
        match kind {
            BlockFileKind::Rlp => RlpReader::open(path).map(|r| BlockReader::Rlp(Box::new(r))),
            BlockFileKind::Era1 => {
                let reader = match self.verify_archives {
                    true => Era1Reader::open_verified(path)?,
                    false => Era1Reader::open(path)?,
                };
                Ok(BlockReader::Era1(Box::new(reader.without_receipts())))
            }
            BlockFileKind::Ere => {
                let reader = match self.verify_archives {
                    true => EreReader::open_verified(path)?,
                    false => EreReader::open(path)?,
                };
                Ok(BlockReader::Ere(Box::new(reader.without_receipts())))
            }
        }
    }
}

impl Iterator for BlockSource {
    type Item = Result<SourceBlock, SourceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(first) = self.ahead.take() {
            return Some(Ok(*first));
        }
        loop {
            let item = match &mut self.current {
                Some(BlockReader::Rlp(reader)) => reader.next(),
                Some(BlockReader::Era1(reader)) => reader.next().map(|block| block.map(Into::into)),
                Some(BlockReader::Ere(reader)) => reader.next().map(|block| block.map(Into::into)),
                None => None,
            };
            let item = item.or_else(|| {
                let next = self.waiting.pop_front();
                self.current = None;
                self.index = next?;
                match self.open_file(self.index) {
                    Ok(reader) => {
                        self.current = Some(reader);
                        None
                    }
                    Err(error) => Some(Err(error)),
                }
            });
            if let Some(Err(error)) = item {
                self.current = None;
                self.waiting.clear();
                return Some(Err(self.files[self.index].path.explain_error(error)));
            }
            if item.is_some() || self.current.is_none() {
                return item;
            }
        }
    }
}

impl FusedIterator for BlockSource {}
