//! Executions that leave no trace: `eth_call`, `eth_callMany`, `eth_estimateGas`,
//! `eth_createAccessList` and `eth_simulateV1`.
//!
//! ```text
//!  request --.
//!  overrides -+--> Simulation (retrie-execution) --> outcome --> result, or geth's words for it
//!  state -----'      the block's own rules
//! ```
//!
//! Each runs on the state after a block, with that block's environment and rules, on any block whose
//! state is kept. A call has no nonce and pays no fees unless it names them; its sender may be a
//! contract (no EIP-3607), and its gas is bound by the node's cap, not by the block.

mod access_list;
mod estimate;
mod eth_call;
mod ground;
mod overrides;
mod request;
mod roots;
mod simulate;
mod transfers;
mod unsigned;

pub(crate) use estimate::estimate;
pub(crate) use ground::{Ground, call_bundles};
use overrides::{apply_block_overrides, apply_state_overrides, header_of_call};
pub(crate) use request::{CallRules, prepare};

use crate::{RpcContext, args::heavy};
use jsonrpsee::RpcModule;

/// Adds the methods of this module, which belong to the namespace `eth`.
pub(crate) fn register(module: &mut RpcModule<RpcContext>) {
    heavy(module, "eth_call", |rpc, view, args| {
        eth_call::call(rpc, &view, args).map_err(|error| rpc.word(error))
    });
    heavy(module, "eth_callMany", |rpc, view, args| eth_call::call_many(rpc, &view, args));
    heavy(module, "eth_estimateGas", |rpc, view, args| {
        estimate::estimate_gas(rpc, &view, args).map_err(|error| rpc.word(error))
    });
    heavy(module, "eth_createAccessList", |rpc, view, args| {
        access_list::create_access_list(rpc, &view, args)
    });
    heavy(module, "eth_simulateV1", |rpc, view, args| simulate::simulate(rpc, &view, args));
}
