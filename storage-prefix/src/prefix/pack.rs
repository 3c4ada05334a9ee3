//! Packs: the branches that one block changed in one group of a trie, in one row.
//!
//! A *group* is a branch whose path has an even number of nibbles, with the branches right below
//! it. A [place](tag) in a pack is one byte. Keys begin with the version, so new packs come after
//! all others in their table, and its pages are full.

use alloy_primitives::Bytes;
use alloy_trie::Nibbles;
use retrie_state::AccountKey;
use retrie_state::wire::{WireReader, put_varint};

/// The place of the trie's root, in the pack of the group at the empty path.
pub(super) const ROOT_TAG: u8 = 17;

/// The group of the branch at `path`.
pub(super) fn group(path: &Nibbles) -> Nibbles {
    path.slice(..path.len() & !1)
}

/// The place of the branch at `path` in the packs of its group: 0 if the group begins with it,
/// otherwise one more than its last nibble.
pub(super) fn tag(path: &Nibbles) -> u8 {
    if path.len().is_multiple_of(2) { 0 } else { path.last().map_or(0, |nibble| nibble + 1) }
}

/// The key of a pack: its version as a [number](put_number), the owner of a storage trie, the
/// path of the group, two nibbles a byte.
pub(super) fn key(version: u64, trie: Option<AccountKey>, group: &Nibbles) -> Vec<u8> {
    let mut key = Vec::with_capacity(48);
    put_number(&mut key, version);
    key.extend(trie.iter().flat_map(|owner| owner.iter()));
    let start = key.len();
    key.resize(start + group.len() / 2, 0);
    group.pack_to(&mut key[start..]);
    key
}

/// Appends the length of a number's bytes, and these, big-endian without leading zeros: in the
/// order of numbers.
fn put_number(key: &mut Vec<u8>, number: u64) {
    let zeros = number.leading_zeros() as usize / 8;
    key.push((size_of::<u64>() - zeros) as u8);
    key.extend_from_slice(&number.to_be_bytes()[zeros..]);
}

/// A pack of entries in the order of their places: place, length, bytes.
pub(super) fn encode<'a>(entries: impl IntoIterator<Item = (u8, &'a [u8])>) -> Bytes {
    let mut pack = Vec::new();
    for (tag, row) in entries {
        pack.push(tag);
        put_varint(&mut pack, row.len() as u64);
        pack.extend_from_slice(row);
    }
    pack.into()
}

/// The entries of a pack; `None` for an entry that is malformed, the last one.
#[derive(Clone, Debug)]
pub(super) struct PackEntries<'a> {
    rest: WireReader<'a>,
    next: u8,
}

/// The entries of `pack`.
pub(super) const fn entries(pack: &[u8]) -> PackEntries<'_> {
    PackEntries { rest: WireReader::new(pack), next: 0 }
}

impl<'a> PackEntries<'a> {
    fn entry(&mut self) -> Option<(u8, &'a [u8])> {
        let tag = self.rest.u8().ok().filter(|tag| (self.next..=ROOT_TAG).contains(tag))?;
        let len = usize::try_from(self.rest.varint().ok()?).ok()?;
        self.next = tag + 1;
        Some((tag, self.rest.take(len).ok()?))
    }
}

impl<'a> Iterator for PackEntries<'a> {
    type Item = Option<(u8, &'a [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let entry = self.entry();
        if entry.is_none() {
            self.rest = WireReader::new(&[]);
        }
        Some(entry)
    }
}

/// The row at a place of a pack: `Some(None)` if there is none, `None` if the pack is malformed.
pub(super) fn find(pack: &[u8], tag: u8) -> Option<Option<&[u8]>> {
    for entry in entries(pack) {
        let (at, row) = entry?;
        if at >= tag {
            return Some((at == tag).then_some(row));
        }
    }
    Some(None)
}

/// The pack without the rows at these places, empty if no others are left; `None` if it is
/// malformed.
pub(super) fn without(pack: &[u8], tags: &[u8]) -> Option<Bytes> {
    let left: Vec<_> = entries(pack).collect::<Option<_>>()?;
    Some(encode(left.into_iter().filter(|(tag, _)| !tags.contains(tag))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::Address;

    #[test]
    fn keys_sort_by_version_first() {
        let path = |nibbles: &[u8]| Nibbles::from_nibbles(nibbles);
        let [one, two] = [1, 2].map(|n| Some(Address::repeat_byte(n).into()));
        let keys = [
            key(0, one, &path(&[])),
            key(1, one, &path(&[])),
            key(1, one, &path(&[1, 2])),
            key(1, two, &path(&[])),
            key(255, one, &path(&[])),
            key(256, one, &path(&[])),
            key(u64::MAX, one, &path(&[])),
        ];
        assert!(keys.is_sorted_by(|a, b| a < b));
        assert_eq!(key(0, None, &path(&[])), [0]);
        assert_eq!(key(300, None, &path(&[1, 2, 15, 0])), [2, 1, 44, 0x12, 0xf0]);
    }

    #[test]
    fn a_branch_is_in_the_pack_of_its_group() {
        let path = |nibbles: &[u8]| Nibbles::from_nibbles(nibbles);
        for (nibbles, group_of, place) in
            [(&[][..], &[][..], 0), (&[0], &[], 1), (&[15], &[], 16), (&[1, 2], &[1, 2], 0)]
        {
            let found = (group(&path(nibbles)), tag(&path(nibbles)));
            assert_eq!(found, (path(group_of), place));
        }
        assert_eq!((group(&path(&[1, 2, 3])), tag(&path(&[1, 2, 3]))), (path(&[1, 2]), 4));
    }

    #[test]
    fn packs_give_back_their_rows_and_damage_is_refused() {
        let long = [7; 200];
        let rows = [(0, &b"own"[..]), (3, b""), (16, &long), (ROOT_TAG, b"root")];
        let pack = encode(rows);
        assert_eq!(pack[..6], [0, 3, b'o', b'w', b'n', 3]);
        for tag in 0..=ROOT_TAG {
            let expected = rows.iter().find(|(at, _)| *at == tag).map(|(_, row)| *row);
            assert_eq!(find(&pack, tag).unwrap(), expected);
        }
        let left = without(&pack, &[0, 16]).unwrap();
        assert_eq!(left, encode([rows[1], rows[3]]));
        assert!(without(&left, &[3, ROOT_TAG]).unwrap().is_empty());
        for len in 0..pack.len() {
            // At the end of an entry it is whole.
            let is_whole = [0, 5, 7, 210].contains(&len);
            assert_eq!(without(&pack[..len], &[]).is_some(), is_whole, "{len} bytes");
        }
        for wrong in [&[18, 0][..], &[3, 0, 3, 0], &[3, 0, 2, 0], &[1, 2, 0], &[1, 0x80, 0]] {
            assert!(without(wrong, &[]).is_none(), "{wrong:?}");
        }
    }
}
