//! The namespace `testing`: for tests of clients, on nodes that other machines cannot reach.

use crate::{RpcContext, RpcError, args::register_heavy};
use jsonrpsee::{Methods, RpcModule};
use retrie_engine::{EngineApiError, EngineError, TestBlock};

/// The methods of this namespace.
pub(crate) fn methods(context: &RpcContext) -> Methods {
    let mut module = RpcModule::new(context.clone());
    register_heavy(&mut module, "testing_buildBlockV1", |rpc, _, args| {
        let block = TestBlock {
            parent: args.hash()?,
            attributes: args.required()?,
            transactions: args.optional()?,
            extra_data: args.optional()?,
        };
        block.build(&rpc.live, rpc.pool()?).map_err(|error| match error {
            EngineApiError::Engine(EngineError::Build { reason }) => RpcError::Rejected(reason),
            error => error.into(),
        })
    });
    module.into()
}
