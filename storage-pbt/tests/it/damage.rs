//! Damaged rows: every use is right or an error, and the check of the rows finds them.

use crate::{
    common::{CodedView, StateModel, TestTree, codes},
    model::steps,
};
use alloy_primitives::{B256, Bytes};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IteratorRandom};
use retrie_state::{ApplyContext, Backend, BackendKey, JobRunner, KeyForm};
use retrie_state_testkit::MemoryView;
use retrie_storage_pbt::{CODES, NODES, STEMS, STORAGE_NODES};

#[test]
fn damaged_rows_are_errors_and_the_check_finds_them() {
    let mut rng = StdRng::seed_from_u64(5);
    let mut model = StateModel::with_codes(codes(&mut rng));
    let mut tree = TestTree::new();
    for _ in 0..4 {
        let steps = steps(&mut rng, &model, 400, 60);
        tree.apply(&model.apply(steps));
    }
    let mut rebuilt = CodedView { codes: model.codes.clone(), ..CodedView::default() };
    let mut entries = model.entries().into_iter().map(Ok);
    tree.backend.bulk_load(0, &mut entries, &mut rebuilt).unwrap();
    let faults = |view: &MemoryView| {
        let mut faults = 0;
        let mut count = |_| faults += 1;
        let checked =
            tree.backend.check(view, &tree.state, tree.root, true, Some(&rebuilt.view), &mut count);
        checked.unwrap();
        faults
    };
    assert_eq!(faults(&tree.view), 0);

    let keys: Vec<BackendKey> = model.entries().into_iter().map(|(key, _)| key).collect();
    let jobs = JobRunner::without_threads(None);
    for round in 0..400 {
        let mut view = tree.view.clone();
        view.lenient = true;
        let table = [NODES, STORAGE_NODES, STEMS, CODES][round % 4];
        let rows = view.tables.get_mut(&table).unwrap();
        let key = rows.keys().choose(&mut rng).unwrap().clone();
        if rng.random_bool(0.2) {
            rows.remove(&key);
        } else {
            let mut row = rows[&key].to_vec();
            let at = rng.random_range(0..row.len());
            match rng.random_range(0..3) {
                0 => row.truncate(at),
                1 => row.push(0),
                _ => row[at] ^= 1 << rng.random_range(0..8),
            }
            rows.insert(key, Bytes::from(row));
        }
        assert!(faults(&view) > 0, "{}", table.name);
        let Ok(state) = tree.backend.open(&view, None) else { continue };
        // None of this panics.
        let some: Vec<_> = keys.iter().copied().choose_multiple(&mut rng, 20);
        let _ = tree.backend.prove(&view, &state, &some);
        let mut after = model.clone();
        let delta = KeyForm::Plain.delta(&after.apply(steps(&mut rng, &model, 60, 60)));
        let context = ApplyContext { number: 9, parent_root: B256::ZERO, jobs: &jobs };
        let _ = tree.backend.apply(&context, &mut view, &state, &delta);
    }
}
