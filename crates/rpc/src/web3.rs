//! The namespace `web3`.

use crate::args::quick;
use alloy_primitives::{Bytes, keccak256};
use jsonrpsee::{Methods, RpcModule};

/// Name and version of this client, with the system it was built for.
pub(crate) fn client_version() -> String {
    let (version, os, arch) =
        (env!("CARGO_PKG_VERSION"), std::env::consts::OS, std::env::consts::ARCH);
    format!("retrie/v{version}/{os}-{arch}")
}

/// The methods of this namespace.
pub(crate) fn methods() -> Methods {
    let mut module = RpcModule::new(());
    quick(&mut module, "web3_clientVersion", |(), _| Ok(client_version()));
    quick(&mut module, "web3_sha3", |(), args| Ok(keccak256(args.required::<Bytes>()?)));
    module.into()
}
