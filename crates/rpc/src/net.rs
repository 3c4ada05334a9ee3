//! The namespace `net`.

use crate::{RpcContext, args::register_quick};
use alloy_primitives::U64;
use jsonrpsee::{Methods, RpcModule};

/// The methods of this namespace.
pub(crate) fn methods(context: &RpcContext) -> Methods {
    let mut module = RpcModule::new(context.clone());
    register_quick(&mut module, "net_version", |rpc, _| Ok(rpc.live.spec().chain_id().to_string()));
    register_quick(&mut module, "net_listening", |rpc, _| {
        Ok(rpc.node.network().is_some_and(|network| network.address().listens.is_some()))
    });
    register_quick(&mut module, "net_peerCount", |rpc, _| {
        Ok(U64::from(rpc.node.network().map_or(0, |network| network.peer_count())))
    });
    module.into()
}
