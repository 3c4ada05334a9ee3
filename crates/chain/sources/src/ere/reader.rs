//! Reading and checking ere files.

use std::{iter::FusedIterator, path::Path, sync::Arc};

use alloy_consensus::ReceiptEnvelope;
use alloy_primitives::{B256, U256, keccak256};
use alloy_rlp::Encodable;
use retrie_chainspec::primitives::{Block, BlockBody, Header};

use super::{
    index::{EreComponent, EreIndex, EreLayout},
    proof::{HeaderProof, HeaderProofType},
    receipts::{SlimReceipt, envelopes},
    verify::verify,
};
use crate::{
    check::{self, decode_strictly, same_hash, same_number},
    e2store::{E2Entry, EntryReader, entry_type},
    era1::{HeaderRecord, accumulator_root},
    error::{SourceError, SourceErrorKind, SourcePlace},
    objects::{SeekableBytes, SourceLocation},
    origin::{BlockOrigin, SourceBlock},
};

/// Bytes that are read ahead. Components of a block are far apart, so more would be read in vain.
const BUFFER: usize = 4 << 10;

/// A block of an ere file, with the file's data about it.
#[derive(Clone, Debug)]
pub struct EreBlock {
    /// Header, transactions, ommers and withdrawals.
    pub block: Block,
    /// Keccak-256 of the header as stored.
    pub hash: B256,
    /// Consensus receipts, with the blooms of their logs; `None` if the file has none, or the reader
    /// skips them.
    pub receipts: Option<Vec<ReceiptEnvelope>>,
    /// Sum of the difficulties from genesis to this block, inclusive, if the file has it, be it in a
    /// proof.
    pub total_difficulty: Option<U256>,
    /// Proof of the header, if the file has it.
    pub proof: Option<HeaderProof>,
    /// The position of the block's header entry.
    pub origin: BlockOrigin,
}

impl EreBlock {
    /// Checks transactions, ommers, withdrawals and (if read) receipts against the header.
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

impl From<EreBlock> for SourceBlock {
    fn from(ere: EreBlock) -> Self {
        Self { encoded_len: ere.block.length() as u64, block: ere.block, origin: ere.origin }
    }
}

/// What later blocks of the file, and its end, are compared with.
#[derive(Debug, Default)]
struct ReadBlocks {
    /// Blocks read so far.
    count: usize,
    last_hash: Option<B256>,
    last_difficulty: Option<U256>,
    is_merged: bool,
    /// Those before the merge.
    before_merge: usize,
    /// One for each of them, if the file has their total difficulties; 64 bytes each.
    records: Vec<HeaderRecord>,
    /// The accumulator root to which all their proofs lead.
    proven_root: Option<B256>,
}

/// Streaming reader of an ere file; see the [module](super) for what it checks and when.
///
/// Yields an error once and then ends.
#[derive(Debug)]
pub struct EreReader {
    file: Arc<Path>,
    entries: EntryReader,
    layout: EreLayout,
    read: ReadBlocks,
    /// Offset of the entries behind those of the blocks, once the last block is read.
    tail: u64,
    accumulator: Option<B256>,
    with_receipts: bool,
    scratch: Vec<u8>,
    ended: bool,
}

impl EreReader {
    /// Opens a file and reads its version and index. An object is copied to an unnamed temporary
    /// file.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, does not end with an intact index, or its entries do not lie as
    /// the index says.
    pub fn open(source: impl Into<SourceLocation>) -> Result<Self, SourceError> {
        let location = source.into();
        Self::new(location.name(), Box::new(location.file()?))
    }

    /// Opens a file after a successful [`verify_ere`](super::verify_ere).
    pub(crate) fn open_verified(location: &SourceLocation) -> Result<Self, SourceError> {
        let file = location.file()?;
        let again = |e| SourceError::io(location.name(), "open the file", e);
        verify(location.name(), file.try_clone().map_err(again)?)?;
        Self::new(location.name(), Box::new(file))
    }

    /// Opens a file only to read its index. Of an object little else is read.
    pub(crate) fn open_index(location: &SourceLocation) -> Result<Self, SourceError> {
        Self::new(location.name(), location.parts()?)
    }

    pub(super) fn new(name: &Path, file: Box<dyn SeekableBytes>) -> Result<Self, SourceError> {
        let mut entries = EntryReader::new(name, file, BUFFER)?;
        let index = EreIndex::read(&mut entries)?;
        let layout = EreLayout::read(index, &mut entries)?;
        Ok(Self {
            file: Arc::from(name),
            entries,
            layout,
            read: ReadBlocks::default(),
            tail: 0,
            accumulator: None,
            with_receipts: true,
            scratch: Vec::new(),
            ended: false,
        })
    }

    /// Leaves the receipts undecoded: faster, and [`EreBlock::receipts`] is `None`.
    #[must_use]
    pub const fn without_receipts(mut self) -> Self {
        self.with_receipts = false;
        self
    }

    /// Number of the first block, according to the index.
    pub const fn first_block(&self) -> u64 {
        self.layout.index().start
    }

    /// Number of blocks in the file, according to the index (1 to 8192).
    pub const fn block_count(&self) -> u64 {
        self.layout.index().count as u64
    }

    /// Whether the file has receipts.
    pub fn has_receipts(&self) -> bool {
        self.layout.has(EreComponent::Receipts)
    }

    /// Whether the file has proofs of its headers.
    pub fn has_proofs(&self) -> bool {
        self.layout.has(EreComponent::Proof)
    }

    /// The accumulator root of the blocks before the merge, computed from them; `None` if there are
    /// none, the file does not have their total difficulties, or the reader has not ended yet
    /// without an error.
    pub const fn accumulator(&self) -> Option<B256> {
        self.accumulator
    }

    /// The entry of a component of the next block; `None` if the file does not have the component.
    fn entry(
        &mut self,
        component: EreComponent,
        number: u64,
    ) -> Result<Option<E2Entry>, SourceError> {
        let Some((offset, end)) = self.layout.place(component, self.read.count) else {
            return Ok(None);
        };
        let (block, what) = (Some(number), component.what());
        self.entries.seek(offset)?;
        let entry = if component == EreComponent::Receipts && !self.with_receipts {
            self.entries.skip(block, component.entry_type(), what)?;
            None
        } else {
            Some(self.entries.next(block, component.entry_type(), what)?)
        };
        let position = self.entries.position();
        match end {
            Some(end) => same_number("end of the entry, by the index", end, position)
                .map_err(|kind| self.entries.error_at(offset, block, kind))?,
            None => self.tail = position,
        }
        Ok(entry)
    }

    /// A component in snappy format, with its offset.
    fn unpacked(
        &mut self,
        component: EreComponent,
        number: u64,
    ) -> Result<Option<(u64, Vec<u8>)>, SourceError> {
        let Some(entry) = self.entry(component, number)? else { return Ok(None) };
        let offset = entry.offset;
        Ok(Some((offset, self.entries.unpack(entry, number, component.what())?)))
    }

    fn required(
        &mut self,
        component: EreComponent,
        number: u64,
    ) -> Result<(u64, Vec<u8>), SourceError> {
        let found = self.unpacked(component, number)?;
        // The layout was checked to have headers and bodies.
        let missing = SourceErrorKind::Format("the file has no headers or no bodies");
        found.ok_or_else(|| self.entries.error_at(0, Some(number), missing))
    }

    fn read_block(&mut self) -> Result<EreBlock, SourceError> {
        let number = self.first_block() + self.read.count as u64;
        let fail = |this: &Self, at, kind| this.entries.error_at(at, Some(number), kind);

        let (offset, bytes) = self.required(EreComponent::Header, number)?;
        let header: Header = decode_strictly(&bytes, "block header", &mut self.scratch)
            .map_err(|kind| fail(self, offset, kind))?;
        let hash = keccak256(&bytes);
        self.check_link(number, &header).map_err(|kind| fail(self, offset, kind))?;

        let (at, bytes) = self.required(EreComponent::Body, number)?;
        let body: BlockBody = decode_strictly(&bytes, "block body", &mut self.scratch)
            .map_err(|kind| fail(self, at, kind))?;
        let block = Block::new(header, body);

        let receipts = match self.unpacked(EreComponent::Receipts, number)? {
            Some((at, bytes)) => {
                let read = read_receipts(&block, &bytes, &mut self.scratch);
                Some(read.map_err(|kind| fail(self, at, kind))?)
            }
            None => None,
        };
        let stored = match self.entry(EreComponent::TotalDifficulty, number)? {
            Some(entry) => {
                let parent = self.read.last_difficulty;
                let read = check::total_difficulty_entry(parent, &block.header, &entry.data);
                Some(read.map_err(|kind| fail(self, entry.offset, kind))?)
            }
            None => None,
        };
        let (proof, total_difficulty) = match self.unpacked(EreComponent::Proof, number)? {
            Some((at, bytes)) => {
                let read = self.read_proof(&block.header, hash, stored, &bytes);
                let (proof, difficulty) = read.map_err(|kind| fail(self, at, kind))?;
                (Some(proof), difficulty)
            }
            None => (None, stored),
        };

        let read = &mut self.read;
        read.count += 1;
        read.last_hash = Some(hash);
        read.last_difficulty = total_difficulty;
        read.is_merged = block.header.difficulty.is_zero();
        if !read.is_merged {
            read.before_merge += 1;
            let record = total_difficulty
                .map(|total_difficulty| HeaderRecord { block_hash: hash, total_difficulty });
            read.records.extend(record);
        }
        let origin = BlockOrigin { file: self.file.clone(), offset };
        Ok(EreBlock { block, hash, receipts, total_difficulty, proof, origin })
    }

    /// Compares a header with its place and its parent.
    fn check_link(&self, number: u64, header: &Header) -> Result<(), SourceErrorKind> {
        same_number("block number in the header", number, header.number)?;
        if let Some(parent) = self.read.last_hash {
            same_hash("parent hash", parent, header.parent_hash)?;
        }
        if self.read.is_merged && !header.difficulty.is_zero() {
            return Err(SourceErrorKind::Format("a block with difficulty after the merge"));
        }
        Ok(())
    }

    /// The proof of a header, and the total difficulty: the stored one, or that in the proof. All proofs
    /// before the merge must lead to one root; at the end it is compared with the computed one.
    fn read_proof(
        &mut self,
        header: &Header,
        hash: B256,
        stored: Option<U256>,
        bytes: &[u8],
    ) -> Result<(HeaderProof, Option<U256>), SourceErrorKind> {
        let proof = HeaderProof::decode(bytes, &mut self.scratch)?;
        proof.check(header, hash)?;
        if proof.kind != HeaderProofType::HistoricalHashes {
            return Ok((proof, stored));
        }
        let (root, difficulty) = proof.accumulator_root(hash, self.read.count as u64);
        let expected = *self.read.proven_root.get_or_insert(root);
        same_hash("accumulator root of the proof", expected, root)?;
        let got = U256::from_le_bytes(difficulty.0);
        match stored {
            Some(expected) if expected != got => {
                Err(SourceErrorKind::TotalDifficulty { expected, got })
            }
            Some(_) => Ok((proof, stored)),
            None => {
                check::next_total_difficulty(self.read.last_difficulty, header, got)?;
                Ok((proof, Some(got)))
            }
        }
    }

    /// After the last block: unknown entries are skipped (the format allows them here), then comes
    /// the accumulator, if there is one, then the index.
    fn check_end(&mut self) -> Result<(), SourceError> {
        self.entries.seek(self.tail)?;
        let end = self.layout.index().offset;
        let mut stored = None;
        while self.entries.position() < end {
            let entry = self.entries.next_any("the end of the file")?;
            let what = match entry.kind {
                entry_type::VERSION
                | entry_type::HEADER..=entry_type::TOTAL_DIFFICULTY
                | entry_type::SLIM_RECEIPTS
                | entry_type::PROOF => "a part of a block that is not in the index",
                _ if stored.is_some() => "an entry behind the accumulator",
                entry_type::ACCUMULATOR => {
                    stored = Some(entry);
                    continue;
                }
                _ => continue,
            };
            return Err(self.entries.error_at(entry.offset, None, SourceErrorKind::Format(what)));
        }
        let at = stored.as_ref().map_or(end, |entry| entry.offset);
        let root = self.checked_root(stored.map(|entry| entry.data));
        self.accumulator = root.map_err(|kind| self.entries.error_at(at, None, kind))?;
        Ok(())
    }

    /// The computed accumulator root. The stored one, and that of the proofs, must be the same.
    fn checked_root(&self, stored: Option<Vec<u8>>) -> Result<Option<B256>, SourceErrorKind> {
        let stored = stored.map(|data| {
            let root: Result<[u8; 32], _> = data.as_slice().try_into();
            root.map(B256::from).map_err(|_| {
                SourceErrorKind::Format("an accumulator entry must have 32 bytes: damaged")
            })
        });
        let stored = stored.transpose()?;
        let ReadBlocks { before_merge, records, proven_root, .. } = &self.read;
        if *before_merge == 0 {
            let what = "an accumulator, but no blocks from before the merge";
            return stored.map_or(Ok(None), |_| Err(SourceErrorKind::Format(what)));
        }
        if records.len() < *before_merge {
            if stored.is_some() {
                return Err(SourceErrorKind::Format(
                    "an accumulator, but no total difficulties to check it with",
                ));
            }
            return Ok(None);
        }
        let computed = accumulator_root(records)
            .ok_or(SourceErrorKind::Format("more blocks than an ere file can hold"))?;
        if let Some(stored) = stored {
            same_hash("accumulator root of the blocks", stored, computed)?;
        }
        if let Some(proven) = *proven_root {
            same_hash("accumulator root of the proofs", computed, proven)?;
        }
        Ok(Some(computed))
    }
}

/// Decodes the receipts of a block.
fn read_receipts(
    block: &Block,
    bytes: &[u8],
    scratch: &mut Vec<u8>,
) -> Result<Vec<ReceiptEnvelope>, SourceErrorKind> {
    let receipts: Vec<SlimReceipt> = decode_strictly(bytes, "receipts", scratch)?;
    let transactions = &block.body.transactions;
    same_number("number of receipts", transactions.len() as u64, receipts.len() as u64)?;
    for (transaction, receipt) in transactions.iter().zip(&receipts) {
        let expected = u64::from(transaction.tx_type() as u8);
        same_number("type of a receipt", expected, receipt.tx_type.into())?;
    }
    envelopes(receipts)
}

impl Iterator for EreReader {
    type Item = Result<EreBlock, SourceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let item = if (self.read.count as u64) < self.block_count() {
            Some(self.read_block())
        } else {
            self.ended = true;
            self.check_end().err().map(Err)
        };
        self.ended |= matches!(item, Some(Err(_)));
        item
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.layout.index().count.saturating_sub(self.read.count);
        let left = if self.ended { 0 } else { left };
        // One more for an error at the end.
        (0, Some(left + 1))
    }
}

impl FusedIterator for EreReader {}
