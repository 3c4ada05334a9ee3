//! The backend test-kit on the store that users have: every check, on MDBX in place of memory.

use retrie_db::{Db, OpenOptions, SyncMode};
use retrie_state::{
    Backend, KvStore, StateStore,
    testkit::{Kit, Scale, a_key_value_store_matches_a_model, run_all_of},
};
use retrie_storage_cole::Cole;
use retrie_storage_lvmt::{Lvmt, Params, ProofShard};
use retrie_storage_mpt::{MptArchive, TrieHash};
use std::{cell::RefCell, ops::ControlFlow, sync::Arc};

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

fn passes_on_mdbx(factory: &dyn Fn() -> Arc<dyn Backend>) {
    let databases = Databases::default();
    run_all_of(&Kit::new(factory, Scale::small()).on(&|| databases.fresh()));
}

#[test]
fn raw_passes_the_kit_on_mdbx() {
    passes_on_mdbx(&|| Arc::new(retrie_storage_raw::Raw));
}

#[test]
fn mpt_passes_the_kit_on_mdbx() {
    passes_on_mdbx(&|| Arc::new(retrie_storage_mpt::Mpt::new()));
}

#[test]
fn mpt_archive_passes_the_kit_on_mdbx() {
    for hash in [TrieHash::Keccak256, TrieHash::Blake2b256] {
        passes_on_mdbx(&|| Arc::new(MptArchive::new(hash)));
    }
}

/// AMTs of 16 entries, so that keys reach deep levels.
#[test]
fn lvmt_passes_the_kit_on_mdbx() {
    let params = Params::insecure_dev(4, true, &|_, _, _| ControlFlow::Continue(())).unwrap();
    let params = Arc::new(params);
    passes_on_mdbx(&|| Arc::new(Lvmt::new(params.clone(), ProofShard::All).unwrap()));
}

/// Levels of a few blocks.
#[test]
fn cole_passes_the_kit_on_mdbx() {
    for async_merge in [true, false] {
        let params = retrie_storage_cole::Params {
            async_merge,
            memory_pairs: 50,
            size_ratio: 2,
            ..Default::default()
        };
        passes_on_mdbx(&|| Arc::new(Cole::new(params).unwrap()));
    }
}

#[test]
fn mdbx_is_a_key_value_store_as_the_contract_wants_it() {
    let databases = Databases::default();
    let tables = StateStore::tables(&retrie_storage_mpt::Mpt::new());
    a_key_value_store_matches_a_model(&|| databases.fresh(), &tables);
}
