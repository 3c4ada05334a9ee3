//! Tools for dev chains, under the names that Hardhat and anvil give them: the namespaces `evm`,
//! `hardhat`, `anvil` and `personal`.
//!
//! A node serves them with `--dev` alone, on every transport that only this machine can reach, whatever
//! namespaces are named: whoever may call them owns the chain.

mod tools;

use crate::RpcContext;
use jsonrpsee::Methods;

/// The namespaces and their methods; none if this is no dev chain.
pub(crate) fn namespaces(context: &RpcContext) -> Vec<(&'static str, Methods)> {
    match &context.dev {
        Some(dev) => tools::namespaces(context, dev),
        None => Vec::new(),
    }
}
