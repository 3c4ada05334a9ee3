//! Writing genesis files: every field that [`parse`](super::parse) reads, under geth's names.

use std::collections::BTreeMap;

use alloy_eips::{BlobScheduleBlobParams, eip1559::INITIAL_BASE_FEE, eip7840::BlobParams};
use alloy_genesis::GenesisAccount;
use alloy_hardforks::{EthereumHardfork, EthereumHardforks, ForkCondition};
use alloy_primitives::{Address, B256, Bytes, U64, U256};
use serde::{Serialize, Serializer};
use serde_json::{Value, json, value::RawValue};

use super::{BINARY_TREE_TIME, BLOCK_FORKS, BPO_FORKS, INDEX_TABLES_BLOCK, TIME_FORKS};
use crate::{ChainSpec, ChainSpecError};

/// Writes the genesis file of a chain. A field whose value equals the default of an absent field is
/// left out, so that equal chains give equal files. The number, always 0, is left out too.
pub(crate) fn write(spec: &ChainSpec) -> Result<String, ChainSpecError> {
    let genesis = spec.genesis();
    let file = GenesisFile {
        config: config(spec)?,
        nonce: U64::from(genesis.nonce),
        timestamp: U64::from(genesis.timestamp),
        extra_data: &genesis.extra_data,
        gas_limit: U64::from(genesis.gas_limit),
        difficulty: genesis.difficulty,
        mix_hash: genesis.mix_hash,
        coinbase: genesis.coinbase,
        parent_hash: genesis.parent_hash.filter(|parent| !parent.is_zero()),
        base_fee_per_gas: genesis
            .base_fee_per_gas
            .filter(|fee| *fee != u128::from(INITIAL_BASE_FEE))
            .map(U256::from),
        excess_blob_gas: genesis.excess_blob_gas.and_then(unless_zero),
        blob_gas_used: genesis.blob_gas_used.and_then(unless_zero),
        slot_number: genesis.slot_number.and_then(unless_zero),
        alloc: &genesis.alloc,
    };
    serde_json::to_string_pretty(&file)
        .map_err(|error| inexpressible(spec, format!("it does not encode ({error})")))
}

/// The member `config` of the genesis file.
pub(crate) fn write_config(spec: &ChainSpec) -> Result<Value, ChainSpecError> {
    serde_json::to_value(config(spec)?)
        .map_err(|error| inexpressible(spec, format!("it does not encode ({error})")))
}

fn unless_zero(number: u64) -> Option<U64> {
    (number != 0).then(|| U64::from(number))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct GenesisFile<'a> {
    config: GenesisConfig,
    nonce: U64,
    timestamp: U64,
    extra_data: &'a Bytes,
    gas_limit: U64,
    difficulty: U256,
    mix_hash: B256,
    coinbase: Address,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_hash: Option<B256>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base_fee_per_gas: Option<U256>,
    #[serde(skip_serializing_if = "Option::is_none")]
    excess_blob_gas: Option<U64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    blob_gas_used: Option<U64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slot_number: Option<U64>,
    alloc: &'a BTreeMap<Address, GenesisAccount>,
}

/// The fields of `config`, in the order in which they are written.
#[derive(Default)]
struct GenesisConfig(Vec<(&'static str, ConfigValue)>);

#[derive(Serialize)]
#[serde(untagged)]
enum ConfigValue {
    Json(Value),
    /// geth reads a total difficulty as a JSON number alone, however long it is.
    Number(Box<RawValue>),
}

impl Serialize for GenesisConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, field)| (name, field)))
    }
}

impl GenesisConfig {
    fn put(&mut self, name: &'static str, value: impl Into<Value>) {
        self.0.push((name, ConfigValue::Json(value.into())));
    }
}

fn config(spec: &ChainSpec) -> Result<GenesisConfig, ChainSpecError> {
    let mut config = GenesisConfig::default();
    config.put("chainId", spec.chain_id());
    for (name, fork, _) in BLOCK_FORKS {
        match spec.ethereum_fork_activation(fork) {
            ForkCondition::Never => {}
            ForkCondition::Block(block) => {
                if fork == EthereumHardfork::SpuriousDragon {
                    config.put("eip155Block", block);
                }
                config.put(name, block);
            }
            condition => return Err(no_field(spec, fork, condition)),
        }
        if fork == EthereumHardfork::Homestead
            && let Some(dao) = spec.dao_fork()
        {
            config.put("daoForkBlock", dao.block);
            config.put("daoForkSupport", dao.support);
        }
    }
    let paris = match spec.ethereum_fork_activation(EthereumHardfork::Paris) {
        ForkCondition::Never => None,
        ForkCondition::TTD { fork_block, total_difficulty, .. } => {
            if let Some(block) = fork_block {
                config.put("mergeNetsplitBlock", block);
            }
            Some(total_difficulty)
        }
        condition => return Err(no_field(spec, EthereumHardfork::Paris, condition)),
    };
    for (name, fork) in time_forks() {
        match spec.ethereum_fork_activation(fork) {
            ForkCondition::Never => {}
            ForkCondition::Timestamp(time) => config.put(name, time),
            condition => return Err(no_field(spec, fork, condition)),
        }
    }
    if let Some(time) = spec.binary_tree_time() {
        config.put(BINARY_TREE_TIME, time);
    }
    if let Some(block) = spec.index_tables_block() {
        config.put(INDEX_TABLES_BLOCK, block);
    }
    if let Some(ttd) = paris {
        let number = RawValue::from_string(ttd.to_string())
            .map_err(|error| inexpressible(spec, error.to_string()))?;
        config.0.push(("terminalTotalDifficulty", ConfigValue::Number(number)));
        config.put("terminalTotalDifficultyPassed", spec.merge_block().is_some());
    }
    if let Some(address) = spec.deposit_contract() {
        config.put("depositContractAddress", address.to_string());
    }
    let blobs = blob_entries(spec)?;
    if !blobs.is_empty() {
        let entries = blobs.into_iter().map(|(fork, params)| {
            let BlobParams { target_blob_count, max_blob_count, update_fraction, .. } = params;
            let entry = json!({
                "target": target_blob_count,
                "max": max_blob_count,
                "baseFeeUpdateFraction": u64::try_from(update_fraction).unwrap_or(u64::MAX),
            });
            (fork.name().to_ascii_lowercase(), entry)
        });
        config.put("blobSchedule", entries.collect::<serde_json::Map<_, _>>());
    }
    Ok(config)
}

/// Forks by time, in protocol order.
fn time_forks() -> impl Iterator<Item = (&'static str, EthereumHardfork)> {
    let mut forks: Vec<_> = TIME_FORKS.iter().chain(BPO_FORKS.iter().skip(1)).collect();
    forks.sort_by_key(|(_, fork, _)| *fork);
    forks.into_iter().map(|(name, fork, _)| (*name, *fork))
}

/// The blob parameters of each scheduled fork that has its own: the reverse of
/// [`crate::blobs::blob_schedule`].
fn blob_entries(spec: &ChainSpec) -> Result<Vec<(EthereumHardfork, BlobParams)>, ChainSpecError> {
    use EthereumHardfork as Fork;
    let BlobScheduleBlobParams { cancun, prague, osaka, scheduled } = spec.blob_schedule();
    let at = |fork: Fork| spec.ethereum_fork_activation(fork).as_timestamp();
    let mut entries: Vec<_> =
        [(Fork::Cancun, cancun), (Fork::Prague, prague), (Fork::Osaka, osaka)]
            .into_iter()
            .filter(|(fork, _)| at(*fork).is_some())
            .map(|(fork, params)| (fork, *params))
            .collect();
    // Of forks at the same time the parameters come in protocol order.
    let mut left = scheduled.clone();
    for (_, fork) in time_forks().filter(|(_, fork)| *fork > Fork::Osaka) {
        let of_fork = at(fork).and_then(|time| left.iter().position(|(from, _)| *from == time));
        if let Some(index) = of_fork {
            entries.push((fork, left.remove(index).1));
        }
    }
    match left.first() {
        None => Ok(entries),
        Some((time, _)) => {
            let what = format!("its blob parameters from time {time} on belong to no fork");
            Err(inexpressible(spec, what))
        }
    }
}

fn no_field(spec: &ChainSpec, fork: EthereumHardfork, condition: ForkCondition) -> ChainSpecError {
    inexpressible(spec, format!("there is no field for fork {fork} at {condition:?}"))
}

fn inexpressible(spec: &ChainSpec, what: String) -> ChainSpecError {
    ChainSpecError::Inexpressible { chain: spec.name().to_owned(), what }
}
