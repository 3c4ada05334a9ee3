//! The namespace `debug`: raw chain data, and traces of past and hypothetical transactions.
//!
//! Traces are those of the standard tracers (struct logger, `callTracer`, `prestateTracer`,
//! `4byteTracer`, `flatCallTracer`, `muxTracer`, `noopTracer` and more), through revm-inspectors.
//! Past transactions are replayed on the state before their block, by the rules of that block and
//! after everything that came before them in it.

mod duration;
mod raw;
pub(crate) mod replay;
mod trace_call;
mod trace_past;
mod tracer;
mod witness;

use crate::{Args, RpcContext, RpcError, RpcResult};
use alloy_primitives::B256;
use jsonrpsee::{Methods, RpcModule};

/// The methods of this namespace.
pub(crate) fn methods(context: &RpcContext) -> Methods {
    let mut module = RpcModule::new(context.clone());
    raw::register(&mut module);
    trace_past::register(&mut module);
    trace_call::register(&mut module);
    witness::register(&mut module);
    module.into()
}

/// The next parameter, a hash. As in geth it must start with `0x`.
fn hash(args: &mut Args<'_>) -> RpcResult<B256> {
    let text: String = args.required()?;
    let invalid = |why: String| RpcError::InvalidParams(format!("invalid hash {text:?}: {why}"));
    if !text.starts_with("0x") {
        return Err(invalid("hex string without 0x prefix".into()));
    }
    text.parse().map_err(|error: alloy_primitives::hex::FromHexError| invalid(error.to_string()))
}
