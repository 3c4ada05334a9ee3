//! The namespace `web3`.

use crate::{RpcContext, args::register_quick};
use alloy_primitives::{Bytes, keccak256};
use jsonrpsee::{Methods, RpcModule};

/// Name and version of this client, with its operating system and architecture.
pub fn client_version() -> String {
    let (version, os, arch) =
        (env!("CARGO_PKG_VERSION"), std::env::consts::OS, std::env::consts::ARCH);
    format!("retrie/v{version}/{os}-{arch}")
}

/// The methods of this namespace.
pub(crate) fn methods(context: &RpcContext) -> Methods {
    let mut module = RpcModule::new(context.clone());
    register_quick(&mut module, "web3_clientVersion", |rpc, _| {
        let of_dev = rpc.dev.as_ref().map(|dev| dev.client_version.clone());
        Ok(of_dev.unwrap_or_else(client_version))
    });
    register_quick(&mut module, "web3_sha3", |_, args| Ok(keccak256(args.required::<Bytes>()?)));
    module.into()
}
