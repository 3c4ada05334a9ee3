//! Row encodings, except those of the snapshot trie.
//!
//! | table | key | row |
//! |---|---|---|
//! | [`SNAPSHOT`] | path, generation (8, BE), origin (1) | a branch of the snapshot trie ([`trie::record`]) |
//! | [`LISTS`] | generation (8, BE), part (4, BE), origin (1) | a list of rows that the merge of that generation has replaced ([`garbage_lists`](crate::garbage_lists)) |
//! | [`LAYERS`] | generation (8, BE), block (8, BE), part (4, BE) | changes of the block in the layer ([`layer`](crate::layer)) |
//! | [`META`] | `00` | the [state](LmptMeta) |
//! | [`META`] | `01`, generation (8, BE) | the block that published the merge of that generation (8, BE), until its garbage is removed |
//! | [`META`] | `02`, generation (8, BE) | the number of rows of that merge that were written ahead (8, BE) |
//! | [`META`] | `03`, generation (8, BE) | empty; the block that published that merge wrote some of its rows itself |
//!
//! [`trie::record`]: retrie_storage_mpt::trie::record

use crate::hash;
use alloy_primitives::{B256, Bytes};
use retrie_state::{
    KeyRange, NodeRead, RowTable, ScanDirection, StateError,
    wire::{WireReader, put_varint},
};
use retrie_storage_mpt::{Trie, TrieHash, trie::record};

/// Branches of the snapshot trie.
pub const SNAPSHOT: RowTable = RowTable::new(0x60, "LmptSnapshot");
/// Changes of keys in the small layers.
pub const LAYERS: RowTable = RowTable::new(0x61, "LmptLayers");
/// Lists of rows that merges have replaced.
pub const LISTS: RowTable = RowTable::new(0x62, "LmptLists");
/// The state, and the progress of merges and of garbage removal.
pub const META: RowTable = RowTable::new(0x63, "LmptMeta");

/// Key of the row of the state.
pub(crate) const STATE: &[u8] = &[0];
const PUBLISHED: u8 = 1;
const AHEAD: u8 = 2;
const BLOCK_ROWS: u8 = 3;

/// The parts of a state that have no rows of their own.
#[derive(Clone, Debug)]
pub(crate) struct LmptMeta {
    /// The generation of the delta. The intermediate trie has the generation before.
    pub(crate) generation: u64,
    /// The first block of the delta: a boundary, except for the first delta.
    pub(crate) delta_from: u64,
    /// The number of keys in the delta, tombstones included.
    pub(crate) delta_keys: u64,
    /// Root of the delta.
    pub(crate) delta: B256,
    /// Root of the intermediate trie.
    pub(crate) intermediate: B256,
    /// The lineage of the snapshot, which determines its rows.
    pub(crate) lineage: B256,
    /// The snapshot.
    pub(crate) snapshot: Trie<u64>,
}

impl LmptMeta {
    pub(crate) fn root(&self) -> B256 {
        hash::root(&[self.delta, self.intermediate, self.snapshot.hash()])
    }

    /// The generation of the intermediate trie.
    pub(crate) const fn merging(&self) -> u64 {
        self.generation.saturating_sub(1)
    }

    pub(crate) fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(160);
        put_varint(&mut out, self.generation);
        put_varint(&mut out, self.delta_from);
        put_varint(&mut out, self.delta_keys);
        for hash in [self.delta, self.intermediate, self.lineage] {
            out.extend_from_slice(hash.as_slice());
        }
        out.extend(record::encode_root(self.snapshot.root()).unwrap_or_default());
        out.into()
    }

    fn decode(bytes: &Bytes) -> Option<Self> {
        let mut rest = WireReader::new(bytes);
        let mut number = || rest.varint().ok();
        let (generation, delta_from, delta_keys) = (number()?, number()?, number()?);
        let mut hash = || rest.hash().ok();
        let (delta, intermediate, lineage) = (hash()?, hash()?, hash()?);
        let snapshot = match bytes.slice_ref(rest.rest()) {
            none if none.is_empty() => Trie::empty(TrieHash::Keccak256),
            root => Trie::from_root(Some(record::decode_root(&root)?)),
        };
        (generation > 0).then_some(Self {
            generation,
            delta_from,
            delta_keys,
            delta,
            intermediate,
            lineage,
            snapshot,
        })
    }

    /// The state that `view` shows; `None` if it is empty.
    pub(crate) fn read(view: &dyn NodeRead) -> Result<Option<Self>, StateError> {
        let Some(row) = view.get(META, STATE)? else { return Ok(None) };
        let malformed = || StateError::corrupt(META.name, "the row of the state is malformed");
        Self::decode(&row).map(Some).ok_or_else(malformed)
    }
}

fn meta_key(kind: u8, generation: u64) -> [u8; 9] {
    let mut key = [kind; 9];
    key[1..].copy_from_slice(&generation.to_be_bytes());
    key
}

fn number(what: &str, generation: u64, row: &[u8]) -> Result<u64, StateError> {
    row.try_into().map(u64::from_be_bytes).map_err(|_| {
        StateError::corrupt(META.name, format!("malformed row: {what} generation {generation}"))
    })
}

/// Key of the row with the block that published the merge of a generation.
pub(crate) fn published_key(generation: u64) -> [u8; 9] {
    meta_key(PUBLISHED, generation)
}

/// Key of the row with the number of rows of a generation's merge that were written ahead.
pub(crate) fn ahead_key(generation: u64) -> [u8; 9] {
    meta_key(AHEAD, generation)
}

/// The number of rows of the merge of `generation` that were written ahead.
pub(crate) fn rows_ahead(view: &dyn NodeRead, generation: u64) -> Result<u64, StateError> {
    let row = view.get(META, &ahead_key(generation))?;
    row.map_or(Ok(0), |row| number("the rows written ahead of", generation, &row))
}

/// Published generations from `first` on that still have garbage, with the block that published
/// each.
pub(crate) fn published(
    view: &dyn NodeRead,
    first: u64,
) -> Result<impl Iterator<Item = Result<(u64, u64), StateError>> + '_, StateError> {
    let (start, end) = (published_key(first), [PUBLISHED + 1]);
    let rows = view.scan(META, KeyRange::new(&start, &end), ScanDirection::Forward)?;
    Ok(rows.map(|row| {
        let (key, row) = row?;
        let generation = key.get(1..).and_then(|number| number.try_into().ok());
        let generation = generation.map(u64::from_be_bytes).ok_or_else(|| {
            StateError::corrupt(META.name, format!("row {key} has no generation"))
        })?;
        Ok((generation, number("the block that published", generation, &row)?))
    }))
}

/// Key of the row that marks a generation whose merge was published before all of its rows had been
/// written ahead.
pub(crate) fn block_rows_key(generation: u64) -> [u8; 9] {
    meta_key(BLOCK_ROWS, generation)
}

/// Whether a block may have written rows of `generation`: see [`block_rows_key`]. The first block
/// has always written its rows.
pub(crate) fn has_block_rows(view: &dyn NodeRead, generation: u64) -> Result<bool, StateError> {
    Ok(generation == 0 || view.get(META, &block_rows_key(generation))?.is_some())
}

/// Key of a layer row.
pub(crate) fn layer_key(generation: u64, number: u64, part: u32) -> Vec<u8> {
    [&generation.to_be_bytes()[..], &number.to_be_bytes(), &part.to_be_bytes()].concat()
}

/// Generation, block and part in the key of a layer row.
pub(crate) fn parse_layer_key(key: &[u8]) -> Option<(u64, u64, u32)> {
    let (generation, rest) = key.split_first_chunk()?;
    let (number, part) = rest.split_first_chunk()?;
    let part = u32::from_be_bytes(part.try_into().ok()?);
    Some((u64::from_be_bytes(*generation), u64::from_be_bytes(*number), part))
}

/// Key of a list, without its origin.
pub(crate) fn list_key(generation: u64, part: u32) -> Vec<u8> {
    [&generation.to_be_bytes()[..], &part.to_be_bytes()].concat()
}

/// The range of the rows of `generation`, in tables whose keys begin with the generation.
pub(crate) fn generation_range(generation: u64) -> ([u8; 8], [u8; 8]) {
    (generation.to_be_bytes(), generation.saturating_add(1).to_be_bytes())
}
