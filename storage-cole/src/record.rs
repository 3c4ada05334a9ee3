//! Row encodings: the pairs of the memory level by block, the manifest, the range of blocks.

use crate::{levels::PendingRun, run::MergeCutoff};
use alloy_primitives::Bytes;
use retrie_state::{
    BackendKey, RowTable, StateError, StateValue,
    wire::{WireReader, put_varint},
};

/// Pairs of the memory level. Key: block (8 bytes, BE), piece (2, BE).
pub(crate) const MEMORY: RowTable = RowTable::new(0x40, "ColeMemory");
/// Two rows: [`MANIFEST`] and [`BLOCKS`].
pub(crate) const META: RowTable = RowTable::new(0x41, "ColeMeta");
/// Key of the row of the runs on disk and the runs under way. Without a row there are no runs.
pub(crate) const MANIFEST: &[u8] = b"manifest";
/// Key of the row of the first and the last block of the store, 8 bytes each.
pub(crate) const BLOCKS: &[u8] = b"blocks";

/// A piece of a block's pairs ends when it has this many bytes, so that rows fit into a page.
const PIECE: usize = 3_600;

/// The key of a piece.
pub(crate) fn memory_key(block: u64, piece: u16) -> [u8; 10] {
    let mut key = [0; 10];
    key[..8].copy_from_slice(&block.to_be_bytes());
    key[8..].copy_from_slice(&piece.to_be_bytes());
    key
}

/// The block and the piece of a key.
pub(crate) fn parse_memory_key(key: &[u8]) -> Result<(u64, u16), StateError> {
    let bad = || StateError::corrupt(MEMORY.name, format!("a row has the key {}", hex(key)));
    let (block, piece) = key.split_first_chunk::<8>().ok_or_else(bad)?;
    let piece = piece.try_into().map_err(|_| bad())?;
    Ok((u64::from_be_bytes(*block), u16::from_be_bytes(piece)))
}

/// The pieces of a block's pairs, which must be in key order. A pair: length shared with the key
/// before it in the piece (1 byte), length of the rest (1), the rest; then 0 for no value, or the
/// value's length + 1 (LEB128) and the value.
pub(crate) fn memory_rows<'a>(
    pairs: impl Iterator<Item = (BackendKey, &'a Option<StateValue>)>,
) -> Vec<Bytes> {
    let mut rows = Vec::new();
    let (mut row, mut last) = (Vec::new(), Vec::new());
    for (key, value) in pairs {
        if row.len() >= PIECE {
            rows.push(std::mem::take(&mut row).into());
            last.clear();
        }
        let key = key.encode();
        let shared = key.iter().zip(&last).take_while(|(a, b)| a == b).count();
        // Keys have 53 bytes at most.
        row.extend_from_slice(&[shared as u8, (key.len() - shared) as u8]);
        row.extend_from_slice(&key[shared..]);
        match value {
            None => row.push(0),
            Some(value) => {
                put_varint(&mut row, value.len() as u64 + 1);
                row.extend_from_slice(value);
            }
        }
        last = key.to_vec();
    }
    if !row.is_empty() {
        rows.push(row.into());
    }
    rows
}

/// Decodes a piece and appends its pairs to `pairs`.
pub(crate) fn read_memory_row(
    key: &[u8],
    row: &Bytes,
    pairs: &mut Vec<(BackendKey, Option<StateValue>)>,
) -> Result<(), StateError> {
    read_pairs(row, pairs)
        .ok_or_else(|| StateError::corrupt(MEMORY.name, format!("row {} is malformed", hex(key))))
}

fn read_pairs(row: &Bytes, pairs: &mut Vec<(BackendKey, Option<StateValue>)>) -> Option<()> {
    let mut reader = WireReader::new(row);
    let mut last: Vec<u8> = Vec::new();
    while !reader.is_empty() {
        let [shared, rest] = *reader.array().ok()?;
        if usize::from(shared) > last.len() {
            return None;
        }
        last.truncate(shared.into());
        last.extend_from_slice(reader.take(rest.into()).ok()?);
        let key = BackendKey::decode(&last)?;
        let value = match reader.varint().ok()? {
            0 => None,
            len => {
                let len = usize::try_from(len - 1).ok()?;
                Some(row.slice_ref(reader.take(len).ok()?))
            }
        };
        pairs.push((key, value));
    }
    Some(())
}

/// Encodes the row [`BLOCKS`].
pub(crate) fn blocks_row(first: u64, last: u64) -> Bytes {
    [first.to_be_bytes(), last.to_be_bytes()].concat().into()
}

/// The first and the last block.
pub(crate) fn parse_blocks(row: &[u8]) -> Result<(u64, u64), StateError> {
    let bad = || StateError::corrupt(META.name, "the row `blocks` is malformed");
    let mut reader = WireReader::new(row);
    match (reader.u64(), reader.u64(), reader.finish()) {
        (Ok(first), Ok(last), Ok(())) if first <= last => Ok((first, last)),
        _ => Err(bad()),
    }
}

/// Format version of the manifest.
const VERSION: u8 = 1;

/// The row [`MANIFEST`]. `R` is the type of runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunManifest<R> {
    /// The oldest block whose state can be read: the store's first block, raised by merges that drop
    /// pairs.
    pub(crate) horizon: u64,
    /// Blocks before this one have left the memory level.
    pub(crate) merging_from: u64,
    /// Blocks from this one on are in the writing group, blocks before it in the merging group.
    pub(crate) writing_from: u64,
    /// The run that is being made of the merging group.
    pub(crate) flush: Option<PendingRun>,
    /// The levels on disk, from the first one on.
    pub(crate) levels: Vec<LevelRow<R>>,
}

/// A level in the manifest. Runs are ordered newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LevelRow<R> {
    pub(crate) writing: Vec<R>,
    pub(crate) merging: Vec<R>,
    /// The run that is being made of the merging group.
    pub(crate) merge: Option<PendingRun>,
}

impl<R> RunManifest<R> {
    /// Encodes the row; `put` encodes a run.
    pub(crate) fn encode(&self, put: impl Fn(&R, &mut Vec<u8>)) -> Bytes {
        let mut out = vec![VERSION];
        for word in [self.horizon, self.merging_from, self.writing_from] {
            out.extend_from_slice(&word.to_be_bytes());
        }
        put_work(&self.flush, &mut out);
        out.push(self.levels.len() as u8);
        for level in &self.levels {
            out.extend_from_slice(&[level.writing.len() as u8, level.merging.len() as u8]);
            level.writing.iter().chain(&level.merging).for_each(|run| put(run, &mut out));
            put_work(&level.merge, &mut out);
        }
        out.into()
    }

    /// Decodes the row; `take` decodes a run.
    pub(crate) fn decode(
        row: &[u8],
        take: impl Fn(&mut WireReader<'_>) -> Option<R>,
    ) -> Result<Self, StateError> {
        match row.first() {
            Some(&VERSION) => {}
            Some(version) if *version > VERSION => {
                let what = format!(
                    "the manifest has version {version}, this program knows up to {VERSION}: use a \
                     newer one"
                );
                return Err(StateError::corrupt(META.name, what));
            }
            _ => return Err(StateError::corrupt(META.name, "the manifest is malformed")),
        }
        Self::decode_rest(&row[1..], take)
            .ok_or_else(|| StateError::corrupt(META.name, "the manifest is malformed"))
    }

    fn decode_rest(row: &[u8], take: impl Fn(&mut WireReader<'_>) -> Option<R>) -> Option<Self> {
        let mut reader = WireReader::new(row);
        let horizon = reader.u64().ok()?;
        let (merging_from, writing_from) = (reader.u64().ok()?, reader.u64().ok()?);
        let flush = take_work(&mut reader)?;
        let mut levels = Vec::new();
        for _ in 0..reader.u8().ok()? {
            let [writing, merging] = *reader.array().ok()?;
            let mut group =
                |count| -> Option<Vec<R>> { (0..count).map(|_| take(&mut reader)).collect() };
            let (writing, merging) = (group(writing)?, group(merging)?);
            levels.push(LevelRow { writing, merging, merge: take_work(&mut reader)? });
        }
        let is_sound = merging_from <= writing_from && reader.is_empty();
        is_sound.then_some(Self { horizon, merging_from, writing_from, flush, levels })
    }
}

/// `00` for no cutoff; or `01` (`02` if no older run lies below the merge) and the block.
pub(crate) fn cutoff_bytes(cutoff: Option<MergeCutoff>) -> Vec<u8> {
    let Some(MergeCutoff { block, is_deepest }) = cutoff else { return vec![0] };
    [&[1 + u8::from(is_deepest)][..], &block.to_be_bytes()].concat()
}

/// `00` for no run under way; or `01`, id, [cutoff](cutoff_bytes).
fn put_work(work: &Option<PendingRun>, out: &mut Vec<u8>) {
    let Some(work) = work else { return out.push(0) };
    out.push(1);
    out.extend_from_slice(&work.id[..]);
    out.extend_from_slice(&cutoff_bytes(work.cutoff));
}

fn take_work(reader: &mut WireReader<'_>) -> Option<Option<PendingRun>> {
    match reader.u8().ok()? {
        0 => Some(None),
        1 => {
            let id = reader.hash().ok()?;
            let cutoff = match reader.u8().ok()? {
                0 => None,
                kind @ (1 | 2) => {
                    Some(MergeCutoff { block: reader.u64().ok()?, is_deepest: kind == 2 })
                }
                _ => return None,
            };
            Some(Some(PendingRun { id, cutoff, handle: None }))
        }
        _ => None,
    }
}

fn hex(bytes: &[u8]) -> String {
    alloy_primitives::hex::encode_prefixed(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::{Address, B256};

    fn key(n: u16) -> BackendKey {
        let address = Address::repeat_byte((n / 100) as u8);
        match n % 5 {
            0 => BackendKey::Account(Address::left_padding_from(&n.to_be_bytes()).into()),
            _ => BackendKey::Slot(address.into(), B256::left_padding_from(&n.to_be_bytes())),
        }
    }

    #[test]
    fn a_blocks_pairs_read_back_from_their_pieces() {
        for count in [0, 1, 2, 500] {
            let mut pairs: Vec<(BackendKey, Option<StateValue>)> = (0..count)
                .map(|n| (key(n), (n % 3 > 0).then(|| vec![n as u8; usize::from(n)].into())))
                .collect();
            pairs.sort();
            let rows = memory_rows(pairs.iter().map(|(key, value)| (*key, value)));
            assert_eq!(rows.len() > 1, count == 500);
            let mut back = Vec::new();
            for (piece, row) in rows.iter().enumerate() {
                let key = memory_key(7, piece as u16);
                assert_eq!(parse_memory_key(&key).unwrap(), (7, piece as u16));
                read_memory_row(&key, row, &mut back).unwrap();
                for cut in 0..row.len() {
                    // Some whole pairs may be decoded, never a part of a pair.
                    let mut some = Vec::new();
                    let _ = read_memory_row(&key, &row.slice(..cut), &mut some);
                    assert!(some.len() <= pairs.len());
                }
            }
            assert_eq!(back, pairs);
        }
    }

    #[test]
    fn a_length_in_a_longer_form_than_need_be_is_refused() {
        let value: Option<StateValue> = Some(Bytes::from_static(&[7]));
        let row = memory_rows([(key(5), &value)].into_iter()).remove(0);
        let read = |row: &[u8]| {
            let mut pairs = Vec::new();
            read_memory_row(&[], &Bytes::copy_from_slice(row), &mut pairs).map(|()| pairs)
        };
        assert_eq!(read(&row).unwrap(), [(key(5), value)]);
        let at = row.len() - 2;
        assert_eq!(row[at..], [2, 7]);
        assert!(read(&[&row[..at], &[0x82, 0x00, 7]].concat()).is_err());
    }

    #[test]
    fn a_manifest_reads_back_and_a_newer_one_is_named() {
        let work =
            |n: u8, cutoff| Some(PendingRun { id: B256::repeat_byte(n), cutoff, handle: None });
        let manifest = RunManifest {
            horizon: 3,
            merging_from: 8,
            writing_from: 20,
            flush: work(1, None),
            levels: vec![
                LevelRow { writing: vec![1u8, 2], merging: vec![3], merge: work(2, None) },
                LevelRow {
                    writing: vec![],
                    merging: vec![9],
                    merge: work(3, Some(MergeCutoff { block: 77, is_deepest: true })),
                },
                LevelRow { writing: vec![5], merging: vec![], merge: None },
            ],
        };
        let row = manifest.encode(|run, out| out.push(*run));
        let take = |bytes: &mut WireReader<'_>| bytes.u8().ok();
        assert_eq!(RunManifest::decode(&row, take).unwrap(), manifest);
        for cut in 0..row.len() {
            assert!(RunManifest::decode(&row[..cut], take).is_err());
        }
        assert!(RunManifest::decode(&[&row[..], &[0]].concat(), take).is_err());
        let newer = [&[2][..], &row[1..]].concat();
        let error = RunManifest::decode(&newer, take).unwrap_err().to_string();
        assert!(error.contains("newer"), "{error}");
    }
}
