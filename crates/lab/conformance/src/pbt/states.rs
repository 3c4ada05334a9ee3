//! States of mainnet, which the cases name by file.

use super::{
    JsonNumber, expect, find_file,
    model::{ModelAccount, ModelBlock, ModelState, TestTree, code_hash},
};
use crate::{
    archive::TestFile,
    format::{CodeMap, TestVerdict, parse},
    pack,
};
use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, U256};
use retrie_state::Account;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use std::{collections::BTreeMap, io::Read};

#[derive(Debug, Deserialize)]
struct StateCase {
    source: String,
    state: String,
    accounts: u64,
    leaves: u64,
    root: B256,
}

/// Runs a case: the state as one block and what follows it, and loaded at once.
pub(super) fn run(json: &RawValue, all: &[TestFile]) -> TestVerdict {
    let case: StateCase = parse(json)?;
    let kind = case.source.split('/').next().unwrap_or_default();
    let (blocks, codes) = match kind {
        "genesis" => genesis(&file(all, &case.source)?),
        "prestate" => touched(file::<Prestate>(all, &case.source)?.into(), &case.state),
        "witness" => touched(file::<Witness>(all, &case.source)?.into(), &case.state),
        "diffs" => changes(all, &case),
        _ => Err(format!("no states are known in {}", case.source)),
    }?;
    let (mut state, mut tree) = (ModelState::default(), TestTree::new()?);
    for block in blocks {
        tree.apply(&state.apply(&block, &codes)?)?;
    }
    let (leaves, swept) = state.totals(&codes)?;
    expect("the number of accounts", state.0.len() as u64, case.accounts)?;
    expect("the number of leaves", leaves, case.leaves)?;
    expect("the root of all leaves", swept, case.root)?;
    expect("the root of the backend", tree.root, case.root)?;
    let (root, rows) = state.load(&codes)?;
    expect("the root of a load", root, case.root)?;
    tree.expect_rows(&rows)
}

/// The JSON in a file of states.
fn file<T: DeserializeOwned>(all: &[TestFile], source: &str) -> Result<T, String> {
    let path = format!("{}/{source}", pack::STATES);
    let file = find_file(all, &path).ok_or_else(|| format!("{path} is not there"))?;
    let mut text = Vec::new();
    flate2::read::MultiGzDecoder::new(&file.content[..])
        .read_to_end(&mut text)
        .map_err(|error| format!("{path}: {error}"))?;
    serde_json::from_slice(&text).map_err(|error| format!("{path}: {error}"))
}

type Blocks = Result<(Vec<ModelBlock>, CodeMap), String>;

/// The block that makes these accounts.
fn block_of(accounts: BTreeMap<Address, ModelAccount>) -> ModelBlock {
    let mut block = ModelBlock::default();
    for (address, ModelAccount { account, slots }) in accounts {
        block.accounts.insert(address, Some(account));
        block.slots.insert(address, slots);
    }
    block
}

// -- genesis ----------------------------------------------------------------------------------------

#[derive(Debug, Deserialize)]
struct GenesisFile {
    alloc: BTreeMap<Address, GenesisBalance>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GenesisBalance {
    balance: U256,
}

fn genesis(file: &GenesisFile) -> Blocks {
    let account = |(address, GenesisBalance { balance }): (&Address, &GenesisBalance)| {
        let account = Account { balance: *balance, ..Account::default() };
        (*address, ModelAccount { account, slots: BTreeMap::new() })
    };
    Ok((vec![block_of(file.alloc.iter().map(account).collect())], CodeMap::new()))
}

// -- what a block touches ---------------------------------------------------------------------------

#[derive(Debug, Deserialize)]
struct Prestate {
    pre: TouchedAccounts,
    codes: CodeMap,
}

#[derive(Debug, Deserialize)]
struct Witness {
    pre: Option<TouchedAccounts>,
    post: Option<TouchedAccounts>,
    codes: Vec<Bytes>,
}

type TouchedAccounts = BTreeMap<Address, Option<PostAccount>>;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PostAccount {
    nonce: u64,
    balance: U256,
    code_hash: Option<B256>,
    storage: BTreeMap<U256, U256>,
}

/// The accounts that a block touches, before and after it.
struct TouchedStates {
    pre: Option<TouchedAccounts>,
    post: Option<TouchedAccounts>,
    codes: CodeMap,
}

impl From<Prestate> for TouchedStates {
    fn from(Prestate { pre, codes }: Prestate) -> Self {
        Self { pre: Some(pre), post: None, codes }
    }
}

impl From<Witness> for TouchedStates {
    fn from(Witness { pre, post, codes }: Witness) -> Self {
        let codes = codes.into_iter().map(|code| (code_hash(&code), code)).collect();
        Self { pre, post, codes }
    }
}

fn touched(states: TouchedStates, state: &str) -> Blocks {
    let TouchedStates { pre, post, codes } = states;
    let accounts = match state {
        "pre" => pre,
        "post" => post,
        _ => None,
    };
    let accounts = accounts.ok_or_else(|| format!("the source has no state `{state}`"))?;
    let account = |(address, touched): (Address, Option<PostAccount>)| {
        let PostAccount { nonce, balance, code_hash, storage } = touched?;
        let code_hash = code_hash.unwrap_or(KECCAK256_EMPTY);
        let account = Account { nonce, balance, code_hash };
        let slots = storage.into_iter().map(|(slot, value)| (B256::from(slot), value));
        Some((address, ModelAccount { account, slots: slots.collect() }))
    };
    Ok((vec![block_of(accounts.into_iter().filter_map(account).collect())], codes))
}

// -- changes of blocks in a row ---------------------------------------------------------------------

/// The values that a block changes, before and after it.
#[derive(Debug, Deserialize)]
struct BlockChanges {
    number: u64,
    storage: BTreeMap<Address, BTreeMap<U256, [U256; 2]>>,
    balances: BTreeMap<Address, [U256; 2]>,
    nonces: BTreeMap<Address, [JsonNumber; 2]>,
    codes: BTreeMap<Address, [Bytes; 2]>,
}

impl BlockChanges {
    /// The accounts that it names.
    fn addresses(&self) -> impl Iterator<Item = &Address> {
        let others = self.balances.keys().chain(self.nonces.keys()).chain(self.codes.keys());
        self.storage.keys().chain(others)
    }

    /// Writes the values before the block (0) or after it (1); with `first`, only those that are not
    /// known yet.
    fn write(
        &self,
        side: usize,
        values: &mut BTreeMap<Address, KnownValues>,
        is_first: bool,
    ) -> Result<(), String> {
        fn put<T>(place: &mut Option<T>, value: T, is_first: bool) {
            if !is_first || place.is_none() {
                *place = Some(value);
            }
        }
        for address in self.addresses() {
            values.entry(*address).or_default();
        }
        for (address, balances) in &self.balances {
            let values = values.entry(*address).or_default();
            put(&mut values.balance, balances[side], is_first);
        }
        for (address, nonces) in &self.nonces {
            let nonce = crate::format::to_u64(nonces[side].0, "nonce")?;
            put(&mut values.entry(*address).or_default().nonce, nonce, is_first);
        }
        for (address, codes) in &self.codes {
            let hash = code_hash(&codes[side]);
            put(&mut values.entry(*address).or_default().code_hash, hash, is_first);
        }
        for (address, slots) in &self.storage {
            let known = &mut values.entry(*address).or_default().slots;
            for (slot, both) in slots {
                let slot = B256::from(*slot);
                if !is_first || !known.contains_key(&slot) {
                    known.insert(slot, both[side]);
                }
            }
        }
        Ok(())
    }
}

/// What is known of an account.
#[derive(Clone, Debug, Default)]
struct KnownValues {
    nonce: Option<u64>,
    balance: Option<U256>,
    code_hash: Option<B256>,
    slots: BTreeMap<B256, U256>,
}

impl From<&KnownValues> for ModelAccount {
    fn from(known: &KnownValues) -> Self {
        let account = Account {
            nonce: known.nonce.unwrap_or_default(),
            balance: known.balance.unwrap_or_default(),
            code_hash: known.code_hash.unwrap_or(KECCAK256_EMPTY),
        };
        Self { account, slots: known.slots.clone() }
    }
}

/// The state before the first block, with all that the blocks name, and the blocks up to that of the case.
fn changes(all: &[TestFile], case: &StateCase) -> Blocks {
    let prefix = format!("{}/", pack::STATES);
    let sources = all.iter().filter_map(|file| file.path.strip_prefix(&prefix));
    let sources = sources.filter(|source| source.starts_with("diffs/"));
    let mut files =
        sources.map(|source| file::<BlockChanges>(all, source)).collect::<Result<Vec<_>, _>>()?;
    files.sort_by_key(|file| file.number);
    let (mut values, mut codes) = (BTreeMap::new(), CodeMap::new());
    for changes in &files {
        changes.write(0, &mut values, true)?;
        let all = changes.codes.values().flatten().filter(|code| !code.is_empty());
        codes.extend(all.map(|code| (code_hash(code), code.clone())));
    }
    let last = match &*case.state {
        "before the first block" => None,
        "after the block" => Some(file::<BlockChanges>(all, &case.source)?.number),
        state => return Err(format!("the source has no state `{state}`")),
    };
    let start = values.iter().map(|(address, known)| (*address, known.into()));
    let mut blocks = vec![block_of(start.collect())];
    for changes in files.iter().take_while(|file| last.is_some_and(|last| file.number <= last)) {
        changes.write(1, &mut values, false)?;
        let mut block = ModelBlock::default();
        for address in changes.addresses() {
            if let Some(known) = values.get(address) {
                block.accounts.insert(*address, Some(ModelAccount::from(known).account));
            }
        }
        for (address, slots) in &changes.storage {
            let slots = slots.iter().map(|(slot, both)| (B256::from(*slot), both[1]));
            block.slots.insert(*address, slots.collect());
        }
        blocks.push(block);
    }
    Ok((blocks, codes))
}
