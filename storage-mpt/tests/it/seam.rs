//! What other trie stores rely on: rows with versions, work on one thread, subtries built
//! separately.

use alloy_primitives::{B256, Bytes, keccak256};
use alloy_trie::{HashBuilder, Nibbles, nodes::RlpNode};
use rand::{Rng, SeedableRng, rngs::StdRng};
use retrie_state::{NodeWrite, RowTable, StateError};
use retrie_state_testkit::MemoryView;
use retrie_storage_mpt::{
    LeafUpdate, MemorySource, Trie, TrieHash,
    trie::{
        Branch, BranchLink, BuildSource, BuiltSubtrie, NodeLink, NodeSource, RowChange, RowPlace,
        RowRecorder, RowSource, RowStamp, SequentialSource, record,
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    thread,
};

const TABLE: RowTable = RowTable::new(0x70, "Versions");
type TrieModel = BTreeMap<B256, Bytes>;

fn root(model: &TrieModel) -> B256 {
    let mut builder = HashBuilder::default();
    model.iter().for_each(|(key, value)| builder.add_leaf(Nibbles::unpack(key), value));
    builder.root()
}

/// A batch of changes among `keys` keys, applied to `model`.
fn batch<S: RowStamp>(
    random: &mut StdRng,
    model: &mut TrieModel,
    keys: u32,
    most: usize,
) -> Vec<LeafUpdate<S>> {
    let mut items = BTreeMap::new();
    for _ in 0..random.random_range(1..=most) {
        let key = keccak256(random.random_range(0..keys).to_be_bytes());
        let value = random.random_ratio(3, 4).then(|| Bytes::from(vec![random.random(); 9]));
        items.insert(key, value);
    }
    for (key, value) in &items {
        match value {
            Some(value) => model.insert(*key, value.clone()),
            None => model.remove(key),
        };
    }
    items.into_iter().map(|(key, value)| LeafUpdate::new(key, value)).collect()
}

/// A store that keeps each version of a row under the block that wrote it.
#[test]
fn rows_of_every_block_are_found_by_the_stamps_of_the_rows_above() {
    let place = RowPlace::new(TABLE, b"tree");
    for (seed, keys, most) in [(1, 60, 20), (2, 3_000, 400)] {
        let random = &mut StdRng::seed_from_u64(seed);
        let (mut view, mut model) = (MemoryView::default(), TrieModel::new());
        let mut blocks: Vec<(Option<Bytes>, TrieModel)> = Vec::new();
        let mut obsolete: BTreeSet<Vec<u8>> = BTreeSet::new();
        for block in 0..40u64 {
            let parent = RowSource::<u64>::new(&view, place).trie(block).unwrap();
            let parent = parent.unwrap_or_else(|| Trie::from_root(None));
            let items = batch(random, &mut model, keys, most);
            let mut recorder = RowRecorder::new(place, block);
            let trie = parent.update(&RowSource::new(&view, place), &items, &mut recorder).unwrap();
            assert_eq!(trie.hash(), root(&model), "seed {seed} block {block}");
            let stamp = |key: &[u8]| key.last_chunk().map(|block| u64::from_be_bytes(*block));
            for RowChange { key, previous, next } in recorder.into_rows() {
                // A version is written once, and then it is obsolete once.
                assert!(previous.is_none() != next.is_none(), "{key:02x?}");
                match next {
                    Some(row) => {
                        assert_eq!(stamp(&key), Some(block));
                        view.replace(TABLE, &key, None, Some(row)).unwrap();
                    }
                    None => assert!(stamp(&key) < Some(block) && obsolete.insert(key)),
                }
            }
            let row = record::encode_root(trie.root());
            // The row that the next block begins with.
            view.delete(TABLE, &record::root_key(b"tree", block)).unwrap();
            if let Some(row) = &row {
                view.put(TABLE, &record::root_key(b"tree", block + 1), row.clone()).unwrap();
            }
            blocks.push((row, model.clone()));
        }
        for (root_row, model) in &blocks {
            let link = root_row.as_ref().map(|row| record::decode_root::<u64>(row).unwrap());
            let old = Trie::from_root(link);
            assert_eq!(old.hash(), root(model));
            for n in 0..keys {
                let key = keccak256(n.to_be_bytes());
                let found = old.get(&RowSource::new(&view, place), &key).unwrap();
                assert_eq!(found.as_ref(), model.get(&key), "key {n}");
            }
        }
        // What is obsolete is all that the last state does not need, and nothing that it does.
        obsolete.iter().for_each(|key| view.delete(TABLE, key).unwrap());
        let all: Vec<_> =
            model.iter().map(|(key, value)| LeafUpdate::new(*key, Some(value.clone()))).collect();
        let mut fresh = RowRecorder::new(place, 0u64);
        Trie::empty(TrieHash::Keccak256).update(&BuildSource::default(), &all, &mut fresh).unwrap();
        assert_eq!(view.rows(), fresh.into_rows().len() + 1, "rows and the root's");
        let last = RowSource::<u64>::new(&view, place).trie(40).unwrap().unwrap();
        for (key, value) in &model {
            assert_eq!(last.get(&RowSource::new(&view, place), key).unwrap().as_ref(), Some(value));
        }
    }
}

#[test]
fn a_damaged_stamp_leads_to_a_missing_row_not_to_another_version() {
    let place = RowPlace::new(TABLE, &[]);
    let (mut view, mut model) = (MemoryView::default(), TrieModel::new());
    let items = batch(&mut StdRng::seed_from_u64(3), &mut model, 500, 400);
    let mut recorder = RowRecorder::new(place, 7u64);
    let trie = Trie::empty(TrieHash::Keccak256);
    let trie = trie.update(&RowSource::new(&view, place), &items, &mut recorder).unwrap();
    recorder.root(&Trie::empty(TrieHash::Keccak256), &trie);
    recorder.write(&mut view).unwrap();
    let root_row = record::encode_root(trie.root()).unwrap();
    assert_eq!(root_row.last(), Some(&7));
    let longer = [&root_row[..root_row.len() - 1], &[0x87, 0x00]].concat();
    assert!(record::decode_root::<u64>(&longer.into()).is_none(), "a stamp has one form");
    let other = [&root_row[..root_row.len() - 1], &[6]].concat();
    let other = Trie::from_root(record::decode_root::<u64>(&other.into()));
    let key = model.keys().next().unwrap();
    let error = other.get(&RowSource::new(&view, place), key).unwrap_err().to_string();
    assert!(error.contains("Versions: no row for the branch"), "{error}");
}

/// Rows that must be read by one thread alone.
struct OneThread<'a>(RowSource<'a>, thread::ThreadId);

impl NodeSource for OneThread<'_> {
    type Stamp = ();

    fn load(&self, path: &Nibbles, link: &BranchLink) -> Result<Arc<Branch>, StateError> {
        assert_eq!(thread::current().id(), self.1, "another thread loads {path:?}");
        self.0.load(path, link)
    }

    fn resolve(&self, path: &Nibbles, reference: &RlpNode) -> Result<NodeLink, StateError> {
        self.0.resolve(path, reference)
    }

    fn keep(&self, path: &Nibbles, branch: &Branch) -> bool {
        assert_eq!(thread::current().id(), self.1, "another thread makes {path:?}");
        self.0.keep(path, branch)
    }
}

#[test]
fn sequential_work_is_the_same_and_stays_on_its_thread() {
    let place = RowPlace::new(TABLE, b"");
    let random = &mut StdRng::seed_from_u64(4);
    let (mut view, mut model) = (MemoryView::default(), TrieModel::new());
    for _ in 0..6 {
        let parent = RowSource::new(&view, place).trie(()).unwrap().unwrap_or_default();
        let items = batch(random, &mut model, 8_000, 4_000);
        let mut parallel = RowRecorder::new(place, ());
        let expected = parent.update(&RowSource::new(&view, place), &items, &mut parallel).unwrap();
        let source =
            SequentialSource(OneThread(RowSource::new(&view, place), thread::current().id()));
        let mut recorder = RowRecorder::new(place, ());
        let trie = parent.update(&source, &items, &mut recorder).unwrap();
        assert_eq!((trie.hash(), trie.hash()), (expected.hash(), root(&model)));
        recorder.root(&parent, &trie);
        parallel.root(&parent, &expected);
        let sorted = |recorder: RowRecorder| {
            let mut rows = recorder.into_rows();
            rows.sort_unstable_by(|a, b| a.key.cmp(&b.key));
            rows
        };
        assert!(sorted(recorder.clone()) == sorted(parallel), "rows");
        recorder.write(&mut view).unwrap();
    }
}

#[test]
fn parts_of_any_size_join_to_the_trie_of_all_keys() {
    let random = &mut StdRng::seed_from_u64(5);
    for keys in [1, 2, 40, 3_000] {
        let mut model = TrieModel::new();
        let mut items: Vec<LeafUpdate> = batch(random, &mut model, keys, 2 * keys as usize);
        items.retain(|item| item.value.is_some());
        for depth in [1, 2, 3] {
            let slot = |item: &LeafUpdate| Nibbles::unpack(item.key).slice(..depth);
            let parts: Vec<_> = items
                .chunk_by(|a, b| slot(a) == slot(b))
                .filter_map(|items| {
                    let slot = slot(&items[0]);
                    BuiltSubtrie::build(TrieHash::Keccak256, &MemorySource, &slot, items, &mut ())
                })
                .collect();
            let trie = Trie::join(TrieHash::Keccak256, &MemorySource, &parts, &mut ());
            assert_eq!(trie.hash(), root(&model), "{keys} keys, slots of {depth} nibbles");
            for (key, value) in &model {
                assert_eq!(trie.get(&MemorySource, key).unwrap().as_ref(), Some(value));
            }
        }
    }
}
