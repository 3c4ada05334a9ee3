//! Checking a whole ere file.

use std::{fs::File, path::Path};

use alloy_primitives::B256;

use super::reader::EreReader;
use crate::{
    error::{SourceError, SourceErrorKind, SourcePlace},
    objects::SourceLocation,
};

/// The result of [`verify_ere`] for an intact file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EreSummary {
    /// Number of the first block.
    pub first_block: u64,
    /// Number of blocks.
    pub block_count: u64,
    /// Parent hash of the first block.
    pub parent_hash: B256,
    /// Hash of the last block.
    pub last_hash: B256,
    /// The accumulator root of the blocks before the merge, computed from them; `None` if there are
    /// none, or the file does not have their total difficulties.
    pub accumulator: Option<B256>,
    /// Whether it has receipts.
    pub has_receipts: bool,
    /// Whether it has proofs of the headers.
    pub has_proofs: bool,
}

/// Checks a whole ere file: everything that [`EreReader`] checks, and every block's transactions,
/// ommers, withdrawals and receipts against its header.
///
/// # Errors
///
/// The first fault, with file, entry offset and block.
pub fn verify_ere(source: impl Into<SourceLocation>) -> Result<EreSummary, SourceError> {
    let location = source.into();
    verify(location.name(), location.file()?)
}

pub(super) fn verify(path: &Path, file: File) -> Result<EreSummary, SourceError> {
    let mut reader = EreReader::new(path, Box::new(file))?;
    let mut parent_hash = None;
    let mut last_hash = None;
    for block in reader.by_ref() {
        let block = block?;
        block.check_body()?;
        parent_hash.get_or_insert(block.block.header.parent_hash);
        last_hash = Some(block.hash);
    }
    let (Some(parent_hash), Some(last_hash)) = (parent_hash, last_hash) else {
        return Err(SourceError::new(path, SourcePlace::File, SourceErrorKind::NoBlocks));
    };
    Ok(EreSummary {
        first_block: reader.first_block(),
        block_count: reader.block_count(),
        parent_hash,
        last_hash,
        accumulator: reader.accumulator(),
        has_receipts: reader.has_receipts(),
        has_proofs: reader.has_proofs(),
    })
}
