//! Merges of many keys, some at a time, into snapshots of few and of many.

use super::*;
use crate::snapshot::Origin;
use alloy_primitives::keccak256;
use proptest::prelude::*;
use retrie_storage_mpt::{
    InMemory, TrieHash,
    trie::{Unkept, row},
};

/// Leaves by path, as the snapshot has them; in changes, `None` removes a key.
type Model = BTreeMap<B256, Bytes>;
type ChangedKeys = BTreeMap<B256, Option<Bytes>>;

/// Rows of tables, by key.
#[derive(Clone, Default)]
struct View(BTreeMap<(Table, Vec<u8>), Bytes>);

impl NodeRead for View {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        Ok(self.0.get(&(table, key.to_vec())).cloned())
    }

    fn scan<'a>(
        &'a self,
        table: Table,
        range: KeyRange<'_>,
        _: Direction,
    ) -> Result<RowIter<'a>, StateError> {
        let within =
            |(key, _): &(&(Table, Vec<u8>), &Bytes)| key.0 == table && range.contains(&key.1);
        let rows: Vec<_> = self.0.iter().filter(within).collect();
        Ok(Box::new(rows.into_iter().map(|((_, key), row)| Ok((key.clone().into(), row.clone())))))
    }
}

impl View {
    fn write(&mut self, rows: &[Made], origin: Origin) {
        let rows =
            rows.iter().map(|Made { table, key, row }| ((*table, origin.key(key)), row.clone()));
        self.0.extend(rows);
    }
}

/// A snapshot, and what it should hold.
struct Store {
    view: View,
    trie: Trie<u64>,
    model: Model,
    generation: u64,
}

fn path(n: u64) -> B256 {
    keccak256(n.to_be_bytes())
}

/// Changes of these keys: most get a value that depends on `salt`, some go.
fn changes(keys: impl IntoIterator<Item = u64>, salt: u64) -> ChangedKeys {
    let change = |n: u64| {
        let value = (!(n + salt).is_multiple_of(7))
            .then(|| leaf::encode(Some(&Bytes::from((n ^ salt << 32).to_be_bytes().to_vec()))));
        (path(n), value)
    };
    keys.into_iter().map(change).collect()
}

impl Store {
    /// What a first block with `keys` keys leaves.
    fn of_first_block(keys: u64) -> Self {
        let of_key = |(path, leaf): (B256, Option<Bytes>)| Some((path, leaf?));
        let model: Model = changes(0..keys, 1).into_iter().filter_map(of_key).collect();
        let items: Vec<_> =
            model.iter().map(|(path, leaf)| Item::new(*path, Some(leaf.clone()))).collect();
        let mut recorded = Changes::new(0);
        let empty = Trie::empty(TrieHash::Keccak256);
        let trie = empty.update(&Unkept::default(), &items, &mut recorded).unwrap();
        let rows = recorded.into_rows().map(|(key, row)| ((SNAPSHOT, key), row));
        Self { view: View(rows.collect()), trie, model, generation: 0 }
    }

    /// As after opening: nothing of the trie is in memory.
    fn reopen(&mut self) {
        let root = row::encode_root(self.trie.root());
        self.trie = root.map_or_else(
            || Trie::empty(TrieHash::Keccak256),
            |root| Trie::from_root(Some(row::decode_root(&root).unwrap())),
        );
    }

    fn rows(&self, frozen: &Trie, view: &View, batch: usize) -> (Vec<Made>, Trie<u64>) {
        let progress = Progress::new();
        let view = || Ok(view as &dyn NodeRead);
        let trie = make_rows(self.generation, frozen, &self.trie, &progress, batch, view).unwrap();
        let rows = progress.rows(0, usize::MAX).to_vec();
        (rows, trie)
    }

    /// Merges `changes` with each of these batches, and with the first rows settled; all must make the
    /// rows and the root that one batch of all makes. These are published.
    fn merge(&mut self, changes: &ChangedKeys, batches: &[usize]) {
        self.generation += 1;
        let items: Vec<_> = changes
            .iter()
            .map(|(path, leaf)| {
                Item::new(*path, Some(leaf.clone().unwrap_or_else(|| leaf::encode(None))))
            })
            .collect();
        let frozen = Trie::default().update(&InMemory, &items, &mut ()).unwrap();
        for (path, leaf) in changes {
            match leaf {
                Some(leaf) => drop(self.model.insert(*path, leaf.clone())),
                None => drop(self.model.remove(path)),
            }
        }
        let all: Vec<_> =
            self.model.iter().map(|(path, leaf)| Item::new(*path, Some(leaf.clone()))).collect();
        let root = Trie::default().update(&InMemory, &all, &mut ()).unwrap().hash();
        let (rows, trie) = self.rows(&frozen, &self.view, usize::MAX);
        assert_eq!(trie.hash(), root);
        let mut last = trie;
        for (n, batch) in batches.iter().enumerate() {
            let mut view = self.view.clone();
            view.write(&rows[..rows.len() * n / batches.len()], Origin::Settled);
            let (made, trie) = self.rows(&frozen, &view, *batch);
            assert_eq!(trie.hash(), root, "{batch} at a time");
            assert!(made == rows, "{batch} at a time there are other rows");
            last = trie;
        }
        self.view.write(&rows, Origin::Block);
        self.trie = last;
    }
}

/// The fault: a genesis of a few keys has a root with less than eight branches, which is not split, so it
/// was not kept in memory, and what was kept below it went with it. A split branch below was then read
/// from its row, and the heads of its children's rows were not there, as these were made.
#[test]
fn a_young_snapshot_takes_thousands_of_keys_in_many_steps() {
    for (first, merged) in [(0, 6_000), (1, 3_000), (12, 6_000), (40, 3_000)] {
        let mut store = Store::of_first_block(first);
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
        let mut store = Store::of_first_block(first);
        for (salt, (from, count, reopens)) in (2..).zip(merges) {
            if reopens {
                store.reopen();
            }
            store.merge(&changes(from..from + count, salt), &batches);
        }
    }
}
