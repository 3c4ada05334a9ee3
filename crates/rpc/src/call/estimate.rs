//! `eth_estimateGas`: the least gas with which a call succeeds, within a small error.

use super::{CallEnvironment, payment::allowance};
use crate::{
    MethodParams, RpcContext, RpcError, RpcResult,
    geth_errors::{self, TransactFailure},
};
use alloy_eips::BlockId;
use alloy_primitives::{KECCAK256_EMPTY, TxKind, U64};
use alloy_rpc_types_eth::{BlockOverrides, TransactionRequest, state::StateOverride};
use retrie_engine::LiveView;
use retrie_execution::{CallRules, EvmSimulation, max_tx_gas_limit, prepare_call};
use revm::context::{
    TxEnv,
    result::{ExecutionResult, HaltReason},
};
use std::time::Duration;

/// Gas of a transaction without data to an account without code.
const PLAIN_TRANSFER: u64 = 21_000;
/// Gas that a call with value gives its callee for free.
const CALL_STIPEND: u64 = 2_300;
/// By which ratio the estimate may exceed the least gas (geth's `estimateGasErrorRatio`).
const ERROR_RATIO: f64 = 0.015;

/// `eth_estimateGas(call, block, stateOverrides, blockOverrides)`.
pub(super) fn estimate_gas(
    rpc: &RpcContext,
    view: &LiveView,
    args: &mut MethodParams<'_>,
) -> RpcResult<U64> {
    let request: TransactionRequest = args.object()?;
    // The transaction will be in the next block, whose number and time may matter.
    let block = match args.optional_block()? {
        None if rpc.dev.is_some() => BlockId::pending(),
        block => block.unwrap_or_default(),
    };
    let accounts: Option<StateOverride> = args.optional_object()?;
    let overrides: Option<BlockOverrides> = args.optional_object()?;
    estimate(rpc, view, request, block, accounts, overrides.as_ref()).map(U64::from)
}

/// The least gas with which `request` succeeds after the block, within [`ERROR_RATIO`].
pub(crate) fn estimate(
    rpc: &RpcContext,
    view: &LiveView,
    request: TransactionRequest,
    block: BlockId,
    accounts: Option<StateOverride>,
    overrides: Option<&BlockOverrides>,
) -> RpcResult<u64> {
    estimate_within(ERROR_RATIO, rpc, view, request, block, accounts, overrides)
}

/// The least gas with which `request` succeeds after the block.
#[cfg(feature = "graphql")]
pub(crate) fn least_gas(
    rpc: &RpcContext,
    view: &LiveView,
    request: TransactionRequest,
    block: BlockId,
) -> RpcResult<u64> {
    estimate_within(0.0, rpc, view, request, block, None, None)
}

/// The least gas with which `request` succeeds after the block, within `error_ratio`.
fn estimate_within(
    error_ratio: f64,
    rpc: &RpcContext,
    view: &LiveView,
    request: TransactionRequest,
    block: BlockId,
    accounts: Option<StateOverride>,
    overrides: Option<&BlockOverrides>,
) -> RpcResult<u64> {
    let ground = CallEnvironment::after(rpc, view, block, overrides)?;
    let mut simulation = ground.simulation(rpc, overrides, accounts)?;
    let asked = request.gas.filter(|gas| *gas >= PLAIN_TRANSFER);
    let base_fee = simulation.env().block_env.basefee;
    let cap = max_tx_gas_limit(&simulation.env().cfg_env);
    let tx = prepare_call(&mut simulation, request, CallRules::Call, rpc.limits.gas_cap)?;
    // With state gas (EIP-8037) the cap of EIP-7825 still holds for all other gas.
    simulation.env_mut().cfg_env.tx_gas_limit_cap = None;
    let mut most = asked.unwrap_or_else(|| ground.header().gas_limit).min(cap);
    if let Some(allowance) = allowance(&mut simulation, &tx)? {
        most = most.min(allowance);
    }
    if rpc.limits.gas_cap > 0 {
        most = most.min(rpc.limits.gas_cap);
    }
    let time = rpc.limits.evm_timeout;
    GasEstimator { simulation, tx, base_fee, time, error_ratio }.least(most)
}

struct GasEstimator<'a> {
    simulation: EvmSimulation<'a>,
    tx: TxEnv,
    base_fee: u64,
    time: Duration,
    /// By which ratio the estimate may exceed the least gas.
    error_ratio: f64,
}

impl GasEstimator<'_> {
    /// The least gas up to `most`, by bisection.
    fn least(&mut self, most: u64) -> RpcResult<u64> {
        if self.is_plain_transfer()?
            && matches!(self.run(PLAIN_TRANSFER), Ok(Some(ExecutionResult::Success { .. })))
        {
            return Ok(PLAIN_TRANSFER);
        }
        let exceeds = || RpcError::Rejected(format!("gas required exceeds allowance ({most})"));
        let gas = match self.run(most)? {
            Some(ExecutionResult::Success { gas, .. }) => gas,
            None | Some(ExecutionResult::Halt { reason: HaltReason::OutOfGas(_), .. }) => {
                return Err(exceeds());
            }
            Some(failed) => {
                let tx = TxEnv { gas_limit: most, ..self.tx.clone() };
                return geth_errors::output(&mut self.simulation, &tx, failed).map(|_| most);
            }
        };
        let (mut enough, mut too_little) = (most, gas.tx_gas_used().saturating_sub(1));
        // A good first guess is the gas used before refunds, plus the 1/64 that calls keep back
        // (EIP-150).
        let used = gas.total_gas_spent().max(gas.floor_gas());
        let likely = (used + CALL_STIPEND).saturating_mul(64) / 63;
        if likely < enough {
            self.bisect(likely, &mut enough, &mut too_little)?;
        }
        while too_little + 1 < enough {
            if ((enough - too_little) as f64) / (enough as f64) < self.error_ratio {
                break;
            }
            let middle = too_little + (enough - too_little) / 2;
            // Most transactions need only a little of the allowance.
            let middle = middle.min(too_little.saturating_mul(2));
            self.bisect(middle, &mut enough, &mut too_little)?;
        }
        Ok(enough)
    }

    fn bisect(&mut self, gas: u64, enough: &mut u64, too_little: &mut u64) -> RpcResult<()> {
        match self.run(gas)? {
            Some(ExecutionResult::Success { .. }) => *enough = gas,
            _ => *too_little = gas,
        }
        Ok(())
    }

    fn is_plain_transfer(&mut self) -> RpcResult<bool> {
        let TxKind::Call(to) = self.tx.kind else { return Ok(false) };
        if !self.tx.data.is_empty() {
            return Ok(false);
        }
        let account = self.simulation.account(to).map_err(TransactFailure::database)?;
        Ok(account.is_none_or(|account| account.code_hash == KECCAK256_EMPTY))
    }

    /// Executes with this gas limit; `None` if the limit is below the intrinsic gas.
    fn run(&mut self, gas: u64) -> RpcResult<Option<ExecutionResult<HaltReason>>> {
        let tx = TxEnv { gas_limit: gas, ..self.tx.clone() };
        match self.simulation.transact(tx.clone()) {
            Ok(outcome) => Ok(Some(outcome.result)),
            Err(error) => {
                let failure = TransactFailure::new(error, &tx, self.base_fee, self.time);
                if failure.is_lack_of_gas { Ok(None) } else { Err(failure.in_estimate()) }
            }
        }
    }
}
