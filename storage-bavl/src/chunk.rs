//! A chunk in memory, and its rows: the hashes of its parts, and the hashes of its entries by
//! group.
//!
//! The entries are in the flat table, where a chunk is the range from its first key up to the first
//! key of the next chunk. The first key also names the chunk's rows.
//!
//! *Parts* have 16 positions each, as in the hash tree; adding or removing a key shifts all
//! positions behind it. *Groups* are the content of rows, between fences that do not move: adding
//! or removing a key changes only the row of its own group.

use crate::{ChunkEntries, hash, hash::HashBatch};
use alloy_primitives::{B256, Bytes, hex};
use retrie_state::{
    BackendKey, EncodedKey, KeyRange, NodeRead, RowTable, ScanDirection, StateError, flat,
    wire::WireReader,
};

/// One row a chunk: first key -> key-height, count, hashes of parts, groups with their fences.
pub const CHUNKS: RowTable = RowTable::new(0x70, "BavlChunks");
/// One row a group: first key of the chunk, name of the group -> hashes of its entries.
pub const HASHES: RowTable = RowTable::new(0x71, "BavlHashes");

/// Entries of a part, and of a new group.
pub(crate) const PART: usize = 16;
/// Level of a part in the hash tree of a chunk.
pub(crate) const PART_LEVEL: u32 = 4;
/// Upper bound of entries in a group that has grown.
pub(crate) const MAX_GROUP: usize = 24;

/// A key and the hash of its entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HashedEntry {
    pub(crate) key: BackendKey,
    pub(crate) hash: B256,
}

/// A group of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HashGroup {
    /// Part of its row's key; unique in the chunk.
    pub(crate) name: u16,
    /// Number of its entries, at least 1.
    pub(crate) len: usize,
    /// Position of the first one.
    pub(crate) start: usize,
    /// Above all keys of the group before, and not above the group's own keys; empty for the first
    /// group.
    pub(crate) fence: GroupFence,
}

/// The lower bound of a group's keys: some bytes, not more than a key has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupFence {
    /// Zeros after `len`.
    bytes: [u8; BackendKey::MAX_ENCODED_LEN],
    len: u8,
}

impl GroupFence {
    pub(crate) const NONE: Self = Self { bytes: [0; BackendKey::MAX_ENCODED_LEN], len: 0 };

    /// The shortest fence between the keys `last` and `first`, of which `first` is greater.
    pub(crate) fn between(last: &[u8], first: &[u8]) -> Self {
        Self::of(&first[..(shared(last, first) + 1).min(first.len())])
    }

    fn of(own: &[u8]) -> Self {
        let mut fence = Self::NONE;
        fence.bytes[..own.len()].copy_from_slice(own);
        fence.len = own.len() as u8;
        fence
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// A chunk of at least one entry: its row without the key-height, which depends on the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChunkBody {
    /// Count (2), number of groups (2), hash of each part (32), groups.
    body: Bytes,
}

/// Bytes before the hashes.
const HEAD: usize = 4;

impl ChunkBody {
    /// Decodes the body of a chunk that begins with `first`; `None` if it is malformed.
    pub(crate) fn decode(first: &BackendKey, body: Bytes, most: ChunkEntries) -> Option<Self> {
        let mut reader = WireReader::new(&body);
        let count = usize::from(reader.u16().ok()?);
        let groups = usize::from(reader.u16().ok()?);
        if !(1..=most.most()).contains(&count) || !(1..=count).contains(&groups) {
            return None;
        }
        reader.take(count.div_ceil(PART) * 32).ok()?;
        let (mut fence, mut entries) = (GroupFence::of(&first.encode()), 0);
        let mut names = Vec::with_capacity(groups);
        for group in 0..groups {
            names.push(reader.u16().ok()?);
            let len = usize::from(reader.u8().ok()?);
            if !(1..=MAX_GROUP).contains(&len) {
                return None;
            }
            entries += len;
            if group > 0 {
                let shared = usize::from(reader.u8().ok()?);
                let own = usize::from(reader.u8().ok()?);
                let next = [fence.bytes().get(..shared)?, reader.take(own).ok()?].concat();
                if next.len() > BackendKey::MAX_ENCODED_LEN || &next[..] <= fence.bytes() {
                    return None;
                }
                fence = GroupFence::of(&next);
            }
        }
        reader.finish().ok()?;
        names.sort_unstable();
        let is_sound = entries == count && names.windows(2).all(|pair| pair[0] != pair[1]);
        is_sound.then_some(Self { body })
    }

    /// The chunk that begins with `first` and has these parts and groups.
    pub(crate) fn new(first: &EncodedKey, parts: &[B256], groups: &[HashGroup]) -> Self {
        let count = groups.iter().map(|group| group.len).sum::<usize>();
        let mut body = Vec::with_capacity(HEAD + parts.len() * 32 + groups.len() * 10);
        body.extend((count as u16).to_be_bytes());
        body.extend((groups.len() as u16).to_be_bytes());
        body.extend(parts.iter().flatten());
        let mut last: &[u8] = first;
        for (at, group) in groups.iter().enumerate() {
            body.extend(group.name.to_be_bytes());
            body.push(group.len as u8);
            if at > 0 {
                let fence = group.fence.bytes();
                let shared = shared(last, fence);
                body.extend([shared as u8, (fence.len() - shared) as u8]);
                body.extend(&fence[shared..]);
                last = fence;
            }
        }
        Self { body: body.into() }
    }

    /// Number of its entries.
    pub(crate) fn count(&self) -> usize {
        self.number(0)
    }

    /// Number of its groups.
    pub(crate) fn group_count(&self) -> usize {
        self.number(2)
    }

    fn number(&self, at: usize) -> usize {
        self.body[at..].first_chunk().map_or(0, |number| usize::from(u16::from_be_bytes(*number)))
    }

    /// Hashes of its parts.
    pub(crate) fn parts(&self) -> impl ExactSizeIterator<Item = B256> {
        let hashes = &self.body[HEAD..self.end_of_parts()];
        hashes.as_chunks::<32>().0.iter().map(B256::from)
    }

    fn end_of_parts(&self) -> usize {
        HEAD + 32 * self.count().div_ceil(PART)
    }

    /// Its groups, from left to right; `first` is its first key.
    pub(crate) fn groups(&self, first: &EncodedKey) -> Vec<HashGroup> {
        let mut rest = &self.body[self.end_of_parts()..];
        let mut groups = Vec::with_capacity(self.group_count());
        let (mut start, mut fence) = (0, GroupFence::of(first));
        while let Some(([a, b, len], own)) = rest.split_first_chunk() {
            let (name, len) = (u16::from_be_bytes([*a, *b]), usize::from(*len));
            rest = own;
            if start > 0
                && let Some(([shared, more], own)) = own.split_first_chunk()
            {
                let (bytes, own) = own.split_at(usize::from(*more));
                let kept = usize::from(*shared);
                fence.bytes[kept..].fill(0);
                fence.bytes[kept..kept + bytes.len()].copy_from_slice(bytes);
                fence.len = shared + more;
                rest = own;
            }
            let own = if start > 0 { fence } else { GroupFence::NONE };
            groups.push(HashGroup { name, len, start, fence: own });
            start += len;
        }
        groups
    }

    /// The same chunk with new hashes of some parts.
    pub(crate) fn with_parts(&self, hashes: impl Iterator<Item = (usize, B256)>) -> Self {
        let mut body = self.body.to_vec();
        for (part, hash) in hashes {
            body[HEAD + 32 * part..][..32].copy_from_slice(&hash[..]);
        }
        Self { body: body.into() }
    }

    /// Its row in [`CHUNKS`].
    pub(crate) fn row(&self, key_height: u8) -> Bytes {
        [&[key_height], &self.body[..]].concat().into()
    }
}

/// The index in `groups` of the group in whose range `key` lies.
pub(crate) fn group_of(groups: &[HashGroup], key: &EncodedKey) -> usize {
    let behind = groups.partition_point(|group| group.fence.bytes() <= &key[..]);
    behind.saturating_sub(1)
}

fn shared(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Key of a row in [`HASHES`].
pub(crate) fn group_key(first: &EncodedKey, name: u16) -> Vec<u8> {
    let mut key = Vec::with_capacity(first.len() + 2);
    key.extend_from_slice(first);
    key.extend(name.to_be_bytes());
    key
}

/// Decodes a [`group_key`]: first key of the chunk, name of the group.
pub(crate) fn read_group_key(key: &[u8]) -> Option<(BackendKey, u16)> {
    let (first, name) = key.split_last_chunk()?;
    Some((BackendKey::decode(first)?, u16::from_be_bytes(*name)))
}

/// The row of a group, and the hashes in it.
///
/// # Errors
/// [`StateError::Corrupt`] if the row is missing or has another length.
pub(crate) fn read_group(
    view: &dyn NodeRead,
    key: &[u8],
    len: usize,
) -> Result<(Bytes, Vec<B256>), StateError> {
    let wrong = |what: String| {
        StateError::corrupt(HASHES.name, format!("row {}: {what}", hex::encode(key)))
    };
    let row = view.get(HASHES, key)?.ok_or_else(|| wrong("it is missing".into()))?;
    let hashes: Vec<B256> = row.as_chunks::<32>().0.iter().map(B256::from).collect();
    if hashes.len() != len || row.len() != 32 * len {
        return Err(wrong(format!("it has {} bytes, not {len} hashes", row.len())));
    }
    Ok((row, hashes))
}

/// Reads and hashes the entries from `start` (`None`: from the first) to before `end` (`None`: to
/// the last).
pub(crate) fn read_entries(
    view: &dyn NodeRead,
    start: Option<&BackendKey>,
    end: Option<&BackendKey>,
) -> Result<Vec<HashedEntry>, StateError> {
    let (start, end) = (start.map(BackendKey::encode), end.map(BackendKey::encode));
    let range = KeyRange { start: start.as_deref().unwrap_or(&[]), end: end.as_deref() };
    let mut keys = Vec::new();
    let mut batch = HashBatch::default();
    for row in view.scan(flat::TABLE, range, ScanDirection::Forward)? {
        let (encoded, value) = row?;
        let key = BackendKey::decode(&encoded).ok_or_else(|| {
            StateError::corrupt(flat::TABLE.name, format!("row {encoded} is not a state key"))
        })?;
        batch.entry(&encoded, &value);
        keys.push(key);
    }
    let entries = keys.into_iter().zip(batch.finish());
    Ok(entries.map(|(key, hash)| HashedEntry { key, hash }).collect())
}

/// A chunk that is made of entries.
pub(crate) struct NewChunk {
    pub(crate) first: BackendKey,
    pub(crate) chunk: ChunkBody,
    pub(crate) hash: B256,
}

/// The groups of a new chunk of these entries.
pub(crate) fn new_groups(entries: &[HashedEntry]) -> Vec<HashGroup> {
    let group = |(at, own): (usize, &[HashedEntry])| {
        let start = at * PART;
        let fence = match (start.checked_sub(1).and_then(|last| entries.get(last)), own.first()) {
            (Some(last), Some(first)) => {
                GroupFence::between(&last.key.encode(), &first.key.encode())
            }
            _ => GroupFence::NONE,
        };
        HashGroup { name: at as u16, len: own.len(), start, fence }
    };
    entries.chunks(PART).enumerate().map(group).collect()
}

/// Makes a chunk of each list of entries, of which none is empty, and hashes all chunks together.
pub(crate) fn make_chunks(runs: &[&[HashedEntry]]) -> Vec<NewChunk> {
    let mut batch = HashBatch::default();
    let parts = |run: &&[HashedEntry]| -> Vec<Vec<B256>> {
        run.chunks(PART).map(|part| part.iter().map(|entry| entry.hash).collect()).collect()
    };
    let mut lists: Vec<Vec<B256>> = runs.iter().flat_map(parts).collect();
    batch.fold(&mut lists);
    let mut tops = lists.into_iter().flatten();
    let heads = runs.iter().filter_map(|run| Some((run.first()?.key, *run)));
    let chunks: Vec<(BackendKey, ChunkBody)> = heads
        .map(|(first, run)| {
            let parts: Vec<B256> = tops.by_ref().take(run.len().div_ceil(PART)).collect();
            (first, ChunkBody::new(&first.encode(), &parts, &new_groups(run)))
        })
        .collect();
    let hashes = hash_all(chunks.iter().map(|(_, chunk)| chunk));
    let made = chunks.into_iter().zip(hashes);
    made.map(|((first, chunk), hash)| NewChunk { first, chunk, hash }).collect()
}

/// The hashes of chunks.
pub(crate) fn hash_all<'a>(chunks: impl IntoIterator<Item = &'a ChunkBody> + Clone) -> Vec<B256> {
    let mut batch = HashBatch::default();
    let mut tops: Vec<Vec<B256>> =
        chunks.clone().into_iter().map(|chunk| chunk.parts().collect()).collect();
    batch.fold(&mut tops);
    for (chunk, top) in chunks.into_iter().zip(tops.iter().flatten()) {
        batch.chunk(chunk.count() as u32, top);
    }
    batch.finish()
}

/// The row of a group of these entries.
pub(crate) fn group_row(entries: &[HashedEntry]) -> Bytes {
    entries.iter().flat_map(|entry| entry.hash).collect()
}

/// The levels of a hash tree over `nodes`, from `nodes` up: within a part, or over the parts of a
/// chunk.
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

    fn entries(count: usize, key: impl Fn(u64) -> BackendKey) -> Vec<HashedEntry> {
        let entry = |n| HashedEntry { key: key(n), hash: hash::entry(&key(n).encode(), &[1]) };
        (0..count as u64).map(entry).collect()
    }

    fn made(entries: &[HashedEntry]) -> NewChunk {
        make_chunks(&[entries]).pop().unwrap()
    }

    #[test]
    fn chunks_read_back_and_nothing_else_does() {
        let most = ChunkEntries::new(100).unwrap();
        for count in [1, 15, 16, 17, 33, 100] {
            let entries = entries(count, |n| {
                BackendKey::Account(Address::from_word(U256::from(n * 999).into()).into())
            });
            let NewChunk { first, chunk, hash } = made(&entries);
            assert_eq!((chunk.count(), chunk.group_count()), (count, count.div_ceil(16)));
            let groups = new_groups(&entries);
            assert_eq!(chunk.groups(&first.encode()), groups);
            let parts: Vec<_> = chunk.parts().collect();
            assert_eq!(ChunkBody::new(&first.encode(), &parts, &groups), chunk);
            let body = chunk.body.clone();
            assert_eq!(ChunkBody::decode(&first, body.clone(), most).as_ref(), Some(&chunk));
            assert_eq!(hash_all([&chunk]), [hash]);
            let last = &levels(entries.iter().map(|entry| entry.hash).collect()).pop().unwrap()[0];
            assert_eq!(hash, hash::chunk(count as u32, last));
            for end in 0..body.len() {
                assert_eq!(ChunkBody::decode(&first, body.slice(..end), most), None);
            }
            let longer = [&body[..], &[0]].concat();
            assert_eq!(ChunkBody::decode(&first, longer.into(), most), None);
            let fewer = ChunkEntries::new(99).unwrap();
            assert_eq!(ChunkBody::decode(&first, body, fewer).is_none(), count > 99);
        }
        let none = ChunkBody { body: vec![0, 0, 0, 0].into() };
        assert_eq!(
            ChunkBody::decode(&BackendKey::Account(Address::ZERO.into()), none.body, most),
            None
        );
    }

    #[test]
    fn every_key_is_found_in_its_group_between_accounts_and_slots_too() {
        let key = |n: u64| match n {
            0..20 => BackendKey::Account(Address::left_padding_from(&[n as u8, 0]).into()),
            20..50 => BackendKey::Slot(Address::ZERO.into(), U256::from(n * 2).into()),
            _ => BackendKey::Slot(Address::repeat_byte(n as u8).into(), U256::from(n << 40).into()),
        };
        let entries = entries(90, key);
        let NewChunk { first, chunk, .. } = made(&entries);
        let groups = chunk.groups(&first.encode());
        for (at, entry) in entries.iter().enumerate() {
            assert_eq!(group_of(&groups, &entry.key.encode()), at / PART, "{at}");
        }
        // A key that is not in the chunk lies in the group of one of its neighbours.
        for n in 20..49 {
            let between =
                BackendKey::Slot(Address::ZERO.into(), U256::from(n * 2 + 1).into()).encode();
            let group = group_of(&groups, &between);
            assert!([n / 16, (n + 1) / 16].contains(&(group as u64)), "{n}");
        }
        let low = BackendKey::Account(Address::ZERO.into()).encode();
        assert_eq!(group_of(&groups, &low), 0);
    }
}
