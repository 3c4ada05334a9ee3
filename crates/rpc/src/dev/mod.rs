//! Tools for dev chains, under the names that Hardhat and anvil give them: the namespaces `evm`,
//! `hardhat`, `anvil` and `personal`.
//!
//! A node serves them with `--dev` alone, on every transport that only this machine can reach, whatever
//! namespaces are named: whoever may call them owns the chain.

mod tools;
mod wallet;

pub(crate) use wallet::{Wallet, unsigned};

use crate::RpcContext;
use jsonrpsee::Methods;
use retrie_engine::DevChain;

/// A dev chain as its tools see it.
#[derive(Clone, Debug)]
pub struct DevNode {
    /// The chain.
    pub chain: DevChain,
    /// What `web3_clientVersion` answers (`--dev.client-version`): tools decide by it which methods
    /// they may call.
    pub client_version: String,
    /// Whether a transaction that is sealed at once is answered once it is (`--dev.wait`).
    pub waits: bool,
}

/// The namespaces and their methods; none if this is no dev chain.
pub(crate) fn namespaces(context: &RpcContext) -> Vec<(&'static str, Methods)> {
    match &context.dev {
        Some(dev) => tools::namespaces(context, dev),
        None => Vec::new(),
    }
}
