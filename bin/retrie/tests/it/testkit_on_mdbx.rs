//! The backend test-kit on the production store: every check runs on MDBX instead of memory.

use retrie_db::{DatabaseEnv, OpenOptions, SyncMode};
use retrie_state_store::{KvStore, StateStore};
use retrie_state_testkit::{
    TestKit, TestScale, a_key_value_store_matches_a_model, run_all_of, sample,
};
use std::{cell::RefCell, sync::Arc};

/// Fresh databases in temporary folders.
#[derive(Default)]
struct TempDatabases(RefCell<Vec<tempfile::TempDir>>);

impl TempDatabases {
    fn fresh(&self) -> Arc<dyn KvStore> {
        let folder = tempfile::tempdir().unwrap();
        let options = OpenOptions {
            sync: SyncMode::NoSync,
            map_limit: 1 << 28,
            growth_step: 1 << 20,
            ..OpenOptions::default()
        };
        let db = DatabaseEnv::create(folder.path(), &options).unwrap();
        self.0.borrow_mut().push(folder);
        db.state_store()
    }
}

/// The kit for a third of the backends, since tests run beside each other. Small parameters, so that
/// keys reach deep levels and levels last only a few blocks; with every hash function that the backend
/// supports. A sample has the default hash function and one form of keys, and every second backend;
/// the backends' own crates run all backends, forms and functions.
fn run_third(part: usize) {
    for (at, backend) in retrie_backends::all().skip(part).step_by(3).enumerate() {
        if !sample::takes(at + part, 2) {
            continue;
        }
        let variants = sample::or_all(1, usize::MAX);
        for (n, (variant, _)) in backend.small_variants().into_iter().enumerate().take(variants) {
            println!("{variant}");
            let scale = sample::or_all(TestScale::smallest(), TestScale::small());
            let databases = TempDatabases::default();
            let factory = || backend.small_variants().swap_remove(n).1;
            let kit = || TestKit::new(&factory, scale);
            let is_whole = sample::is_everything();
            if is_whole || part != 1 {
                run_all_of(&kit().on(&|| databases.fresh()));
            }
            if is_whole || part == 1 {
                run_all_of(&kit().hashed().on(&|| databases.fresh()));
            }
        }
    }
}

#[test]
fn the_first_backend_and_every_third_pass_the_kit_on_mdbx() {
    run_third(0);
}

#[test]
fn the_second_backend_and_every_third_pass_the_kit_on_mdbx() {
    run_third(1);
}

#[test]
fn the_third_backend_and_every_third_pass_the_kit_on_mdbx() {
    run_third(2);
}

#[test]
fn mdbx_is_a_key_value_store_as_the_contract_wants_it() {
    let databases = TempDatabases::default();
    let tables = StateStore::tables(&retrie_storage_mpt::Mpt::new());
    a_key_value_store_matches_a_model(&|| databases.fresh(), &tables);
}
