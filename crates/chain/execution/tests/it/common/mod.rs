//! What the tests share: a state in a map, and real blocks with the state they touch.
#![allow(dead_code, unreachable_pub, missing_docs)]

pub mod fixtures;

use alloy_consensus::BlockBody;
use alloy_eips::{
    eip2718::Decodable2718,
    eip4895::{Withdrawal, Withdrawals},
};
use alloy_primitives::{Address, B256, Bytes, U256, keccak256, map::HashMap};
use alloy_rlp::Decodable;
use retrie_chainspec::primitives::{Block, Header, RecoveredBlock, Transaction};
use retrie_state::{
    Account, StateDelta, StateError, StateKey, StateReader, StateValue, decode_slot, encode_slot,
};
use serde::Deserialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

/// A whole state in a map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MapState {
    pub values: BTreeMap<StateKey, StateValue>,
    /// Refuses to list storage, as a witness must.
    pub partial: bool,
}

impl StateReader for MapState {
    fn get(&self, key: &StateKey) -> Result<Option<StateValue>, StateError> {
        Ok(self.values.get(key).cloned())
    }

    fn slots_of(&self, address: &Address) -> Result<Vec<(B256, StateValue)>, StateError> {
        if self.partial {
            return Err(StateError::MissingWitness { what: format!("storage of {address}") });
        }
        let from = StateKey::Slot(*address, B256::ZERO);
        let to = StateKey::Slot(*address, B256::repeat_byte(0xff));
        let slots = self.values.range(from..=to);
        Ok(slots
            .filter_map(|(key, value)| match key {
                StateKey::Slot(_, slot) => Some((*slot, value.clone())),
                StateKey::Account(_) => None,
            })
            .collect())
    }
}

impl MapState {
    pub fn set_account(&mut self, address: Address, account: Account) {
        self.values.insert(StateKey::Account(address), account.encode());
    }

    pub fn set_slot(&mut self, address: Address, slot: U256, value: U256) {
        let key = StateKey::Slot(address, slot.into());
        match encode_slot(value) {
            Some(value) => self.values.insert(key, value),
            None => self.values.remove(&key),
        };
    }

    pub fn slot_value(&self, address: Address, slot: u64) -> U256 {
        self.values
            .get(&StateKey::Slot(address, U256::from(slot).into()))
            .map_or(U256::ZERO, |value| decode_slot(value).unwrap())
    }

    /// Applies a delta, insisting on what the contract promises about it.
    pub fn apply(&mut self, delta: &StateDelta) {
        let mut last = None;
        for change in delta.changes() {
            assert!(last < Some(change.key), "{} is out of order", change.key);
            last = Some(change.key);
            // Only a slot that was wiped and set again to its old value is listed unchanged.
            let rewritten = matches!(change.key, StateKey::Slot(address, _)
                if change.next.is_some() && delta.wiped().binary_search(&address).is_ok());
            assert!(change.previous != change.next || rewritten, "no-op at {}", change.key);
            assert_eq!(self.values.get(&change.key), change.previous.as_ref(), "{}", change.key);
        }
        let mut by_marker = self.values.clone();
        by_marker.retain(
            |key, _| !matches!(key, StateKey::Slot(address, _) if delta.wiped().contains(address)),
        );
        for values in [&mut self.values, &mut by_marker] {
            for change in delta.changes() {
                match &change.next {
                    Some(value) => values.insert(change.key, value.clone()),
                    None => values.remove(&change.key),
                };
            }
        }
        // Wiping by marker and deleting slot by slot must agree where all slots are known.
        assert!(self.partial || self.values == by_marker, "wiped slots are not all listed");
    }
}

/// A real block, the state it touches, and what else it needs.
#[derive(Debug)]
pub struct RealBlock {
    pub file: String,
    pub block: RecoveredBlock,
    pub state: MapState,
    /// Values after the block of some keys, where known; `None` if absent then.
    pub post: Option<BTreeMap<StateKey, Option<StateValue>>>,
    pub codes: HashMap<B256, Bytes>,
    pub hashes: HashMap<u64, B256>,
    /// The block has ommers, which are not part of the data.
    pub lacks_ommers: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawAccount {
    nonce: u64,
    balance: U256,
    code_hash: Option<B256>,
    #[serde(default)]
    storage: BTreeMap<U256, U256>,
}

type RawState = BTreeMap<Address, Option<RawAccount>>;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawPrestate {
    header: Bytes,
    transactions: Vec<Bytes>,
    senders: Vec<Address>,
    uncle_hashes: Vec<B256>,
    withdrawals: Option<Vec<RawWithdrawal>>,
    block_hashes: BTreeMap<String, B256>,
    pre: RawState,
    codes: BTreeMap<B256, Bytes>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawWithdrawal {
    index: u64,
    validator_index: u64,
    address: Address,
    amount_gwei: u64,
}

#[derive(Debug, Deserialize)]
struct RawWitness {
    block: Bytes,
    headers: Vec<Bytes>,
    codes: Vec<Bytes>,
    pre: Option<RawState>,
    post: Option<RawState>,
}

fn map_state(raw: &RawState) -> MapState {
    let values = key_values(raw).into_iter().filter_map(|(key, value)| Some((key, value?)));
    MapState { values: values.collect(), partial: false }
}

fn key_values(raw: &RawState) -> BTreeMap<StateKey, Option<StateValue>> {
    let mut values = BTreeMap::new();
    for (address, account) in raw {
        let Some(raw) = account else {
            values.insert(StateKey::Account(*address), None);
            continue;
        };
        let mut account = Account { nonce: raw.nonce, balance: raw.balance, ..Default::default() };
        if let Some(hash) = raw.code_hash {
            account.code_hash = hash;
        }
        values.insert(StateKey::Account(*address), Some(account.encode()));
        for (slot, value) in &raw.storage {
            values.insert(StateKey::Slot(*address, (*slot).into()), encode_slot(*value));
        }
    }
    values
}

/// The folder of real data, or `None` after a note that the test is skipped.
pub fn data() -> Option<PathBuf> {
    retrie_state_testkit::data::find("")
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().ends_with(".json.gz"))
        .collect();
    files.sort_by_key(|path| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        name.split('.').next().unwrap().parse::<u64>().unwrap()
    });
    files
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> T {
    let file = std::fs::File::open(path).unwrap();
    let mut text = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(file), &mut text).unwrap();
    serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn hashed(codes: impl IntoIterator<Item = Bytes>) -> HashMap<B256, Bytes> {
    codes.into_iter().map(|code| (keccak256(&code), code)).collect()
}

/// Every block of the `prestate` folder.
pub fn prestate_blocks(data: &Path) -> impl Iterator<Item = RealBlock> {
    files(&data.join("mainnet/prestate")).into_iter().map(|path| {
        let raw: RawPrestate = read_json(&path);
        let header = Header::decode(&mut raw.header.as_ref()).unwrap();
        let transactions = raw
            .transactions
            .iter()
            .map(|bytes| Transaction::decode_2718(&mut bytes.as_ref()).unwrap())
            .collect();
        let withdrawals = raw.withdrawals.map(|list| {
            let list = list.into_iter().map(|raw| Withdrawal {
                index: raw.index,
                validator_index: raw.validator_index,
                address: raw.address,
                amount: raw.amount_gwei,
            });
            Withdrawals::new(list.collect())
        });
        let body = BlockBody { transactions, ommers: Vec::new(), withdrawals };
        RealBlock {
            file: path.display().to_string(),
            block: RecoveredBlock::new_unhashed(Block { header, body }, raw.senders),
            state: map_state(&raw.pre),
            post: None,
            codes: hashed(raw.codes.into_values()),
            hashes: raw
                .block_hashes
                .into_iter()
                .map(|(number, hash)| (number.parse().unwrap(), hash))
                .collect(),
            lacks_ommers: !raw.uncle_hashes.is_empty(),
        }
    })
}

/// Every block of the `witness` folder whose pre-state is given in plain.
pub fn witness_blocks(data: &Path) -> impl Iterator<Item = RealBlock> {
    files(&data.join("mainnet/witness")).into_iter().filter_map(|path| {
        let raw: RawWitness = read_json(&path);
        let pre = raw.pre?;
        let block = Block::decode(&mut raw.block.as_ref()).unwrap();
        let hashes = raw
            .headers
            .iter()
            .map(|bytes| (Header::decode(&mut bytes.as_ref()).unwrap().number, keccak256(bytes)));
        Some(RealBlock {
            file: path.display().to_string(),
            hashes: hashes.collect(),
            block: RecoveredBlock::try_recover_unchecked(block).unwrap(),
            state: map_state(&pre),
            post: raw.post.as_ref().map(key_values),
            codes: hashed(raw.codes),
            lacks_ommers: false,
        })
    })
}

/// Accounts that a block changes outside its transactions.
pub fn paid_after_transactions(block: &RecoveredBlock) -> BTreeSet<Address> {
    let withdrawals = block.body().withdrawals.iter().flat_map(|list| list.iter());
    let mut addresses: BTreeSet<_> = withdrawals.map(|withdrawal| withdrawal.address).collect();
    addresses.insert(block.header().beneficiary);
    addresses.extend(block.body().ommers.iter().map(|ommer| ommer.beneficiary));
    addresses.insert(alloy_eips::eip7002::WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS);
    addresses.insert(alloy_eips::eip7251::CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS);
    addresses
}
