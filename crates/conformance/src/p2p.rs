//! Chains of the `p2p` data: genesis file and blocks, imported as a user would.

use crate::{
    archive::TestFile,
    blockchain::check_state,
    format::{Alloc, AllocAccount, Verdict},
    worker::Worker,
};
use alloy_primitives::{Address, B256, Bytes, U256};
use retrie_chainspec::ChainSpec;
use retrie_pipeline::{End, ImportOptions, import};
use retrie_sources::BlockSource;
use serde::Deserialize;
use std::{collections::BTreeMap, sync::atomic::AtomicBool};

/// The chain that states its end; the other one has no state to compare with.
const CHAIN: &str = "chain-600-prague/chain.rlp";

/// Whether a file is a chain that is run.
pub(crate) fn is_run(path: &str) -> bool {
    path == CHAIN
}

#[derive(Debug, Deserialize)]
struct HeadBlock {
    hash: B256,
}

#[derive(Debug, Deserialize)]
struct HeadState {
    accounts: BTreeMap<Address, Account>,
}

/// As geth dumps it: balances are decimal, slots stand without zeros in front.
#[derive(Debug, Deserialize)]
struct Account {
    balance: String,
    nonce: u64,
    #[serde(default)]
    code: Bytes,
    #[serde(default)]
    storage: BTreeMap<B256, String>,
}

impl Account {
    fn into_alloc(self) -> Result<AllocAccount, String> {
        let slot = |(slot, value): (B256, String)| {
            let value = U256::from_str_radix(value.trim_start_matches("0x"), 16);
            Ok((slot.into(), value.map_err(|error| format!("slot {slot}: {error}"))?))
        };
        Ok(AllocAccount {
            balance: self.balance.parse().map_err(|error| format!("balance: {error}"))?,
            nonce: U256::from(self.nonce),
            code: self.code,
            storage: self.storage.into_iter().map(slot).collect::<Result<_, String>>()?,
        })
    }
}

/// Imports the chain of `file` and compares head and state with the files beside it.
pub(crate) fn run(file: &TestFile, all: &[TestFile], worker: &Worker) -> Verdict {
    let folder = file.path.strip_suffix("chain.rlp").ok_or("not a chain")?;
    let beside = |name: &str| {
        let path = format!("{folder}{name}");
        let file = all.iter().find(|file| file.path == path);
        file.map(|file| &file.content[..]).ok_or_else(|| format!("{path} is missing"))
    };
    let bad = |name: &str, error: serde_json::Error| format!("{name}: {error}");
    let genesis = String::from_utf8_lossy(beside("genesis.json")?);
    let spec = ChainSpec::from_genesis_json(&genesis).map_err(|error| error.to_string())?;
    let head: HeadBlock = serde_json::from_slice(beside("headblock.json")?)
        .map_err(|error| bad("headblock.json", error))?;
    let state: HeadState = serde_json::from_slice(beside("headstate.json")?)
        .map_err(|error| bad("headstate.json", error))?;
    let account = |(address, account): (Address, Account)| Ok((address, account.into_alloc()?));
    let state = state.accounts.into_iter().map(account).collect::<Result<Alloc, String>>()?;

    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let blocks = folder.path().join("chain.rlp");
    std::fs::write(&blocks, &file.content).map_err(|error| error.to_string())?;
    worker.with_chain(spec, |chain| {
        let source = BlockSource::open(&blocks).map_err(|error| error.to_string())?;
        let stop = AtomicBool::new(false);
        let outcome = import(
            chain,
            vec![source],
            0..=u64::MAX,
            ImportOptions::default(),
            &worker.metrics,
            &stop,
            &mut |_| (),
        )
        .map_err(|error| error.to_string())?;
        if outcome.end.map_err(|error| error.to_string())? != End::Complete {
            return Err("the import stopped".into());
        }
        let tip = chain.tip().map_err(|error| error.to_string())?;
        if tip.hash != head.hash {
            return Err(format!("the head is {tip}, expected is {}", head.hash));
        }
        check_state(chain, &state)
    })
}
