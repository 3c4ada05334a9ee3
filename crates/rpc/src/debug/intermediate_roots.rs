//! `debug_intermediateRoots`: the state root after each transaction of a block.
//!
//! The client knows no trie. So the block is executed again, and the changes of each transaction
//! become a proposal of the stores on top of the one before; none is committed. The first one has
//! the system calls before the transactions too. Rewards, withdrawals and system calls after them
//! are in none, so the last root is not that of the header.

use crate::{
    RpcContext, RpcError, RpcResult,
    args::register_heavy,
    geth_errors::block_failure,
    replay::{ExecutionClock, ProposedRoots, StoredOutcome},
};
use alloy_primitives::B256;
use alloy_rpc_types_trace::geth::GethDebugTracingOptions;
use jsonrpsee::RpcModule;
use retrie_chainspec::primitives::RecoveredBlock;
use retrie_engine::LiveView;
use retrie_execution::execute_block_with_observer;

pub(super) fn register(module: &mut RpcModule<RpcContext>) {
    register_heavy(module, "debug_intermediateRoots", |rpc, view, args| {
        let hash = args.hash()?;
        // As in geth, none of the options changes the answer.
        args.optional_object::<GethDebugTracingOptions>()?;
        let Some(block) = view.block(&hash)? else {
            let bad = rpc.node.bad_blocks().into_iter().find(|block| block.hash() == hash);
            let unknown = || RpcError::Rejected(format!("block {hash} not found"));
            let bad = bad.ok_or_else(unknown)?;
            // The roots up to the transaction that cannot be executed.
            return roots_after_transactions(rpc, &view, &bad).map(|(roots, _)| roots);
        };
        let (roots, executed) = roots_after_transactions(rpc, &view, &block)?;
        executed.map(|()| roots)
    });
}

/// The roots after the transactions of a block, and whether all of the block was executed.
fn roots_after_transactions(
    rpc: &RpcContext,
    view: &LiveView,
    block: &RecoveredBlock,
) -> RpcResult<(Vec<B256>, RpcResult<()>)> {
    if block.number == 0 {
        return Err(RpcError::Rejected("genesis is not traceable".into()));
    }
    let states = rpc.live.chain().states();
    if !states.stores().any(|(store, _)| store.backend().profile().proofs) {
        return Err(RpcError::Rejected(format!(
            "the store {} has no state root: use another --state-backend, or --referee mpt beside it",
            states.own().identity().name
        )));
    }
    let base = view.state_before(block)?;
    let mut proposed = ProposedRoots::new(&base);
    // Without transactions too, the parent's state must be one that can be extended.
    drop(proposed.begin()?);
    let clock = ExecutionClock::new(rpc.limits.evm_timeout);
    let mut roots = Vec::with_capacity(block.body().transactions.len());
    let mut failed = None;
    let spec = rpc.live.spec().for_header(block.header());
    let executed = execute_block_with_observer(&spec, block, base.input(), &mut |_, delta| {
        let root = match clock.is_over() {
            false => proposed
                .begin()
                .and_then(|session| proposed.finish(session, &delta, block.timestamp)),
            true => Err(RpcError::Rejected("execution timeout".into())),
        };
        match root {
            Ok(root) => {
                roots.push(root);
                Ok(())
            }
            Err(error) => {
                let shown = error.to_string();
                failed = Some(error);
                Err(shown.into())
            }
        }
    });
    if let Some(error) = failed {
        return Err(error);
    }
    let executed = match executed {
        Ok(outcome) => StoredOutcome::of(view, block)?.check_block(&outcome),
        Err(error) => Err(block_failure(error)),
    };
    Ok((roots, executed))
}
