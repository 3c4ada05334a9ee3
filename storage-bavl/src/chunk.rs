//! A chunk in memory, and its rows: how many entries it has, hashes by groups of 16, and fences.
//!
//! Entries themselves are in the flat table, where a chunk is the range from its first key up to that
//! of the next one. So its rows are named by that key, too: there are no ids.

use crate::{ChunkEntries, hash, hash::Batch};
use alloy_primitives::{B256, Bytes};
use retrie_state::{
    Direction, EncodedKey, KeyRange, NodeRead, StateError, StateKey, Table, flat, wire::WireReader,
};

/// One row a chunk: first key -> key-height, count, hashes of groups, fences.
pub const CHUNKS: Table = Table::new(0x70, "BavlChunks");
/// One row a group: first key of the chunk, number of the group -> hashes of its entries.
pub const HASHES: Table = Table::new(0x71, "BavlHashes");

/// Entries of a group.
pub(crate) const GROUP: usize = 16;
/// Its level in the hash tree of a chunk.
pub(crate) const GROUP_LEVEL: u32 = 4;

/// An entry by its hash.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) key: StateKey,
    pub(crate) hash: B256,
}

/// A chunk of one entry or more: the row but for the key-height, which is a matter of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// Count (2), hash of each group (32), fences.
    body: Bytes,
}

/// Bytes of the count.
const COUNT: usize = 2;

impl Chunk {
    /// Reads a body; `None` if it is none of a chunk that begins with `first`.
    pub(crate) fn decode(first: &StateKey, body: Bytes, most: ChunkEntries) -> Option<Self> {
        let mut reader = WireReader::new(&body);
        let count = usize::from(reader.u16().ok()?);
        if !(1..=most.most()).contains(&count) {
            return None;
        }
        let groups = count.div_ceil(GROUP);
        reader.take(groups * 32).ok()?;
        let mut last = first.encode().to_vec();
        for _ in 1..groups {
            let (shared, len) = (usize::from(reader.u8().ok()?), usize::from(reader.u8().ok()?));
            let fence = [last.get(..shared)?, reader.take(len).ok()?].concat();
            if fence.len() > StateKey::MAX_ENCODED_LEN {
                return None;
            }
            if fence <= last {
                return None;
            }
            last = fence;
        }
        reader.finish().ok()?;
        Some(Self { body })
    }

    /// The chunk of these entries, and the hashes of its groups' entries.
    fn new(entries: &[Entry], groups: &[B256]) -> Self {
        let mut body = Vec::with_capacity(COUNT + groups.len() * 40);
        body.extend((entries.len() as u16).to_be_bytes());
        body.extend(groups.iter().flatten());
        let mut last = entries.first().map_or_else(Vec::new, |first| first.key.encode().to_vec());
        for at in (GROUP..entries.len()).step_by(GROUP) {
            let fence = fence(&entries[at - 1].key.encode(), &entries[at].key.encode());
            let shared = shared(&last, &fence);
            body.extend([shared as u8, (fence.len() - shared) as u8]);
            body.extend(&fence[shared..]);
            last = fence;
        }
        Self { body: body.into() }
    }

    /// Number of its entries.
    pub(crate) fn count(&self) -> usize {
        self.body.first_chunk().map_or(0, |count| usize::from(u16::from_be_bytes(*count)))
    }

    /// Number of its groups.
    pub(crate) fn groups(&self) -> usize {
        self.count().div_ceil(GROUP)
    }

    /// Number of entries of a group.
    pub(crate) fn group_len(&self, group: usize) -> usize {
        self.count().saturating_sub(group * GROUP).min(GROUP)
    }

    /// Hashes of its groups.
    pub(crate) fn group_hashes(&self) -> impl ExactSizeIterator<Item = B256> {
        let hashes = &self.body[COUNT..COUNT + 32 * self.groups()];
        hashes.as_chunks::<32>().0.iter().map(B256::from)
    }

    /// The group in which `key` lies, or would; `first` is the first key of the chunk.
    pub(crate) fn group_of(&self, first: &EncodedKey, key: &EncodedKey) -> usize {
        let mut fences = &self.body[COUNT + 32 * self.groups()..];
        let mut fence = [0; StateKey::MAX_ENCODED_LEN];
        fence[..first.len()].copy_from_slice(first);
        let mut group = 0;
        while let Some(([shared, len], rest)) = fences.split_first_chunk() {
            let (bytes, rest) = rest.split_at(usize::from(*len));
            let (start, end) = (usize::from(*shared), usize::from(*shared) + bytes.len());
            fence[start..end].copy_from_slice(bytes);
            if key[..] < fence[..end] {
                break;
            }
            group += 1;
            fences = rest;
        }
        group
    }

    /// The same with other hashes of some groups.
    pub(crate) fn with_groups(&self, hashes: impl Iterator<Item = (usize, B256)>) -> Self {
        let mut body = self.body.to_vec();
        for (group, hash) in hashes {
            body[COUNT + 32 * group..][..32].copy_from_slice(&hash[..]);
        }
        Self { body: body.into() }
    }

    /// Its row in [`CHUNKS`].
    pub(crate) fn row(&self, key_height: u8) -> Bytes {
        [&[key_height], &self.body[..]].concat().into()
    }
}

fn shared(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// The shortest bytes that are above `last` and not above `first`, which comes after it.
fn fence(last: &[u8], first: &[u8]) -> Vec<u8> {
    first[..(shared(last, first) + 1).min(first.len())].to_vec()
}

/// Key of a row in [`HASHES`].
pub(crate) fn group_key(first: &EncodedKey, group: usize) -> Vec<u8> {
    let mut key = Vec::with_capacity(first.len() + 1);
    key.extend_from_slice(first);
    key.push(group as u8);
    key
}

/// What [`group_key`] is the key of.
pub(crate) fn read_group_key(key: &[u8]) -> Option<(StateKey, usize)> {
    let (group, first) = key.split_last()?;
    Some((StateKey::decode(first)?, usize::from(*group)))
}

/// The hashes of one group's entries, from its row.
///
/// # Errors
/// [`StateError::Corrupt`] if there is no such row, or one of another length.
pub(crate) fn read_group(
    view: &dyn NodeRead,
    key: &[u8],
    len: usize,
) -> Result<(Bytes, Vec<B256>), StateError> {
    let wrong = |what: String| {
        StateError::corrupt(
            HASHES.name,
            format!("row {}: {what}", alloy_primitives::hex::encode(key)),
        )
    };
    let row = view.get(HASHES, key)?.ok_or_else(|| wrong("it is missing".into()))?;
    let hashes: Vec<B256> = row.as_chunks::<32>().0.iter().map(B256::from).collect();
    if hashes.len() != len || row.len() != 32 * len {
        return Err(wrong(format!("it has {} bytes, not {len} hashes", row.len())));
    }
    Ok((row, hashes))
}

/// The entries from `start` (`None`: from the first) up to, without, `end` (`None`: to the last),
/// hashed.
pub(crate) fn read_entries(
    view: &dyn NodeRead,
    start: Option<&StateKey>,
    end: Option<&StateKey>,
) -> Result<Vec<Entry>, StateError> {
    let (start, end) = (start.map(StateKey::encode), end.map(StateKey::encode));
    let range = KeyRange { start: start.as_deref().unwrap_or(&[]), end: end.as_deref() };
    let mut keys = Vec::new();
    let mut batch = Batch::default();
    for row in view.scan(flat::TABLE, range, Direction::Forward)? {
        let (encoded, value) = row?;
        let key = StateKey::decode(&encoded).ok_or_else(|| {
            StateError::corrupt(flat::TABLE.name, format!("row {encoded} is not a state key"))
        })?;
        batch.entry(&encoded, &value);
        keys.push(key);
    }
    let entries = keys.into_iter().zip(batch.finish());
    Ok(entries.map(|(key, hash)| Entry { key, hash }).collect())
}

/// A chunk made of entries.
pub(crate) struct Made {
    pub(crate) first: StateKey,
    pub(crate) chunk: Chunk,
    pub(crate) hash: B256,
}

/// Makes chunks of runs of entries, none of which is empty, and hashes them together.
pub(crate) fn make(runs: &[&[Entry]]) -> Vec<Made> {
    let mut batch = Batch::default();
    let groups = |run: &&[Entry]| -> Vec<Vec<B256>> {
        run.chunks(GROUP).map(|group| group.iter().map(|entry| entry.hash).collect()).collect()
    };
    let mut lists: Vec<Vec<B256>> = runs.iter().flat_map(groups).collect();
    batch.fold(&mut lists);
    let mut tops = lists.into_iter().flatten();
    let chunks: Vec<Chunk> = runs
        .iter()
        .map(|run| {
            let groups: Vec<B256> = tops.by_ref().take(run.len().div_ceil(GROUP)).collect();
            Chunk::new(run, &groups)
        })
        .collect();
    let hashes = hash_all(&chunks);
    let firsts = runs.iter().filter_map(|run| run.first());
    let made = firsts.zip(chunks).zip(hashes);
    made.map(|((first, chunk), hash)| Made { first: first.key, chunk, hash }).collect()
}

/// The hashes of chunks.
pub(crate) fn hash_all<'a>(chunks: impl IntoIterator<Item = &'a Chunk> + Clone) -> Vec<B256> {
    let mut batch = Batch::default();
    let mut tops: Vec<Vec<B256>> =
        chunks.clone().into_iter().map(|chunk| chunk.group_hashes().collect()).collect();
    batch.fold(&mut tops);
    for (chunk, top) in chunks.into_iter().zip(tops.iter().flatten()) {
        batch.chunk(chunk.count() as u32, top);
    }
    batch.finish()
}

/// The row of a group of these entries.
pub(crate) fn group_row(entries: &[Entry]) -> Bytes {
    entries.iter().flat_map(|entry| entry.hash).collect()
}

/// The levels of a group's hash tree, or of that over the groups of a chunk, from `nodes` up.
pub(crate) fn levels(nodes: Vec<B256>) -> Vec<Vec<B256>> {
    let mut levels = vec![nodes];
    while let Some(below) = levels.last().filter(|level| level.len() > 1) {
        let above = below.chunks(2).map(|nodes| match nodes {
            [left, right] => hash::pair(left, right),
            alone => alone.first().copied().unwrap_or_default(),
        });
        levels.push(above.collect());
    }
    levels
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::{Address, U256};

    fn entries(count: usize, key: impl Fn(u64) -> StateKey) -> Vec<Entry> {
        let entry = |n| Entry { key: key(n), hash: hash::entry(&key(n).encode(), &[1]) };
        (0..count as u64).map(entry).collect()
    }

    fn made(entries: &[Entry]) -> Made {
        make(&[entries]).pop().unwrap()
    }

    #[test]
    fn chunks_read_back_and_nothing_else_does() {
        let most = ChunkEntries::new(100).unwrap();
        for count in [1, 15, 16, 17, 33, 100] {
            let entries = entries(count, |n| {
                StateKey::Account(Address::from_word(U256::from(n * 999).into()))
            });
            let Made { first, chunk, hash } = made(&entries);
            assert_eq!((chunk.count(), chunk.groups()), (count, count.div_ceil(16)));
            let body = chunk.body.clone();
            assert_eq!(Chunk::decode(&first, body.clone(), most).as_ref(), Some(&chunk));
            assert_eq!(hash_all([&chunk]), [hash]);
            let last = &levels(entries.iter().map(|entry| entry.hash).collect()).pop().unwrap()[0];
            assert_eq!(hash, hash::chunk(count as u32, last));
            for end in 0..body.len() {
                assert_eq!(Chunk::decode(&first, body.slice(..end), most), None);
            }
            let longer = [&body[..], &[0]].concat();
            assert_eq!(Chunk::decode(&first, longer.into(), most), None);
            let fewer = ChunkEntries::new(99).unwrap();
            assert_eq!(Chunk::decode(&first, body, fewer).is_none(), count > 99);
        }
        let none = Chunk { body: vec![0, 0].into() };
        assert_eq!(Chunk::decode(&StateKey::Account(Address::ZERO), none.body, most), None);
    }

    #[test]
    fn every_key_is_found_in_its_group_between_accounts_and_slots_too() {
        let key = |n: u64| match n {
            0..20 => StateKey::Account(Address::left_padding_from(&[n as u8, 0])),
            20..50 => StateKey::Slot(Address::ZERO, U256::from(n * 2).into()),
            _ => StateKey::Slot(Address::repeat_byte(n as u8), U256::from(n << 40).into()),
        };
        let entries = entries(90, key);
        let Made { first, chunk, .. } = made(&entries);
        let first = first.encode();
        for (at, entry) in entries.iter().enumerate() {
            assert_eq!(chunk.group_of(&first, &entry.key.encode()), at / GROUP, "{at}");
        }
        // Beside its keys, too, a key lies in a group with one of its neighbours.
        for n in 20..49 {
            let between = StateKey::Slot(Address::ZERO, U256::from(n * 2 + 1).into()).encode();
            let group = chunk.group_of(&first, &between);
            assert!([n / 16, (n + 1) / 16].contains(&(group as u64)), "{n}");
        }
        let low = StateKey::Account(Address::ZERO).encode();
        assert_eq!(chunk.group_of(&first, &low), 0);
    }
}
