//! The public blockchain test suites, executed without a store: state roots come from a map.
//!
//! `RETRIE_SUITES=DIR cargo test -p retrie-execution --test suites -- --ignored --nocapture`
//! runs every `.json` file below `DIR` (an unpacked archive of the conformance data). Blocks the suites
//! expect to be refused are skipped: most break rules that are checked elsewhere.

mod common;

use alloy_consensus::proofs::calculate_receipt_root;
use alloy_eips::{BlobScheduleBlobParams, eip7840::BlobParams};
use alloy_genesis::Genesis;
use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, U256, keccak256, map::HashMap};
use alloy_rlp::Decodable;
use alloy_trie::{TrieAccount, root};
use common::MapState;
use retrie_chainspec::{
    ChainSpec, ChainSpecParts, EthereumHardforks,
    primitives::{Block, RecoveredBlock},
    test_networks::test_network,
};
use retrie_consensus::pre_byzantium_receipts_root;
use retrie_execution::{CodeCache, ExecutionInput, execute_block_with_observer};
use retrie_state::{Account, StateKey, decode_slot};
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Test {
    network: String,
    #[serde(default)]
    config: Config,
    pre: BTreeMap<Address, RawAccount>,
    genesis_block_header: RawHeader,
    blocks: Vec<serde_json::Map<String, serde_json::Value>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawHeader {
    hash: B256,
    state_root: B256,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Config {
    #[serde(default)]
    blob_schedule: BTreeMap<String, RawBlobs>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawBlobs {
    target: U256,
    max: U256,
    base_fee_update_fraction: U256,
}

#[derive(Debug, Deserialize)]
struct RawAccount {
    balance: U256,
    nonce: U256,
    code: Bytes,
    storage: BTreeMap<U256, U256>,
}

fn state_root(state: &MapState) -> B256 {
    let mut storage: BTreeMap<Address, Vec<(B256, U256)>> = BTreeMap::new();
    for (key, value) in &state.values {
        if let StateKey::Slot(address, slot) = key {
            storage.entry(*address).or_default().push((*slot, decode_slot(value).unwrap()));
        }
    }
    let accounts = state.values.iter().filter_map(|(key, value)| {
        let StateKey::Account(address) = key else { return None };
        let Account { nonce, balance, code_hash } = Account::decode(value).unwrap();
        let slots = storage.remove(address).unwrap_or_default();
        let storage_root = root::storage_root_unhashed(slots);
        Some((*address, TrieAccount { nonce, balance, storage_root, code_hash }))
    });
    let accounts: Vec<_> = accounts.collect();
    assert!(storage.is_empty(), "storage without account: {storage:?}");
    root::state_root_unhashed(accounts)
}

fn spec_of(test: &Test) -> Option<ChainSpec> {
    let network = test_network(&test.network)?;
    let mut blob_schedule = BlobScheduleBlobParams::mainnet();
    blob_schedule.scheduled.clear();
    for (fork, raw) in &test.config.blob_schedule {
        let (target, max) = (raw.target.to(), raw.max.to());
        let fraction = raw.base_fee_update_fraction.to();
        let set = |params: BlobParams| BlobParams {
            target_blob_count: target,
            max_blob_count: max,
            update_fraction: fraction,
            ..params
        };
        match fork.as_str() {
            "Cancun" => blob_schedule.cancun = set(BlobParams::cancun()),
            "Prague" => blob_schedule.prague = set(BlobParams::prague()),
            "Osaka" => blob_schedule.osaka = set(BlobParams::osaka()),
            _ => {
                let at = network
                    .forks
                    .iter()
                    .find(|(known, _)| known.name().eq_ignore_ascii_case(fork))?;
                let time = at.1.as_timestamp()?;
                blob_schedule.scheduled.push((time, set(BlobParams::osaka())));
            }
        }
    }
    blob_schedule.scheduled.sort_by_key(|(time, _)| *time);
    Some(ChainSpec::new(ChainSpecParts {
        name: test.network.clone(),
        chain_id: 1,
        genesis: Genesis::default(),
        genesis_header: None,
        forks: network.forks,
        blob_schedule,
        deposit_contract: None,
        dao_fork: network.dao_fork,
    }))
}

fn run(test: &Test, cache: &CodeCache) -> Result<usize, String> {
    let spec = spec_of(test).ok_or_else(|| format!("network {} is not known", test.network))?;
    let mut state = MapState::default();
    let mut codes: HashMap<B256, Bytes> = HashMap::default();
    for (address, raw) in &test.pre {
        let code_hash = if raw.code.is_empty() { KECCAK256_EMPTY } else { keccak256(&raw.code) };
        codes.insert(code_hash, raw.code.clone());
        let account = Account { nonce: raw.nonce.to(), balance: raw.balance, code_hash };
        state.set_account(*address, account);
        for (slot, value) in &raw.storage {
            state.set_slot(*address, *slot, *value);
        }
    }
    if state_root(&state) != test.genesis_block_header.state_root {
        return Err("genesis state root differs".into());
    }
    let mut states: HashMap<B256, MapState> =
        HashMap::from_iter([(test.genesis_block_header.hash, state)]);
    let mut chain: HashMap<B256, B256> =
        HashMap::from_iter([(test.genesis_block_header.hash, B256::ZERO)]);
    let mut executed = 0;
    for raw in &test.blocks {
        // Old files mark a bad block by the lack of its decoded form alone.
        let refused = raw.keys().any(|key| key.starts_with("expectException"))
            || !raw.contains_key("blockHeader");
        let rlp: Bytes = serde_json::from_value(raw["rlp"].clone()).unwrap();
        let Ok(block) = Block::decode(&mut rlp.as_ref()) else {
            if refused { continue } else { return Err("undecodable block".into()) }
        };
        let Some(parent) = states.get(&block.header.parent_hash) else { continue };
        if refused {
            continue;
        }
        let number = block.header.number;
        let mut hashes: HashMap<u64, B256> = HashMap::default();
        let (mut at, mut ancestor) = (block.header.parent_hash, number);
        while let Some(above) = chain.get(&at) {
            ancestor -= 1;
            hashes.insert(ancestor, at);
            at = *above;
        }
        let block = RecoveredBlock::try_recover_unchecked(block)
            .map_err(|error| format!("block {number}: {error}"))?;
        let header = block.header();
        let needs_roots = !spec.is_byzantium_active_at_block(number);
        let mut roots = Vec::new();
        let mut chained = parent.clone();
        let outcome = execute_block_with_observer(
            &spec,
            &block,
            ExecutionInput::new(parent, &codes, &hashes).with_code_cache(cache),
            &mut |_, delta| {
                chained.apply(&delta);
                if needs_roots {
                    roots.push(state_root(&chained));
                }
                Ok(())
            },
        )
        .map_err(|error| error.to_string())?;
        let mut after = parent.clone();
        after.apply(&outcome.delta);
        let check = |what, ok| if ok { Ok(()) } else { Err(format!("block {number}: {what}")) };
        check("gas", outcome.gas_used == header.gas_used)?;
        check("bloom", outcome.logs_bloom() == header.logs_bloom)?;
        let receipts: Vec<_> =
            outcome.receipts.iter().map(alloy_consensus::TxReceipt::with_bloom_ref).collect();
        let receipts_root = if needs_roots {
            pre_byzantium_receipts_root(&outcome.receipts, &roots).unwrap()
        } else {
            calculate_receipt_root(&receipts)
        };
        check("receipts", receipts_root == header.receipts_root)?;
        check("state root", state_root(&after) == header.state_root)?;
        if let Some(hash) = header.requests_hash {
            check("requests", outcome.requests.requests_hash() == hash)?;
        }
        check("access list", outcome.access_list_hash() == header.block_access_list_hash)?;
        codes.extend(outcome.codes);
        let hash = block.hash();
        chain.insert(hash, header.parent_hash);
        states.insert(hash, after);
        executed += 1;
    }
    Ok(executed)
}

fn json_files(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            json_files(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "json") {
            into.push(path);
        }
    }
}

#[test]
#[ignore = "takes minutes; needs RETRIE_SUITES"]
fn blockchain_suites() {
    let Some(folder) = std::env::var_os("RETRIE_SUITES") else {
        println!("skipped: no RETRIE_SUITES");
        return;
    };
    let mut files = Vec::new();
    json_files(Path::new(&folder), &mut files);
    files.sort();
    let cache = CodeCache::default();
    let (mut passed, mut blocks, mut failed) = (0, 0, Vec::new());
    for file in files {
        let text = std::fs::read(&file).unwrap();
        let Ok(tests) = serde_json::from_slice::<BTreeMap<String, Test>>(&text) else {
            println!("not a blockchain test: {}", file.display());
            continue;
        };
        for (name, test) in tests {
            match run(&test, &cache) {
                Ok(executed) => {
                    passed += 1;
                    blocks += executed;
                }
                Err(error) => failed.push(format!("{name} [{}]: {error}", test.network)),
            }
        }
    }
    for failure in &failed {
        println!("FAILED {failure}");
    }
    println!("{passed} passed, {} failed, {blocks} blocks", failed.len());
    assert!(failed.is_empty());
}
