//! Lists of the rows of the snapshot that a merge made useless: clean-up goes by them.
//!
//! A list is a sequence of entries in the order of the merge: nibbles shared with the path of the entry
//! before, nibbles beyond these and their number, age: the generation less the row's stamp. Numbers are
//! LEB128, nibbles a byte each.

use crate::row::LISTS;
use alloy_primitives::Bytes;
use alloy_trie::Nibbles;
use retrie_state::{
    StateError,
    wire::{WireReader, put_varint},
};
use retrie_storage_mpt::trie::row::{put_path_after, take_path_after};

/// Entries of every list of a merge but its last. Part of the format: how many rows of a merge are
/// settled is counted in rows and lists.
const ENTRIES: usize = 512;

/// A row of the snapshot, by path and stamp.
pub(crate) type Useless = (Nibbles, u64);

/// Collects the entries of a merge.
#[derive(Debug)]
pub(crate) struct Lists {
    generation: u64,
    open: Vec<u8>,
    entries: usize,
    path: Nibbles,
}

impl Lists {
    /// No entry yet of the merge of `generation`.
    pub(crate) const fn of(generation: u64) -> Self {
        Self { generation, open: Vec::new(), entries: 0, path: Nibbles::new() }
    }

    /// Adds an entry; the list that is full with it, if it is.
    pub(crate) fn add(&mut self, (path, stamp): &Useless) -> Option<Bytes> {
        put_path_after(&mut self.open, &self.path, path);
        put_varint(&mut self.open, self.generation.saturating_sub(*stamp));
        self.path = *path;
        self.entries += 1;
        if self.entries == ENTRIES { self.close() } else { None }
    }

    /// The list that is not full, if there is one.
    pub(crate) fn close(&mut self) -> Option<Bytes> {
        (self.entries, self.path) = (0, Nibbles::new());
        let list = std::mem::take(&mut self.open);
        (!list.is_empty()).then(|| list.into())
    }
}

/// The entries of a list of the merge of `generation`.
pub(crate) fn decode(generation: u64, list: &[u8]) -> Result<Vec<Useless>, StateError> {
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

fn entry(rest: &mut WireReader<'_>, generation: u64, path: &mut Nibbles) -> Option<Useless> {
    *path = take_path_after(rest, path)?;
    let age = rest.varint().ok().filter(|age| *age > 0)?;
    Some((*path, generation.checked_sub(age)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(count: u16) -> Vec<Useless> {
        let of = |n: u16| {
            let nibbles = n.to_be_bytes().into_iter().flat_map(|byte| [byte >> 4, byte & 15]);
            (Nibbles::from_nibbles(nibbles.collect::<Vec<_>>()), u64::from(n % 7))
        };
        (0..count).map(of).collect()
    }

    #[test]
    fn lists_say_what_was_added_each_by_itself() {
        for count in [0, 1, 511, 512, 513, 1_500] {
            let (all, mut lists) = (entries(count), Lists::of(300));
            let mut made: Vec<_> = all.iter().filter_map(|entry| lists.add(entry)).collect();
            made.extend(lists.close());
            assert_eq!(made.len(), usize::from(count).div_ceil(ENTRIES));
            let read = made.iter().flat_map(|list| decode(300, list).unwrap());
            assert_eq!(read.collect::<Vec<_>>(), all);
        }
    }

    #[test]
    fn damaged_lists_are_refused() {
        let mut lists = Lists::of(9);
        let all = entries(20);
        all.iter().for_each(|entry| drop(lists.add(entry)));
        let list = lists.close().unwrap();
        for len in 0..list.len() {
            // At the end of an entry a list is whole.
            if let Ok(read) = decode(9, &list[..len]) {
                assert_eq!(read, all[..read.len()]);
            }
        }
        // No path, none, older than any generation, not older than the merge, no shortest form.
        for wrong in
            [&[1, 0, 1][..], &[0, 1, 16, 1], &[0, 64], &[0, 0, 10], &[0, 0, 0], &[0, 0, 0x81, 0]]
        {
            assert!(decode(9, wrong).is_err(), "{wrong:?}");
        }
    }
}
