//! era1: archives of up to 8192 pre-merge blocks with receipts and total difficulties.
//!
//! ```text
//!  version | (header body receipts total-difficulty) x n | other* | accumulator | block index
//! ```
//!
//! Header, body and receipts are RLP in snappy *framed* format, each with CRC-32C; the block index
//! holds the first block's number and the file offset of every header entry; the accumulator is the
//! SSZ root in [`accumulator_root`]. The layout follows the e2store specification of Nimbus and the
//! era1 specification of the execution clients; the byte-level description is in the data folder's
//! README.
//!
//! [`Era1Reader`] checks while it streams: entry order, block numbers, the block index, parent
//! links, total difficulties, and at the end the accumulator. **So blocks are yielded before the
//! accumulator that covers them is checked.** A caller that must not see a block of a damaged file
//! calls [`verify_era1`] first, which makes a separate pass and also checks bodies and receipts
//! against the headers. The accumulator is in the same file, so it finds damage only; against
//! forgery compare [`Era1Summary::accumulator`] with a published list.

mod accumulator;

pub(crate) use accumulator::{AccumulatorTree, PROOF_LEN};
pub use accumulator::{HeaderRecord, accumulator_root};

use std::{fs::File, iter::FusedIterator, path::Path, sync::Arc};

use alloy_consensus::ReceiptEnvelope;
use alloy_primitives::{B256, U256, keccak256};
use alloy_rlp::Encodable;
use retrie_chainspec::primitives::{Block, BlockBody, Header};

use crate::{
    check::{self, decode_strictly, same_hash, same_number},
    e2store::{self, EntryReader, entry_type},
    error::{SourceError, SourceErrorKind, SourcePlace},
    objects::{SeekableBytes, SourceLocation},
    origin::{BlockOrigin, SourceBlock},
};

/// Blocks in an era1 file, at most.
pub const MAX_BLOCKS: u64 = e2store::MAX_BLOCKS;

/// Bytes that are read ahead.
const BUFFER: usize = 256 << 10;

/// The block index at the end of an era1 file.
#[derive(Debug)]
struct BlockIndex {
    /// Number of the first block.
    start: u64,
    /// File offset of each block's header entry.
    offsets: Vec<u64>,
    /// File offset of the index entry itself.
    offset: u64,
}

impl BlockIndex {
    /// Reads the index, and puts `entries` before the first block. The index is found from the end of
    /// the file: the last 8 bytes are the number of blocks, which gives its length.
    fn read(entries: &mut EntryReader) -> Result<Self, SourceError> {
        let count = match entries.last_words::<1>()? {
            Some([count]) if (1..=MAX_BLOCKS).contains(&count) => count,
            _ => return Err(entries.no_index()),
        };
        let (offset, words) = entries.read_index(entry_type::BLOCK_INDEX, 16 + 8 * count)?;
        let mut words = words.into_iter();
        let start = words.next().unwrap_or_default();
        if start.checked_add(count).is_none() {
            let kind = SourceErrorKind::Format("the first block number overflows");
            return Err(entries.error_at(offset, None, kind));
        }
        // Offsets are signed and relative to the index; a wrapping addition is two's complement.
        // They are only compared with the position of the entry that is read.
        let offsets =
            words.take(count as usize).map(|relative| offset.wrapping_add(relative)).collect();
        entries.seek(e2store::ENTRY_HEADER)?;
        Ok(Self { start, offsets, offset })
    }
}

/// A block of an era1 file, with the file's data about it.
#[derive(Clone, Debug)]
pub struct EraBlock {
    /// Header, transactions and ommers.
    pub block: Block,
    /// Keccak-256 of the header as stored.
    pub hash: B256,
    /// Consensus receipts with their blooms; `None` if the reader skips them. Before Byzantium they
    /// carry the intermediate state root (EIP-658 replaced it by a status), so they are envelopes
    /// and not the workspace's `Receipt`.
    pub receipts: Option<Vec<ReceiptEnvelope>>,
    /// Sum of the difficulties from genesis to this block, inclusive.
    pub total_difficulty: U256,
    /// The position of the block's header entry.
    pub origin: BlockOrigin,
}

impl EraBlock {
    /// Checks transactions, ommers and (if read) receipts against the roots in the header.
    ///
    /// # Errors
    ///
    /// [`SourceErrorKind::HashMismatch`] naming the root.
    pub fn check_body(&self) -> Result<(), SourceError> {
        check::whole_body(&self.block, self.receipts.as_deref()).map_err(|kind| {
            let BlockOrigin { file, offset } = &self.origin;
            let block = Some(self.block.header.number);
            SourceError::new(file, SourcePlace::Entry { offset: *offset, block }, kind)
        })
    }
}

impl From<EraBlock> for SourceBlock {
    fn from(era: EraBlock) -> Self {
        Self { encoded_len: era.block.length() as u64, block: era.block, origin: era.origin }
    }
}

/// Streaming reader of an era1 file; see the [module](self) for what it checks and when.
///
/// Yields an error once and then ends.
#[derive(Debug)]
pub struct Era1Reader {
    file: Arc<Path>,
    entries: EntryReader,
    index: BlockIndex,
    /// One per block read so far; 64 bytes each, at most 8192.
    records: Vec<HeaderRecord>,
    accumulator: Option<B256>,
    with_receipts: bool,
    scratch: Vec<u8>,
    ended: bool,
}

impl Era1Reader {
    /// Opens a file and reads its version and block index. An object is copied to an unnamed
    /// temporary file.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or does not end with an intact block index.
    pub fn open(source: impl Into<SourceLocation>) -> Result<Self, SourceError> {
        let location = source.into();
        Self::new(location.name(), Box::new(location.file()?))
    }

    /// Opens a file after a successful [`verify_era1`].
    pub(crate) fn open_verified(location: &SourceLocation) -> Result<Self, SourceError> {
        let file = location.file()?;
        let again = |e| SourceError::io(location.name(), "open the file", e);
        verify(location.name(), file.try_clone().map_err(again)?)?;
        Self::new(location.name(), Box::new(file))
    }

    /// Opens a file only to read its index. Of an object nothing else is read.
    pub(crate) fn open_index(location: &SourceLocation) -> Result<Self, SourceError> {
        Self::new(location.name(), location.parts()?)
    }

    fn new(name: &Path, file: Box<dyn SeekableBytes>) -> Result<Self, SourceError> {
        let mut entries = EntryReader::new(name, file, BUFFER)?;
        let index = BlockIndex::read(&mut entries)?;
        Ok(Self {
            file: Arc::from(name),
            entries,
            index,
            records: Vec::new(),
            accumulator: None,
            with_receipts: true,
            scratch: Vec::new(),
            ended: false,
        })
    }

    /// Leaves the receipts undecoded: faster, and [`EraBlock::receipts`] is `None`.
    #[must_use]
    pub const fn without_receipts(mut self) -> Self {
        self.with_receipts = false;
        self
    }

    /// Number of the first block, according to the block index.
    pub const fn first_block(&self) -> u64 {
        self.index.start
    }

    /// Number of blocks in the file, according to the block index (1 to 8192).
    pub const fn block_count(&self) -> u64 {
        self.index.offsets.len() as u64
    }

    /// The accumulator root; `None` until the reader has ended without an error.
    pub const fn accumulator(&self) -> Option<B256> {
        self.accumulator
    }

    fn read_block(&mut self, indexed: u64) -> Result<EraBlock, SourceError> {
        let number = self.index.start + self.records.len() as u64;
        let block = Some(number);
        let offset = self.entries.position();
        let fail = |entries: &EntryReader, at, kind| entries.error_at(at, block, kind);
        same_number("offset in the block index", offset, indexed)
            .map_err(|kind| fail(&self.entries, offset, kind))?;

        let entry = self.entries.next(block, entry_type::HEADER, "block header")?;
        let bytes = self.entries.unpack(entry, number, "block header")?;
        let header: Header = decode_strictly(&bytes, "block header", &mut self.scratch)
            .map_err(|kind| fail(&self.entries, offset, kind))?;
        let hash = keccak256(&bytes);
        same_number("block number in the header", number, header.number)
            .map_err(|kind| fail(&self.entries, offset, kind))?;
        if let Some(parent) = self.records.last() {
            same_hash("parent hash", parent.block_hash, header.parent_hash)
                .map_err(|kind| fail(&self.entries, offset, kind))?;
        }

        let entry = self.entries.next(block, entry_type::BODY, "block body")?;
        let at = entry.offset;
        let bytes = self.entries.unpack(entry, number, "block body")?;
        let body: BlockBody = decode_strictly(&bytes, "block body", &mut self.scratch)
            .map_err(|kind| fail(&self.entries, at, kind))?;
        let block_read = Block::new(header, body);

        let entry = self.entries.next(block, entry_type::RECEIPTS, "receipts")?;
        let at = entry.offset;
        let receipts = if self.with_receipts {
            let bytes = self.entries.unpack(entry, number, "receipts")?;
            let receipts: Vec<ReceiptEnvelope> =
                decode_strictly(&bytes, "receipts", &mut self.scratch)
                    .map_err(|kind| fail(&self.entries, at, kind))?;
            let expected = block_read.body.transactions.len() as u64;
            same_number("number of receipts", expected, receipts.len() as u64)
                .map_err(|kind| fail(&self.entries, at, kind))?;
            Some(receipts)
        } else {
            None
        };

        let entry = self.entries.next(block, entry_type::TOTAL_DIFFICULTY, "total difficulty")?;
        let parent = self.records.last().map(|parent| parent.total_difficulty);
        let total_difficulty =
            check::total_difficulty_entry(parent, &block_read.header, &entry.data)
                .map_err(|kind| fail(&self.entries, entry.offset, kind))?;

        self.records.push(HeaderRecord { block_hash: hash, total_difficulty });
        let origin = BlockOrigin { file: self.file.clone(), offset };
        Ok(EraBlock { block: block_read, hash, receipts, total_difficulty, origin })
    }

    /// After the last block: unknown entries are skipped (the format allows them here), then comes
    /// the accumulator, then the block index.
    fn check_accumulator(&mut self) -> Result<(), SourceError> {
        let entry = loop {
            let entry = self.entries.next_any("accumulator")?;
            match entry.kind {
                entry_type::ACCUMULATOR => break entry,
                entry_type::HEADER..=entry_type::TOTAL_DIFFICULTY => {
                    let kind = SourceErrorKind::Format("a block that is not in the block index");
                    return Err(self.entries.error_at(entry.offset, None, kind));
                }
                _ => {}
            }
        };
        let check = || {
            same_number("end of the accumulator", self.index.offset, self.entries.position())?;
            let stored: [u8; 32] = entry.data.as_slice().try_into().map_err(|_| {
                SourceErrorKind::Format("an accumulator entry must have 32 bytes: damaged")
            })?;
            let computed = accumulator_root(&self.records)
                .ok_or(SourceErrorKind::Format("more blocks than an era1 file can hold"))?;
            same_hash("accumulator root of the blocks", stored.into(), computed)?;
            Ok(computed)
        };
        let root = check().map_err(|kind| self.entries.error_at(entry.offset, None, kind))?;
        self.accumulator = Some(root);
        Ok(())
    }
}

impl Iterator for Era1Reader {
    type Item = Result<EraBlock, SourceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let item = match self.index.offsets.get(self.records.len()) {
            Some(&indexed) => Some(self.read_block(indexed)),
            None => {
                self.ended = true;
                self.check_accumulator().err().map(Err)
            }
        };
        self.ended |= matches!(item, Some(Err(_)));
        item
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = if self.ended { 0 } else { self.index.offsets.len() - self.records.len() };
        // One more for an error at the end.
        (0, Some(left + 1))
    }
}

impl FusedIterator for Era1Reader {}

/// The result of [`verify_era1`] for an intact file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Era1Summary {
    /// Number of the first block.
    pub first_block: u64,
    /// Number of blocks.
    pub block_count: u64,
    /// Parent hash of the first block.
    pub parent_hash: B256,
    /// Hash of the last block.
    pub last_hash: B256,
    /// Total difficulty at the last block.
    pub total_difficulty: U256,
    /// The accumulator root, recomputed.
    pub accumulator: B256,
}

/// Checks a whole era1 file: everything that [`Era1Reader`] checks, and every block's transactions,
/// ommers and receipts against its header.
///
/// # Errors
///
/// The first fault, with file, entry offset and block.
pub fn verify_era1(source: impl Into<SourceLocation>) -> Result<Era1Summary, SourceError> {
    let location = source.into();
    verify(location.name(), location.file()?)
}

fn verify(path: &Path, file: File) -> Result<Era1Summary, SourceError> {
    let mut reader = Era1Reader::new(path, Box::new(file))?;
    let mut parent_hash = None;
    let mut last = None;
    for block in reader.by_ref() {
        let block = block?;
        block.check_body()?;
        parent_hash.get_or_insert(block.block.header.parent_hash);
        last = Some((block.hash, block.total_difficulty));
    }
    let (Some(parent_hash), Some((last_hash, total_difficulty)), Some(accumulator)) =
        (parent_hash, last, reader.accumulator())
    else {
        return Err(SourceError::new(path, SourcePlace::File, SourceErrorKind::NoBlocks));
    };
    Ok(Era1Summary {
        first_block: reader.first_block(),
        block_count: reader.block_count(),
        parent_hash,
        last_hash,
        total_difficulty,
        accumulator,
    })
}
