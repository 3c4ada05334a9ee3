//! Executes past blocks again.

mod clock;
mod derived;
mod proposed_roots;
mod recording;
mod stored;

pub(crate) use clock::ExecutionClock;
pub(crate) use derived::{access_list, execution_requests, intermediate_roots};
pub(crate) use proposed_roots::ProposedRoots;
pub(crate) use recording::{TraceBudget, TraceRecorder};
pub(crate) use stored::StoredOutcome;

use crate::{
    RpcContext, RpcError, RpcResult,
    geth_errors::{TransactFailure, block_failure},
};
use retrie_chainspec::{ChainSpec, primitives::RecoveredBlock};
use retrie_engine::{LiveView, PostState};
use retrie_execution::{EvmSimulation, InspectorContext};
use revm::{
    context::{
        TxEnv,
        result::{HaltReason, ResultAndState},
    },
    inspector::{Inspector, NoOpInspector},
};

/// Which transactions of a block are inspected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplayScope {
    /// All of them.
    All,
    /// The transaction at this index. Those before it are executed, those after it are not.
    Only(usize),
}

/// A transaction that was executed again; its changes are not committed yet.
pub(crate) struct ReplayedTransaction<'r, 'a, I> {
    /// Index in its block.
    pub(crate) index: usize,
    /// The transaction as the EVM executed it.
    pub(crate) tx: TxEnv,
    /// The inspector of the execution.
    pub(crate) inspector: I,
    /// The outcome of the execution.
    pub(crate) outcome: &'r ResultAndState<HaltReason>,
    /// Number of logs of the block before the transaction.
    pub(crate) logs_before: usize,
    /// The state before the transaction.
    pub(crate) simulation: &'r mut EvmSimulation<'a>,
}

/// Replays transactions of `block`, each with its own inspector, and returns the results of `show`.
pub(crate) fn replay<I, T>(
    rpc: &RpcContext,
    view: &LiveView,
    block: &RecoveredBlock,
    which: ReplayScope,
    clock: ExecutionClock,
    mut inspector: impl FnMut() -> RpcResult<I>,
    mut show: impl FnMut(ReplayedTransaction<'_, '_, I>) -> RpcResult<T>,
) -> RpcResult<Vec<T>>
where
    I: TraceRecorder + for<'a> Inspector<InspectorContext<'a>>,
{
    if block.number == 0 {
        return Err(RpcError::Rejected("genesis is not traceable".into()));
    }
    let state = view.state_before(block)?;
    let spec = rpc.live.spec().for_header(block.header());
    let (first, end) = match which {
        ReplayScope::All => (0, block.body().transactions.len()),
        ReplayScope::Only(index) => (index, index + 1),
    };
    let mut stored = StoredOutcome::of(view, block)?;
    let (mut simulation, mut logs_before) =
        before(&spec, block, first, &state, clock, &mut stored)?;
    let mut recording = TraceBudget::new(rpc.limits.max_response_size);
    let mut shown = Vec::with_capacity(end - first);
    for index in first..end {
        let mut inspector = inspector()?;
        simulation.set_deadline(clock.deadline());
        let replayed = simulation.replay(block, index, Some(&mut recording.watch(&mut inspector)));
        recording.check()?;
        let (tx, outcome) = replayed.map_err(|error| failure(block, index, error, clock))?;
        let checked = stored.check(index, &outcome.result);
        let simulated = &mut simulation;
        let trace = show(ReplayedTransaction {
            index,
            tx,
            inspector,
            outcome: &outcome,
            logs_before,
            simulation: simulated,
        });
        // A script that fails ends the execution, whose outcome then differs from the stored one.
        shown.push(trace?);
        checked?;
        logs_before += logs_of(&outcome);
        if index + 1 < end {
            simulation.commit(outcome.state).map_err(TransactFailure::database)?;
        }
    }
    stored.check_sum()?;
    Ok(shown)
}

/// The state before transaction `index` of `block`, in the block's environment. `state` is that of
/// the parent.
pub(crate) fn state_before<'a>(
    rpc: &RpcContext,
    spec: &'a ChainSpec,
    block: &RecoveredBlock,
    index: usize,
    state: &'a PostState,
) -> RpcResult<EvmSimulation<'a>> {
    let clock = ExecutionClock::new(rpc.limits.evm_timeout);
    let mut stored = StoredOutcome::of(state.view(), block)?;
    before(spec, block, index, state, clock, &mut stored).map(|(simulation, _)| simulation)
}

/// As [`state_before`], and the number of logs before the transaction. Checks the outcomes against
/// `stored`.
fn before<'a>(
    spec: &'a ChainSpec,
    block: &RecoveredBlock,
    index: usize,
    state: &'a PostState,
    clock: ExecutionClock,
    stored: &mut StoredOutcome<'_>,
) -> RpcResult<(EvmSimulation<'a>, usize)> {
    let mut logs = 0;
    let mut simulation =
        EvmSimulation::of_block(spec, block, state.input()).map_err(block_failure)?;
    for index in 0..index {
        simulation.set_deadline(clock.deadline());
        let (_, outcome) = simulation
            .replay::<NoOpInspector>(block, index, None)
            .map_err(|error| failure(block, index, error, clock))?;
        stored.check(index, &outcome.result)?;
        logs += logs_of(&outcome);
        simulation.commit(outcome.state).map_err(TransactFailure::database)?;
    }
    simulation.set_deadline(clock.deadline());
    Ok((simulation, logs))
}

fn logs_of(outcome: &ResultAndState<HaltReason>) -> usize {
    if outcome.result.is_success() { outcome.result.logs().len() } else { 0 }
}

fn failure(
    block: &RecoveredBlock,
    index: usize,
    error: retrie_execution::TransactError,
    clock: ExecutionClock,
) -> RpcError {
    match error {
        retrie_execution::TransactError::TimedOut => {
            RpcError::Rejected(format!("execution timeout (timeout = {:?})", clock.each()))
        }
        retrie_execution::TransactError::Database(error) => TransactFailure::database(error),
        error => RpcError::Internal(format!(
            "transaction {index} of block {} cannot be executed again: {error}",
            block.number
        )),
    }
}
