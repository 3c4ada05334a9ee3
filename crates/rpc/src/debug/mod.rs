//! The namespace `debug`: raw chain data, state dumps, process statistics, and traces of past and
//! hypothetical transactions.
//!
//! The tracers are geth's: struct logger, `callTracer`, `prestateTracer`, `4byteTracer`,
//! `flatCallTracer`, `muxTracer`, `noopTracer` and more ([`tracers`]). A past transaction is
//! replayed on the state before its block, by the rules of that block and after the transactions
//! before it.

mod dump;
mod duration;
mod intermediate_roots;
#[cfg(feature = "js-tracer")]
mod javascript;
mod migration;
mod process;
mod raw;
mod set_head;
mod state_range;
mod trace_call;
mod trace_chain;
mod trace_past;
mod tracer;
mod tracers;
mod witness;

#[cfg(feature = "graphql")]
pub(crate) use raw::raw_receipts;
pub(crate) use witness::headers;

use crate::{RpcContext, RpcError, RpcResult, args::register_quick};
use jsonrpsee::{Methods, RpcModule};

/// The chain config in the form of a genesis file.
pub(crate) fn chain_config(rpc: &RpcContext) -> RpcResult<serde_json::Value> {
    rpc.live.spec().config_json().map_err(|error| RpcError::Rejected(error.to_string()))
}

/// The methods of this namespace.
pub(crate) fn methods(context: &RpcContext) -> Methods {
    let mut module = RpcModule::new(context.clone());
    register_quick(&mut module, "debug_chainConfig", |rpc, _| chain_config(rpc));
    dump::register(&mut module);
    intermediate_roots::register(&mut module);
    migration::register(&mut module);
    process::register(&mut module);
    raw::register(&mut module);
    set_head::register(&mut module);
    state_range::register(&mut module);
    trace_past::register(&mut module);
    trace_call::register(&mut module);
    trace_chain::register(&mut module);
    witness::register(&mut module);
    module.into()
}
