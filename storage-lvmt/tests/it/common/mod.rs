//! Development parameters of small heights, made once for all tests.
#![allow(dead_code, reason = "each test takes what it needs")]

pub(crate) mod chain;

use retrie_storage_lvmt::{Lvmt, LvmtParams, ProofShard};
use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    sync::{Arc, Mutex},
};

static PARAMS: Mutex<BTreeMap<u8, Arc<LvmtParams>>> = Mutex::new(BTreeMap::new());

/// Development parameters with tables for proofs.
pub(crate) fn params(height: u8) -> Arc<LvmtParams> {
    let mut known = PARAMS.lock().unwrap();
    let quiet = |_, _, _| ControlFlow::Continue(());
    let make = || Arc::new(LvmtParams::insecure_dev(height, true, &quiet).unwrap());
    known.entry(height).or_insert_with(make).clone()
}

/// The backend with these parameters.
pub(crate) fn lvmt(height: u8, shard: ProofShard) -> Lvmt {
    Lvmt::new(params(height), shard).unwrap()
}

/// Development parameters without tables for proofs.
pub(crate) fn params_without_proofs(height: u8) -> Arc<LvmtParams> {
    Arc::new(LvmtParams::insecure_dev(height, false, &|_, _, _| ControlFlow::Continue(())).unwrap())
}
