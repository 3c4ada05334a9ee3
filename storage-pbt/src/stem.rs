//! Stems of several leaves: the row of a stem holds the hashes of its leaves.
//!
//! A stem with many leaves is *wide*: it has a row for each sixteenth of the sub-indices, and its
//! own row holds the subtree of each. So a changed slot of a full stem costs two small rows.

use crate::{
    hash::{Subtree, Sweep, TreeHash},
    key::{STEM_LEAVES, Stem},
    leaf::CodeFacts,
    row::{RowChange, put_subtree, read_subtree},
};
use alloy_primitives::{Address, B256, Bytes};
use retrie_state::{
    NodeRead, RowTable, StateError,
    wire::{WireError, WireReader},
};
use std::collections::{BTreeMap, btree_map::Entry};

/// Rows of stems. The key of a header's stem is the account, that of a stem of the storage zone the
/// account and the 31 bytes of its group. The row of a sixteenth has one byte more.
pub const STEMS: RowTable = RowTable::new(0x0a, "PbtStems");

/// The most leaves whose hashes are in the row of the stem itself.
const NARROW: usize = 32;
/// The sub-indices in a sixteenth.
const PART: usize = STEM_LEAVES / 16;

/// The leaves of a stem that its rows hold, as far as a change needs them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StemLeaves {
    /// Leaf hashes by sub-index: all of a narrow stem, those of the loaded sixteenths of a wide one.
    hashes: BTreeMap<u8, B256>,
    /// What a wide stem has in each sixteenth; `None` if the stem is narrow.
    parts: Option<Box<[Option<StemPart>; 16]>>,
}

/// A sixteenth of a wide stem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StemPart {
    count: u8,
    subtree: Subtree,
}

/// Writes a row of this table.
pub(crate) type PutRow<'a> = dyn FnMut(&[u8], &[u8]) -> Result<(), StateError> + 'a;

/// The row of a stem.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StemRow {
    /// The code of the account; `None` in the storage zone, and without code.
    pub(crate) code: Option<CodeFacts>,
    pub(crate) leaves: StemLeaves,
}

impl StemLeaves {
    /// One leaf.
    pub(crate) fn single(sub: u8, hash: B256) -> Self {
        Self { hashes: BTreeMap::from([(sub, hash)]), parts: None }
    }

    /// Leaves of a stem that is new.
    pub(crate) fn new(leaves: impl IntoIterator<Item = (u8, B256)>) -> Self {
        Self { hashes: leaves.into_iter().collect(), parts: None }
    }

    /// The number of leaves.
    pub(crate) fn count(&self) -> usize {
        match &self.parts {
            None => self.hashes.len(),
            Some(parts) => parts.iter().flatten().map(|part| usize::from(part.count)).sum(),
        }
    }

    /// The only leaf, if there is one alone.
    pub(crate) fn only(&self) -> Option<(u8, B256)> {
        (self.count() == 1).then(|| self.hashes.first_key_value())?.map(|(sub, hash)| (*sub, *hash))
    }

    /// All leaf hashes of the stem with this row key.
    pub(crate) fn all(
        mut self,
        view: &dyn NodeRead,
        key: &[u8],
    ) -> Result<BTreeMap<u8, B256>, StateError> {
        for part in 0..16 {
            self.load_part(view, key, part)?;
        }
        Ok(self.hashes)
    }

    /// Loads the hashes of a sixteenth of a wide stem, and returns its row.
    fn load_part(
        &mut self,
        view: &dyn NodeRead,
        key: &[u8],
        part: u8,
    ) -> Result<Option<Bytes>, StateError> {
        let Some(expected) = self.parts.as_ref().and_then(|parts| parts[usize::from(part)]) else {
            return Ok(None);
        };
        let key = part_key(key, part);
        let row = view.get(STEMS, &key)?.ok_or_else(|| corrupt(&key, "the row is missing"))?;
        let leaves = decode_part(&row, part).map_err(|error| corrupt(&key, error.what()))?;
        if leaves.len() != usize::from(expected.count) {
            return Err(corrupt(&key, "it has another number of leaves than its stem says"));
        }
        self.hashes.extend(leaves);
        Ok(Some(row))
    }

    /// The subtree of the stem, with further leaves before those in the rows.
    pub(crate) fn subtree(
        &self,
        hash: TreeHash,
        stem: &Stem,
        before: impl IntoIterator<Item = (u8, B256)>,
    ) -> Option<Subtree> {
        let mut sweep = StemSweep { sweep: Sweep::new(hash), stem };
        for (sub, leaf) in before {
            sweep.push(sub, Subtree::Leaf(leaf));
        }
        match &self.parts {
            None => {
                for (sub, leaf) in &self.hashes {
                    sweep.push(*sub, Subtree::Leaf(*leaf));
                }
            }
            Some(parts) => {
                for (at, part) in parts.iter().enumerate() {
                    if let Some(part) = part {
                        sweep.push((at * PART) as u8, part.subtree);
                    }
                }
            }
        }
        sweep.sweep.finish()
    }
}

/// A sweep over the leaves of a stem.
struct StemSweep<'a> {
    sweep: Sweep,
    stem: &'a Stem,
}

impl StemSweep<'_> {
    fn push(&mut self, sub: u8, subtree: Subtree) {
        let (key, len) = self.stem.key(sub);
        self.sweep.push(&key[..len], subtree);
    }
}

impl StemRow {
    /// The row of a stem, decoded, and its bytes.
    pub(crate) fn load(
        view: &dyn NodeRead,
        key: &[u8],
        stem: &Stem,
    ) -> Result<(Self, Bytes), StateError> {
        let row = view.get(STEMS, key)?.ok_or_else(|| corrupt(key, "the row is missing"))?;
        let decoded = Self::decode(&row, stem).map_err(|error| corrupt(key, error.what()))?;
        Ok((decoded, row))
    }

    /// Sets and removes leaves, appends the changed rows to `rows`, and returns the new row. `old`
    /// are the bytes of the row before; `keeps` says whether the stem has a row, by its leaves and
    /// code.
    #[expect(clippy::too_many_arguments, reason = "what a stem is, and what changes")]
    pub(crate) fn update(
        mut self,
        hash: TreeHash,
        view: &dyn NodeRead,
        key: &[u8],
        stem: &Stem,
        old: Option<Bytes>,
        changes: &[(u8, Option<B256>)],
        keeps: impl FnOnce(&Self) -> bool,
        rows: &mut Vec<RowChange>,
    ) -> Result<Self, StateError> {
        let was_wide = self.leaves.parts.is_some();
        let mut loaded: BTreeMap<u8, Option<Bytes>> = BTreeMap::new();
        if was_wide {
            for (sub, _) in changes {
                if let Entry::Vacant(entry) = loaded.entry(sub / PART as u8) {
                    let row = self.leaves.load_part(view, key, *entry.key())?;
                    entry.insert(row);
                }
            }
        }
        for (sub, leaf) in changes {
            match leaf {
                Some(leaf) => self.leaves.hashes.insert(*sub, *leaf),
                None => self.leaves.hashes.remove(sub),
            };
        }
        if let Some(mut parts) = self.leaves.parts.take() {
            for part in loaded.keys() {
                parts[usize::from(*part)] = self.leaves.part(hash, stem, *part);
            }
            self.leaves.parts = Some(parts);
        }
        let is_wide = self.leaves.count() > NARROW;
        if is_wide != was_wide {
            // All sixteenths change their form.
            for part in 0..16 {
                if was_wide && !loaded.contains_key(&part) {
                    let row = self.leaves.load_part(view, key, part)?;
                    loaded.insert(part, row);
                } else if is_wide {
                    loaded.insert(part, None);
                }
            }
            self.leaves.parts = is_wide.then(|| {
                Box::new(std::array::from_fn(|part| self.leaves.part(hash, stem, part as u8)))
            });
        }
        for (part, previous) in loaded {
            let next = is_wide.then(|| self.leaves.encode_part(part)).flatten();
            rows.push(RowChange { table: STEMS, key: part_key(key, part), previous, next });
        }
        let next = keeps(&self).then(|| self.encode());
        if old.is_some() || next.is_some() {
            rows.push(RowChange { table: STEMS, key: key.to_vec(), previous: old, next });
        }
        Ok(self)
    }

    /// Rows of a new stem.
    pub(crate) fn rows(
        mut self,
        hash: TreeHash,
        key: &[u8],
        stem: &Stem,
        put: &mut PutRow<'_>,
    ) -> Result<Self, StateError> {
        if self.leaves.count() > NARROW {
            let parts = std::array::from_fn(|part| self.leaves.part(hash, stem, part as u8));
            self.leaves.parts = Some(Box::new(parts));
            for part in 0..16 {
                if let Some(row) = self.leaves.encode_part(part) {
                    put(&part_key(key, part), &row)?;
                }
            }
        }
        put(key, &self.encode())?;
        Ok(self)
    }

    fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        match &self.code {
            None => out.push(0),
            Some(CodeFacts { delegation: Some(target), .. }) => {
                out.push(2);
                out.extend_from_slice(&target[..]);
            }
            Some(CodeFacts { size, delegation: None }) => {
                out.push(1);
                out.extend_from_slice(&size.to_be_bytes());
            }
        }
        match &self.leaves.parts {
            None => {
                out.push(self.leaves.hashes.len() as u8);
                for (sub, leaf) in &self.leaves.hashes {
                    out.push(*sub);
                    out.extend_from_slice(&leaf[..]);
                }
            }
            Some(parts) => {
                out.push(0xff);
                for part in parts.iter() {
                    out.push(part.map_or(0, |part| part.count));
                    if let Some(part) = part {
                        put_subtree(&mut out, Some(&part.subtree));
                    }
                }
            }
        }
        out.into()
    }

    fn decode(row: &[u8], stem: &Stem) -> Result<Self, WireError> {
        let mut reader = WireReader::new(row);
        let code = match reader.u8()? {
            0 => None,
            1 => Some(CodeFacts { size: reader.u32()?, delegation: None }),
            2 => {
                let delegation = Some(Address::from(*reader.array::<20>()?));
                Some(CodeFacts { size: 23, delegation })
            }
            _ => return Err(WireError::TrailingBytes),
        };
        let mut leaves = StemLeaves::default();
        match reader.u8()? {
            0xff => {
                let mut parts = Box::new([None; 16]);
                for part in parts.iter_mut() {
                    let count = reader.u8()?;
                    if count > 0 {
                        let subtree =
                            read_subtree(&mut reader, stem)?.ok_or(WireError::UnexpectedEnd)?;
                        *part = Some(StemPart { count, subtree });
                    }
                }
                leaves.parts = Some(parts);
            }
            count => {
                for _ in 0..count {
                    let sub = reader.u8()?;
                    leaves.hashes.insert(sub, reader.hash()?);
                }
                if leaves.hashes.len() != usize::from(count) {
                    return Err(WireError::TrailingBytes);
                }
            }
        }
        reader.finish()?;
        Ok(Self { code, leaves })
    }
}

impl StemLeaves {
    /// A sixteenth, from its leaf hashes.
    fn part(&self, hash: TreeHash, stem: &Stem, part: u8) -> Option<StemPart> {
        let mut sweep = StemSweep { sweep: Sweep::new(hash), stem };
        let mut count = 0;
        for (sub, leaf) in self.hashes.range(part_range(part)) {
            sweep.push(*sub, Subtree::Leaf(*leaf));
            count += 1;
        }
        Some(StemPart { count, subtree: sweep.sweep.finish()? })
    }

    fn encode_part(&self, part: u8) -> Option<Bytes> {
        let mut out = vec![0, 0];
        let mut mask = 0u16;
        for (sub, leaf) in self.hashes.range(part_range(part)) {
            mask |= 1 << (sub % PART as u8);
            out.extend_from_slice(&leaf[..]);
        }
        out[..2].copy_from_slice(&mask.to_be_bytes());
        (mask != 0).then(|| out.into())
    }
}

fn part_range(part: u8) -> std::ops::RangeInclusive<u8> {
    let first = part * PART as u8;
    first..=first + (PART as u8 - 1)
}

fn part_key(key: &[u8], part: u8) -> Vec<u8> {
    [key, &[part]].concat()
}

fn decode_part(row: &[u8], part: u8) -> Result<Vec<(u8, B256)>, WireError> {
    let mut reader = WireReader::new(row);
    let mask = reader.u16()?;
    let mut leaves = Vec::with_capacity(mask.count_ones() as usize);
    for sub in part_range(part) {
        if mask >> (sub % PART as u8) & 1 == 1 {
            leaves.push((sub, reader.hash()?));
        }
    }
    reader.finish()?;
    Ok(leaves)
}

fn corrupt(key: &[u8], what: &str) -> StateError {
    StateError::corrupt(STEMS.name, format!("stem {}: {what}", alloy_primitives::hex::encode(key)))
}
