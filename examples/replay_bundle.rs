//! Replays bundles through the library: real blocks, each with the state it touches, executed and
//! checked against their headers on two backends in memory.
//!
//! ```sh
//! cargo run -p retrie-examples --bin replay-bundle                    # makes a block and its bundle
//! cargo run -p retrie-examples --bin replay-bundle PATH [CHAIN]       # NUMBER.json.gz, or a folder
//! ```

use alloy_primitives::{B256, Bytes, KECCAK256_EMPTY, keccak256};
use eyre::{OptionExt, ensure};
use retrie_bench::chain::{ChainMaker, ChainRecipe, GENESIS_FILE};
use retrie_chainspec::{ChainSpec, parse_chain};
use retrie_pipeline::replay::{BundleReplay, BundleReplayOptions};
use retrie_sources::{
    BundleFile, PreAccount, PreState, PrestateBundle,
    bundle::{encode_prestate, write_json_gz},
    list_bundles,
};
use retrie_state::AnyBackend;
use retrie_state_store::{MemoryStore, StateStore, StoreOptions};
use retrie_storage_mpt::Mpt;
use smallest_backend::HashChain;
use std::{
    collections::BTreeMap,
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
};

fn main() -> eyre::Result<()> {
    let mut args = std::env::args().skip(1);
    let temporary = tempfile::tempdir()?;
    let (spec, path) = match args.next() {
        Some(path) => (parse_chain(args.next().as_deref().unwrap_or("mainnet"))?, path.into()),
        None => make_bundle(temporary.path())?,
    };
    let files = list_bundles(&path)?;
    let backends: [Arc<dyn AnyBackend>; 2] = [Arc::new(Mpt::new()), Arc::new(HashChain)];
    backends.into_iter().try_for_each(|backend| replay(&spec, backend, &files))
}

/// Replays `files` on a fresh store of `backend`.
fn replay(
    spec: &Arc<ChainSpec>,
    backend: Arc<dyn AnyBackend>,
    files: &[BundleFile],
) -> eyre::Result<()> {
    let name = backend.identity().name;
    let kv = Arc::new(MemoryStore::new());
    let store = StateStore::open(backend, kv.clone(), StoreOptions::default())?;
    // Opens the pre-state in a witness, for every backend.
    let mpt = Mpt::new();
    let options = BundleReplayOptions {
        spec: spec.clone(),
        witness_opener: mpt.extensions().partial_state,
        witnesses: false,
    };
    let mut replay = BundleReplay::new(&options, &store, &*kv)?;
    for file in files {
        let outcome = replay.run(&file.load()?)?;
        println!(
            "{name}: block {} ({}), {} transactions, {} gas, {:.1} ms: {}",
            outcome.number,
            outcome.kind,
            outcome.txs,
            outcome.gas,
            outcome.seconds * 1e3,
            if outcome.ok() { "as its header says" } else { "not as its header says" }
        );
        ensure!(outcome.ok(), "{name}: block {} fails a check", outcome.number);
    }
    Ok(())
}

/// Generates the first block of a chain, and its bundle in `folder`: the block, and its pre-state,
/// which is all of genesis.
fn make_bundle(folder: &Path) -> eyre::Result<(Arc<ChainSpec>, PathBuf)> {
    let mut maker = ChainMaker::new(ChainRecipe::default(), Arc::new(Mpt::new()))?;
    let genesis = folder.join(GENESIS_FILE);
    maker.write_genesis(&mut File::create(&genesis)?)?;
    let spec = parse_chain(genesis.to_str().ok_or_eyre("the temporary folder is not UTF-8")?)?;
    let block = maker.next_block()?;
    let (pre, codes) = state_of_genesis(&spec);
    let state = PrestateBundle {
        senders: block.senders().to_vec(),
        uncle_hashes: Vec::new(),
        block_hashes: BTreeMap::new(),
        pre,
        codes,
    };
    let file = folder.join(format!("{}.json.gz", block.header().number));
    write_json_gz(&file, &encode_prestate(&block.into_block(), "Prague", &state))?;
    Ok((spec, file))
}

/// The accounts of genesis, and the codes of its contracts.
fn state_of_genesis(spec: &ChainSpec) -> (PreState, BTreeMap<B256, Bytes>) {
    let (mut pre, mut codes) = (PreState::new(), BTreeMap::new());
    for (address, account) in spec.genesis_accounts() {
        let code_hash = account.code.as_ref().map_or(KECCAK256_EMPTY, keccak256);
        codes.extend(account.code.clone().map(|code| (code_hash, code)));
        let slots = account.storage.iter().flatten();
        let account = PreAccount {
            nonce: account.nonce.unwrap_or_default(),
            balance: account.balance,
            code_hash,
            storage_root: None,
            storage: slots.map(|(slot, value)| (*slot, (*value).into())).collect(),
        };
        pre.insert(*address, Some(account));
    }
    (pre, codes)
}
