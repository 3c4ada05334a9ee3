//! Blockchain tests: blocks are imported by the client's importer, then head and state are checked.

use crate::{
    format::{
        AllocAccount, TestAlloc, TestConfig, TestVerdict, chain_spec, genesis_alloc, parse, to_u64,
    },
    seal::Ethash,
    worker::TestWorker,
};
use alloy_consensus::constants::KECCAK_EMPTY;
use alloy_genesis::GenesisAccount;
use alloy_primitives::{Address, B64, B256, Bloom, Bytes, U256, hex};
use alloy_trie::root::state_root_unhashed;
use retrie_chainspec::{
    ChainSpec,
    primitives::{Block, Header, SealedBlock},
};
use retrie_db::ChainRead;
use retrie_pipeline::{BlockImporter, ChainSetupError, ChainStore, ImportOptions, PipelineError};
use retrie_state::{Account, StateKey, decode_slot};
use retrie_state_store::StateId;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// A blockchain test.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BlockchainTest<'a> {
    network: String,
    #[serde(default)]
    config: TestConfig,
    pre: TestAlloc,
    genesis_block_header: GenesisHeader,
    #[serde(rename = "genesisRLP")]
    genesis_rlp: Option<Bytes>,
    #[serde(borrow)]
    pub(crate) blocks: Vec<BlockEntry<'a>>,
    lastblockhash: B256,
    post_state: Option<TestAlloc>,
    post_state_hash: Option<B256>,
    #[serde(default)]
    seal_engine: SealEngine,
}

/// A block in a test, member by member.
pub(crate) type BlockEntry<'a> = BTreeMap<String, &'a RawValue>;

/// Whether headers have real proof of work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
enum SealEngine {
    /// They have none.
    #[default]
    NoProof,
    /// They have; invalid proof of work makes a block invalid.
    Ethash,
}

/// The genesis header, field by field.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GenesisHeader {
    hash: B256,
    parent_hash: B256,
    uncle_hash: B256,
    coinbase: Address,
    state_root: B256,
    transactions_trie: B256,
    receipt_trie: B256,
    bloom: Bloom,
    difficulty: U256,
    number: U256,
    gas_limit: U256,
    gas_used: U256,
    timestamp: U256,
    extra_data: Bytes,
    mix_hash: B256,
    nonce: B64,
    base_fee_per_gas: Option<U256>,
    withdrawals_root: Option<B256>,
    blob_gas_used: Option<U256>,
    excess_blob_gas: Option<U256>,
    parent_beacon_block_root: Option<B256>,
    requests_hash: Option<B256>,
    block_access_list_hash: Option<B256>,
    slot_number: Option<U256>,
}

impl GenesisHeader {
    fn header(&self) -> Result<Header, String> {
        let optional = |value: Option<U256>, what| value.map(|v| to_u64(v, what)).transpose();
        Ok(Header {
            parent_hash: self.parent_hash,
            ommers_hash: self.uncle_hash,
            beneficiary: self.coinbase,
            state_root: self.state_root,
            transactions_root: self.transactions_trie,
            receipts_root: self.receipt_trie,
            logs_bloom: self.bloom,
            difficulty: self.difficulty,
            number: to_u64(self.number, "number")?,
            gas_limit: to_u64(self.gas_limit, "gasLimit")?,
            gas_used: to_u64(self.gas_used, "gasUsed")?,
            timestamp: to_u64(self.timestamp, "timestamp")?,
            extra_data: self.extra_data.clone(),
            mix_hash: self.mix_hash,
            nonce: self.nonce,
            base_fee_per_gas: optional(self.base_fee_per_gas, "baseFeePerGas")?,
            withdrawals_root: self.withdrawals_root,
            blob_gas_used: optional(self.blob_gas_used, "blobGasUsed")?,
            excess_blob_gas: optional(self.excess_blob_gas, "excessBlobGas")?,
            parent_beacon_block_root: self.parent_beacon_block_root,
            requests_hash: self.requests_hash,
            block_access_list_hash: self.block_access_list_hash,
            slot_number: optional(self.slot_number, "slotNumber")?,
        })
    }
}

/// How a suite marks invalid blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadBlocks {
    /// Always by `expectException`.
    Named,
    /// By `expectException`, or only by a missing decoded header.
    MaybeSilent,
}

/// Runs one test.
pub(crate) fn run(json: &RawValue, bad_blocks: BadBlocks, worker: &TestWorker) -> TestVerdict {
    let test: BlockchainTest<'_> = parse(json)?;
    let spec = test.spec()?;
    let seals = (test.seal_engine == SealEngine::Ethash).then(|| worker.ethash());
    worker.with_chain(spec, |chain| {
        import(chain, &test.blocks, bad_blocks, seals, worker)?;
        test.end().check(chain)
    })
}

impl BlockchainTest<'_> {
    /// The test's chain: rules and genesis.
    pub(crate) fn spec(&self) -> Result<ChainSpec, String> {
        let Self { network, config, pre, genesis_block_header, genesis_rlp, .. } = self;
        let spec = genesis_spec(network, config, pre, genesis_block_header)?;
        if let Some(rlp) = genesis_rlp {
            let block: Block =
                alloy_rlp::decode_exact(rlp).map_err(|e| format!("genesisRLP: {e}"))?;
            if SealedBlock::seal_slow(block).hash() != spec.genesis_hash() {
                return Err("genesisRLP is not the genesis block".into());
            }
        }
        Ok(spec)
    }

    /// The test's chain with more contracts in its genesis block.
    pub(crate) fn spec_with<'c>(
        &self,
        contracts: impl IntoIterator<Item = (Address, &'c Bytes)>,
    ) -> Result<ChainSpec, String> {
        let mut alloc = genesis_alloc(&self.pre)?;
        let account =
            |code: &Bytes| GenesisAccount { code: Some(code.clone()), ..GenesisAccount::default() };
        alloc.extend(contracts.into_iter().map(|(address, code)| (address, account(code))));
        let mut header = self.genesis_block_header.header()?;
        header.state_root = state_root_unhashed(alloc.clone());
        chain_spec(&self.network, &self.config, alloc, header)
    }

    /// The expected state after the last block.
    pub(crate) fn end(&self) -> ExpectedEnd<'_> {
        let Self { lastblockhash, post_state, post_state_hash, .. } = self;
        ExpectedEnd { head: *lastblockhash, root: *post_state_hash, state: post_state.as_ref() }
    }
}

/// The chain of a test that begins with this block.
pub(crate) fn genesis_spec(
    network: &str,
    config: &TestConfig,
    pre: &TestAlloc,
    header: &GenesisHeader,
) -> Result<ChainSpec, String> {
    let spec = chain_spec(network, config, genesis_alloc(pre)?, header.header()?)?;
    if spec.genesis_hash() != header.hash {
        return Err(format!("the genesis header hashes to {}", spec.genesis_hash()));
    }
    Ok(spec)
}

/// The reason why the block of an entry must be rejected, if it must.
pub(crate) fn expected_refusal<'a>(
    entry: &BlockEntry<'a>,
    bad_blocks: BadBlocks,
) -> Result<Option<&'a str>, String> {
    match entry.iter().find(|(key, _)| key.starts_with("expectException")) {
        Some((_, text)) => Ok(Some(text.get())),
        None if entry.contains_key("blockHeader") => Ok(None),
        None if bad_blocks == BadBlocks::MaybeSilent => Ok(Some("without a reason")),
        None => Err("has neither exception nor blockHeader".into()),
    }
}

/// The block of an entry; the inner error tells why it is malformed.
pub(crate) fn block_of(entry: &BlockEntry<'_>) -> Result<Result<Block, String>, String> {
    let rlp = entry.get("rlp").ok_or("no rlp")?;
    let rlp: &str = serde_json::from_str(rlp.get()).map_err(|error| format!("rlp: {error}"))?;
    let rlp = hex::decode(rlp).map_err(|error| format!("rlp: {error}"))?;
    Ok(alloy_rlp::decode_exact(&rlp).map_err(|error| format!("not a block: {error}")))
}

fn import(
    chain: &ChainStore,
    blocks: &[BlockEntry<'_>],
    bad_blocks: BadBlocks,
    seals: Option<&Ethash>,
    worker: &TestWorker,
) -> TestVerdict {
    std::thread::scope(|scope| {
        let options = ImportOptions { intermediate_roots: true, ..ImportOptions::default() };
        let mut importer = BlockImporter::new(chain, options, worker.metrics.clone(), scope)
            .map_err(|error| error.to_string())?;
        for (index, entry) in blocks.iter().enumerate() {
            let reason = expected_refusal(entry, bad_blocks)
                .map_err(|error| format!("entry {index} {error}"))?;
            let before = importer.head();
            let outcome = import_one(&mut importer, entry, seals)
                .map_err(|error| format!("entry {index}: {error}"))?;
            match (reason, outcome) {
                (None, Ok(())) => {}
                (Some(_), Err(_)) if importer.head() == before => {}
                (None, Err(refusal)) => {
                    return Err(format!("entry {index}, a valid block, is refused: {refusal}"));
                }
                (Some(reason), Ok(())) => {
                    return Err(format!("entry {index} is accepted, expected is {reason}"));
                }
                (Some(_), Err(refusal)) => {
                    return Err(format!(
                        "entry {index} is refused ({refusal}), but the head moved to {}",
                        importer.head()
                    ));
                }
            }
        }
        importer.flush().map_err(|error| error.to_string())
    })
}

/// `Ok(Err(reason))` if the block is rejected as invalid; `Err` if something else failed.
fn import_one(
    importer: &mut BlockImporter<'_>,
    entry: &BlockEntry<'_>,
    seals: Option<&Ethash>,
) -> Result<Result<(), String>, String> {
    let block = match block_of(entry)? {
        Ok(block) => block,
        Err(error) => return Ok(Err(error)),
    };
    if let Some(ethash) = seals {
        let mut headers = std::iter::once(&block.header).chain(&block.body.ommers);
        if let Err(reason) = headers.try_for_each(|header| ethash.check(header)) {
            return Ok(Err(reason));
        }
    }
    match importer.import(block) {
        Ok(_) => Ok(Ok(())),
        Err(error) if is_refusal(&error) => Ok(Err(error.to_string())),
        Err(error) => Err(error.to_string()),
    }
}

/// Whether the block is to blame. A block without a parent is rejected, too.
fn is_refusal(error: &PipelineError) -> bool {
    error.is_invalid_block()
        || matches!(
            error,
            PipelineError::UnknownParent { .. }
                | PipelineError::Setup(ChainSetupError::ForeignGenesis { .. })
        )
}

/// The expected end of a test.
#[derive(Debug)]
pub(crate) struct ExpectedEnd<'a> {
    /// Hash of the head.
    pub(crate) head: B256,
    /// State root.
    pub(crate) root: Option<B256>,
    /// The whole state.
    pub(crate) state: Option<&'a TestAlloc>,
}

impl ExpectedEnd<'_> {
    /// Compares it with the durable tip of a chain.
    pub(crate) fn check(&self, chain: &ChainStore) -> TestVerdict {
        if self.root.is_none() && self.state.is_none() {
            return Err("says neither postState nor postStateHash".into());
        }
        let head = chain.tip().map_err(|error| error.to_string())?;
        if head.hash != self.head {
            return Err(format!("the head is {head}, expected is {}", self.head));
        }
        if let Some(expected) = self.root {
            let root = chain.state().root(StateId::Tip).map_err(|error| error.to_string())?;
            if root != expected {
                return Err(format!("the state root is {root}, expected is {expected}"));
            }
        }
        self.state.map_or(Ok(()), |expected| check_state(chain, expected))
    }
}

/// Compares the whole state with a list of accounts.
pub(crate) fn check_state(chain: &ChainStore, expected: &TestAlloc) -> TestVerdict {
    let got = whole_state(chain)?;
    for (address, account) in expected {
        // Listed slots with value zero do not exist.
        let mut account = account.clone();
        account.storage.retain(|_, value| !value.is_zero());
        match got.get(address) {
            Some(found) if *found == account => {}
            Some(found) => {
                let what = difference(found, &account);
                return Err(format!("account {address} differs after the last block: {what}"));
            }
            None => return Err(format!("account {address} is missing after the last block")),
        }
    }
    match got.keys().find(|address| !expected.contains_key(*address)) {
        Some(address) => Err(format!("account {address} exists after the last block")),
        None => Ok(()),
    }
}

fn difference(got: &AllocAccount, expected: &AllocAccount) -> String {
    if got.balance != expected.balance {
        return format!("balance {}, expected {}", got.balance, expected.balance);
    }
    if got.nonce != expected.nonce {
        return format!("nonce {}, expected {}", got.nonce, expected.nonce);
    }
    if got.code != expected.code {
        return format!("code {}, expected {}", got.code_hash(), expected.code_hash());
    }
    let slots = got.storage.keys().chain(expected.storage.keys());
    let value = |account: &AllocAccount, slot| account.storage.get(slot).copied();
    slots
        .filter(|slot| value(got, slot) != value(expected, slot))
        .map(|slot| {
            let (got, expected) = (value(got, slot), value(expected, slot));
            let show = |value: Option<U256>| value.unwrap_or_default();
            format!("slot {slot:#x} is {:#x}, expected {:#x}", show(got), show(expected))
        })
        .next()
        .unwrap_or_default()
}

fn whole_state(chain: &ChainStore) -> Result<TestAlloc, String> {
    let entries = chain
        .state()
        .at(StateId::Tip)
        .and_then(|state| state.entries(None, usize::MAX))
        .map_err(|error| error.to_string())?;
    let read = chain.db().begin_read().map_err(|error| error.to_string())?;
    let mut state = TestAlloc::new();
    for (key, value) in entries {
        match key.plain().ok_or_else(|| format!("{key} is hashed"))? {
            StateKey::Account(address) => {
                let Account { nonce, balance, code_hash } = Account::decode(&value)
                    .ok_or_else(|| format!("{key} has no canonical value"))?;
                let account = state.entry(address).or_default();
                account.balance = balance;
                account.nonce = U256::from(nonce);
                if code_hash != KECCAK_EMPTY {
                    let code = read.code(&code_hash).map_err(|error| error.to_string())?;
                    account.code = code.ok_or_else(|| format!("code {code_hash} is missing"))?;
                }
            }
            StateKey::Slot(address, slot) => {
                let value =
                    decode_slot(&value).ok_or_else(|| format!("{key} has no canonical value"))?;
                state.entry(address).or_default().storage.insert(slot.into(), value);
            }
        }
    }
    Ok(state)
}
