//! Codes, put together from the chunks of a snapshot.

use super::{MigrationContext, MigrationError, TreeLeaf, leaf::INDICATOR_LEN};
use crate::{
    key::{CODE_ZONE, STEM_LEAVES, Stem, group_path},
    leaf::{CHUNK_LEN, chunks, delegation},
};
use alloy_primitives::{Address, B256, keccak256};
use retrie_state::{
    BulkSorter, SortedRecords, StateError,
    wire::{WireError, WireReader},
};
use std::iter::Peekable;

/// The longest code that is put together, in bytes: far above what any block can create, so that a
/// file that lies about a size does not take all memory.
pub(super) const MAX_CODE_LEN: u32 = 16 << 20;

/// Number of chunks of a code of `size` bytes.
const fn chunk_count(size: u32) -> u32 {
    size.div_ceil(CHUNK_LEN as u32)
}

/// The codes that accounts have, with their sizes, and the delegations.
///
/// The key of a record is the code's keccak-256, its size (4 bytes), and whether it is a delegation (1
/// byte). The value of a delegation is its target.
pub(super) struct CodeSizeSorter(Box<dyn BulkSorter>);

/// What a record of [`CodeSizeSorter`] says.
struct CodeSize {
    code: B256,
    size: u32,
    target: Option<Address>,
}

impl CodeSizeSorter {
    pub(super) fn new(sorter: Box<dyn BulkSorter>) -> Self {
        Self(sorter)
    }

    /// An account has this code.
    pub(super) fn put(&mut self, code: B256, size: u32) -> Result<(), MigrationError> {
        if size > MAX_CODE_LEN {
            return Err(MigrationError::CodeTooLong { code, size });
        }
        Ok(self.0.put(&Self::key(&code, size, false), &[])?)
    }

    /// An account delegates to `target`; `code` is the hash of the indicator.
    pub(super) fn put_delegation(
        &mut self,
        code: &B256,
        target: &Address,
    ) -> Result<(), StateError> {
        self.0.put(&Self::key(code, INDICATOR_LEN, true), &target[..])
    }

    fn key(code: &B256, size: u32, is_delegation: bool) -> [u8; 37] {
        let mut key = [0; 37];
        key[..32].copy_from_slice(&code[..]);
        key[32..36].copy_from_slice(&size.to_be_bytes());
        key[36] = is_delegation.into();
        key
    }

    /// All of them in order.
    fn all(
        &mut self,
    ) -> Result<impl Iterator<Item = Result<CodeSize, StateError>> + use<'_>, StateError> {
        let read = |(key, value): (Vec<u8>, Vec<u8>)| {
            let (code, size) = code_and_size(&key)?;
            Ok(CodeSize { code, size, target: Address::try_from(&value[..]).ok() })
        };
        Ok(self.0.sorted()?.map(move |record| record.and_then(read)))
    }

    /// The stems of all groups of chunks: each key is a stem, each value the code, its size, and the
    /// number of the group.
    pub(super) fn groups(
        &mut self,
        context: &MigrationContext<'_>,
    ) -> Result<Box<dyn BulkSorter>, MigrationError> {
        let mut groups = context.sorter();
        let mut last: Option<CodeSize> = None;
        for next in self.all()? {
            let next = next?;
            let CodeSize { code, size, .. } = next;
            if let Some(last) = last.filter(|last| last.code == code) {
                return Err(match last.target.is_some() == next.target.is_some() {
                    true => MigrationError::CodeSizes { code, one: last.size, other: size },
                    false => MigrationError::IndicatorAsCode { code },
                });
            }
            let count = if next.target.is_some() { 0 } else { chunk_count(size) };
            last = Some(next);
            for number in 0..count.div_ceil(STEM_LEAVES as u32) {
                let mut group = B256::ZERO;
                group[28..].copy_from_slice(&number.to_be_bytes());
                let stem = Stem::short(CODE_ZONE, &group_path(context.hash, &code, &group));
                let mut value = [0; 40];
                value[..32].copy_from_slice(&code[..]);
                value[32..36].copy_from_slice(&size.to_be_bytes());
                value[36..].copy_from_slice(&number.to_be_bytes());
                groups.put(stem.as_ref(), &value)?;
            }
        }
        Ok(groups)
    }
}

fn lost() -> StateError {
    StateError::corrupt("sorted codes", "a record is not the one that was written")
}

/// The code and the size at the front of a record.
fn code_and_size(bytes: &[u8]) -> Result<(B256, u32), StateError> {
    let mut reader = WireReader::new(bytes);
    let mut read = || Ok((reader.hash()?, reader.u32()?));
    read().map_err(|_: WireError| lost())
}

/// Gives chunks, which come in the order of their keys, to the codes they belong to.
pub(super) struct ChunkOwners<'a> {
    groups: Peekable<SortedRecords<'a>>,
    /// Chunks by code and number.
    chunks: Box<dyn BulkSorter>,
}

impl<'a> ChunkOwners<'a> {
    pub(super) fn new(
        groups: &'a mut dyn BulkSorter,
        chunks: Box<dyn BulkSorter>,
    ) -> Result<Self, StateError> {
        Ok(Self { groups: groups.sorted()?.peekable(), chunks })
    }

    pub(super) fn put(&mut self, leaf: &TreeLeaf) -> Result<(), MigrationError> {
        let stem = leaf.key.stem();
        let is_before = |record: &Result<(Vec<u8>, Vec<u8>), StateError>| {
            record.as_ref().is_ok_and(|(group, _)| &group[..] < stem)
        };
        while self.groups.next_if(is_before).is_some() {}
        let value = match self.groups.peek() {
            Some(Ok((group, value))) if group == stem => value,
            Some(Err(_)) => {
                return Err(match self.groups.next() {
                    Some(Err(error)) => error.into(),
                    _ => lost().into(),
                });
            }
            _ => return Err(MigrationError::UnreferencedCode { key: leaf.key }),
        };
        let (code, size) = code_and_size(value)?;
        let number = value.get(36..).and_then(|number| number.try_into().ok()).ok_or_else(lost)?;
        let chunk = u32::from_be_bytes(number) * STEM_LEAVES as u32 + u32::from(leaf.key.sub());
        if chunk >= chunk_count(size) {
            return Err(MigrationError::SurplusChunk { code, chunk, size });
        }
        let mut key = [0; 36];
        key[..32].copy_from_slice(&code[..]);
        key[32..].copy_from_slice(&chunk.to_be_bytes());
        Ok(self.chunks.put(&key, &leaf.value[..])?)
    }

    pub(super) fn finish(self) -> Box<dyn BulkSorter> {
        self.chunks
    }
}

/// The codes, one after the other, each checked.
pub(super) struct CodeReader<'a> {
    sizes: Box<dyn Iterator<Item = Result<CodeSize, StateError>> + 'a>,
    chunks: Peekable<SortedRecords<'a>>,
}

impl<'a> CodeReader<'a> {
    pub(super) fn new(
        sizes: &'a mut CodeSizeSorter,
        chunks: &'a mut dyn BulkSorter,
    ) -> Result<Self, StateError> {
        Ok(Self { sizes: Box::new(sizes.all()?), chunks: chunks.sorted()?.peekable() })
    }

    /// The next code and its keccak-256.
    ///
    /// # Errors
    /// If its chunks are not those of the code with this hash, or it is a delegation.
    pub(super) fn next_code(&mut self) -> Result<Option<(B256, Vec<u8>)>, MigrationError> {
        let Some(next) = self.sizes.next().transpose()? else { return Ok(None) };
        let CodeSize { code: code_hash, size, target } = next;
        if let Some(target) = target {
            return Ok(Some((code_hash, [&[0xef, 0x01, 0x00], &target[..]].concat())));
        }
        let (mut code, mut given) = (Vec::new(), Vec::new());
        for chunk in 0..chunk_count(size) {
            let value = self.chunk(&code_hash, chunk)?;
            code.extend_from_slice(&value[1..]);
            given.push(value);
        }
        code.truncate(size as usize);
        let found = keccak256(&code);
        if found != code_hash {
            return Err(MigrationError::CodeHash { code: code_hash, found });
        }
        if delegation(&code).is_some() {
            return Err(MigrationError::IndicatorAsCode { code: code_hash });
        }
        if let Some(chunk) = given.iter().zip(chunks(&code)).position(|(one, right)| *one != right)
        {
            return Err(MigrationError::WrongChunk { code: code_hash, chunk: chunk as u32 });
        }
        Ok(Some((code_hash, code)))
    }

    /// A chunk of a code; it is zero if there is no such leaf.
    fn chunk(&mut self, code: &B256, chunk: u32) -> Result<B256, StateError> {
        let is_it = |record: &Result<(Vec<u8>, Vec<u8>), StateError>| match record {
            Ok((key, _)) => key.starts_with(&code[..]) && key[32..] == chunk.to_be_bytes(),
            Err(_) => true,
        };
        match self.chunks.next_if(is_it).transpose()? {
            Some((_, value)) => B256::try_from(&value[..]).map_err(|_| lost()),
            None => Ok(B256::ZERO),
        }
    }
}

impl Iterator for CodeReader<'_> {
    type Item = Result<(B256, Vec<u8>), MigrationError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_code().transpose()
    }
}
