//! `debug_setHead`: rewinds the chain.

use crate::{MethodParams, RpcContext, RpcError, RpcResult, args::register_async};
use alloy_primitives::U64;
use jsonrpsee::RpcModule;
use retrie_engine::{DevError, EngineError};

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    let number = |args: &mut MethodParams<'_>| args.required::<U64>();
    register_async(module, "debug_setHead", number, |rpc, number| async move {
        set_head(&rpc, number.to()).await
    });
}

/// Makes block `number` the head, even below the safe and the finalized block.
async fn set_head(rpc: &RpcContext, number: u64) -> RpcResult<()> {
    let engine = rpc.engine.as_ref();
    let engine = engine.ok_or_else(|| rejected("this node cannot rewind its chain"))?;
    let hash = rpc
        .run_read(move |view| {
            if number >= view.head().number {
                return Err(rejected("not allowed to rewind to a future block"));
            }
            view.canonical_hash(number)?
                .ok_or_else(|| rejected(format!("block #{number} not found")))
        })
        .await?;
    // A dev chain must not seal a block on the old head at the same time.
    let moved = match &rpc.dev {
        Some(dev) => dev.chain.set_head(hash).await,
        None => engine.set_head(hash).await.map_err(DevError::from),
    };
    moved.map_err(|error| match error {
        DevError::Engine(EngineError::Pipeline(error)) => error.into(),
        error => rejected(error.to_string()),
    })
}

fn rejected(message: impl Into<String>) -> RpcError {
    RpcError::Rejected(message.into())
}
