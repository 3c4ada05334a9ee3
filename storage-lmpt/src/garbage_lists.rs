//! Lists of snapshot rows that a merge has replaced. Garbage removal uses them.
//!
//! A list is a sequence of entries in the order of the merge. An entry: the number of nibbles
//! shared with the path of the entry before; the further nibbles and their number; the age, which
//! is the generation minus the row's stamp. Numbers are LEB128, nibbles one byte each.

use crate::record::LISTS;
use alloy_primitives::Bytes;
use alloy_trie::Nibbles;
use retrie_state::{
    StateError,
    wire::{WireReader, put_varint},
};
use retrie_storage_mpt::trie::record::{put_path_after, take_path_after};

/// Entries of every list of a merge except its last. The number is part of the format, because the
/// number of rows written ahead counts rows and lists.
const ENTRIES: usize = 512;

/// A snapshot row to be removed, by path and stamp.
pub(crate) type GarbageRow = (Nibbles, u64);

/// Builds the lists of a merge.
#[derive(Debug)]
pub(crate) struct GarbageLists {
    generation: u64,
    open: Vec<u8>,
    entries: usize,
    path: Nibbles,
}

impl GarbageLists {
    /// Starts without entries, for the merge of `generation`.
    pub(crate) const fn of(generation: u64) -> Self {
        Self { generation, open: Vec::new(), entries: 0, path: Nibbles::new() }
    }

    /// Adds an entry. Returns the list that this entry completes, if it does.
    pub(crate) fn add(&mut self, (path, stamp): &GarbageRow) -> Option<Bytes> {
        put_path_after(&mut self.open, &self.path, path);
        put_varint(&mut self.open, self.generation.saturating_sub(*stamp));
        self.path = *path;
        self.entries += 1;
        if self.entries == ENTRIES { self.close() } else { None }
    }

    /// Returns the incomplete list, if there is one.
    pub(crate) fn close(&mut self) -> Option<Bytes> {
        (self.entries, self.path) = (0, Nibbles::new());
        let list = std::mem::take(&mut self.open);
        (!list.is_empty()).then(|| list.into())
    }
}

/// Decodes a list of the merge of `generation`.
pub(crate) fn decode(generation: u64, list: &[u8]) -> Result<Vec<GarbageRow>, StateError> {
    let (mut rest, mut path) = (WireReader::new(list), Nibbles::new());
    let mut entries = Vec::new();
    while !rest.is_empty() {
        entries.push(entry(&mut rest, generation, &mut path).ok_or_else(|| {
            StateError::corrupt(
                LISTS.name,
                format!("a list of generation {generation} is malformed"),
            )
        })?);
    }
    Ok(entries)
}

fn entry(rest: &mut WireReader<'_>, generation: u64, path: &mut Nibbles) -> Option<GarbageRow> {
    *path = take_path_after(rest, path)?;
    let age = rest.varint().ok().filter(|age| *age > 0)?;
    Some((*path, generation.checked_sub(age)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(count: u16) -> Vec<GarbageRow> {
        let of = |n: u16| {
            let nibbles = n.to_be_bytes().into_iter().flat_map(|byte| [byte >> 4, byte & 15]);
            (Nibbles::from_nibbles(nibbles.collect::<Vec<_>>()), u64::from(n % 7))
        };
        (0..count).map(of).collect()
    }

    #[test]
    fn lists_say_what_was_added_each_by_itself() {
        for count in [0, 1, 511, 512, 513, 1_500] {
            let (all, mut lists) = (entries(count), GarbageLists::of(300));
            let mut made: Vec<_> = all.iter().filter_map(|entry| lists.add(entry)).collect();
            made.extend(lists.close());
            assert_eq!(made.len(), usize::from(count).div_ceil(ENTRIES));
            let read = made.iter().flat_map(|list| decode(300, list).unwrap());
            assert_eq!(read.collect::<Vec<_>>(), all);
        }
    }

    #[test]
    fn damaged_lists_are_refused() {
        let mut lists = GarbageLists::of(9);
        let all = entries(20);
        all.iter().for_each(|entry| drop(lists.add(entry)));
        let list = lists.close().unwrap();
        for len in 0..list.len() {
            // A list that ends after an entry is valid.
            if let Ok(read) = decode(9, &list[..len]) {
                assert_eq!(read, all[..read.len()]);
            }
        }
        // Malformed lists: no path, an incomplete path, too old, not older than the merge, a number
        // that is too long.
        for wrong in
            [&[1, 0, 1][..], &[0, 1, 16, 1], &[0, 64], &[0, 0, 10], &[0, 0, 0], &[0, 0, 0x81, 0]]
        {
            assert!(decode(9, wrong).is_err(), "{wrong:?}");
        }
    }
}
