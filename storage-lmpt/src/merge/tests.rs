//! Merges of many keys in batches, into snapshots with few and with many keys.

use super::*;
use crate::snapshot::RowOrigin;
use alloy_primitives::keccak256;
use proptest::prelude::*;
use retrie_storage_mpt::{
    MemorySource, TrieHash,
    trie::{BuildSource, record},
};

/// Leaves by path, as in the snapshot. In changes, `None` removes a key.
type LeafModel = BTreeMap<B256, Bytes>;
type ChangedKeys = BTreeMap<B256, Option<Bytes>>;

/// Rows of tables, by key.
#[derive(Clone, Default)]
struct MemoryView(BTreeMap<(RowTable, Vec<u8>), Bytes>);

impl NodeRead for MemoryView {
    fn get(&self, table: RowTable, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        Ok(self.0.get(&(table, key.to_vec())).cloned())
    }

    fn scan<'a>(
        &'a self,
        table: RowTable,
        range: KeyRange<'_>,
        _: ScanDirection,
    ) -> Result<RowIter<'a>, StateError> {
        let within =
            |(key, _): &(&(RowTable, Vec<u8>), &Bytes)| key.0 == table && range.contains(&key.1);
        let rows: Vec<_> = self.0.iter().filter(within).collect();
        Ok(Box::new(rows.into_iter().map(|((_, key), row)| Ok((key.clone().into(), row.clone())))))
    }
}

impl MemoryView {
    fn write(&mut self, rows: &[MadeRow], origin: RowOrigin) {
        let rows =
            rows.iter().map(|MadeRow { table, key, row }| ((*table, origin.key(key)), row.clone()));
        self.0.extend(rows);
    }
}

/// A snapshot, and its expected leaves.
struct SnapshotModel {
    view: MemoryView,
    trie: Trie<u64>,
    model: LeafModel,
    generation: u64,
}

fn path(n: u64) -> B256 {
    keccak256(n.to_be_bytes())
}

/// Changes of these keys: most get a value that depends on `salt`, some are removed.
fn changes(keys: impl IntoIterator<Item = u64>, salt: u64) -> ChangedKeys {
    let change = |n: u64| {
        let value = (!(n + salt).is_multiple_of(7))
            .then(|| leaf::encode(Some(&Bytes::from((n ^ salt << 32).to_be_bytes().to_vec()))));
        (path(n), value)
    };
    keys.into_iter().map(change).collect()
}

impl SnapshotModel {
    /// The snapshot after a first block with `keys` keys.
    fn of_first_block(keys: u64) -> Self {
        let of_key = |(path, leaf): (B256, Option<Bytes>)| Some((path, leaf?));
        let model: LeafModel = changes(0..keys, 1).into_iter().filter_map(of_key).collect();
        let items: Vec<_> =
            model.iter().map(|(path, leaf)| LeafUpdate::new(*path, Some(leaf.clone()))).collect();
        let mut recorded = SnapshotChanges::new(0);
        let empty = Trie::empty(TrieHash::Keccak256);
        let trie = empty.update(&BuildSource::default(), &items, &mut recorded).unwrap();
        let rows = recorded.into_rows().map(|(key, row)| ((SNAPSHOT, key), row));
        Self { view: MemoryView(rows.collect()), trie, model, generation: 0 }
    }

    /// As after an opening: no branch of the trie is in memory.
    fn reopen(&mut self) {
        let root = record::encode_root(self.trie.root());
        self.trie = root.map_or_else(
            || Trie::empty(TrieHash::Keccak256),
            |root| Trie::from_root(Some(record::decode_root(&root).unwrap())),
        );
    }

    fn rows(&self, frozen: &Trie, view: &MemoryView, batch: usize) -> (Vec<MadeRow>, Trie<u64>) {
        let progress = MergeProgress::new();
        let view = || Ok(view as &dyn NodeRead);
        let trie = make_rows(self.generation, frozen, &self.trie, &progress, batch, view).unwrap();
        let rows = progress.rows(0, usize::MAX).to_vec();
        (rows, trie)
    }

    /// Merges `changes` with each of these batch sizes, with more and more rows written ahead. Each
    /// must make the rows and the root that a single batch makes. These rows are published.
    fn merge(&mut self, changes: &ChangedKeys, batches: &[usize]) {
        self.generation += 1;
        let items: Vec<_> = changes
            .iter()
            .map(|(path, leaf)| {
                LeafUpdate::new(*path, Some(leaf.clone().unwrap_or_else(|| leaf::encode(None))))
            })
            .collect();
        let frozen = Trie::default().update(&MemorySource, &items, &mut ()).unwrap();
        for (path, leaf) in changes {
            match leaf {
                Some(leaf) => drop(self.model.insert(*path, leaf.clone())),
                None => drop(self.model.remove(path)),
            }
        }
        let all: Vec<_> = self
            .model
            .iter()
            .map(|(path, leaf)| LeafUpdate::new(*path, Some(leaf.clone())))
            .collect();
        let root = Trie::default().update(&MemorySource, &all, &mut ()).unwrap().hash();
        let (rows, trie) = self.rows(&frozen, &self.view, usize::MAX);
        assert_eq!(trie.hash(), root);
        let mut last = trie;
        for (n, batch) in batches.iter().enumerate() {
            let mut view = self.view.clone();
            view.write(&rows[..rows.len() * n / batches.len()], RowOrigin::Ahead);
            let (made, trie) = self.rows(&frozen, &view, *batch);
            assert_eq!(trie.hash(), root, "{batch} at a time");
            assert!(made == rows, "{batch} at a time there are other rows");
            last = trie;
        }
        self.view.write(&rows, RowOrigin::Block);
        self.trie = last;
    }
}

/// Regression. After a genesis of a few keys the root has fewer than eight branches. So it is not
/// split, and it was not kept in memory, and the branches kept below it were lost with it. A split
/// branch below was then read from its row; the heads of its children's rows were missing, because
/// these rows were made.
#[test]
fn a_young_snapshot_takes_thousands_of_keys_in_many_steps() {
    for (first, merged) in [(0, 6_000), (1, 3_000), (12, 6_000), (40, 3_000)] {
        let mut store = SnapshotModel::of_first_block(first);
        store.merge(&changes(0..merged, 2), &[BATCH, BATCH]);
        store.reopen();
        store.merge(&changes(merged / 2..2 * merged, 3), &[BATCH, 3 * BATCH]);
        store.merge(&changes(0..merged, 4), &[BATCH]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn rows_and_roots_do_not_depend_on_how_many_keys_are_taken_at_a_time(
        first in 0u64..60,
        merges in proptest::collection::vec((0u64..500, 1u64..2_500, any::<bool>()), 1..4),
        batches in proptest::collection::vec(1usize..200, 1..3),
    ) {
        let mut store = SnapshotModel::of_first_block(first);
        for (salt, (from, count, reopens)) in (2..).zip(merges) {
            if reopens {
                store.reopen();
            }
            store.merge(&changes(from..from + count, salt), &batches);
        }
    }
}
