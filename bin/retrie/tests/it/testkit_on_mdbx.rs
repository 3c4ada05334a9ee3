//! The backend test-kit on the store that users have: every check, on MDBX in place of memory.

use retrie_db::{Db, OpenOptions, SyncMode};
use retrie_state::{
    KvStore, StateStore,
    testkit::{Kit, Scale, a_key_value_store_matches_a_model, run_all_of},
};
use std::{cell::RefCell, sync::Arc};

/// Fresh databases, whose folders go at the end.
#[derive(Default)]
struct Databases(RefCell<Vec<tempfile::TempDir>>);

impl Databases {
    fn fresh(&self) -> Arc<dyn KvStore> {
        let folder = tempfile::tempdir().unwrap();
        let options = OpenOptions {
            sync: SyncMode::NoSync,
            map_limit: 1 << 28,
            growth_step: 1 << 20,
            ..OpenOptions::default()
        };
        let db = Db::create(folder.path(), &options).unwrap();
        self.0.borrow_mut().push(folder);
        db.state_store()
    }
}

/// Small ones, so that keys reach deep levels, and levels last a few blocks; with every hash function
/// that they have.
#[test]
fn every_backend_passes_the_kit_on_mdbx() {
    for backend in retrie_backends::all() {
        for (n, (variant, _)) in backend.small_ones().into_iter().enumerate() {
            println!("{variant}");
            let databases = Databases::default();
            let factory = || backend.small_ones().swap_remove(n).1;
            run_all_of(&Kit::new(&factory, Scale::small()).on(&|| databases.fresh()));
        }
    }
}

#[test]
fn mdbx_is_a_key_value_store_as_the_contract_wants_it() {
    let databases = Databases::default();
    let tables = StateStore::tables(&retrie_storage_mpt::Mpt::new());
    a_key_value_store_matches_a_model(&|| databases.fresh(), &tables);
}
