//! State tests: one transaction on a state, with the client's EVM set-up and trie.

use crate::{
    format::{TestAlloc, TestConfig, TestVerdict, chain_spec, genesis_alloc, parse, to_u64},
    worker::TestWorker,
};
use alloy_consensus::{Signed, TxLegacy, constants::KECCAK_EMPTY};
use alloy_eips::eip2718::Decodable2718;
use alloy_primitives::{
    Address, B256, Bytes, Log, Signature, TxKind, U256, keccak256, map::HashMap,
};
use retrie_chainspec::{
    ChainSpec, EthereumHardforks,
    primitives::{Block, BlockBody, Header, RecoveredBlock, Transaction},
};
use retrie_execution::{
    BlockHashes, ExecutionError, ExecutionInput, ExecutionOutcome, execute_transaction,
};
use retrie_pipeline::recover_senders;
use retrie_state::{Account, DeltaBuilder, StateError, StateKey, StateReader, encode_slot};
use retrie_state_store::{MemoryStore, Proposal, StateId, StateStore, StoreOptions};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::{collections::BTreeMap, sync::Arc};

#[derive(Debug, Deserialize)]
struct StateTest {
    env: StateTestEnv,
    pre: TestAlloc,
    transaction: TransactionParts,
    post: BTreeMap<String, Vec<PostCase>>,
    #[serde(default)]
    config: TestConfig,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StateTestEnv {
    current_coinbase: Address,
    current_difficulty: U256,
    current_gas_limit: U256,
    current_number: U256,
    current_timestamp: U256,
    current_base_fee: Option<U256>,
    current_random: Option<U256>,
    current_excess_blob_gas: Option<U256>,
}

/// The transaction of tests without its bytes: lists, from which each post state picks one item.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct TransactionParts {
    data: Vec<Bytes>,
    gas_limit: Vec<U256>,
    gas_price: Option<U256>,
    nonce: U256,
    sender: Option<Address>,
    to: String,
    value: Vec<U256>,
}

#[derive(Debug, Deserialize)]
struct PostCase {
    hash: B256,
    logs: B256,
    indexes: PostIndexes,
    txbytes: Option<Bytes>,
    #[serde(rename = "expectException")]
    exception: Option<String>,
}

#[derive(Debug, Deserialize)]
struct PostIndexes {
    data: usize,
    gas: usize,
    value: usize,
}

/// Ancestor hashes of the tests: the hash of a block is the hash of its decimal number.
struct NumberHashes;

impl BlockHashes for NumberHashes {
    fn block_hash(&self, number: u64) -> Result<Option<B256>, StateError> {
        Ok(Some(hash_of(number)))
    }
}

fn hash_of(number: u64) -> B256 {
    keccak256(number.to_string())
}

/// Runs one test for all its forks.
pub(crate) fn run(json: &RawValue, worker: &TestWorker) -> TestVerdict {
    let test: StateTest = parse(json)?;
    if test.post.values().all(Vec::is_empty) {
        return Err("has no post state".into());
    }
    let world = PreStateFixture::new(&test.pre, worker)?;
    for (network, posts) in &test.post {
        // The genesis block is not used.
        let spec = chain_spec(network, &test.config, BTreeMap::new(), Header::default())?;
        for (index, post) in posts.iter().enumerate() {
            world
                .check(&spec, &test, post, worker)
                .map_err(|error| format!("{network} {index}: {error}"))?;
        }
    }
    Ok(())
}

/// The pre-state, on the client's trie.
struct PreStateFixture {
    store: StateStore,
    before: Proposal,
    codes: HashMap<B256, Bytes>,
}

impl PreStateFixture {
    fn new(pre: &TestAlloc, worker: &TestWorker) -> Result<Self, String> {
        let fail = |error: StateError| error.to_string();
        let mut delta = DeltaBuilder::new();
        let mut codes = HashMap::default();
        for (address, account) in genesis_alloc(pre)? {
            let code_hash = pre[&address].code_hash();
            codes.insert(code_hash, account.code.unwrap_or_default());
            let state = Account {
                nonce: account.nonce.unwrap_or_default(),
                balance: account.balance,
                code_hash,
            };
            delta.change(StateKey::Account(address), None, Some(state.encode()));
            for (slot, value) in account.storage.unwrap_or_default() {
                delta.change(StateKey::Slot(address, slot), None, encode_slot(value.into()));
            }
        }
        codes.remove(&KECCAK_EMPTY);
        codes.iter().for_each(|(hash, code)| delta.add_code(*hash, code.clone()));
        let memory = Arc::new(MemoryStore::new());
        let store = StateStore::open(worker.backend.0.clone(), memory, StoreOptions::default())
            .map_err(fail)?;
        let before = store.begin(StateId::Tip).and_then(|s| s.finish_as(0, &delta.build()));
        Ok(Self { before: before.map_err(fail)?, store, codes })
    }

    fn check(
        &self,
        spec: &ChainSpec,
        test: &StateTest,
        post: &PostCase,
        worker: &TestWorker,
    ) -> TestVerdict {
        let header = header(spec, &test.env)?;
        let outcome = match transaction(spec, &header, &test.transaction, post)? {
            Ok(block) => self.execute(spec, &block, worker)?,
            Err(refusal) => Err(refusal),
        };
        let (delta, logs) = match (&post.exception, outcome) {
            (None, Ok(outcome)) => {
                let logs = outcome.receipts.into_iter().flat_map(|receipt| receipt.logs);
                (outcome.delta, logs.collect())
            }
            (Some(_), Err(_)) => (DeltaBuilder::new().build(), Vec::new()),
            (Some(reason), Ok(_)) => return Err(format!("is executed, expected is {reason}")),
            // Old tests do not name exceptions; only their state shows them.
            (None, Err(_)) if post.txbytes.is_none() => (DeltaBuilder::new().build(), Vec::new()),
            (None, Err(refusal)) => return Err(format!("the transaction is refused: {refusal}")),
        };
        let fail = |error: StateError| error.to_string();
        let session = self.store.begin(StateId::Proposal(&self.before)).map_err(fail)?;
        let mut after = session.finish(&delta).map_err(fail)?;
        if post.exception.is_none() && !spec.is_spurious_dragon_active_at_block(header.number) {
            after = self.touch(after, header.beneficiary).map_err(fail)?;
        }
        if after.root() != post.hash {
            return Err(format!("the state root is {}, expected is {}", after.root(), post.hash));
        }
        let mut rlp = Vec::new();
        alloy_rlp::encode_list::<Log, Log>(&logs, &mut rlp);
        let logs = keccak256(&rlp);
        if logs != post.logs {
            return Err(format!("the hash of the logs is {logs}, expected is {}", post.logs));
        }
        Ok(())
    }

    /// The beneficiary gets a reward of zero, which leaves an empty account before EIP-161.
    fn touch(&self, state: Proposal, beneficiary: Address) -> Result<Proposal, StateError> {
        let reader = self.store.at(StateId::Proposal(&state))?;
        if reader.account(&beneficiary)?.is_some() {
            return Ok(state);
        }
        let mut delta = DeltaBuilder::new();
        delta.change(StateKey::Account(beneficiary), None, Some(Account::default().encode()));
        self.store.begin(StateId::Proposal(&state))?.finish(&delta.build())
    }

    fn execute(
        &self,
        spec: &ChainSpec,
        block: &RecoveredBlock,
        worker: &TestWorker,
    ) -> Result<Result<ExecutionOutcome, String>, String> {
        let reader =
            self.store.at(StateId::Proposal(&self.before)).map_err(|error| error.to_string())?;
        let input =
            ExecutionInput::new(&reader, &self.codes, &NumberHashes).with_code_cache(&worker.codes);
        let transaction = block.transactions_recovered().next().ok_or("no transaction")?;
        match execute_transaction(spec, block.header(), transaction, input) {
            Ok(outcome) => Ok(Ok(outcome)),
            Err(error @ ExecutionError::InvalidTransaction { .. }) => Ok(Err(error.to_string())),
            Err(error) => Err(error.to_string()),
        }
    }
}

fn header(spec: &ChainSpec, env: &StateTestEnv) -> Result<Header, String> {
    let number = to_u64(env.current_number, "currentNumber")?;
    let timestamp = to_u64(env.current_timestamp, "currentTimestamp")?;
    let is_merged = spec.terminal_total_difficulty().is_some();
    let london = spec.is_london_active_at_block(number);
    let base_fee = env.current_base_fee.map(|fee| to_u64(fee, "currentBaseFee")).transpose()?;
    let excess = env.current_excess_blob_gas.map(|gas| to_u64(gas, "currentExcessBlobGas"));
    let cancun = spec.is_cancun_active_at_timestamp(timestamp);
    Ok(Header {
        parent_hash: hash_of(number.saturating_sub(1)),
        beneficiary: env.current_coinbase,
        number,
        timestamp,
        gas_limit: env.current_gas_limit.saturating_to(),
        difficulty: if is_merged { U256::ZERO } else { env.current_difficulty },
        mix_hash: env.current_random.unwrap_or_default().into(),
        base_fee_per_gas: if london { base_fee } else { None },
        excess_blob_gas: if cancun { Some(excess.transpose()?.unwrap_or_default()) } else { None },
        ..Header::default()
    })
}

/// A block with the one transaction and its sender; `Ok(Err(reason))` if it is rejected before the
/// EVM.
fn transaction(
    spec: &ChainSpec,
    header: &Header,
    parts: &TransactionParts,
    post: &PostCase,
) -> Result<Result<RecoveredBlock, String>, String> {
    let block = |transaction| {
        let body = BlockBody { transactions: vec![transaction], ..BlockBody::default() };
        Block { header: header.clone(), body }
    };
    if let Some(bytes) = &post.txbytes {
        let mut rest = bytes.as_ref();
        let transaction = match Transaction::decode_2718(&mut rest) {
            Ok(transaction) if rest.is_empty() => transaction,
            Ok(_) => return Ok(Err("bytes follow the transaction".into())),
            Err(error) => return Ok(Err(format!("not a transaction: {error}"))),
        };
        return Ok(recover_senders(spec, block(transaction)).map_err(|error| error.to_string()));
    }
    let missing = |what: &str| format!("the transaction has no {what}");
    let pick =
        |list: &[U256], index: usize, what| list.get(index).copied().ok_or_else(|| missing(what));
    let to = match parts.to.as_str() {
        "" => TxKind::Create,
        to => TxKind::Call(to.parse().map_err(|error| format!("to: {error}"))?),
    };
    let sender = parts.sender.ok_or_else(|| missing("sender"))?;
    let transaction = TxLegacy {
        chain_id: None,
        nonce: to_u64(parts.nonce, "nonce")?,
        gas_price: parts
            .gas_price
            .ok_or_else(|| missing("gasPrice"))?
            .try_into()
            .map_err(|_| "gasPrice exceeds 128 bits")?,
        gas_limit: to_u64(pick(&parts.gas_limit, post.indexes.gas, "gasLimit")?, "gasLimit")?,
        to,
        value: pick(&parts.value, post.indexes.value, "value")?,
        input: parts.data.get(post.indexes.data).cloned().ok_or_else(|| missing("data"))?,
    };
    // The sender is given, so the signature is not used.
    let signature = Signature::new(U256::from(1), U256::from(1), false);
    let block = block(Transaction::Legacy(Signed::new_unhashed(transaction, signature)));
    Ok(Ok(RecoveredBlock::new_unhashed(block, vec![sender])))
}
