//! One iterator over blocks, whatever they are stored in, and the recognition of what a path holds.

use std::{collections::VecDeque, fs::File, io::Read, iter::FusedIterator, path::Path};

use crate::{
    bundle::{is_bundle_name, number_in_name},
    era1::Era1Reader,
    error::{Place, SourceError, SourceErrorKind},
    input::Input,
    objects::Location,
    origin::{SourceBlock, file_name},
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
/// are refused as ambiguous), else a bundle folder when it holds `.json` or `.json.gz` files. A pipe is
/// not looked into: it is taken to hold block RLP.
///
/// # Errors
///
/// When the path cannot be read, nothing in it is known, or it is ambiguous.
pub fn detect(source: impl Into<Location>) -> Result<SourceKind, SourceError> {
    let location = source.into();
    if location.is_stream() {
        // What is read of it is gone.
        return Ok(SourceKind::Rlp);
    }
    if let Some(entries) = location.entries()? {
        let keys = || entries.iter().map(Location::key);
        let blocks = keys().any(|key| BlockFileKind::of_name(key).is_some());
        let bundles = |key| is_bundle_name(key) && (!blocks || number_in_name(key).is_some());
        let bundles = keys().any(bundles);
        let kind = match (blocks, bundles) {
            (true, false) => return Ok(SourceKind::BlockFolder),
            (false, true) => return Ok(SourceKind::BundleFolder),
            (true, true) => SourceErrorKind::MixedFolder,
            (false, false) => SourceErrorKind::NoBlocks,
        };
        return Err(SourceError::new(location.name(), Place::File, kind));
    }
    match BlockFileKind::of_name(location.key()) {
        Some(BlockFileKind::Rlp) => return Ok(SourceKind::Rlp),
        Some(BlockFileKind::Era1) => return Ok(SourceKind::Era1),
        None if is_bundle_name(location.key()) => return Ok(SourceKind::Bundle),
        None => {}
    }
    detect_content(&location)
}

fn detect_content(location: &Location) -> Result<SourceKind, SourceError> {
    /// The version entry every era1 file starts with.
    const ERA1_MAGIC: [u8; 8] = [0x65, 0x32, 0, 0, 0, 0, 0, 0];

    let path = location.name();
    let mut magic = Vec::new();
    let read = match location {
        Location::Path(path) => {
            File::open(path).and_then(|file| file.take(8).read_to_end(&mut magic))
        }
        Location::Object(object) => {
            let reader = object.reader().map_err(|error| object.error(error))?;
            reader.take(8).read_to_end(&mut magic)
        }
    };
    read.map_err(|e| SourceError::io(path, "read the file", e))?;
    if magic == ERA1_MAGIC {
        return Ok(SourceKind::Era1);
    }
    let fail = |kind| SourceError::new(path, Place::File, kind);
    match Input::open(location)?.peek("the file").map_err(fail)? {
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
pub fn open(source: impl Into<Location>) -> Result<BlockSource, SourceError> {
    BlockSource::open(source)
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
    /// Where it is.
    pub path: Location,
    /// Its format.
    pub kind: BlockFileKind,
    /// Number of its first block.
    pub first_block: u64,
    /// Number of its blocks where the format tells without reading them all (era1).
    pub block_count: Option<u64>,
    /// Its size in bytes, as it is stored.
    pub bytes: u64,
}

impl BlockFile {
    fn probe(path: &Location, kind: BlockFileKind) -> Result<Self, SourceError> {
        let (first_block, block_count) = match kind {
            BlockFileKind::Era1 => {
                let reader = Era1Reader::look_at(path)?;
                (reader.first_block(), Some(reader.block_count()))
            }
            BlockFileKind::Rlp => match RlpReader::open(path)?.next().transpose()? {
                Some(first) => (first.block.header.number, None),
                None => {
                    let kind = SourceErrorKind::NoBlocks;
                    return Err(SourceError::new(path.name(), Place::File, kind));
                }
            },
        };
        Ok(Self { path: path.clone(), kind, first_block, block_count, bytes: path.bytes()? })
    }
}

/// Streams the blocks of one or more files in order, one block in memory at a time.
///
/// It is `Send`: run it on a thread of its own to read ahead. An era1 file is verified as a whole
/// (see [`verify_era1`](crate::verify_era1)) before its first block is yielded, unless switched off. After an error it
/// yields nothing more. Gaps and overlaps between files are not its business: the blocks come as
/// they are, and the importer checks that they link.
#[derive(Debug)]
pub struct BlockSource {
    files: Vec<BlockFile>,
    waiting: VecDeque<usize>,
    /// The one of [`current`](Self::current).
    index: usize,
    current: Option<Reader>,
    /// A block that [`current`](Self::current) has given already.
    ahead: Option<Box<SourceBlock>>,
    verify_era1: bool,
}

#[derive(Debug)]
enum Reader {
    Rlp(Box<RlpReader>),
    Era1(Box<Era1Reader>),
}

impl BlockSource {
    /// Opens a block file, or all block files of a folder ordered by their first block, or a pipe of
    /// block RLP. The first block of every file is looked at.
    ///
    /// # Errors
    ///
    /// When the path cannot be read, holds no blocks (bundles have their own reader), or the
    /// beginning of a file is damaged.
    pub fn open(source: impl Into<Location>) -> Result<Self, SourceError> {
        let location = source.into();
        if location.is_stream() {
            return Self::from_stream(location);
        }
        let probe =
            |path: &Location, kind| BlockFile::probe(path, kind).map_err(|error| path.blame(error));
        let mut files = match detect(&location)? {
            SourceKind::Rlp => vec![probe(&location, BlockFileKind::Rlp)?],
            SourceKind::Era1 => vec![probe(&location, BlockFileKind::Era1)?],
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
                return Err(SourceError::new(location.name(), Place::File, kind));
            }
        };
        files.sort_by(|a, b| (a.first_block, &a.path).cmp(&(b.first_block, &b.path)));
        let waiting = (0..files.len()).collect();
        Ok(Self { files, waiting, index: 0, current: None, ahead: None, verify_era1: true })
    }

    /// The blocks that come out of a pipe. It is opened once: opened again, it would go on where it
    /// is, or wait for ever for somebody to write into it.
    fn from_stream(path: Location) -> Result<Self, SourceError> {
        let mut reader = RlpReader::open(&path)?;
        let first = match reader.next().transpose() {
            Ok(first) => first,
            Err(error) if matches!(*error.kind, SourceErrorKind::NotABlock { .. }) => {
                let kind = SourceErrorKind::NotFromPipe;
                return Err(SourceError::new(path.name(), Place::File, kind));
            }
            Err(error) => return Err(error),
        };
        let first_block = first.as_ref().map_or(0, |first| first.block.header.number);
        let kind = BlockFileKind::Rlp;
        Ok(Self {
            files: vec![BlockFile { path, kind, first_block, block_count: None, bytes: 0 }],
            waiting: VecDeque::new(),
            index: 0,
            current: Some(Reader::Rlp(Box::new(reader))),
            ahead: first.map(Box::new),
            verify_era1: true,
        })
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
                let reader = match self.verify_era1 {
                    true => Era1Reader::open_verified(path)?,
                    false => Era1Reader::open(path)?,
                };
                Ok(Reader::Era1(Box::new(reader.without_receipts())))
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
                Some(Reader::Rlp(reader)) => reader.next(),
                Some(Reader::Era1(reader)) => reader.next().map(|block| block.map(Into::into)),
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
                return Some(Err(self.files[self.index].path.blame(error)));
            }
            if item.is_some() || self.current.is_none() {
                return item;
            }
        }
    }
}

impl FusedIterator for BlockSource {}
