//! A generated chain through the real pipeline: every header valid, every root checked.

use retrie_bench::chain::{
    BlockFill, CHAIN_FILE, ChainMaker, ChainRecipe, GENESIS_FILE, write_chain,
};
use retrie_chainspec::parse_chain;
use retrie_db::{OpenOptions, StateRootMode, SyncMode};
use retrie_pipeline::{ChainOptions, ChainStore, ImportEnd, ImportOptions, import};
use retrie_sources::BlockSource;
use retrie_state::AnyBackend;
use retrie_state_store::StoreOptions;
use retrie_storage_mpt::Mpt;
use retrie_storage_raw::Raw;
use retrie_telemetry::Metrics;
use std::{
    path::Path,
    sync::{Arc, atomic::AtomicBool},
};

const BLOCKS: u64 = 40;

fn open(
    folder: &Path,
    backend: Arc<dyn AnyBackend>,
    referee: Option<Arc<dyn AnyBackend>>,
    datadir: &Path,
) -> ChainStore {
    let genesis = folder.join(GENESIS_FILE);
    let root_mode = match backend.profile().ethereum_root {
        true => StateRootMode::Header,
        false => StateRootMode::Shadow,
    };
    ChainStore::open(ChainOptions {
        spec: parse_chain(genesis.to_str().unwrap()).unwrap(),
        backend,
        referee,
        root_mode,
        datadir: datadir.to_owned(),
        db: OpenOptions { sync: SyncMode::NoSync, ..OpenOptions::default() },
        store: StoreOptions::default(),
    })
    .unwrap()
}

#[test]
fn every_block_is_valid_on_every_backend() {
    let dir = tempfile::tempdir().unwrap();
    let recipe = ChainRecipe {
        fill: BlockFill::Transactions(25),
        seed: 3,
        accounts: 100,
        ..ChainRecipe::default()
    };
    let mut maker = ChainMaker::new(recipe, Arc::new(Mpt::default())).unwrap();
    let run = AtomicBool::new(false);
    let made = write_chain(&mut maker, BLOCKS, dir.path(), &run, &mut |_| {}).unwrap();
    assert!(made.txs > BLOCKS * 20 && made.bytes > 0);
    let mpt = || -> Arc<dyn AnyBackend> { Arc::new(Mpt::default()) };
    let cases =
        [(mpt(), None, BLOCKS), (Arc::new(Raw), Some(mpt()), BLOCKS), (Arc::new(Raw), None, 0)];
    for (index, (backend, referee, roots)) in cases.into_iter().enumerate() {
        let datadir = dir.path().join(index.to_string());
        let chain = open(dir.path(), backend, referee, &datadir);
        let sources = vec![BlockSource::open(dir.path().join(CHAIN_FILE)).unwrap()];
        let metrics = Metrics::new().unwrap();
        let options = ImportOptions::default();
        let outcome =
            import(&chain, sources, 0..=u64::MAX, options, &metrics, &run, &mut |_| {}).unwrap();
        assert_eq!(outcome.end.unwrap(), ImportEnd::Complete);
        let report = outcome.report;
        assert_eq!((report.blocks, report.txs, report.gas), (BLOCKS, made.txs, made.gas));
        assert_eq!((report.tip.hash, report.tip.state_root), (made.head, made.state_root));
        assert_eq!(report.roots_checked, roots);
        assert_eq!(chain.tip().unwrap().hash, made.head);
    }
}
