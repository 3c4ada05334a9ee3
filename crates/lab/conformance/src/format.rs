//! The common JSON of blockchain and state tests.

use alloy_consensus::constants::KECCAK_EMPTY;
use alloy_eips::eip6110::MAINNET_DEPOSIT_CONTRACT_ADDRESS;
use alloy_genesis::{Genesis, GenesisAccount};
use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use retrie_chainspec::{
    ChainSpec, ChainSpecParts, EthereumHardfork,
    blobs::{blob_params, blob_schedule},
    primitives::Header,
    test_networks::test_network,
};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;
use std::{collections::BTreeMap, fmt};

/// The verdict on a test; an error is its failure, in one line.
pub type TestVerdict = Result<(), String>;

/// The result of a test.
#[derive(Debug)]
pub(crate) struct CaseResult {
    pub(crate) verdict: TestVerdict,
    /// Number of its blocks and calls that must be rejected, but could not even be sent.
    pub(crate) not_sent: u64,
}

impl From<TestVerdict> for CaseResult {
    fn from(verdict: TestVerdict) -> Self {
        Self { verdict, not_sent: 0 }
    }
}

/// The tests of a file in its order: members of an object by name, of a list by index. Names may
/// repeat; all are kept.
#[derive(Debug)]
pub(crate) struct TestMembers<'a>(pub(crate) Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for TestMembers<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor;
        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = TestMembers<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object or a list of tests")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(TestMembers(members))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = seq.next_element()? {
                    members.push((members.len().to_string(), member));
                }
                Ok(TestMembers(members))
            }
        }
        deserializer.deserialize_any(MembersVisitor)
    }
}

/// Parses one test.
pub(crate) fn parse<'a, T: Deserialize<'a>>(json: &'a RawValue) -> Result<T, String> {
    serde_json::from_str(json.get()).map_err(|error| format!("not a test of this kind: {error}"))
}

/// A number that must fit 64 bits.
pub(crate) fn to_u64(value: U256, what: &str) -> Result<u64, String> {
    value.try_into().map_err(|_| format!("{what} {value} exceeds 64 bits"))
}

/// Accounts before or after a test, as the suites list them.
pub(crate) type TestAlloc = BTreeMap<Address, AllocAccount>;

/// Codes by keccak-256.
pub(crate) type CodeMap = BTreeMap<B256, Bytes>;

/// A complete account.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct AllocAccount {
    #[serde(default, alias = "wei")]
    pub(crate) balance: U256,
    #[serde(default)]
    pub(crate) nonce: U256,
    #[serde(default)]
    pub(crate) code: Bytes,
    #[serde(default)]
    pub(crate) storage: BTreeMap<U256, U256>,
}

impl AllocAccount {
    pub(crate) fn code_hash(&self) -> B256 {
        if self.code.is_empty() { KECCAK_EMPTY } else { keccak256(&self.code) }
    }
}

/// The accounts of a genesis block.
pub(crate) fn genesis_alloc(
    alloc: &TestAlloc,
) -> Result<BTreeMap<Address, GenesisAccount>, String> {
    let account = |(address, account): (&Address, &AllocAccount)| {
        let AllocAccount { balance, nonce, code, storage } = account;
        let storage = storage.iter().map(|(slot, value)| ((*slot).into(), (*value).into()));
        let account = GenesisAccount {
            nonce: Some(to_u64(*nonce, "nonce")?),
            balance: *balance,
            code: Some(code.clone()),
            storage: Some(storage.collect()),
            private_key: None,
        };
        Ok((*address, account))
    };
    alloc.iter().map(account).collect()
}

/// The member `config` of a test.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TestConfig {
    chainid: Option<U256>,
    #[serde(default)]
    blob_schedule: BTreeMap<String, BlobEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct BlobEntry {
    target: U256,
    max: U256,
    base_fee_update_fraction: U256,
}

/// The chain of a test: the rules of the named network, and its genesis block.
pub(crate) fn chain_spec(
    network: &str,
    config: &TestConfig,
    alloc: BTreeMap<Address, GenesisAccount>,
    genesis: Header,
) -> Result<ChainSpec, String> {
    let rules = test_network(network).ok_or_else(|| format!("unknown network {network}"))?;
    let mut entries = BTreeMap::new();
    for (name, entry) in &config.blob_schedule {
        let fork: EthereumHardfork =
            name.parse().map_err(|_| format!("blobSchedule names the unknown fork {name}"))?;
        let params = blob_params(
            to_u64(entry.target, "target")?,
            to_u64(entry.max, "max")?,
            to_u64(entry.base_fee_update_fraction, "baseFeeUpdateFraction")?,
        );
        entries.insert(fork, params.map_err(|error| error.to_string())?);
    }
    let blob_schedule = blob_schedule(|fork| rules.activation_time(fork), &entries)
        .map_err(|error| error.to_string())?;
    Ok(ChainSpec::new(ChainSpecParts {
        name: network.to_owned(),
        chain_id: to_u64(config.chainid.unwrap_or(U256::ONE), "chainid")?,
        genesis: Genesis { alloc, ..Genesis::default() },
        genesis_header: Some(genesis),
        forks: rules.forks,
        blob_schedule,
        // The suites use mainnet's deposit contract.
        deposit_contract: Some(MAINNET_DEPOSIT_CONTRACT_ADDRESS),
        dao_fork: rules.dao_fork,
    }))
}
