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

/// Small parameters, so that keys reach deep levels and levels last only a few blocks; with every
/// hash function that the backend supports.
#[test]
fn every_backend_passes_the_kit_on_mdbx() {
    for backend in retrie_backends::all() {
        for (n, (variant, _)) in backend.small_variants().into_iter().enumerate() {
            println!("{variant}");
            let scale = sample::or_all(TestScale::smallest(), TestScale::small());
            let databases = TempDatabases::default();
            let factory = || backend.small_variants().swap_remove(n).1;
            run_all_of(&TestKit::new(&factory, scale).on(&|| databases.fresh()));
            // With hashed keys the first variant, as the backends' own crates run all.
            if sample::is_everything() || n == 0 {
                let hashed = TestKit::new(&factory, scale).hashed();
                run_all_of(&hashed.on(&|| databases.fresh()));
            }
        }
    }
}

#[test]
fn mdbx_is_a_key_value_store_as_the_contract_wants_it() {
    let databases = TempDatabases::default();
    let tables = StateStore::tables(&retrie_storage_mpt::Mpt::new());
    a_key_value_store_matches_a_model(&|| databases.fresh(), &tables);
}
