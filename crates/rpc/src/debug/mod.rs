//! The namespace `debug`: raw chain data, whole states, the process, and traces of past and
//! hypothetical transactions.
//!
//! Traces are those of the standard tracers (struct logger, `callTracer`, `prestateTracer`,
//! `4byteTracer`, `flatCallTracer`, `muxTracer`, `noopTracer` and more), which are geth's ([`tracers`]).
//! Past transactions are replayed on the state before their block, by the rules of that block and
//! after everything that came before them in it.

mod dump;
mod duration;
#[cfg(feature = "js-tracer")]
mod javascript;
mod process;
mod raw;
mod set_head;
mod state_range;
mod trace_call;
mod trace_past;
mod tracer;
mod tracers;
mod witness;

use crate::{RpcContext, RpcError, RpcResult, args::quick};
use jsonrpsee::{Methods, RpcModule};

/// The chain's forks and parameters, as genesis files have them.
pub(crate) fn chain_config(rpc: &RpcContext) -> RpcResult<serde_json::Value> {
    rpc.live.spec().config_json().map_err(|error| RpcError::Rejected(error.to_string()))
}

/// The methods of this namespace.
pub(crate) fn methods(context: &RpcContext) -> Methods {
    let mut module = RpcModule::new(context.clone());
    quick(&mut module, "debug_chainConfig", |rpc, _| chain_config(rpc));
    dump::register(&mut module);
    process::register(&mut module);
    raw::register(&mut module);
    set_head::register(&mut module);
    state_range::register(&mut module);
    trace_past::register(&mut module);
    trace_call::register(&mut module);
    witness::register(&mut module);
    module.into()
}
