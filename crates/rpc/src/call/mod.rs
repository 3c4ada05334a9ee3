//! Executions that change nothing: `eth_call`, `eth_callMany`, `eth_estimateGas`,
//! `eth_createAccessList` and `eth_simulateV1`.
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
mod request;
mod roots;
mod simulate;
mod transfers;
mod unsigned;

pub(crate) use environment::{CallEnvironment, call_bundles};
pub(crate) use estimate::estimate;
use overrides::{apply_block_overrides, apply_state_overrides, header_of_call};
pub(crate) use request::{CallRules, prepare};

use crate::{RpcContext, args::register_heavy};
use jsonrpsee::RpcModule;

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
