//! Precompiled contracts and arithmetic opcodes, by test vectors.

use crate::{
    format::{TestConfig, TestVerdict, chain_spec, parse},
    worker::TestWorker,
};
use alloy_consensus::{Signed, TxLegacy, transaction::Recovered};
use alloy_primitives::{Address, B256, Bytes, Signature, TxKind, U256, hex, keccak256};
use retrie_chainspec::primitives::{Header, Transaction};
use retrie_execution::{CodeReader, ExecutionInput, execute_transaction};
use retrie_state::{Account, StateError, StateKey, StateReader, StateValue, decode_slot};
use revm::precompile::{PrecompileSpecId, PrecompileStatus, Precompiles, u64_to_address};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

use PrecompileSpecId::{BERLIN, BYZANTIUM, OSAKA};

/// File names, addresses of the contracts, and their rules.
const CONTRACTS: [(&str, u64, PrecompileSpecId); 21] = [
    ("ecRecover", 0x01, OSAKA),
    ("modexp", 0x05, BYZANTIUM),
    ("modexp_eip2565", 0x05, BERLIN),
    ("modexp_eip7883", 0x05, OSAKA),
    ("bn256Add", 0x06, OSAKA),
    ("bn256ScalarMul", 0x07, OSAKA),
    ("bn256Pairing", 0x08, OSAKA),
    ("blake2F", 0x09, OSAKA),
    ("blake2f", 0x09, OSAKA),
    ("pointEvaluation", 0x0a, OSAKA),
    ("blsG1Add", 0x0b, OSAKA),
    ("blsG1Mul", 0x0c, OSAKA),
    ("blsG1MultiExp", 0x0c, OSAKA),
    ("blsG2Add", 0x0d, OSAKA),
    ("blsG2Mul", 0x0e, OSAKA),
    ("blsG2MultiExp", 0x0e, OSAKA),
    ("blsPairing", 0x0f, OSAKA),
    ("blsMapG1", 0x10, OSAKA),
    ("blsMapG2", 0x11, OSAKA),
    ("p256Verify", 0x100, OSAKA),
    ("p256VerifyFailures", 0x100, OSAKA),
];

/// Opcodes by file name.
const OPCODES: [(&str, u8); 21] = [
    ("add", 0x01),
    ("mul", 0x02),
    ("sub", 0x03),
    ("div", 0x04),
    ("sdiv", 0x05),
    ("mod", 0x06),
    ("smod", 0x07),
    ("exp", 0x0a),
    ("signext", 0x0b),
    ("lt", 0x10),
    ("gt", 0x11),
    ("slt", 0x12),
    ("sgt", 0x13),
    ("eq", 0x14),
    ("and", 0x16),
    ("or", 0x17),
    ("xor", 0x18),
    ("byte", 0x1a),
    ("shl", 0x1b),
    ("shr", 0x1c),
    ("sar", 0x1d),
];

/// Runs a test vector of the file `path`.
pub(crate) fn run(path: &str, json: &RawValue, worker: &TestWorker) -> TestVerdict {
    let file = path.rsplit('/').next().unwrap_or_default().trim_end_matches(".json");
    if let Some(name) = file.strip_prefix("testcases_") {
        let opcode = OPCODES.iter().find(|(known, _)| *known == name);
        let (_, opcode) = opcode.ok_or_else(|| format!("unknown opcode {name}"))?;
        return operate(*opcode, json, worker);
    }
    let contract = file.strip_prefix("fail-").unwrap_or(file);
    let contract = CONTRACTS.iter().find(|(known, ..)| *known == contract);
    let (_, address, rules) = contract.ok_or_else(|| format!("unknown precompile {file}"))?;
    call(*address, *rules, json)
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PrecompileCall {
    input: String,
    expected: Option<String>,
    gas: Option<u64>,
    expected_error: Option<String>,
}

fn call(address: u64, rules: PrecompileSpecId, json: &RawValue) -> TestVerdict {
    let test: PrecompileCall = parse(json)?;
    let bytes = |text: &str| hex::decode(text).map_err(|error| error.to_string());
    let input = bytes(&test.input)?;
    let contract = Precompiles::new(rules)
        .get(&u64_to_address(address))
        .ok_or_else(|| format!("there is no precompile at {address:#x}"))?;
    let output = contract
        .execute(&input, u64::MAX, 0)
        .map_err(|error| format!("the precompile broke down: {error:?}"))?;
    match (&output.status, test.expected, test.expected_error) {
        (PrecompileStatus::Success, Some(expected), None) => {
            let gas = test.gas.ok_or("the test lacks Gas")?;
            if *output.bytes != *bytes(&expected)? {
                return Err(format!("gives {}, expected {expected}", output.bytes));
            }
            // The vector with zero rounds of BLAKE2 costs nothing.
            if output.gas_used != gas {
                return Err(format!("costs {}, expected {gas}", output.gas_used));
            }
            Ok(())
        }
        (PrecompileStatus::Halt(_), None, Some(_)) => Ok(()),
        (status, expected, error) => Err(format!(
            "ends with {status:?}, expected {}",
            expected.or(error).unwrap_or_default()
        )),
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct OpcodeCase {
    x: U256Hex,
    y: U256Hex,
    expected: U256Hex,
}

/// 64 digits without 0x.
#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
struct U256Hex(U256);

impl TryFrom<String> for U256Hex {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        U256::from_str_radix(&text, 16).map(Self).map_err(|error| format!("{text}: {error}"))
    }
}

const SENDER: Address = Address::repeat_byte(0x11);
const CONTRACT: Address = Address::repeat_byte(0x22);

/// A state with a sender and one contract.
struct OpcodeState(Bytes);

impl StateReader for OpcodeState {
    fn get(&self, key: &StateKey) -> Result<Option<StateValue>, StateError> {
        let account = match key {
            StateKey::Account(SENDER) => Account { balance: U256::MAX, ..Account::default() },
            StateKey::Account(CONTRACT) => {
                Account { nonce: 1, code_hash: keccak256(&self.0), ..Account::default() }
            }
            _ => return Ok(None),
        };
        Ok(Some(account.encode()))
    }

    fn slots_of(&self, _: &Address) -> Result<Vec<(B256, StateValue)>, StateError> {
        Ok(Vec::new())
    }
}

impl CodeReader for OpcodeState {
    fn code(&self, hash: &B256) -> Result<Option<Bytes>, StateError> {
        Ok((*hash == keccak256(&self.0)).then(|| self.0.clone()))
    }
}

/// Runs a program that pushes x and y, applies the opcode, and stores the result.
fn operate(opcode: u8, json: &RawValue, worker: &TestWorker) -> TestVerdict {
    const PUSH32: u8 = 0x7f;
    let OpcodeCase { x, y, expected } = parse(json)?;
    let mut code = vec![PUSH32];
    code.extend(x.0.to_be_bytes::<32>());
    code.push(PUSH32);
    code.extend(y.0.to_be_bytes::<32>());
    code.extend([opcode, 0x60, 0x00, 0x55, 0x00]);
    let machine = OpcodeState(code.into());

    let spec = chain_spec("Osaka", &TestConfig::default(), BTreeMap::new(), Header::default())?;
    let header = Header {
        number: 1,
        timestamp: 1,
        gas_limit: 1_000_000,
        base_fee_per_gas: Some(0),
        excess_blob_gas: Some(0),
        ..Header::default()
    };
    let tx = TxLegacy { to: TxKind::Call(CONTRACT), gas_limit: 100_000, ..TxLegacy::default() };
    let signature = Signature::new(U256::from(1), U256::from(1), false);
    let tx = Transaction::Legacy(Signed::new_unhashed(tx, signature));
    let input = ExecutionInput::new(&machine, &machine, &()).with_code_cache(&worker.codes);
    let outcome = execute_transaction(&spec, &header, Recovered::new_unchecked(&tx, SENDER), input)
        .map_err(|error| error.to_string())?;
    if !outcome.receipts.iter().all(|receipt| receipt.success) {
        return Err("the program fails".into());
    }
    let slot = StateKey::Slot(CONTRACT, B256::ZERO);
    let stored = outcome.delta.changes().iter().find(|change| change.key == slot);
    let got = match stored.and_then(|change| change.next.as_ref()) {
        Some(value) => decode_slot(value).ok_or("the slot has no canonical value")?,
        None => U256::ZERO,
    };
    if got != expected.0 {
        Err(format!("gives {got:#x}, expected {:#x}", expected.0))
    } else {
        Ok(())
    }
}
