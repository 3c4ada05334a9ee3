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
mod layered;
mod overrides;
mod request;
mod roots;
mod simulate;
mod transfers;
mod words;

pub(crate) use overrides::{apply_block_overrides, apply_state_overrides, header_of_call};
pub(crate) use request::{CallRules, prepare};
pub(crate) use words::{TransactFailure, block_failure};
use words::{halt_words, revert_words};

use crate::{RpcContext, RpcResult, args::heavy};
use jsonrpsee::RpcModule;
use retrie_chainspec::{ChainSpec, primitives::Header};
use retrie_engine::BlockState;
use retrie_execution::Simulation;
use std::time::Instant;

/// Adds the methods of this module, which belong to the namespace `eth`.
pub(crate) fn register(module: &mut RpcModule<RpcContext>) {
    heavy(module, "eth_call", |rpc, view, args| eth_call::call(rpc, &view, args));
    heavy(module, "eth_callMany", |rpc, view, args| eth_call::call_many(rpc, &view, args));
    heavy(module, "eth_estimateGas", |rpc, view, args| estimate::estimate_gas(rpc, &view, args));
    heavy(module, "eth_createAccessList", |rpc, view, args| {
        access_list::create_access_list(rpc, &view, args)
    });
    heavy(module, "eth_simulateV1", |rpc, view, args| simulate::simulate(rpc, &view, args));
}

/// A simulation in the environment of `header` on `state`, for calls of strangers: it ends when the
/// node's time for calls is over.
pub(crate) fn simulation<'a>(
    rpc: &RpcContext,
    spec: &'a ChainSpec,
    header: &Header,
    state: &'a BlockState,
) -> RpcResult<Simulation<'a>> {
    let mut simulation = Simulation::new(spec, header, state.input());
    let base = state.header();
    if header.number != base.number {
        // The block before is not the parent of the one that lends its environment.
        let before = header.number.saturating_sub(1);
        let hash = retrie_execution::BlockHashes::block_hash(state, before)?;
        simulation.set_block_hash(before, hash.unwrap_or_default());
    }
    simulation.set_deadline(Instant::now() + rpc.limits.evm_timeout);
    Ok(simulation)
}
