//! Past blocks, executed again.

use crate::{
    RpcContext, RpcError, RpcResult,
    call::{TransactFailure, block_failure},
};
use retrie_chainspec::{ChainSpec, primitives::RecoveredBlock};
use retrie_engine::{BlockState, View};
use retrie_execution::{BlockContext, Simulation};
use revm::{
    context::{
        TxEnv,
        result::{HaltReason, ResultAndState},
    },
    inspector::{Inspector, NoOpInspector},
};
use std::time::{Duration, Instant};

/// Which transactions of a block are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// All of them.
    All,
    /// The one of this index. Those before it are executed, those after it are not.
    Only(usize),
}

/// A transaction that was executed again; its changes are not yet part of the state.
pub(crate) struct Replayed<'r, 'a, I> {
    /// Index in its block.
    pub(crate) index: usize,
    /// What the EVM was given.
    pub(crate) tx: TxEnv,
    /// Who looked on.
    pub(crate) inspector: I,
    /// What came out.
    pub(crate) outcome: &'r ResultAndState<HaltReason>,
    /// The state before it.
    pub(crate) simulation: &'r mut Simulation<'a>,
}

/// Replays transactions of `block`, each before the eyes of an inspector of its own, and gives what
/// `show` makes of them. Each may take `time`.
pub(crate) fn replay<I, T>(
    rpc: &RpcContext,
    view: &View,
    block: &RecoveredBlock,
    which: Which,
    time: Duration,
    mut inspector: impl FnMut() -> RpcResult<I>,
    mut show: impl FnMut(Replayed<'_, '_, I>) -> RpcResult<T>,
) -> RpcResult<Vec<T>>
where
    I: for<'a> Inspector<BlockContext<'a>>,
{
    if block.number == 0 {
        return Err(RpcError::Rejected("genesis is not traceable".into()));
    }
    let state = view.state(&block.parent_hash)?;
    let spec = rpc.live.spec().for_header(block.header());
    let (first, end) = match which {
        Which::All => (0, block.body().transactions.len()),
        Which::Only(index) => (index, index + 1),
    };
    let mut simulation = before(&spec, block, first, &state, time)?;
    let mut shown = Vec::with_capacity(end - first);
    for index in first..end {
        let mut inspector = inspector()?;
        simulation.set_deadline(Instant::now() + time);
        let (tx, outcome) = simulation
            .replay(block, index, Some(&mut inspector))
            .map_err(|error| failure(block, index, error, time))?;
        let simulated = &mut simulation;
        let replayed = Replayed { index, tx, inspector, outcome: &outcome, simulation: simulated };
        shown.push(show(replayed)?);
        if index + 1 < end {
            simulation.commit(outcome.state).map_err(TransactFailure::database)?;
        }
    }
    Ok(shown)
}

/// The state before transaction `index` of `block`, in the block's environment, for calls: `state`
/// is that of the parent.
pub(crate) fn state_before<'a>(
    rpc: &RpcContext,
    spec: &'a ChainSpec,
    block: &RecoveredBlock,
    index: usize,
    state: &'a BlockState,
) -> RpcResult<Simulation<'a>> {
    before(spec, block, index, state, rpc.limits.evm_timeout)
}

fn before<'a>(
    spec: &'a ChainSpec,
    block: &RecoveredBlock,
    index: usize,
    state: &'a BlockState,
    time: Duration,
) -> RpcResult<Simulation<'a>> {
    let mut simulation = Simulation::of_block(spec, block, state.input()).map_err(block_failure)?;
    for index in 0..index {
        simulation.set_deadline(Instant::now() + time);
        let (_, outcome) = simulation
            .replay::<NoOpInspector>(block, index, None)
            .map_err(|error| failure(block, index, error, time))?;
        simulation.commit(outcome.state).map_err(TransactFailure::database)?;
    }
    simulation.set_deadline(Instant::now() + time);
    Ok(simulation)
}

fn failure(
    block: &RecoveredBlock,
    index: usize,
    error: retrie_execution::TransactError,
    time: Duration,
) -> RpcError {
    match error {
        retrie_execution::TransactError::TimedOut => {
            RpcError::Rejected(format!("execution timeout (timeout = {time:?})"))
        }
        retrie_execution::TransactError::Database(error) => TransactFailure::database(error),
        error => RpcError::Internal(format!(
            "transaction {index} of block {} cannot be executed again: {error}",
            block.number
        )),
    }
}
