//! What the tests of races share.
#![allow(dead_code, unreachable_pub, missing_docs)]

use retrie_bench::state::{Corpus, Trace};
use retrie_chainspec::ChainSpec;
use retrie_pipeline::replay::{BundleReplayOptions, Padding};
use retrie_state::AnyBackend;
use retrie_storage_mpt::Mpt;
use std::{
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

/// The accesses of all real blocks on a little padding, or `None` after saying that there are none.
pub fn real_trace() -> Option<Trace> {
    let mpt = Mpt::new();
    let options =
        BundleReplayOptions { spec: ChainSpec::mainnet(), witness_opener: mpt.partial_state() };
    let padding = Padding { accounts: 2000, slots: 500 };
    let corpus = Corpus::at(mainnet()?);
    Some(corpus.trace(&options, padding, &AtomicBool::new(false)).unwrap())
}

/// The mainnet data, or `None` after saying so.
pub fn mainnet() -> Option<PathBuf> {
    let data = std::env::var_os("RETRIE_DATA").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"),
        PathBuf::from,
    );
    let mainnet = data.join("mainnet");
    if mainnet.is_dir() {
        return Some(mainnet);
    }
    let required = std::env::var("RETRIE_REQUIRE_DATA").is_ok_and(|value| value == "1");
    assert!(!required, "RETRIE_REQUIRE_DATA=1, but {} is missing", mainnet.display());
    println!("skipped: no RETRIE_DATA");
    None
}
