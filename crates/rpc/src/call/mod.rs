//! Executions that change nothing: `eth_call`, `eth_callMany`, `eth_estimateGas`,
//! `eth_createAccessList` and `eth_simulateV1`; and `state_call`, which proves what it reads.
//!
//! ```text
//!  request --.
//!  overrides -+--> Simulation (retrie-execution) --> outcome --> result, or geth's error text
//!  state -----'      the rules of the block
//! ```
//!
//! A call runs on the state after a block, with that block's environment and rules; the node must
//! still have that state. A call has no nonce and pays no fees unless the request sets them. Its
//! sender may be a contract (no EIP-3607), and the node's gas cap, not the block's limit, bounds
//! its gas.

mod access_list;
mod environment;
mod estimate;
mod eth_call;
mod overrides;
mod payment;
mod proven_call;
mod roots;
mod simulate;
mod transfers;
mod unsigned;

pub(crate) use environment::{CallEnvironment, call_bundles};
pub(crate) use estimate::estimate;
use overrides::{apply_block_overrides, apply_state_overrides, header_of_call};
#[cfg(feature = "graphql")]
pub(crate) use {estimate::least_gas, eth_call::call_result};

use crate::{
    RpcContext,
    args::{register_async, register_heavy},
};
use jsonrpsee::RpcModule;
use proven_call::ProvenCallRequest;

/// Registers the methods of this module; they belong to the namespace `eth`.
pub(crate) fn register(module: &mut RpcModule<RpcContext>) {
    register_heavy(module, "eth_call", |rpc, view, args| {
        eth_call::call(rpc, &view, args).map_err(|error| rpc.error_for_client(error))
    });
    register_heavy(module, "eth_callMany", |rpc, view, args| eth_call::call_many(rpc, &view, args));
    register_heavy(module, "eth_estimateGas", |rpc, view, args| {
        estimate::estimate_gas(rpc, &view, args).map_err(|error| rpc.error_for_client(error))
    });
    register_heavy(module, "eth_createAccessList", |rpc, view, args| {
        access_list::create_access_list(rpc, &view, args)
    });
    register_heavy(module, "eth_simulateV1", |rpc, view, args| {
        simulate::simulate(rpc, &view, args)
    });
}

/// Registers `state_call`, which belongs to the namespace `state`.
pub(crate) fn register_proven(module: &mut RpcModule<RpcContext>) {
    register_async(module, "state_call", ProvenCallRequest::of, proven_call::call);
}
