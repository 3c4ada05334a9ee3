//! CMI, the column-based Merkle index that COLE is compared with (COLE, section 8.1.1): the columns of
//! COLE without its learned index and its LSM. It exists for races alone.
//!
//! ```text
//!  upper index   a Merkle Patricia trie, latest version only: keccak256(key) -> root of the column
//!  lower index   a column for each key: a Merkle B-tree over <block, value>, which grows at its end
//! ```
//!
//! Nodes of the trie are rows by path, as those of `mpt`. A block appends a version to the column of
//! each changed key, hashes the right edge of the column, and updates the trie. A provenance query
//! goes down the trie once, and then down the column to the blocks asked for. Fanout and rows are
//! ours: the paper does not state them.

mod column;

use alloy_primitives::{B256, Bytes, keccak256};
use alloy_rlp::{Decodable, Encodable};
use column::{ColumnHead, ColumnRow, HEADS, NODES};
use rayon::prelude::*;
use retrie_state::{
    AccountKey, AnyBackend, AnyCache, ApplyContext, ApplyOutput, Backend, BackendDelta,
    BackendExtensions, BackendIdentity, BackendKey, BackendProfile, BackendStats, BulkSink, HashId,
    KeyRange, NodeRead, NodeWrite, ProofError, ProvenanceQueries, RowTable, ScanDirection,
    StateError, StateValue, ValueVersion, prefix_end,
};
use retrie_storage_mpt::{
    LeafUpdate, Trie, TrieHash,
    trie::{LeafSorter, RowPlace, RowRecorder, RowSource},
    verify::walk,
};
use std::{ops::RangeInclusive, path::Path, sync::Arc};

/// The name on the command line.
pub const NAME: &str = "cmi";

/// Rows of the trie.
const UPPER: RowTable = RowTable::new(0x70, "CmiUpper");

const TABLES: &[RowTable] = &[UPPER, HEADS, NODES];

static IDENTITY: BackendIdentity = BackendIdentity::plain(NAME, 1, HashId::Keccak256);

/// The column-based Merkle index.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cmi;

/// The backend with this name, if it is CMI.
pub fn backend(name: &str) -> Option<Arc<dyn AnyBackend>> {
    (name == NAME).then(|| Arc::new(Cmi) as Arc<dyn AnyBackend>)
}

fn place() -> RowPlace {
    RowPlace::new(UPPER, &[])
}

fn leaf(path: B256, column: B256) -> LeafUpdate {
    LeafUpdate::new(path, Some(Bytes::copy_from_slice(column.as_slice())))
}

/// The keys from `range` that have a value, in order.
fn live<'a>(
    view: &'a dyn NodeRead,
    range: KeyRange<'_>,
) -> Result<impl Iterator<Item = Result<(BackendKey, StateValue), StateError>> + use<'a>, StateError>
{
    let rows = view.scan(HEADS, range, ScanDirection::Forward)?;
    Ok(rows.filter_map(|row| {
        let decoded = row.and_then(|(key, head)| {
            let wrong = || StateError::corrupt(HEADS.name, format!("row {key} is not a state key"));
            let state_key = BackendKey::decode(&key).ok_or_else(wrong)?;
            Ok(ColumnHead::decode(&key, &head)?.latest().map(|value| (state_key, value)))
        });
        decoded.transpose()
    }))
}

impl Backend for Cmi {
    type Cache = Trie;

    fn identity(&self) -> &BackendIdentity {
        &IDENTITY
    }

    fn profile(&self) -> BackendProfile {
        BackendProfile {
            tables: TABLES,
            empty_root: TrieHash::Keccak256.empty_root(),
            proofs: true,
            absence_proofs: true,
            // The trie's upper branches, about 1 KiB each: 16^4 at most.
            cache_bytes: 64 << 20,
            ..BackendProfile::default()
        }
    }

    fn open(&self, view: &dyn NodeRead, _: Option<&Path>) -> Result<Trie, StateError> {
        Ok(RowSource::new(view, place()).trie(())?.unwrap_or_default())
    }

    fn apply(
        &self,
        context: &ApplyContext<'_>,
        view: &mut dyn NodeWrite,
        parent: &Trie,
        delta: &BackendDelta,
    ) -> Result<ApplyOutput<Trie>, StateError> {
        let read = view.as_read();
        let updated = delta.changes().par_iter().with_min_len(4).map(|change| {
            let key = change.key.encode();
            let update = column::append(read, &key, context.number, change.next.as_ref())?;
            Ok((leaf(keccak256(&key[..]), update.root), update.rows))
        });
        let updated = updated.collect::<Result<Vec<_>, StateError>>()?;
        let (mut items, rows): (Vec<_>, Vec<_>) = updated.into_iter().unzip();
        items.sort_unstable_by_key(|item| item.key);
        let mut recorder = RowRecorder::new(place(), ());
        let upper = parent.update(&RowSource::new(read, place()), &items, &mut recorder)?;
        recorder.root(parent, &upper);
        recorder.write(view)?;
        for ColumnRow { table, key, previous, next } in rows.into_iter().flatten() {
            view.replace(table, &key, previous, Some(next))?;
        }
        Ok(ApplyOutput { root: upper.hash(), cache: upper })
    }

    fn read(
        &self,
        view: &dyn NodeRead,
        _: &Trie,
        key: &BackendKey,
    ) -> Result<Option<StateValue>, StateError> {
        let key = key.encode();
        let Some(head) = view.get(HEADS, &key)? else { return Ok(None) };
        Ok(ColumnHead::decode(&key, &head)?.latest())
    }

    fn slots_of(
        &self,
        view: &dyn NodeRead,
        _: &Trie,
        account: &AccountKey,
        limit: usize,
    ) -> Result<Vec<(B256, StateValue)>, StateError> {
        let start = account.slots_prefix();
        let end = prefix_end(&start);
        let slots = live(view, KeyRange { start: &start, end: end.as_deref() })?;
        slots
            .take(limit)
            .map(|entry| match entry? {
                (BackendKey::Slot(_, slot), value) => Ok((slot, value)),
                (key, _) => Err(StateError::corrupt(HEADS.name, format!("{key} among slots"))),
            })
            .collect()
    }

    fn entries(
        &self,
        view: &dyn NodeRead,
        _: &Trie,
        start: Option<&BackendKey>,
        limit: usize,
    ) -> Result<Vec<(BackendKey, StateValue)>, StateError> {
        let start = start.map(BackendKey::encode);
        live(view, KeyRange::from(start.as_deref().unwrap_or(&[])))?.take(limit).collect()
    }

    fn bulk_load(
        &self,
        number: u64,
        entries: &mut dyn Iterator<Item = Result<(BackendKey, StateValue), StateError>>,
        sink: &mut dyn BulkSink,
    ) -> Result<B256, StateError> {
        let mut leaves = LeafSorter::<()>::default();
        for entry in entries {
            let (key, value) = entry?;
            let key = key.encode();
            let mut head = ColumnHead::default();
            head.push(number, Some(&value));
            sink.put(HEADS, &key, &head.encode())?;
            leaves.extend([leaf(keccak256(&key[..]), head.digest())], sink)?;
        }
        let mut put = |recorder: RowRecorder| {
            let rows = recorder.into_rows().into_iter();
            rows.filter_map(|row| Some((row.key, row.next?)))
                .try_for_each(|(key, row)| sink.put_unordered(UPPER, &key, &row))
        };
        let mut root = RowRecorder::new(place(), ());
        let built = leaves.build(TrieHash::Keccak256, &root, &mut put)?;
        root.root(&Trie::default(), &built);
        put(root)?;
        Ok(built.hash())
    }

    /// The proof of the latest versions.
    fn prove(
        &self,
        view: &dyn NodeRead,
        cache: &Trie,
        keys: &[BackendKey],
    ) -> Result<Bytes, StateError> {
        shown(view, cache, keys, LATEST).map(|(_, proof)| proof)
    }

    fn verify(
        &self,
        root: B256,
        keys: &[BackendKey],
        proof: &[u8],
    ) -> Result<Vec<Option<StateValue>>, ProofError> {
        let versions = self.verify_versions(root, keys, LATEST, proof)?;
        let latest = |versions: Vec<ValueVersion>| versions.into_iter().next()?.value;
        Ok(versions.into_iter().map(latest).collect())
    }

    fn stats(&self, view: &dyn NodeRead, _: &Trie) -> Result<BackendStats, StateError> {
        let stats = BackendStats::count(view, TABLES)?;
        let live_keys =
            live(view, KeyRange::ALL)?.try_fold(0, |count, entry| entry.map(|_| count + 1))?;
        Ok(BackendStats { live_keys, dead_keys: stats.rows(HEADS) - live_keys, ..stats })
    }

    fn extensions(&self) -> BackendExtensions<'_> {
        BackendExtensions { provenance: Some(self), ..BackendExtensions::default() }
    }
}

/// A range above all blocks, in which a key has its latest version alone.
const LATEST: RangeInclusive<u64> = u64::MAX..=u64::MAX;

/// The versions of `keys` in `blocks`, and the proof: for each key the nodes of the trie from the
/// root down, and the nodes of its column from the top down, from left to right (RLP).
fn shown(
    view: &dyn NodeRead,
    upper: &Trie,
    keys: &[BackendKey],
    blocks: RangeInclusive<u64>,
) -> Result<(Vec<Vec<ValueVersion>>, Bytes), StateError> {
    let mut all = Vec::with_capacity(keys.len());
    let mut proof: Vec<Vec<Bytes>> = Vec::with_capacity(2 * keys.len());
    for key in keys {
        let key = key.encode();
        let (mut nodes, mut column) = (Vec::new(), Vec::new());
        let source = RowSource::new(view, place());
        let is_there = upper.prove(&source, &keccak256(&key[..]), &mut nodes)?.is_some();
        all.push(match is_there {
            true => column::versions(view, &key, &blocks, &mut column)?,
            false => Vec::new(),
        });
        proof.extend([nodes, column]);
    }
    let mut bytes = Vec::with_capacity(proof.length());
    proof.encode(&mut bytes);
    Ok((all, bytes.into()))
}

impl ProvenanceQueries for Cmi {
    fn versions(
        &self,
        view: &dyn NodeRead,
        cache: &AnyCache,
        keys: &[BackendKey],
        blocks: RangeInclusive<u64>,
    ) -> Result<(Vec<Vec<ValueVersion>>, Bytes), StateError> {
        shown(view, cache.get::<Trie>()?, keys, blocks)
    }

    fn verify_versions(
        &self,
        root: B256,
        keys: &[BackendKey],
        blocks: RangeInclusive<u64>,
        proof: &[u8],
    ) -> Result<Vec<Vec<ValueVersion>>, ProofError> {
        let malformed = |what| ProofError::Malformed { what };
        if blocks.is_empty() {
            return Err(malformed("range of blocks"));
        }
        let mut rest = proof;
        let lists =
            Vec::<Vec<Bytes>>::decode(&mut rest).map_err(|_| malformed("lists of nodes"))?;
        if !rest.is_empty() || lists.len() != 2 * keys.len() {
            return Err(malformed("number of lists"));
        }
        let shown = |(key, [upper, column]): (&BackendKey, &[Vec<Bytes>; 2])| {
            let mut nodes = upper.iter();
            let path = keccak256(&key.encode()[..]);
            let leaf = walk(TrieHash::Keccak256, root, &path, &mut |hash| match nodes.next() {
                None => Err(ProofError::Missing { what: "a node of the upper index" }),
                Some(node) if keccak256(node) != *hash => Err(ProofError::RootMismatch),
                Some(node) => Ok(node),
            })?;
            let column = match leaf {
                None if !column.is_empty() => Err(ProofError::Unused),
                None => Ok(Vec::new()),
                Some(leaf) => match B256::try_from(&leaf[..]) {
                    Ok(top) => column::verify(&top, &blocks, column),
                    Err(_) => Err(malformed("leaf of the upper index")),
                },
            }?;
            if nodes.next().is_some() { Err(ProofError::Unused) } else { Ok(column) }
        };
        keys.iter().zip(lists.as_chunks().0).map(shown).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use retrie_state_testkit::{
        TestKit, TestScale, a_bulk_load_equals_the_first_block,
        reverting_to_every_depth_restores_the_state, versions_are_those_of_the_model_and_proven,
    };

    #[test]
    fn cmi_keeps_the_rules_of_a_backend_and_proves_its_versions() {
        let make = || Arc::new(Cmi) as Arc<dyn AnyBackend>;
        let kit = TestKit::new(&make, TestScale { blocks: 10, ..TestScale::default() });
        a_bulk_load_equals_the_first_block(&kit);
        reverting_to_every_depth_restores_the_state(&kit);
        versions_are_those_of_the_model_and_proven(&kit);
    }
}
