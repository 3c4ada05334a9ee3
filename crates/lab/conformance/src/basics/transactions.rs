//! Single transactions: form, signature and intrinsic gas, fork by fork.
//!
//! The client's EVM decides what the bytes alone do not show: the transaction is executed for a
//! sender with the right nonce and unlimited funds, in a block with enough gas.

use crate::{
    format::{TestConfig, TestVerdict, chain_spec, parse, to_u64},
    worker::TestWorker,
};
use alloy_consensus::Transaction as _;
use alloy_eips::eip2718::{Decodable2718, Encodable2718};
use alloy_primitives::{Address, B256, U256};
use retrie_chainspec::{
    ChainSpec, EthereumHardforks,
    primitives::{Block, BlockBody, Header, Transaction},
};
use retrie_execution::{ExecutionError, ExecutionInput, evm_env, execute_transaction};
use retrie_pipeline::recover_senders;
use retrie_state::{Account, StateError, StateKey, StateReader, StateValue};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

#[derive(Debug, Deserialize)]
struct TransactionCase {
    txbytes: String,
    result: BTreeMap<String, ExpectedTransaction>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExpectedTransaction {
    exception: Option<String>,
    hash: Option<B256>,
    sender: Option<Address>,
    intrinsic_gas: Option<U256>,
}

/// The figures of a valid transaction.
struct ValidTransaction {
    hash: B256,
    sender: Address,
    intrinsic_gas: u64,
}

/// A state with one account that can pay for everything.
struct RichSender(Address, u64);

impl StateReader for RichSender {
    fn get(&self, key: &StateKey) -> Result<Option<StateValue>, StateError> {
        let account = Account { nonce: self.1, balance: U256::MAX, ..Account::default() };
        Ok((*key == StateKey::Account(self.0)).then(|| account.encode()))
    }

    fn slots_of(&self, _: &Address) -> Result<Vec<(B256, StateValue)>, StateError> {
        Ok(Vec::new())
    }
}

pub(super) fn run(json: &RawValue, worker: &TestWorker) -> TestVerdict {
    let test: TransactionCase = parse(json)?;
    let bytes = alloy_primitives::hex::decode(&test.txbytes)
        .map_err(|error| format!("txbytes: {error}"))?;
    if test.result.is_empty() {
        return Err("has no result".into());
    }
    for (fork, expected) in &test.result {
        check(fork, &bytes, expected, worker).map_err(|error| format!("{fork}: {error}"))?;
    }
    Ok(())
}

fn check(
    fork: &str,
    bytes: &[u8],
    expected: &ExpectedTransaction,
    worker: &TestWorker,
) -> TestVerdict {
    let spec = chain_spec(fork, &TestConfig::default(), BTreeMap::new(), Header::default())?;
    match (&expected.exception, judge(&spec, bytes, worker)?) {
        (Some(_), Err(_)) => Ok(()),
        (Some(reason), Ok(_)) => Err(format!("is accepted, expected is {reason}")),
        (None, Err(refusal)) => Err(format!("is refused: {refusal}")),
        (None, Ok(valid)) => {
            let gas = expected.intrinsic_gas.ok_or("the result lacks intrinsicGas")?;
            let got = (Some(valid.hash), Some(valid.sender), valid.intrinsic_gas);
            let wanted = (expected.hash, expected.sender, to_u64(gas, "intrinsicGas")?);
            if got != wanted {
                return Err(format!("hash, sender and gas are {got:?}, expected {wanted:?}"));
            }
            Ok(())
        }
    }
}

fn judge(
    spec: &ChainSpec,
    bytes: &[u8],
    worker: &TestWorker,
) -> Result<Result<ValidTransaction, String>, String> {
    let mut rest = bytes;
    let transaction = match Transaction::decode_2718(&mut rest) {
        Ok(transaction) if rest.is_empty() => transaction,
        Ok(_) => return Ok(Err("bytes follow".into())),
        Err(error) => return Ok(Err(error.to_string())),
    };
    if transaction.encoded_2718() != bytes {
        return Ok(Err("it is not in canonical form".into()));
    }
    let (london, cancun) =
        (spec.is_london_active_at_block(1), spec.is_cancun_active_at_timestamp(1));
    let header = Header {
        number: 1,
        timestamp: 1,
        gas_limit: u64::MAX,
        base_fee_per_gas: london.then_some(0),
        excess_blob_gas: cancun.then_some(0),
        ..Header::default()
    };
    let body = BlockBody { transactions: vec![transaction], ..BlockBody::default() };
    let block = match recover_senders(spec, Block { header: header.clone(), body }) {
        Ok(block) => block,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let recovered = block.transactions_recovered().next().ok_or("no transaction")?;
    let (sender, hash) = (recovered.signer(), *recovered.inner().tx_hash());
    let state = RichSender(sender, recovered.nonce());
    let input = ExecutionInput::new(&state, &(), &()).with_code_cache(&worker.codes);
    match execute_transaction(spec, &header, recovered, input) {
        Ok(_) => {}
        Err(error @ ExecutionError::InvalidTransaction { .. }) => {
            return Ok(Err(error.to_string()));
        }
        Err(error) => return Err(error.to_string()),
    }
    let costs = evm_env(spec, &header).cfg_env.gas_params;
    let list = recovered.access_list();
    let slots = list.map_or(0, |list| list.storage_keys_count());
    let gas = costs.initial_tx_gas(
        recovered.input(),
        recovered.is_create(),
        list.map_or(0, |list| list.len() as u64),
        slots as u64,
        recovered.authorization_count().unwrap_or_default(),
        None,
    );
    Ok(Ok(ValidTransaction { hash, sender, intrinsic_gas: gas.initial_total_gas() }))
}
