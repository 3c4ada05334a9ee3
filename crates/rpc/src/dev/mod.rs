//! Tools for dev chains, under the names of Hardhat and anvil: the namespaces `evm`, `hardhat`,
//! `anvil` and `personal`.
//!
//! A node serves them only with `--dev`, on every transport that only this machine can reach,
//! whatever namespaces are selected: a client that may call them controls the chain.

mod tools;

use crate::RpcContext;
use jsonrpsee::Methods;

/// The namespaces and their methods; none without a dev chain.
pub(crate) fn namespaces(context: &RpcContext) -> Vec<(&'static str, Methods)> {
    match &context.dev {
        Some(dev) => tools::namespaces(context, dev),
        None => Vec::new(),
    }
}
