//! Codes: how many accounts have each, and the subtrees of its chunks.
//!
//! The chunks themselves are not stored again: they follow from the code. A group of 256 chunks is a
//! stem, and never changes, so its row holds the subtree alone.

use crate::{
    hash::{Subtree, Sweep, TreeHash},
    key::{CODE_ZONE, STEM_LEAVES, Stem},
    leaf::{CodeFacts, chunks},
    page::chunks_path,
    row::{put_subtree, read_subtree},
};
use alloy_primitives::{Address, B256, Bytes};
use retrie_state::{
    NodeRead, RowTable, StateError,
    wire::{WireError, WireReader, put_varint},
};

/// Rows of codes, by their keccak-256.
pub const CODES: RowTable = RowTable::new(0x0b, "PbtCodes");

/// The row of a code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CodeRow {
    /// The number of accounts that have it.
    pub(crate) accounts: u64,
    pub(crate) facts: CodeFacts,
    /// The subtree of each group of 256 chunks; `None` where all are zero. A delegation has none.
    pub(crate) groups: Vec<Option<Subtree>>,
}

impl CodeRow {
    /// The row of a code that one account has; `None` if the code is too long.
    pub(crate) fn new(hash: TreeHash, code_hash: &B256, code: &[u8]) -> Option<Self> {
        let facts = CodeFacts::of(code)?;
        let groups = match facts.delegation {
            Some(_) => Vec::new(),
            None => groups(hash, code_hash, code),
        };
        Some(Self { accounts: 1, facts, groups })
    }

    pub(crate) fn load(
        hash: TreeHash,
        view: &dyn NodeRead,
        code: &B256,
    ) -> Result<Option<(Self, Bytes)>, StateError> {
        let Some(row) = view.get(CODES, &code[..])? else { return Ok(None) };
        let decoded = Self::decode(hash, code, &row).map_err(|error| {
            StateError::corrupt(CODES.name, format!("code {code}: {}", error.what()))
        })?;
        Ok(Some((decoded, row)))
    }

    pub(crate) fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        put_varint(&mut out, self.accounts);
        match &self.facts.delegation {
            Some(target) => {
                out.push(1);
                out.extend_from_slice(&target[..]);
            }
            None => {
                out.push(0);
                out.extend_from_slice(&self.facts.size.to_be_bytes());
                for group in &self.groups {
                    put_subtree(&mut out, group.as_ref());
                }
            }
        }
        out.into()
    }

    fn decode(hash: TreeHash, code: &B256, row: &[u8]) -> Result<Self, WireError> {
        let mut reader = WireReader::new(row);
        let accounts = reader.varint()?;
        if reader.u8()? == 1 {
            let delegation = Some(Address::from(*reader.array::<20>()?));
            reader.finish()?;
            let facts = CodeFacts { size: 23, delegation };
            return Ok(Self { accounts, facts, groups: Vec::new() });
        }
        let facts = CodeFacts { size: reader.u32()?, delegation: None };
        let mut groups = Vec::new();
        while !reader.is_empty() {
            let stem = chunks_stem(hash, code, groups.len() as u32);
            groups.push(read_subtree(&mut reader, &stem)?);
        }
        Ok(Self { accounts, facts, groups })
    }
}

/// The stem of a group of chunks.
pub(crate) fn chunks_stem(hash: TreeHash, code: &B256, group: u32) -> Stem {
    Stem::short(CODE_ZONE, &chunks_path(hash, code, group))
}

/// The subtree of each group of chunks.
fn groups(hash: TreeHash, code_hash: &B256, code: &[u8]) -> Vec<Option<Subtree>> {
    let group = |(number, chunks): (usize, &[B256])| {
        let stem = chunks_stem(hash, code_hash, number as u32);
        let mut sweep = Sweep::new(hash);
        for (sub, chunk) in chunks.iter().enumerate().filter(|(_, chunk)| !chunk.is_zero()) {
            let (key, len) = stem.key(sub as u8);
            sweep.push(&key[..len], Subtree::Leaf(stem.leaf(hash, sub as u8, chunk)));
        }
        sweep.finish()
    };
    chunks(code).chunks(STEM_LEAVES).enumerate().map(group).collect()
}
