//! Chains of the `p2p` data: a genesis file and blocks, imported as by a user, or sent as by a
//! consensus client.

use crate::{
    archive::TestFile,
    blockchain::{self, check_state},
    engine::{self, EngineCall},
    format::{AllocAccount, TestAlloc, TestVerdict},
    worker::TestWorker,
};
use alloy_primitives::{Address, B256, Bytes, U256};
use retrie_chainspec::ChainSpec;
use retrie_pipeline::{ImportEnd, ImportOptions, import};
use retrie_sources::BlockSource;
use serde::Deserialize;
use std::{collections::BTreeMap, sync::atomic::AtomicBool};

/// The chain whose final state is given. The other chain has no state to compare with.
const CHAIN: &str = "chain-600-prague/chain.rlp";

/// Its blocks as calls of the Engine API.
const CALLS: &str = "newpayload.json";

/// Whether a file is the chain that is run.
pub(crate) fn is_tested_chain(path: &str) -> bool {
    path == CHAIN
}

/// Whether a file lists Engine API calls.
pub(crate) fn has_calls(path: &str) -> bool {
    path.ends_with(CALLS)
}

#[derive(Debug, Deserialize)]
struct HeadBlock {
    hash: B256,
}

#[derive(Debug, Deserialize)]
struct HeadState {
    accounts: BTreeMap<Address, GethAccount>,
}

/// An account in geth's dump: balances are decimal, slots have no leading zeros.
#[derive(Debug, Deserialize)]
struct GethAccount {
    balance: String,
    nonce: u64,
    #[serde(default)]
    code: Bytes,
    #[serde(default)]
    storage: BTreeMap<B256, String>,
}

impl GethAccount {
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

/// The files of a chain's folder.
struct ChainFolder<'a> {
    path: &'a str,
    all: &'a [TestFile],
}

impl<'a> ChainFolder<'a> {
    /// The folder of `file`, whose name in the folder is `name`.
    fn of(file: &'a TestFile, name: &str, all: &'a [TestFile]) -> Result<Self, String> {
        let path = file.path.strip_suffix(name).ok_or_else(|| format!("not a {name}"))?;
        Ok(Self { path, all })
    }

    fn content(&self, name: &str) -> Result<&'a [u8], String> {
        let path = format!("{}{name}", self.path);
        let file = self.all.iter().find(|file| file.path == path);
        file.map(|file| &file.content[..]).ok_or_else(|| format!("{path} is missing"))
    }

    fn json<T: Deserialize<'a>>(&self, name: &str) -> Result<T, String> {
        serde_json::from_slice(self.content(name)?).map_err(|error| format!("{name}: {error}"))
    }

    fn spec(&self) -> Result<ChainSpec, String> {
        let genesis = String::from_utf8_lossy(self.content("genesis.json")?);
        ChainSpec::from_genesis_json(&genesis).map_err(|error| error.to_string())
    }

    fn head(&self) -> Result<B256, String> {
        Ok(self.json::<HeadBlock>("headblock.json")?.hash)
    }

    /// The whole state at the head.
    fn state(&self) -> Result<TestAlloc, String> {
        let state: HeadState = self.json("headstate.json")?;
        let account =
            |(address, account): (Address, GethAccount)| Ok((address, account.into_alloc()?));
        state.accounts.into_iter().map(account).collect()
    }
}

/// Imports the chain of `file` and compares head and state with the files beside it.
pub(crate) fn run(file: &TestFile, all: &[TestFile], worker: &TestWorker) -> TestVerdict {
    let folder = ChainFolder::of(file, "chain.rlp", all)?;
    let (spec, head, state) = (folder.spec()?, folder.head()?, folder.state()?);
    let scratch = tempfile::tempdir().map_err(|error| error.to_string())?;
    let blocks = scratch.path().join("chain.rlp");
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
        if outcome.end.map_err(|error| error.to_string())? != ImportEnd::Complete {
            return Err("the import stopped".into());
        }
        let tip = chain.tip().map_err(|error| error.to_string())?;
        if tip.hash != head {
            return Err(format!("the head is {tip}, expected is {head}"));
        }
        check_state(chain, &state)
    })
}

/// Sends the calls of `file` unchanged, and compares head and state with the files beside it.
pub(crate) fn run_calls(file: &TestFile, all: &[TestFile], worker: &TestWorker) -> TestVerdict {
    let folder = ChainFolder::of(file, CALLS, all)?;
    let (calls, update): (Vec<EngineCall>, _) = (folder.json(CALLS)?, folder.json("headfcu.json")?);
    let state = folder.state()?;
    let end = blockchain::ExpectedEnd { head: folder.head()?, root: None, state: Some(&state) };
    engine::run_calls(folder.spec()?, &calls, &update, end, worker)
}
