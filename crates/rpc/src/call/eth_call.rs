//! `eth_call` and `eth_callMany`.

use super::{CallEnvironment, call_bundles};
use crate::{
    MethodParams, RpcContext, RpcError, RpcResult,
    geth_errors::{self, TransactFailure},
};
#[cfg(feature = "graphql")]
use alloy_eips::BlockId;
use alloy_primitives::Bytes;
use alloy_rpc_types_eth::{
    BlockOverrides, Bundle, EthCallResponse, StateContext, TransactionRequest, state::StateOverride,
};
use retrie_engine::LiveView;
use retrie_execution::{CallRules, EvmSimulation, prepare_call};
use revm::context::{
    TxEnv,
    result::{ExecutionResult, HaltReason, ResultAndState},
};

/// `eth_call(call, block, stateOverrides, blockOverrides)`: what the call returns.
pub(super) fn call(
    rpc: &RpcContext,
    view: &LiveView,
    args: &mut MethodParams<'_>,
) -> RpcResult<Bytes> {
    let request: TransactionRequest = args.object()?;
    let block = args.block_or_latest()?;
    let accounts: Option<StateOverride> = args.optional_object()?;
    let overrides: Option<BlockOverrides> = args.optional_object()?;

    let ground = CallEnvironment::after(rpc, view, block, overrides.as_ref())?;
    let mut simulation = ground.simulation(rpc, overrides.as_ref(), accounts)?;
    transact(rpc, &mut simulation, request, false, geth_errors::output)
}

/// The result of a call on the state after a block, whether it succeeded or not.
#[cfg(feature = "graphql")]
pub(crate) fn call_result(
    rpc: &RpcContext,
    view: &LiveView,
    request: TransactionRequest,
    block: BlockId,
) -> RpcResult<ExecutionResult<HaltReason>> {
    let ground = CallEnvironment::after(rpc, view, block, None)?;
    let mut simulation = ground.simulation(rpc, None, None)?;
    transact(rpc, &mut simulation, request, false, |_, _, result| Ok(result))
}

/// Executes a call and returns what `show` makes of its result, on the state before it. With
/// `commits`, later calls see its changes.
fn transact<T>(
    rpc: &RpcContext,
    simulation: &mut EvmSimulation<'_>,
    request: TransactionRequest,
    commits: bool,
    show: impl FnOnce(&mut EvmSimulation<'_>, &TxEnv, ExecutionResult<HaltReason>) -> RpcResult<T>,
) -> RpcResult<T> {
    let block_env = simulation.env().block_env.clone();
    let tx = prepare_call(simulation, request, CallRules::Call, rpc.limits.gas_cap)?;
    let (base_fee, time) = (block_env.basefee, rpc.limits.evm_timeout);
    let output = match simulation.transact(tx.clone()) {
        Ok(ResultAndState { result, state }) => {
            let output = show(simulation, &tx, result);
            let committed = if commits { simulation.commit(state) } else { Ok(()) };
            committed.map_err(TransactFailure::database).and(output)
        }
        Err(error) => Err(TransactFailure::new(error, &tx, base_fee, time).in_call()),
    };
    // Each call sets its own fees, so the block environment is reset even after a failure.
    simulation.env_mut().block_env = block_env;
    output
}

/// `eth_callMany(bundles, context, stateOverrides)`: calls that see the changes of the calls before
/// them, on the state after a block or after one of its transactions.
pub(super) fn call_many(
    rpc: &RpcContext,
    view: &LiveView,
    args: &mut MethodParams<'_>,
) -> RpcResult<Vec<Vec<EthCallResponse>>> {
    let bundles: Vec<Bundle> = args.required()?;
    let context: StateContext = args.optional_object()?.unwrap_or_default();
    let accounts: Option<StateOverride> = args.optional_object()?;
    if bundles.iter().all(|bundle| bundle.transactions.is_empty()) {
        return Err(RpcError::InvalidParams("there are no calls to execute".into()));
    }

    call_bundles(rpc, view, (bundles, context), accounts, |simulation, request| {
        Ok(match transact(rpc, simulation, request, true, geth_errors::output) {
            Ok(value) => EthCallResponse { value: Some(value), error: None },
            Err(error) => EthCallResponse { value: None, error: Some(error.to_string()) },
        })
    })
}
