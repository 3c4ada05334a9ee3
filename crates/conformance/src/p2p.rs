//! Chains of the `p2p` data: genesis file and blocks, imported as a user would, or given by a
//! consensus client.

use crate::{
    archive::TestFile,
    blockchain::{self, check_state},
    engine::{self, EngineCall},
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

/// Its blocks as calls of the Engine API.
const CALLS: &str = "newpayload.json";

/// Whether a file is a chain that is run.
pub(crate) fn is_run(path: &str) -> bool {
    path == CHAIN
}

/// Whether a file lists calls of the Engine API.
pub(crate) fn has_calls(path: &str) -> bool {
    path.ends_with(CALLS)
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

/// The files of a chain's folder.
struct Folder<'a> {
    path: &'a str,
    all: &'a [TestFile],
}

impl<'a> Folder<'a> {
    /// That of `file`, which has this name in it.
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
    fn state(&self) -> Result<Alloc, String> {
        let state: HeadState = self.json("headstate.json")?;
        let account = |(address, account): (Address, Account)| Ok((address, account.into_alloc()?));
        state.accounts.into_iter().map(account).collect()
    }
}

/// Imports the chain of `file` and compares head and state with the files beside it.
pub(crate) fn run(file: &TestFile, all: &[TestFile], worker: &Worker) -> Verdict {
    let folder = Folder::of(file, "chain.rlp", all)?;
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
        if outcome.end.map_err(|error| error.to_string())? != End::Complete {
            return Err("the import stopped".into());
        }
        let tip = chain.tip().map_err(|error| error.to_string())?;
        if tip.hash != head {
            return Err(format!("the head is {tip}, expected is {head}"));
        }
        check_state(chain, &state)
    })
}

/// Sends the calls of `file` as they stand, and compares head and state with the files beside it.
pub(crate) fn run_calls(file: &TestFile, all: &[TestFile], worker: &Worker) -> Verdict {
    let folder = Folder::of(file, CALLS, all)?;
    let (calls, update): (Vec<EngineCall>, _) = (folder.json(CALLS)?, folder.json("headfcu.json")?);
    let state = folder.state()?;
    let end = blockchain::End { head: folder.head()?, root: None, state: Some(&state) };
    engine::run_calls(folder.spec()?, &calls, &update, end, worker)
}
