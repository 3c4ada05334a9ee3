//! Concatenated block RLP, as `geth export` writes it and `geth import` and `reth import` read it.
//!
//! The file is a sequence of block lists `[header, transactions, ommers(, withdrawals)]`, with
//! nothing between or around them, plain or gzipped. Reading is strict: the first byte that cannot
//! start a block, and a block that is not in canonical encoding, are errors. Encoding a block again
//! gives exactly the bytes of the file.
//!
//! In a gzipped file the checksum is at the end of each gzip member. So damage that still decodes
//! is reported only at that point, after blocks of this member were yielded. A caller that commits
//! blocks must rely on their hashes, not on the container.

use std::{path::Path, sync::Arc};

use alloy_rlp::EMPTY_LIST_CODE;
use retrie_chainspec::primitives::Block;

use crate::{
    check::decode_strictly,
    error::{SourceError, SourceErrorKind, SourcePlace},
    input::{MAX_ITEM_BYTES, SourceInput},
    objects::SourceLocation,
    origin::{BlockOrigin, SourceBlock},
};

/// Streaming reader of concatenated block RLP: one block in memory at a time, files of any size.
///
/// Yields an error once and then ends. A file without blocks is an error
/// ([`SourceErrorKind::NoBlocks`]), as an aborted export looks like that.
#[derive(Debug)]
pub struct RlpReader {
    file: Arc<Path>,
    input: SourceInput,
    item: Vec<u8>,
    scratch: Vec<u8>,
    index: u64,
    ended: bool,
}

impl RlpReader {
    /// Opens a file, plain or gzipped (detected by the gzip magic, not by the name).
    ///
    /// # Errors
    ///
    /// If the file cannot be opened or its first bytes cannot be read.
    pub fn open(source: impl Into<SourceLocation>) -> Result<Self, SourceError> {
        let input = SourceInput::open(&source.into())?;
        let file = Arc::from(input.path());
        Ok(Self { file, input, item: Vec::new(), scratch: Vec::new(), index: 0, ended: false })
    }

    /// Reads one item, that is list header and payload, into `self.item`; `false` at the end.
    fn read_item(&mut self) -> Result<bool, SourceErrorKind> {
        const WHAT: &str = "a block";
        self.item.clear();
        let Some(first) = self.input.peek(WHAT)? else {
            return if self.index == 0 { Err(SourceErrorKind::NoBlocks) } else { Ok(false) };
        };
        self.input.read_exactly(1, &mut self.item, WHAT)?;
        let payload = match first {
            0..EMPTY_LIST_CODE => return Err(SourceErrorKind::NotABlock { byte: first }),
            EMPTY_LIST_CODE..=0xf7 => u64::from(first - EMPTY_LIST_CODE),
            0xf8..=0xff => {
                self.input.read_exactly(u64::from(first - 0xf7), &mut self.item, WHAT)?;
                // The decoder checks that the length is canonical (no leading zero).
                self.item[1..].iter().fold(0, |len, byte| len << 8 | u64::from(*byte))
            }
        };
        if payload > MAX_ITEM_BYTES {
            return Err(SourceErrorKind::TooLarge {
                what: WHAT,
                claimed: payload,
                limit: MAX_ITEM_BYTES,
            });
        }
        self.input.read_exactly(payload, &mut self.item, WHAT)?;
        Ok(true)
    }

    fn read_block(&mut self) -> Result<Option<Block>, SourceErrorKind> {
        if !self.read_item()? {
            return Ok(None);
        }
        decode_strictly(&self.item, "the block", &mut self.scratch).map(Some)
    }
}

impl Iterator for RlpReader {
    type Item = Result<SourceBlock, SourceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let offset = self.input.offset();
        match self.read_block() {
            Ok(Some(block)) => {
                self.index += 1;
                Some(Ok(SourceBlock {
                    block,
                    encoded_len: self.item.len() as u64,
                    origin: BlockOrigin { file: self.file.clone(), offset },
                }))
            }
            Ok(None) => {
                self.ended = true;
                None
            }
            Err(kind) => {
                self.ended = true;
                let place = match kind {
                    SourceErrorKind::NoBlocks => SourcePlace::File,
                    _ => SourcePlace::Item { offset, index: self.index },
                };
                Some(Err(SourceError::new(&self.file, place, kind)))
            }
        }
    }
}

impl std::iter::FusedIterator for RlpReader {}
