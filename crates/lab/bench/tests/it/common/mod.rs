//! What the tests of races share.
#![allow(dead_code, unreachable_pub, missing_docs)]

use alloy_primitives::B256;
use retrie_bench::state::{AccessTrace, BlockCorpus, KeyOp, StoreWorkload};
use retrie_chainspec::ChainSpec;
use retrie_pipeline::replay::{BundleReplayOptions, StatePadding};
use retrie_state::{AnyBackend, BlockRef};
use retrie_state_store::{KvStore, MemoryStore, StateStore, StoreOptions};
use retrie_storage_mpt::Mpt;
use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
};

/// The accesses of all real blocks with a little padding; `None`, with a message, if the data is
/// missing.
pub fn real_trace() -> Option<AccessTrace> {
    let mpt = Mpt::new();
    let options = BundleReplayOptions {
        spec: ChainSpec::mainnet(),
        witness_opener: mpt.extensions().partial_state,
        witnesses: false,
    };
    let padding = StatePadding { accounts: 2000, slots: 500 };
    let corpus = BlockCorpus::at(mainnet()?);
    Some(corpus.trace(&options, padding, &AtomicBool::new(false)).unwrap())
}

/// State root after the workload, computed with a plain map and a bulk load.
pub fn root_by_a_plain_loop(workload: &StoreWorkload) -> B256 {
    let mut state: BTreeMap<_, _> = workload.base().entries().iter().collect();
    for op in workload.stream().flat_map(|block| block.ops) {
        match op {
            KeyOp::Read(_) => {}
            KeyOp::Write(key, next) => drop(state.insert(key, next)),
            KeyOp::Delete(key) => drop(state.remove(&key)),
        }
    }
    let kv = Arc::new(MemoryStore::new());
    let store =
        StateStore::open(Arc::new(Mpt::new()), kv.clone(), StoreOptions::default()).unwrap();
    let mut txn = kv.begin_write().unwrap();
    let mut entries = state.into_iter().map(Ok);
    let (root, after) = store.bulk_load(BlockRef::default(), &mut entries, &mut *txn).unwrap();
    txn.commit().unwrap();
    after.run().unwrap();
    root
}

/// The folder of mainnet data; `None`, with a message, if it is missing.
pub fn mainnet() -> Option<PathBuf> {
    retrie_state_testkit::data::find("mainnet")
}
