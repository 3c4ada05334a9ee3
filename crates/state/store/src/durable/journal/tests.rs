//! Replay and fold, whole, interrupted and repeated, end in the same rows.

use super::*;
use crate::{KvStore, MemoryStore, durable::fold::fold_in_slices};
use proptest::prelude::*;
use retrie_state::{KeyRange, ScanDirection};
use std::{cell::RefCell, collections::BTreeMap, time::Duration};

const TABLE: RowTable = RowTable::new(7, "Test");
const OTHER: RowTable = RowTable::new(9, "Other");
const TABLES: [RowTable; 2] = [TABLE, OTHER];

type RowModel = BTreeMap<(RowTable, u8), Bytes>;

/// Changes of one commit: table, key, and how the row changes.
type TestCommit = Vec<(bool, u8, RowEdit)>;

#[derive(Clone, Debug)]
enum RowEdit {
    Delete,
    /// A new value of so many bytes.
    Set(u8, usize),
    /// One byte of the old value, or an absent row.
    Flip(prop::sample::Index, u8),
    Append(u8),
}

fn commits() -> impl Strategy<Value = Vec<TestCommit>> {
    let edit = prop_oneof![
        1 => Just(RowEdit::Delete),
        3 => (any::<u8>(), 0usize..300).prop_map(|(byte, len)| RowEdit::Set(byte, len)),
        6 => (any::<prop::sample::Index>(), any::<u8>()).prop_map(|(at, by)| RowEdit::Flip(at, by)),
        2 => any::<u8>().prop_map(RowEdit::Append),
    ];
    prop::collection::vec(prop::collection::vec((any::<bool>(), 0u8..60, edit), 0..40), 1..12)
}

/// The writes of a commit on `model`, which they change.
fn layer(model: &mut RowModel, commit: &TestCommit) -> DiffLayer {
    let mut changed = BTreeMap::new();
    for (other, key, edit) in commit {
        let place = (TABLES[usize::from(*other)], *key);
        let old = model.get(&place).cloned();
        let mut value = old.clone().unwrap_or_default().to_vec();
        let next = match edit {
            RowEdit::Delete => None,
            RowEdit::Set(byte, len) => Some(vec![*byte; *len]),
            RowEdit::Flip(_, _) if value.is_empty() => Some(vec![1; 64]),
            RowEdit::Flip(at, by) => {
                let at = at.index(value.len());
                value[at] ^= by;
                Some(value)
            }
            RowEdit::Append(byte) => {
                value.push(*byte);
                Some(value)
            }
        };
        changed.entry(place).or_insert(old);
        match next {
            Some(next) => drop(model.insert(place, next.into())),
            None => drop(model.remove(&place)),
        }
    }
    let mut layer = DiffLayer::default();
    for ((table, key), previous) in changed {
        let next = model.get(&(table, key)).cloned();
        let previous = PreviousValue::Known(previous);
        layer.overwrite(table, RowKey::from_slice(&[key]), previous, next);
    }
    layer
}

fn write_commit(kv: &MemoryStore, seq: u64, layer: &DiffLayer) {
    let mut txn = kv.begin_write().unwrap();
    write(&mut *txn, seq, layer, true).unwrap();
    txn.commit().unwrap();
}

/// A copy that a later change of `kv` does not reach.
fn copy_of(kv: &MemoryStore) -> MemoryStore {
    let copy = MemoryStore::new();
    let mut txn = copy.begin_write().unwrap();
    let snapshot = kv.snapshot().unwrap();
    for table in TABLES.into_iter().chain([JOURNAL, crate::durable::state::META]) {
        for (key, value) in
            snapshot.scan(table, KeyRange::ALL, ScanDirection::Forward, usize::MAX).unwrap()
        {
            txn.put(table, &key, &value).unwrap();
        }
    }
    txn.commit().unwrap();
    copy
}

fn rows(kv: &MemoryStore) -> RowModel {
    let snapshot = kv.snapshot().unwrap();
    let rows = TABLES.into_iter().flat_map(|table| {
        let rows = snapshot.scan(table, KeyRange::ALL, ScanDirection::Forward, usize::MAX);
        rows.unwrap().into_iter().map(move |(key, value)| ((table, key[0]), value))
    });
    rows.collect()
}

fn reopened(kv: &MemoryStore, tip: u64) -> RowGeneration {
    let snapshot = kv.snapshot().unwrap();
    let folded = snapshot.get(crate::durable::state::META, crate::durable::state::FOLDED).unwrap();
    let folded = folded.map_or(0, |row| u64::from_be_bytes(row[..].try_into().unwrap()));
    let progress = FoldProgress::read(&*snapshot).unwrap();
    replay(&*snapshot, &TABLES, folded, tip, &progress).unwrap()
}

/// What a reader sees through `generation`.
fn seen(kv: &MemoryStore, generation: &RowGeneration, tip: u64) -> RowModel {
    let snapshot = kv.snapshot().unwrap();
    let places = TABLES.into_iter().flat_map(|table| (0..60).map(move |key| (table, key)));
    let row = |(table, key): (RowTable, u8)| {
        let value = generation.get(table, &[key], tip);
        let value = value.unwrap_or_else(|| snapshot.get(table, &[key]).unwrap());
        value.map(|value| ((table, key), value))
    };
    places.filter_map(row).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Each crash leaves what one slice of a fold has committed. The next opening sees the same
    /// state, goes on committing, and its own fold may be interrupted too.
    #[test]
    fn a_state_survives_crashes_within_its_folds(
        rounds in prop::collection::vec((commits(), any::<prop::sample::Index>()), 1..5),
    ) {
        let mut kv = MemoryStore::new();
        let (mut model, mut tip) = (RowModel::new(), 0);
        for (commits, crash) in rounds {
            for commit in &commits {
                tip += 1;
                write_commit(&kv, tip, &layer(&mut model, commit));
            }
            let generation = reopened(&kv, tip);
            prop_assert_eq!(&seen(&kv, &generation, tip), &model);
            // Slices of one row each: the store after each of them is where a crash may leave it.
            let stages = RefCell::new(vec![copy_of(&kv)]);
            fold_in_slices(&kv, &generation, 1, Duration::ZERO, || {
                stages.borrow_mut().push(copy_of(&kv));
            })
            .unwrap();
            prop_assert_eq!(&rows(&kv), &model);
            let stages = stages.into_inner();
            for stage in &stages {
                prop_assert_eq!(&seen(stage, &reopened(stage, tip), tip), &model);
            }
            kv = copy_of(&stages[crash.index(stages.len())]);
        }
    }
}

/// So many bases are read from the tables by several threads.
#[test]
fn many_patches_of_folded_rows_are_replayed() {
    let kv = MemoryStore::new();
    let row = |n: u16, last: u8| Bytes::from([&[7; 90], &n.to_be_bytes()[..], &[last]].concat());
    let count = 10 * LEAST_READS as u16;
    let mut layer = DiffLayer::default();
    let mut txn = kv.begin_write().unwrap();
    for n in 0..count {
        txn.put(TABLE, &n.to_be_bytes(), &row(n, 0)).unwrap();
        let (key, old) =
            (RowKey::from_slice(&n.to_be_bytes()), PreviousValue::Known(Some(row(n, 0))));
        layer.overwrite(TABLE, key, old, Some(row(n, 1)));
    }
    txn.commit().unwrap();
    write_commit(&kv, 1, &layer);
    let generation = reopened(&kv, 1);
    for n in 0..count {
        assert_eq!(generation.get(TABLE, &n.to_be_bytes(), 1), Some(Some(row(n, 1))));
    }
}

#[test]
fn a_missing_record_is_corruption() {
    let kv = MemoryStore::new();
    let mut model = RowModel::new();
    for seq in 1..=3 {
        write_commit(&kv, seq, &layer(&mut model, &vec![(false, 1, RowEdit::Set(7, 9))]));
    }
    let progress = FoldProgress::default();
    let missing = replay(&*kv.snapshot().unwrap(), &TABLES, 0, 4, &progress).unwrap_err();
    assert!(missing.to_string().contains("record 4 is missing"), "{missing}");
}

#[test]
fn a_patch_of_another_row_is_corruption() {
    let kv = MemoryStore::new();
    let mut model = RowModel::new();
    write_commit(&kv, 1, &layer(&mut model, &vec![(false, 1, RowEdit::Set(7, 200))]));
    write_commit(&kv, 2, &layer(&mut model, &vec![(false, 1, RowEdit::Append(1))]));
    let progress = FoldProgress::default();
    let error = replay(&*kv.snapshot().unwrap(), &TABLES, 1, 2, &progress).unwrap_err();
    assert!(error.to_string().contains("a record has a patch"), "{error}");
}
