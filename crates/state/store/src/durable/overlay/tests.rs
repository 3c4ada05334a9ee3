//! Reads through all levels against a `BTreeMap`, and the shape of layer stacks.

use super::*;
use crate::durable::{
    generation::{LeaseTable, RowGeneration},
    patch,
    record::RecordValue,
};
use crate::{KvStore, MemoryStore};
use proptest::prelude::*;
use std::collections::BTreeMap;

const TABLE: RowTable = RowTable::new(7, "Test");
const OTHER: RowTable = RowTable::new(8, "Other");

type RowModel = BTreeMap<Vec<u8>, Bytes>;
/// Keys and what becomes of them.
type TestWrites = Vec<(u8, Option<u8>)>;

/// Keys of one to three bytes: some are prefixes of others.
fn key(n: u8) -> Vec<u8> {
    match n % 3 {
        0 => vec![n],
        1 => vec![n - 1, 0],
        _ => vec![n - 2, 0, 7],
    }
}

/// Half of the values are long and alike, so that they become patches of each other.
fn value(n: u8) -> Bytes {
    let end = vec![n; 1 + n as usize % 3];
    if n.is_multiple_of(2) { [&[5; 60], &end[..]].concat().into() } else { end.into() }
}

fn write(model: &mut RowModel, writes: &TestWrites) {
    for (k, v) in writes {
        match v {
            Some(v) => drop(model.insert(key(*k), value(*v))),
            None => drop(model.remove(&key(*k))),
        }
    }
}

fn layer(writes: &TestWrites) -> DiffLayer {
    let mut layer = DiffLayer::default();
    for (k, v) in writes {
        let unknown = PreviousValue::Unknown;
        layer.overwrite(TABLE, RowKey::from_slice(&key(*k)), unknown.clone(), v.map(value));
        // Another table must not shine through.
        layer.overwrite(OTHER, RowKey::from_slice(&key(k ^ 1)), unknown, Some(value(1)));
    }
    layer
}

/// The undo of a block that leads to `model` with `writes` on top, which it becomes.
fn undo_layer(model: &mut RowModel, writes: &TestWrites) -> UndoLayer {
    let above = model.clone();
    write(model, writes);
    let mut layer = UndoLayer::default();
    let changed: BTreeMap<_, _> = writes.iter().map(|(k, _)| (key(*k), ())).collect();
    for key in changed.into_keys() {
        let mut patch = Vec::new();
        let undone = match (model.get(&key), above.get(&key)) {
            (Some(value), Some(base)) if patch::put(&mut patch, base, value) => {
                RecordValue::Patch(patch.into())
            }
            (Some(value), _) => RecordValue::Whole(value.clone()),
            (None, _) => RecordValue::Absent,
        };
        layer.add_older(TABLE, RowKey::from_slice(&key), undone).unwrap();
        layer.add_older(OTHER, RowKey::from_slice(&key), RecordValue::Whole(value(1))).unwrap();
    }
    layer
}

/// What the levels hold, oldest first.
#[derive(Clone, Debug)]
struct ViewLevels {
    tables: TestWrites,
    /// Commits of each generation.
    generations: Vec<Vec<TestWrites>>,
    /// Commits after the reader was opened, in the last generation.
    later: Vec<TestWrites>,
    /// The newest first, as in a view.
    reverse: Vec<TestWrites>,
    stack: Vec<TestWrites>,
    top: TestWrites,
}

fn writes(max: usize) -> impl Strategy<Value = TestWrites> {
    prop::collection::vec((any::<u8>(), prop::option::weighted(0.6, any::<u8>())), 0..max)
}

fn levels() -> impl Strategy<Value = ViewLevels> {
    (
        writes(300),
        prop::collection::vec(prop::collection::vec(writes(60), 0..4), 1..4),
        prop::collection::vec(writes(60), 0..3),
        prop::collection::vec(writes(60), 0..4),
        prop::collection::vec(writes(60), 0..5),
        writes(40),
    )
        .prop_map(|(tables, generations, later, reverse, stack, top)| ViewLevels {
            tables,
            generations,
            later,
            reverse,
            stack,
            top,
        })
}

impl ViewLevels {
    /// A view of all of it, and its model, without `top`.
    fn view(&self) -> (RowView, RowModel) {
        let mut model = RowModel::new();
        let kv = MemoryStore::new();
        let mut txn = kv.begin_write().unwrap();
        for (k, v) in &self.tables {
            txn.put(TABLE, &key(*k), &value(v.unwrap_or(9))).unwrap();
            model.insert(key(*k), value(v.unwrap_or(9)));
        }
        txn.commit().unwrap();
        let mut seq = 0;
        let mut generations = Vec::new();
        for commits in &self.generations {
            let generation = RowGeneration::new(&[TABLE, OTHER]);
            for commit in commits {
                seq += 1;
                generation.insert(seq, &layer(commit), seq - 1);
                write(&mut model, commit);
            }
            generations.push(Arc::new(generation));
        }
        let leases = Arc::new(LeaseTable::default());
        let active = generations[generations.len() - 1].clone();
        let durable = DurableRows::new(generations, seq, kv.snapshot().unwrap(), &leases);
        for (n, commit) in self.later.iter().enumerate() {
            let seq = seq + 1 + n as u64;
            active.insert(seq, &layer(commit), leases.oldest(seq - 1));
        }
        let undone = self.reverse.iter().rev().map(|writes| undo_layer(&mut model, writes));
        let reverse: Vec<_> = undone.map(Arc::new).collect();
        let reverse = reverse.into_iter().rev().collect();
        let mut stack = LayerStack::default();
        for writes in &self.stack {
            stack = stack.pushed(Arc::new(layer(writes)));
            write(&mut model, writes);
        }
        let counters = Arc::default();
        (RowView { stack, reverse, durable: Arc::new(durable), counters, is_timed: true }, model)
    }
}

fn compare(view: &dyn NodeRead, model: &RowModel, range: (&[u8], Option<&[u8]>), take: usize) {
    for n in 0..=u8::MAX {
        assert_eq!(view.get(TABLE, &key(n)).unwrap().as_ref(), model.get(&key(n)), "{n}");
    }
    let range = KeyRange { start: range.0, end: range.1 };
    let inside = model.iter().filter(|(key, _)| range.contains(key));
    let expected: Vec<_> = inside.map(|(k, v)| (Bytes::copy_from_slice(k), v.clone())).collect();
    let rows = |direction, take| -> Vec<_> {
        let rows = view.scan(TABLE, range, direction).unwrap();
        rows.take(take).collect::<Result<_, _>>().unwrap()
    };
    assert_eq!(rows(ScanDirection::Forward, usize::MAX), expected);
    let count = take.min(expected.len());
    assert_eq!(rows(ScanDirection::Forward, take), expected[..count]);
    let backward: Vec<_> = expected.into_iter().rev().collect();
    assert_eq!(rows(ScanDirection::Backward, usize::MAX), backward);
    assert_eq!(rows(ScanDirection::Backward, take), backward[..count]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn range_reads_merge_all_levels_in_both_directions(
        levels in levels(),
        start in prop::collection::vec(any::<u8>(), 0..3),
        end in prop::option::of(prop::collection::vec(any::<u8>(), 0..3)),
        take in 0usize..40,
    ) {
        let (view, mut model) = levels.view();
        compare(&view, &model, (&[], None), take);
        compare(&view, &model, (&start, end.as_deref()), take);
        let detached = view.detach().expect("views have a life of their own");

        // Writes come one by one, with range reads in between.
        let before = model.clone();
        let mut write_view = RowWriter::new(view, true);
        for (n, (k, v)) in levels.top.iter().enumerate() {
            match v {
                Some(v) => write_view.put(TABLE, &key(*k), value(*v)).unwrap(),
                None => write_view.delete(TABLE, &key(*k)).unwrap(),
            }
            write(&mut model, &vec![(*k, *v)]);
            if n % 7 == 0 {
                compare(write_view.as_read(), &model, (&start, end.as_deref()), take);
            }
        }
        compare(&write_view, &model, (&[], None), take);
        let parent = write_view.detach().expect("the parent's state");
        compare(&*parent, &before, (&start, end.as_deref()), take);
        compare(&*detached, &before, (&[], None), take);

        // The layer is the difference, and its previous values lead back.
        let (layer, view) = write_view.finish();
        let changed: RowModel = model
            .iter()
            .filter(|(key, value)| before.get(*key) != Some(value))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let gone = before.keys().filter(|key| !model.contains_key(*key)).count();
        prop_assert_eq!(layer.len(), changed.len() + gone);
        for (_, key, row) in layer.iter() {
            let previous = PreviousValue::Known(before.get(&key[..]).cloned());
            prop_assert_eq!(&row.previous, &previous);
            prop_assert_eq!(row.next.as_ref(), model.get(&key[..]));
        }
        let mut stacked = view;
        stacked.stack = stacked.stack.pushed(Arc::new(layer));
        compare(&stacked, &model, (&start, end.as_deref()), take);
    }

    #[test]
    fn layer_stacks_stay_shallow_and_keep_every_row(
        sizes in prop::collection::vec(0usize..200, 1..80),
    ) {
        let mut stack = LayerStack::default();
        let mut model = BTreeMap::new();
        let mut total = 0;
        for (n, size) in sizes.iter().enumerate() {
            let mut layer = DiffLayer::default();
            for k in 0..*size {
                // Half the keys recur.
                let key = if k % 2 == 0 { k } else { n * 1000 + k };
                let key = RowKey::from_slice(&key.to_be_bytes());
                layer.overwrite(
                    TABLE,
                    key.clone(),
                    PreviousValue::Unknown,
                    Some(value(n as u8)),
                );
                model.insert(key, value(n as u8));
            }
            total += size;
            stack = stack.pushed(Arc::new(layer));
            // Each is more than twice the one above; those below 64 rows are merged at once.
            let bound = 2 + (total / 32 + 1).ilog2() as usize;
            prop_assert!(stack.0.len() <= bound, "{} layers of {total} rows", stack.0.len());
        }
        for (key, value) in &model {
            let found = stack.0.iter().rev().find_map(|layer| layer.get(TABLE, key));
            prop_assert_eq!(found.map(|row| row.next.as_ref()), Some(Some(value)));
        }
    }
}

#[test]
fn keys_and_names_that_the_store_cannot_hold_are_refused_when_written() {
    let empty = ViewLevels {
        tables: Vec::new(),
        generations: vec![Vec::new()],
        later: Vec::new(),
        reverse: Vec::new(),
        stack: Vec::new(),
        top: Vec::new(),
    };
    let mut view = RowWriter::new(empty.view().0, true);
    let long = vec![1; MAX_KEY + 1];
    assert!(view.put(TABLE, &long[1..], Bytes::new()).is_ok());
    assert!(view.put(TABLE, &long, Bytes::new()).is_err());
    assert!(view.delete(TABLE, &long).is_err());
    assert!(view.replace(TABLE, &long, None, None).is_err());
    for name in ["", ".", "..", "../x", "a/b", "a\0", ".hidden", "ä", &"x".repeat(201)] {
        let error = view.publish_file(name).unwrap_err().to_string();
        assert!(error.contains("file names"), "{error}");
    }
    view.publish_file("run-1.data").unwrap();
    let (layer, _) = view.finish();
    assert_eq!(layer.len(), 2);
}

#[test]
fn a_failing_store_fails_the_range_read_once_and_ends_it() {
    struct BrokenStore;
    impl crate::KvRead for BrokenStore {
        fn get(&self, _: RowTable, _: &[u8]) -> Result<Option<Bytes>, StoreError> {
            Err(StoreError::new("reading", "broken"))
        }
        fn seek(
            &self,
            _: RowTable,
            _: Option<&[u8]>,
            _: ScanDirection,
        ) -> Result<Option<retrie_state::TableRow>, StoreError> {
            Err(StoreError::new("reading", "broken"))
        }
        fn scan(
            &self,
            _: RowTable,
            range: KeyRange<'_>,
            _: ScanDirection,
            limit: usize,
        ) -> Result<Vec<retrie_state::TableRow>, StoreError> {
            // The first batch is whole, the second one fails.
            if !range.start.is_empty() {
                return Err(StoreError::new("reading", "broken"));
            }
            Ok((0..limit).map(|n| (Bytes::from(vec![n as u8]), Bytes::new())).collect())
        }
        fn count(&self, _: RowTable) -> Result<u64, StoreError> {
            Ok(0)
        }
    }
    let leases = Arc::new(LeaseTable::default());
    let durable = Arc::new(DurableRows::new(Vec::new(), 0, Arc::new(BrokenStore), &leases));
    let mut view = RowView {
        stack: LayerStack::default(),
        reverse: Vec::new(),
        durable,
        counters: Arc::default(),
        is_timed: true,
    };
    view.stack = view.stack.pushed(Arc::new(layer(&vec![(3, None), (255, Some(1))])));
    assert!(view.get(TABLE, &[9]).is_err());
    let rows: Vec<_> = view.scan(TABLE, KeyRange::ALL, ScanDirection::Forward).unwrap().collect();
    assert_eq!(rows.iter().filter(|row| row.is_err()).count(), 1);
    assert!(rows.last().is_some_and(Result::is_err));
    let rows: Vec<_> =
        view.scan(TABLE, KeyRange::from(&[1]), ScanDirection::Forward).unwrap().collect();
    assert!(matches!(rows[..], [Err(_)]));
}
