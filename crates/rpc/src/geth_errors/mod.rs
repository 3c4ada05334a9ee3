//! Error texts of failed executions, in geth's wording, because tools match on it.

mod halt;

pub(crate) use halt::{halt_text_with_step, opcode_name, stack_text};

use crate::{RpcError, RpcResult};
use alloy_primitives::{Bytes, U256};
use alloy_sol_types::{Panic, PanicKind, Revert, SolError};
use retrie_execution::{DatabaseError, EvmSimulation, ExecutionError, TransactError};
use revm::{
    context::{
        TxEnv,
        result::{ExecutionResult, HaltReason, InvalidTransaction, OutOfGasError},
    },
    primitives::eip3860::MAX_INITCODE_SIZE,
};
use std::time::Duration;

/// Error codes of `eth_simulateV1` (execution-apis), and general codes.
pub(crate) mod codes {
    pub(crate) const NONCE_TOO_LOW: i32 = -38010;
    pub(crate) const NONCE_TOO_HIGH: i32 = -38011;
    pub(crate) const BASE_FEE_TOO_LOW: i32 = -38012;
    pub(crate) const INTRINSIC_GAS: i32 = -38013;
    pub(crate) const INSUFFICIENT_FUNDS: i32 = -38014;
    pub(crate) const BLOCK_GAS_LIMIT: i32 = -38015;
    pub(crate) const BLOCK_NUMBER: i32 = -38020;
    pub(crate) const BLOCK_TIMESTAMP: i32 = -38021;
    pub(crate) const SENDER_IS_NOT_EOA: i32 = -38024;
    pub(crate) const INIT_CODE_SIZE: i32 = -38025;
    pub(crate) const CLIENT_LIMIT: i32 = crate::RpcError::CLIENT_LIMIT;
    pub(crate) const VM_ERROR: i32 = -32015;
    pub(crate) const INVALID_PARAMS: i32 = -32602;
    pub(crate) const INTERNAL: i32 = -32603;
}

/// Why a transaction could not be executed, with code and text.
#[derive(Debug)]
pub(crate) struct TransactFailure {
    /// Error code in `eth_simulateV1`.
    pub(crate) code: i32,
    /// geth's text, without the prefix that each method adds.
    reason: String,
    /// Gas limit of the transaction.
    gas: u64,
    /// Whether a higher gas limit may help.
    pub(crate) is_lack_of_gas: bool,
    /// An error that is not the transaction's fault.
    internal: Option<RpcError>,
}

impl TransactFailure {
    /// The reason why `tx` was not executed in a block with this base fee, within `time`.
    pub(crate) fn new(error: TransactError, tx: &TxEnv, base_fee: u64, time: Duration) -> Self {
        let gas = tx.gas_limit;
        let failed = |internal| Self {
            code: codes::INTERNAL,
            reason: String::new(),
            gas,
            is_lack_of_gas: false,
            internal: Some(internal),
        };
        match error {
            TransactError::Invalid(invalid) => {
                let (code, reason) = invalid_transaction_text(&invalid, tx, base_fee);
                let is_lack_of_gas = code == codes::INTRINSIC_GAS;
                Self { code, reason, gas, is_lack_of_gas, internal: None }
            }
            TransactError::TimedOut => {
                failed(RpcError::Rejected(format!("execution aborted (timeout = {time:?})")))
            }
            TransactError::Database(error) => failed(Self::database(error)),
            error => failed(RpcError::Internal(error.to_string())),
        }
    }

    /// Converts a failed read.
    pub(crate) fn database(error: DatabaseError) -> RpcError {
        match error {
            DatabaseError::State(error) => error.into(),
            error @ DatabaseError::StorageTooLarge { .. } => {
                RpcError::Coded { code: codes::CLIENT_LIMIT, message: error.to_string() }
            }
            error => RpcError::Internal(error.to_string()),
        }
    }

    /// The error of `eth_call`.
    pub(crate) fn in_call(self) -> RpcError {
        let Self { reason, gas, .. } = &self;
        let message = format!("err: {reason} (supplied gas {gas})");
        self.internal.unwrap_or(RpcError::Rejected(message))
    }

    /// The error of `debug_traceCall`.
    pub(crate) fn in_trace(self) -> RpcError {
        let message = format!("tracing failed: {}", self.reason);
        self.internal.unwrap_or(RpcError::Rejected(message))
    }

    /// The error of `eth_estimateGas`.
    pub(crate) fn in_estimate(self) -> RpcError {
        let Self { reason, gas, .. } = &self;
        let message = format!("failed with {gas} gas: {reason}");
        self.internal.unwrap_or(RpcError::Rejected(message))
    }

    /// The error of `eth_simulateV1`.
    pub(crate) fn in_block(self) -> RpcError {
        let Self { code, reason, gas, .. } = &self;
        let message = format!("err: {reason} (supplied gas {gas})");
        let code = *code;
        self.internal.unwrap_or(RpcError::Coded { code, message })
    }
}

/// The error of a block that could not be executed.
pub(crate) fn block_failure(error: ExecutionError) -> RpcError {
    match error {
        ExecutionError::Database { source, .. }
            if matches!(*source, DatabaseError::StorageTooLarge { .. }) =>
        {
            TransactFailure::database(*source)
        }
        error => RpcError::Chain(error.into()),
    }
}

fn invalid_transaction_text(
    invalid: &InvalidTransaction,
    tx: &TxEnv,
    base_fee: u64,
) -> (i32, String) {
    use InvalidTransaction as Invalid;
    let from = tx.caller;
    let fee_cap = tx.gas_price;
    match invalid {
        Invalid::NonceTooLow { tx, state } => (
            codes::NONCE_TOO_LOW,
            format!("nonce too low: address {from}, tx: {tx} state: {state}"),
        ),
        Invalid::NonceTooHigh { tx, state } => (
            codes::NONCE_TOO_HIGH,
            format!("nonce too high: address {from}, tx: {tx} state: {state}"),
        ),
        Invalid::NonceOverflowInTransaction => {
            (codes::INTERNAL, format!("nonce has max value: address {from}, nonce: {}", u64::MAX))
        }
        Invalid::GasPriceLessThanBasefee => (
            codes::BASE_FEE_TOO_LOW,
            format!(
                "max fee per gas less than block base fee: address {from}, maxFeePerGas: \
                 {fee_cap}, baseFee: {base_fee}"
            ),
        ),
        Invalid::PriorityFeeGreaterThanMaxFee => (
            codes::INVALID_PARAMS,
            format!(
                "max priority fee per gas higher than max fee per gas: address {from}, \
                 maxPriorityFeePerGas: {}, maxFeePerGas: {fee_cap}",
                tx.gas_priority_fee.unwrap_or_default()
            ),
        ),
        Invalid::CallGasCostMoreThanGasLimit { initial_gas, gas_limit } => (
            codes::INTRINSIC_GAS,
            format!("intrinsic gas too low: have {gas_limit}, want {initial_gas}"),
        ),
        Invalid::GasFloorMoreThanGasLimit { gas_floor, gas_limit } => (
            codes::INTRINSIC_GAS,
            format!("insufficient gas for floor data gas cost: have {gas_limit}, want {gas_floor}"),
        ),
        Invalid::LackOfFundForMaxFee { fee, balance } => (
            codes::INSUFFICIENT_FUNDS,
            format!(
                "insufficient funds for gas * price + value: address {from} have {balance} want \
                 {fee}"
            ),
        ),
        Invalid::OverflowPaymentInTransaction => (
            codes::INSUFFICIENT_FUNDS,
            format!(
                "insufficient funds for gas * price + value: address {from} required balance \
                 exceeds 256 bits"
            ),
        ),
        Invalid::CreateInitCodeSizeLimit => (
            codes::INIT_CODE_SIZE,
            format!(
                "max initcode size exceeded: code size {} limit {MAX_INITCODE_SIZE}",
                tx.data.len()
            ),
        ),
        Invalid::RejectCallerWithCode => {
            (codes::SENDER_IS_NOT_EOA, format!("sender not an eoa: address {from}"))
        }
        Invalid::BlobGasPriceGreaterThanMax { block_blob_gas_price, tx_max_fee_per_blob_gas } => (
            codes::INTERNAL,
            format!(
                "max fee per blob gas less than block blob gas fee: address {from} blobGasFeeCap: \
                 {tx_max_fee_per_blob_gas}, blobBaseFee: {block_blob_gas_price}"
            ),
        ),
        Invalid::EmptyBlobs => {
            (codes::INVALID_PARAMS, "blob transaction missing blob hashes".into())
        }
        Invalid::BlobVersionNotSupported => {
            (codes::INVALID_PARAMS, "blob has invalid hash version".into())
        }
        Invalid::TooManyBlobs { max, have } => (
            codes::INVALID_PARAMS,
            format!("blob transaction has too many blobs: have {have}, permitted {max}"),
        ),
        Invalid::EmptyAuthorizationList => (
            codes::INVALID_PARAMS,
            format!("EIP-7702 transaction with empty auth list (sender {from})"),
        ),
        Invalid::Eip2930NotSupported
        | Invalid::Eip1559NotSupported
        | Invalid::Eip4844NotSupported
        | Invalid::Eip7702NotSupported => {
            (codes::INVALID_PARAMS, "transaction type not supported".into())
        }
        other => (codes::INTERNAL, other.to_string()),
    }
}

/// geth's text for a halt reason.
pub(crate) fn halt_text(reason: &HaltReason) -> String {
    let words = match reason {
        HaltReason::OutOfGas(OutOfGasError::InvalidOperand) => "gas uint64 overflow",
        HaltReason::OutOfGas(_) => "out of gas",
        HaltReason::OpcodeNotFound | HaltReason::NotActivated => "invalid opcode",
        HaltReason::InvalidFEOpcode => "invalid opcode: INVALID",
        HaltReason::InvalidJump => "invalid jump destination",
        HaltReason::StackUnderflow => "stack underflow",
        HaltReason::StackOverflow => "stack limit reached 1024 (1023)",
        HaltReason::OutOfOffset => "return data out of bounds",
        HaltReason::CreateCollision => "contract address collision",
        HaltReason::NonceOverflow => "nonce uint64 overflow",
        HaltReason::CreateContractSizeLimit => "max code size exceeded",
        HaltReason::CreateContractStartingWithEF => "invalid code: must not begin with 0xef",
        HaltReason::CreateInitCodeSizeLimit => "max initcode size exceeded",
        HaltReason::StateChangeDuringStaticCall | HaltReason::CallNotAllowedInsideStatic => {
            "write protection"
        }
        HaltReason::OutOfFunds => "insufficient balance for transfer",
        HaltReason::CallTooDeep => "max call depth exceeded",
        other => return other.to_string(),
    };
    words.into()
}

/// `execution reverted`, with the reason if the output is an `Error(string)` or a `Panic(uint256)`.
pub(crate) fn revert_text(output: &[u8]) -> String {
    const REVERTED: &str = "execution reverted";
    match revert_reason(output) {
        Some(reason) => format!("{REVERTED}: {reason}"),
        None => REVERTED.into(),
    }
}

/// The revert reason in an output.
pub(crate) fn revert_reason(output: &[u8]) -> Option<String> {
    if let Ok(error) = Revert::abi_decode(output) {
        return Some(error.reason);
    }
    Panic::abi_decode(output).ok().map(|panic| panic_text(&panic))
}

fn panic_text(panic: &Panic) -> String {
    let words = match panic.kind() {
        Some(PanicKind::Generic) => "generic panic",
        Some(PanicKind::Assert) => "assert(false)",
        Some(PanicKind::UnderOverflow) => "arithmetic underflow or overflow",
        Some(PanicKind::DivisionByZero) => "division or modulo by zero",
        Some(PanicKind::EnumConversionError) => "enum overflow",
        Some(PanicKind::StorageEncodingError) => "invalid encoded storage byte array accessed",
        Some(PanicKind::EmptyArrayPop) => "out-of-bounds array access; popping on an empty array",
        Some(PanicKind::ArrayOutOfBounds) => "out-of-bounds access of an array or bytesN",
        Some(PanicKind::ResourceError) => "out of memory",
        Some(PanicKind::InvalidInternalFunction) => "uninitialized function",
        _ => return format!("unknown panic code: {:#x}", U256::from(panic.code)),
    };
    words.into()
}

/// The output of a call, or its error. The state must be the one before the call.
pub(crate) fn output(
    simulation: &mut EvmSimulation<'_>,
    tx: &TxEnv,
    result: ExecutionResult<HaltReason>,
) -> RpcResult<Bytes> {
    match result {
        ExecutionResult::Success { output, .. } => Ok(output.into_data()),
        ExecutionResult::Revert { output, .. } => {
            Err(RpcError::Reverted { message: revert_text(&output), output })
        }
        ExecutionResult::Halt { reason, .. } => {
            Err(RpcError::Halted(halt_text_with_step(simulation, tx, &reason)))
        }
    }
}
